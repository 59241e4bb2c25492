#include "shiplap/cli/overlap_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cli/table.h"

namespace shiplap::cli {
namespace {

constexpr std::size_t kMostSteps = 16;  // in the terminal

std::string ratio(double value) { return fmt::format("{:.2f}", value); }

// ---- steps

std::string rows_text(const OverlapStep& step) {
  if (step.rows == 0) return "";
  if (step.rows == 1) return std::to_string(step.first_row);
  return fmt::format("{}-{}", step.first_row, step.first_row + step.rows - 1);
}

std::string what_text(const TimedStep& timed) {
  std::string text(timed.step.word);
  if (timed.peer < 0) return text;
  const bool sends = timed.step.kind == OverlapStep::Kind::send;
  return text + fmt::format(" {} {}", sends ? "to" : "from", timed.peer);
}

// Of many, the first and the last.
std::string show_steps(const plan::Plan& plan, const OverlapPrediction& prediction,
                       const Context& context) {
  const int rank = last_rank(prediction.trace);
  const std::vector<TimedStep> steps = timeline(plan, prediction.trace, rank);
  const TimeColumn times(prediction.times.overlapped);
  Table table({{.title = times.title("start"), .align = Align::right, .worth = 5},
               {.title = times.title("end"), .align = Align::right, .worth = 5},
               {.title = "what", .worth = 5},
               {.title = "chunk", .worth = 5},
               {.title = "rows", .worth = 2},
               {.title = "bytes", .align = Align::right, .worth = 1, .optional = true}});
  const std::size_t head = steps.size() <= kMostSteps ? steps.size() : kMostSteps * 2 / 3;
  const std::size_t tail =
      steps.size() <= kMostSteps ? steps.size() : steps.size() - kMostSteps / 3;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (k == head) table.add({"..", "", fmt::format("{} more", tail - head), "", "", ""});
    if (k >= head && k < tail) continue;
    const TimedStep& one = steps[k];
    table.add({times.cell(one.start), times.cell(one.end), what_text(one), one.step.name,
               rows_text(one.step), one.bytes.count > 0 ? to_string(one.bytes) : ""});
  }
  return fmt::format("rank {}, which ends last:\n", rank) +
         table.text(context.width(), context.out.colour);
}

Json steps_json(const plan::Plan& plan, const OverlapPrediction& prediction) {
  Json all = Json::array();
  for (const TimedStep& one : timeline(plan, prediction.trace, last_rank(prediction.trace))) {
    Json step = Json::object({{"what", std::string(one.step.word)},
                              {"chunk", one.step.name},
                              {"first_row", one.step.first_row},
                              {"rows", one.step.rows},
                              {"start_s", one.start.value},
                              {"end_s", one.end.value}});
    if (one.peer >= 0) step.set("peer", std::int64_t{one.peer});
    if (one.bytes.count > 0) step.set("bytes", one.bytes.count);
    all.push(std::move(step));
  }
  return all;
}

// ---- numbers

Json times_json(const OverlapTimes& times) {
  Json json = Json::object({{"product_s", times.product.value},
                            {"communication_s", times.communication.value},
                            {"serial_s", times.serial.value},
                            {"overlapped_s", times.overlapped.value},
                            {"least_s", times.least().value},
                            {"overlapped_over_serial", times.of_serial()},
                            {"least_over_overlapped", times.least_of_it()}});
  const std::optional<double> hidden = times.hidden();
  return json.set("hidden", hidden ? Json(*hidden) : Json());
}

Json prediction_json(const OverlapPrediction& prediction) {
  Json json = Json::object({{"system", prediction.system}});
  const Json times = times_json(prediction.times);
  for (const auto& [key, value] : times.as_object()) json.set(key, value);
  json.set("product_in_tiles_s", prediction.tiles.value);
  return json.set("method_bound_s", prediction.bound.value);
}

Json measurement_json(const OverlapMeasurement& measured) {
  Json json = Json::object({{"backend", measured.backend},
                            {"progress", measured.polled ? "polled" : "threads"},
                            {"multiplied_by", measured.trial.multiplied_by},
                            {"rounds", std::int64_t{measured.rounds}},
                            {"cores", std::int64_t{measured.cores}}});
  const Json times = times_json(measured.times());
  for (const auto& [key, value] : times.as_object()) json.set(key, value);
  const auto add = [&](const std::string& name, const run::Spread& spread) {
    json.set(name + "_least_s", spread.least.value);
    json.set(name + "_most_s", spread.most.value);
  };
  add("product", measured.trial.product);
  add("communication", measured.trial.communication);
  add("serial", measured.trial.serial);
  add("overlapped", measured.trial.overlapped);
  json.set("largest_difference", measured.trial.difference);
  return json.set("tolerated_difference", measured.trial.tolerance);
}

// "mxfp8 e4m3", "tensor e5m2, coded sums".
std::string form_text(const overlap::Problem& problem) {
  const overlap::Form& form = problem.x;
  return fmt::format("{} {}{}", form.scaling == overlap::Scaling::row ? "tensor" : "mxfp8",
                     form.type == DType::fp8_e5m2 ? "e5m2" : "e4m3",
                     overlap::is_plain(problem.sums) ? "" : ", coded sums");
}

// One column of numbers: all rows of it, in one order.
std::vector<std::string> column_of(const OverlapTimes& times, Seconds bound, Seconds noise = {}) {
  return {to_string(times.product),    to_string(times.communication), to_string(times.serial),
          to_string(times.overlapped), to_string(times.least()),       to_string(bound),
          ratio(times.of_serial()),    ratio(times.least_of_it()),     hidden_text(times, noise)};
}

std::vector<std::string> spread_of(const run::OverlapTrialResult& trial,
                                   Seconds run::Spread::* which) {
  std::vector<std::string> cells;
  for (const run::Spread* spread :
       {&trial.product, &trial.communication, &trial.serial, &trial.overlapped}) {
    cells.push_back(to_string(spread->*which));
  }
  cells.resize(9);
  return cells;
}

}  // namespace

const OverlapPrediction& OverlapView::listed() const {
  if (predicted) return *predicted;
  return drawn();
}

const OverlapPrediction& OverlapView::drawn() const {
  if (calibrated) return *calibrated;
  if (predicted) return *predicted;
  throw InternalError("what is shown was predicted");
}

OverlapTimes OverlapMeasurement::times() const {
  return {.product = trial.product.median,
          .communication = trial.communication.median,
          .serial = trial.serial.median,
          .overlapped = trial.overlapped.median};
}

namespace {
bool is_tapered(const overlap::Problem& problem) { return problem.cut == overlap::Cut::tapered; }
}  // namespace

std::string overlap_name(const overlap::Choice& choice, const overlap::Problem& problem) {
  const std::string chunks = problem.chunks > 1
                                 ? fmt::format(", {} {}chunks on each", problem.chunks,
                                               is_tapered(problem) ? "tapered " : "")
                                 : "";
  return fmt::format("{} on {}{}", to_string(choice), counted(problem.ranks, "rank"), chunks);
}

std::string overlap_shape(const overlap::Problem& problem) {
  std::string text = fmt::format("X {} x {}, W {} x {}, {}", with_separators(problem.rows),
                                 with_separators(problem.depth), with_separators(problem.depth),
                                 with_separators(problem.columns), shiplap::name(problem.type));
  if (!overlap::is_plain(problem.x)) text += ", " + form_text(problem);
  if (problem.groups > 0) text += ", " + counted(problem.groups, "group");
  return text;
}

Json overlap_problem_json(const overlap::Problem& problem) {
  Json json = Json::object({{"m", problem.rows},
                            {"n", problem.columns},
                            {"k", problem.depth},
                            {"element_type", std::string(shiplap::name(problem.type))},
                            {"ranks", std::int64_t{problem.ranks}}});
  if (!overlap::is_plain(problem.x)) {
    json.set("scaling", problem.x.scaling == overlap::Scaling::row ? "tensor" : "mxfp8");
    json.set("fp8", std::string(shiplap::name(problem.x.type)));
    json.set("coded_sums", !overlap::is_plain(problem.sums));
  }
  if (problem.groups > 0) json.set("groups", std::int64_t{problem.groups});
  return json;
}

std::string hidden_text(const OverlapTimes& times, Seconds noise) {
  const std::optional<double> hidden = times.hidden();
  if (hidden && std::min(times.product, times.communication) < noise) return "in the noise";
  return hidden ? fmt::format("{:.0f} %", 100 * *hidden) : "";
}

OverlapNumbers overlap_numbers(const OverlapView& view) {
  const std::vector<std::string> names{"product alone, G",
                                       "communication alone, C",
                                       "one after the other",
                                       "overlapped, T",
                                       "at least, for this G, C: max(G, C)",
                                       "at least, by this method",
                                       "T / one after the other",
                                       "max(G, C) / T",
                                       "hidden: (G + C - T) / min(G, C)"};
  OverlapNumbers numbers{.columns = {""}, .rows = {}};
  for (const std::string& name : names) numbers.rows.push_back({name});
  const auto add = [&](const std::string& title, const std::vector<std::string>& cells) {
    numbers.columns.push_back(title);
    for (std::size_t k = 0; k < cells.size(); ++k) numbers.rows[k].push_back(cells[k]);
  };
  if (view.predicted) {
    add(view.measured ? view.predicted->system : "predicted",
        column_of(view.predicted->times, view.predicted->bound));
  }
  if (view.calibrated) {
    add("from G and C", column_of(view.calibrated->times, view.calibrated->bound));
  }
  if (view.measured) {
    const OverlapTimes times = view.measured->times();
    add("measured",
        column_of(times, method_bound(view.choice, view.problem, times), view.measured->noise()));
    add("least", spread_of(view.measured->trial, &run::Spread::least));
    add("most", spread_of(view.measured->trial, &run::Spread::most));
  }
  return numbers;
}

std::vector<std::string> overlap_warnings(const OverlapView& view) {
  std::vector<std::string> warnings;
  if (!view.measured) return warnings;
  const OverlapMeasurement& measured = *view.measured;
  if (measured.cores > 0 && view.problem.ranks > measured.cores) {
    warnings.push_back(
        fmt::format("{} ranks share {} here: what they compute and what they send take turns, "
                    "so little can be hidden.",
                    view.problem.ranks, counted(measured.cores, "core")));
  }
  if (!measured.is_right()) {
    warnings.push_back(
        fmt::format("The result is wrong: it is {:.2g} of the largest number away from that of "
                    "one after the other, where {:.2g} is explained by rounding.",
                    measured.trial.difference, measured.trial.tolerance));
  }
  return warnings;
}

namespace {

// What was measured, in words.
std::vector<std::string> verdicts(const OverlapView& view, const OverlapMeasurement& measured) {
  const run::OverlapTrialResult& trial = measured.trial;
  std::vector<std::string> said;
  if (view.choice.method != overlap::Method::none) {
    const double share = trial.overlapped.median / trial.serial.median;
    if (trial.overlapped.most < trial.serial.least) {
      said.push_back(fmt::format("Faster than one after the other in every round, by {:.0f} %.",
                                 100 * (1 - share)));
    } else if (trial.overlapped.least > trial.serial.most) {
      said.push_back(fmt::format("Slower than one after the other in every round, by {:.0f} %.",
                                 100 * (share - 1)));
    } else {
      said.emplace_back("Faster in some rounds and slower in others than one after the other.");
    }
  }
  const double parts = trial.product.median.value + trial.communication.median.value;
  const double rest = trial.serial.median.value - parts;
  if (view.choice.type != overlap::Type::all_gather && rest > 0.5 * parts) {
    said.push_back(
        fmt::format("{} of one after the other are neither product nor messages: sums "
                    "and what they are written as.",
                    to_string(Seconds{rest})));
  }
  if (measured.is_right()) {
    said.push_back(
        fmt::format("The result is that of one after the other, within {:.2g} of the "
                    "largest number; {:.2g} is explained by rounding.",
                    trial.difference, trial.tolerance));
  }
  return said;
}

}  // namespace

std::string show_overlap(const OverlapView& view, const Context& context) {
  std::string text = painted(overlap_name(view.choice, view.problem), kBold, context.out.colour) +
                     "\n" + overlap_shape(view.problem);
  if (view.predicted) text += fmt::format("; predicted for {}", view.predicted->system);
  if (view.measured) {
    text +=
        fmt::format("\nmeasured on {}{} in {}; products by {}", view.measured->backend,
                    view.measured->polled ? ", polled," : "",
                    counted(view.measured->rounds, "round"), view.measured->trial.multiplied_by);
  }
  text += "\n\n";
  const OverlapNumbers numbers = overlap_numbers(view);
  std::vector<Column> columns{{.title = "", .worth = 5}};
  for (std::size_t k = 1; k < numbers.columns.size(); ++k) {
    columns.push_back({.title = numbers.columns[k], .align = Align::right, .worth = 5});
  }
  Table table(std::move(columns));
  for (const std::vector<std::string>& row : numbers.rows) table.add(row);
  text += table.text(context.width(), context.out.colour);
  std::vector<std::string> remarks = overlap_warnings(view);
  if (view.measured) {
    for (std::string& verdict : verdicts(view, *view.measured))
      remarks.push_back(std::move(verdict));
  }
  for (const std::string& warning : remarks) {
    text += "\n" + wrapped(warning, 0, static_cast<std::size_t>(context.width())) + "\n";
  }
  if (view.measured) return text;
  const plan::Plan plan = overlap::make_plan(view.choice, view.problem);
  return text + "\n" + show_steps(plan, view.listed(), context);
}

Json overlap_to_json(const OverlapView& view) {
  Json json = Json::object({{"schema", "shiplap.overlap/1"},
                            {"type", std::string(name(view.choice.type))},
                            {"method", std::string(name(view.choice.method))},
                            {"atomic", view.choice.atomic}});
  const Json problem = overlap_problem_json(view.problem);
  for (const auto& [key, value] : problem.as_object()) json.set(key, value);
  json.set("chunks", std::int64_t{view.problem.chunks});
  json.set("cut", is_tapered(view.problem) ? "tapered" : "even");
  if (view.predicted) json.set("predicted", prediction_json(*view.predicted));
  if (view.calibrated) json.set("from_measured_parts", prediction_json(*view.calibrated));
  if (view.measured) json.set("measured", measurement_json(*view.measured));
  const OverlapPrediction& told = view.listed();
  json.set("rank", std::int64_t{last_rank(told.trace)});
  return json.set("steps", steps_json(overlap::make_plan(view.choice, view.problem), told));
}

std::string show_comparison(const OverlapComparison& about, const Context& context) {
  const OverlapCandidate& best = about.candidates.front();
  std::string text =
      painted(fmt::format("{} on {}", name(best.choice.type), counted(about.problem.ranks, "rank")),
              kBold, context.out.colour) +
      fmt::format("\n{}; predicted for {}\n\n", overlap_shape(about.problem), about.system);
  Table table({{.title = "method", .worth = 5},
               {.title = "chunks", .align = Align::right, .worth = 5},
               {.title = "G", .align = Align::right, .worth = 3},
               {.title = "C", .align = Align::right, .worth = 3},
               {.title = "T", .align = Align::right, .worth = 5},
               {.title = "T / serial", .align = Align::right, .worth = 4},
               {.title = "max(G, C) / T", .align = Align::right, .worth = 2},
               {.title = "hidden", .align = Align::right, .worth = 2}});
  for (const OverlapCandidate& each : about.candidates) {
    const bool whole = each.choice.method == overlap::Method::none;
    table.add({fmt::format("{}{}", name(each.choice.method), each.choice.atomic ? ", atomic" : ""),
               whole ? "" : std::to_string(each.chunks), to_string(each.times.product),
               to_string(each.times.communication), to_string(each.times.overlapped),
               ratio(each.times.of_serial()), ratio(each.times.least_of_it()),
               hidden_text(each.times)});
  }
  return text + table.text(context.width(), context.out.colour);
}

Json comparison_to_json(const OverlapComparison& about) {
  Json json = Json::object({{"schema", "shiplap.overlap.compare/1"},
                            {"type", std::string(name(about.candidates.front().choice.type))}});
  const Json problem = overlap_problem_json(about.problem);
  for (const auto& [key, value] : problem.as_object()) json.set(key, value);
  json.set("system", about.system);
  Json all = Json::array();
  for (const OverlapCandidate& each : about.candidates) {
    Json one = Json::object({{"method", std::string(name(each.choice.method))},
                             {"atomic", each.choice.atomic},
                             {"chunks", std::int64_t{each.chunks}}});
    const Json times = times_json(each.times);
    for (const auto& [key, value] : times.as_object()) one.set(key, value);
    all.push(std::move(one));
  }
  return json.set("candidates", std::move(all));
}

}  // namespace shiplap::cli
