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

}  // namespace

std::string show_trace(const trace::Trace& trace, const trace::Summary& summary,
                       const TextStyle& style, const plan::Mesh& mesh) {
  const double step = summary.step_time().value;
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    text += fmt::format("  {:<24} {}\n", label, value);
  };
  line("step", to_string(summary.step_time()));
  line("peak memory", fmt::format("{} on rank {}, {}", to_string(summary.all.peak),
                                  summary.peak_rank, format_peak_time(summary)));
  if (summary.bubble) line("bubble", percent_text(*summary.bubble));
  line("exposed communication", percent_text(summary.fraction_of_step(summary.all.exposed)));
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

Json trace_to_json(const trace::Trace& trace, const trace::Summary& summary) {
  Json json = Json::object({{"ranks", static_cast<std::int64_t>(trace.ranks.size())},
                            {"events", summary.events},
                            {"total_s", summary.total().value},
                            {"step_s", summary.step_time().value},
                            {"step_begin_s", summary.step.begin.value},
                            {"peak_bytes", summary.all.peak.count},
                            {"peak_rank", std::int64_t{summary.peak_rank}},
                            {"peak_at_s", summary.all.peak_time.value}});
  json.set("bubble", summary.bubble ? Json(*summary.bubble) : Json());
  json.set("exposed_communication", summary.fraction_of_step(summary.all.exposed));
  Json ranks = Json::array();
  for (std::size_t r = 0; r < summary.ranks.size(); ++r) ranks.push(rank_json(r, summary.ranks[r]));
  return json.set("by_rank", std::move(ranks));
}

}  // namespace shiplap::report
