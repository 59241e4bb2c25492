#include "shiplap/report/timed_plan.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "shiplap/report/trace_page.h"

namespace shiplap::report {
namespace {

std::string detail_line(const TimedPlan& plan) {
  return plan.detail.empty() ? "" : plan.detail + "\n";
}

Page page_of(const TimedPlan& plan, TraceReportText text) {
  text.name = plan.name;
  text.mesh = plan.mesh;
  return trace_page(plan.trace, text);
}

}  // namespace

std::string prediction_note(const std::string& machine, const std::vector<std::string>& conditions,
                            bool shares_links) {
  return fmt::format("Predicted for {}{}{}{}.", machine, conditions.empty() ? "" : ", with ",
                     fmt::join(conditions, ", "),
                     shares_links ? "" : ", without contention between transfers");
}

std::string measurement_note(const std::string& backend) {
  return fmt::format(
      "Measured on {}. Communication begins when the last rank that takes part has entered it; "
      "before, ranks wait.",
      backend);
}

// ---------------------------------------------------------------- simulate

std::string simulation_text(const SimulatedPlan& found, const TextStyle& style) {
  const TimedPlan& plan = found.plan;
  return styled(plan.title, kBold, style.colour) +
         fmt::format(", predicted for {}{}{}\n{}", plan.where,
                     found.conditions.empty() ? "" : ", with ", fmt::join(found.conditions, ", "),
                     detail_line(plan)) +
         (found.problems.empty()
              ? "\n" + show_trace(plan.trace, found.summary, style, plan.mesh, found.scale)
              : "cannot be executed\n");
}

Json simulation_json(const SimulatedPlan& found) {
  Json conditions = Json::array();
  for (const std::string& condition : found.conditions) conditions.push(condition);
  Json json = Json::object({{"schema", "shiplap.simulate/1"},
                            {"name", found.plan.name},
                            {"hardware", found.plan.where},
                            {"conditions", std::move(conditions)}});
  const Json of_trace = trace_to_json(found.plan.trace, found.summary, found.scale);
  for (const auto& [key, value] : of_trace.as_object()) json.set(key, value);
  json.set("warnings", to_json(found.warnings));
  std::vector<Diagnostic> problems = found.problems;
  if (found.memory) problems.push_back(*found.memory);
  return json.set("problems", to_json(problems));
}

Page simulation_page(const SimulatedPlan& found, const std::string& command) {
  std::vector<std::string> assumed;
  if (!found.plan.detail.empty()) assumed.push_back(found.plan.detail + ".");
  assumed.push_back(prediction_note(found.plan.where, found.conditions, found.shares_links));
  return page_of(found.plan,
                 {.assumed = std::move(assumed), .command = command, .scale = found.scale});
}

std::string folding_text(const trace::Trace& trace) {
  if (trace.representatives.empty()) return "";
  std::int64_t own = 0;
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank)
    own += trace.is_representative(rank);
  return fmt::format("simulated {} of {} ranks; the others are alike\n", with_separators(own),
                     with_separators(std::ssize(trace.ranks)));
}

// ---------------------------------------------------------------- run

std::string execution_head(const TimedPlan& plan, const TextStyle& style) {
  return styled(plan.title, kBold, style.colour) +
         fmt::format(", run on {}\n{}\n{:>6}  {:>9}  {:>9}\n", plan.where, detail_line(plan),
                     "step", "loss", "time");
}

std::string execution_step(std::int64_t number, double loss, Seconds time) {
  return fmt::format("{:>6}  {:>9.6f}  {:>9}\n", number, loss, to_string(time));
}

std::string execution_end(const ExecutedPlan& found) {
  std::string text;
  if (found.plan.trace.clock_uncertainty > Seconds{0}) {
    text = fmt::format("\nclocks of the ranks aligned to within {}\n",
                       to_string(found.plan.trace.clock_uncertainty));
  }
  if (found.unequal == 0) return text;
  return text + fmt::format("\nmismatch: {} weight values differ between ranks\n",
                            with_separators(found.unequal));
}

Json execution_json(const ExecutedPlan& found) {
  Json losses = Json::array();
  Json times = Json::array();
  for (const double loss : found.losses) losses.push(loss);
  for (const Seconds time : found.times) times.push(time.value);
  Json json = Json::object({{"schema", "shiplap.run/1"},
                            {"name", found.plan.name},
                            {"backend", found.plan.where},
                            {"ranks", found.plan.mesh.ranks()}});
  json.set("loss", std::move(losses)).set("step_s", std::move(times));
  const trace::Trace& trace = found.plan.trace;
  json.set("clock_uncertainty_s",
           trace.ranks.empty() ? Json() : Json(trace.clock_uncertainty.value));
  return json.set("unequal_weights", found.unequal);
}

Page execution_page(const ExecutedPlan& found, const std::string& command) {
  return page_of(found.plan, {.assumed = {measurement_note(found.plan.where)}, .command = command});
}

}  // namespace shiplap::report
