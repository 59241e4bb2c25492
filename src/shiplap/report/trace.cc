#include "shiplap/report/trace.h"

#include <fmt/format.h>

#include <cmath>

#include "shiplap/report/table.h"
#include "shiplap/report/trace_page.h"

namespace shiplap::report {
namespace {

// Never prints a negative zero.
std::string percent_text(double part) {
  const double percent = 100 * part;
  return fmt::format("{:.1f} %", std::abs(percent) < 0.05 ? 0 : percent);
}

Json rank_json(std::size_t rank, const trace::RankSummary& summary) {
  return Json::object({{"rank", static_cast<std::int64_t>(rank)},
                       {"computation_s", summary.computation.value},
                       {"communication_s", summary.communication.value},
                       {"exposed_s", summary.exposed.value},
                       {"idle_s", summary.idle.value},
                       {"peak_bytes", summary.peak.count},
                       {"peak_at_s", summary.peak_time.value}});
}

struct Rates {
  double tokens = 0;   // a second
  FlopRate flop;       // of a rank
  double of_peak = 0;  // MFU
};
Rates rates_of(const trace::Summary& summary, const TraceScale& scale) {
  const double step = summary.step_time().value;
  if (step <= 0 || summary.ranks.empty()) return {};
  const FlopRate flop{scale.model_flop / step / static_cast<double>(summary.ranks.size())};
  const double peak = scale.peak.flops_per_second;
  return {.tokens = static_cast<double>(scale.tokens) / step,
          .flop = flop,
          .of_peak = peak > 0 ? flop.flops_per_second / peak : 0};
}
std::string format_mfu(const Rates& rates) {
  return rates.of_peak > 0 ? ", MFU " + percent_text(rates.of_peak) : "";
}
std::string format_tokens(const Rates& rates) {
  return rates.tokens > 0 ? fmt::format("{} tokens/s", with_separators(std::llround(rates.tokens)))
                          : "";
}

}  // namespace

std::string format_throughput(const trace::Summary& summary, const TraceScale& scale) {
  const Rates rates = rates_of(summary, scale);
  const std::string tokens = format_tokens(rates);
  return tokens.empty() ? "" : tokens + format_mfu(rates);
}

std::string format_exposed_axes(const trace::Summary& summary) {
  if (summary.axes.size() < 2) return "";
  std::vector<std::string> parts;
  for (const trace::AxisSummary& axis : summary.axes) {
    const double share = summary.fraction_of_step(axis.exposed);
    if (share >= 0.0005) parts.push_back(fmt::format("{} {}", axis.axes, percent_text(share)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string show_trace(const trace::Trace& trace, const trace::Summary& summary,
                       const TextStyle& style, const plan::Mesh& mesh, const TraceScale& scale) {
  const double step = summary.step_time().value;
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    text += fmt::format("  {:<24} {}\n", label, value);
  };
  const Rates rates = rates_of(summary, scale);
  const bool is_scaled = scale.tokens > 0;
  line("step", to_string(summary.step_time()) + (is_scaled ? ", " + format_tokens(rates) : ""));
  if (is_scaled) {
    line("model FLOPs", to_string(rates.flop) + " on each rank" + format_mfu(rates));
  }
  line("peak memory",
       fmt::format("{}{} on rank {}, {}", to_string(summary.all.peak),
                   scale.capacity.count > 0 ? " of " + to_string(scale.capacity) : "",
                   summary.peak_rank, format_peak_time(summary)));
  if (summary.bubble) line("bubble", percent_text(*summary.bubble));
  const std::string axes = format_exposed_axes(summary);
  line("exposed communication", percent_text(summary.fraction_of_step(summary.all.exposed)) +
                                    (axes.empty() ? "" : fmt::format(" ({})", axes)));
  text += "\n";
  Table table({Column::text("ranks", 9), Column::numbers("computes", 3),
               Column::numbers("communicates", 1), Column::numbers("of it exposed", 4),
               Column::numbers("idle", 2), Column::numbers("peak", 9)});
  constexpr std::size_t kMaxGroupsShown = 16;
  const std::vector<IdenticalRanks> groups = group_identical_ranks(trace);
  for (std::size_t g = 0; g < groups.size() && g < kMaxGroupsShown; ++g) {
    const trace::RankSummary& rank = summary.ranks[groups[g].ranks.front()];
    const auto share = [&](Seconds time) { return percent_text(step > 0 ? time.value / step : 0); };
    const std::string name = name_by_mesh(groups[g].ranks, mesh);
    table.add({name.empty() ? to_string(IndexSet(groups[g].ranks)) : name, share(rank.computation),
               share(rank.communication), share(rank.exposed), share(rank.idle),
               to_string(rank.peak)});
  }
  text += table.text(style);
  if (groups.size() > kMaxGroupsShown) {
    text += fmt::format("and {} more kinds of ranks; --json has all\n",
                        groups.size() - kMaxGroupsShown);
  }
  return text;
}

Json trace_to_json(const trace::Trace& trace, const trace::Summary& summary,
                   const TraceScale& scale) {
  Json json = Json::object({{"ranks", static_cast<std::int64_t>(trace.ranks.size())},
                            {"events", summary.events},
                            {"total_s", summary.total().value},
                            {"step_s", summary.step_time().value},
                            {"step_begin_s", summary.step.begin.value},
                            {"peak_bytes", summary.all.peak.count},
                            {"peak_rank", std::int64_t{summary.peak_rank}},
                            {"peak_at_s", summary.all.peak_time.value}});
  if (scale.tokens > 0) {
    const Rates rates = rates_of(summary, scale);
    json.set("tokens", scale.tokens);
    json.set("tokens_per_s", rates.tokens);
    json.set("model_flop", scale.model_flop);
    json.set("model_flop_per_rank_s", rates.flop.flops_per_second);
    json.set("mfu", rates.of_peak > 0 ? Json(rates.of_peak) : Json());
    json.set("device_bytes", scale.capacity.count);
  }
  json.set("bubble", summary.bubble ? Json(*summary.bubble) : Json());
  json.set("exposed_communication", summary.fraction_of_step(summary.all.exposed));
  Json axes = Json::array();
  for (const trace::AxisSummary& axis : summary.axes) {
    axes.push(Json::object({{"axes", axis.axes},
                            {"communication_s", axis.communication.value},
                            {"exposed_s", axis.exposed.value}}));
  }
  json.set("by_axis", std::move(axes));
  Json ranks = Json::array();
  for (std::size_t r = 0; r < summary.ranks.size(); ++r) ranks.push(rank_json(r, summary.ranks[r]));
  return json.set("by_rank", std::move(ranks));
}

}  // namespace shiplap::report
