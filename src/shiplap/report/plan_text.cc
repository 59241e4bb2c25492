#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shiplap/base/units.h"
#include "shiplap/report/plan.h"
#include "shiplap/report/plan_format.h"
#include "shiplap/report/table.h"
#include "shiplap/report/truncation.h"

namespace shiplap::report {
namespace {

using plan::MinMax;
using plan::Plan;
using plan::ProgramSummary;
using plan::Summary;

constexpr std::int64_t kMaxTableRows = 8;  // of each table, so that all of them fit a screen

std::string range(const MinMax& spread, std::string_view between) {
  std::string most = with_separators(spread.max);
  if (spread.min == spread.max) return most;
  return fmt::format("{}{}{}", with_separators(spread.min), between, most);
}

std::string rank_name(Rank rank) { return rank.exists() ? with_separators(rank.value) : ""; }

// Over all programs.
MinMax operations_of(const Summary& summary) {
  MinMax all;
  bool first = true;
  for (const ProgramSummary& program : summary.programs) {
    if (program.ranks == 0) continue;
    all.min = first ? program.operations.min : std::min(all.min, program.operations.min);
    all.max = std::max(all.max, program.operations.max);
    first = false;
  }
  return all;
}

std::string answer(const Plan& plan, const Summary& summary, const std::string& title) {
  std::string text =
      fmt::format("{}: {} on {}, {}", printable(title), counted(summary.ranks, "rank"),
                  format_axes(plan.mesh.axes, " "), counted(std::ssize(plan.programs), "program"));
  if (summary.spares > 0) text += fmt::format(", {}", counted(summary.spares, "spare"));
  const MinMax operations = operations_of(summary);
  return text + fmt::format(", {} operation{} a rank", range(operations, " to "),
                            operations.max == 1 ? "" : "s");
}

std::string places(const Plan& plan, const Summary& summary) {
  std::string text;
  for (const plan::Alias& alias : plan.mesh.aliases) {
    std::string axes;
    std::int64_t size = 1;
    for (const plan::AxisId axis : alias.axes) {
      axes += (axes.empty() ? "" : " ") + plan.mesh.name(axis);
      size *= plan.mesh.size(axis);
    }
    text += fmt::format("alias {}={} of {}\n", alias.name, size, axes);
  }
  for (const plan::Selector& spare : plan.spares) {
    text += fmt::format("spare on {}\n", format_selector(spare, plan.mesh));
  }
  if (!text.empty()) text = "\nmesh  " + format_axes(plan.mesh.axes, " ") + "\n" + text;
  if (!summary.complete()) {
    text += fmt::format(
        "\nnote: there are too many different ranks to summarize all of them;\n"
        "      the summary covers {} of {}\n",
        with_separators(summary.ranks_counted), with_separators(summary.ranks - summary.spares));
  }
  return text;
}

std::string streams_of(const plan::Program& program) {
  std::string text = "main";
  for (const std::string& stream : program.streams) text += ", " + stream;
  return text;
}

std::string programs_table(const Plan& plan, const Summary& summary, const Truncation& truncation) {
  std::vector<std::int64_t> peaks;
  for (const ProgramSummary& program : summary.programs) {
    peaks.push_back(program.peak_bytes.min);
    peaks.push_back(program.peak_bytes.max);
  }
  const ByteColumn bytes(peaks);
  Table table(
      {Column::text("program", 9), Column::text("on", 4), Column::numbers("ranks", 8),
       Column::numbers("operations", 7), Column::numbers(fmt::format("peak {}", bytes.unit()), 6),
       Column::numbers("on rank", 2), Column::numbers("buffers", 1), Column::text("streams", 1)});
  for (std::size_t k = 0; k < truncation.shown(plan.programs.size()); ++k) {
    const plan::Program& program = plan.programs[k];
    const ProgramSummary& found = summary.programs[k];
    const MinMax& peak = found.peak_bytes;
    const std::string most = bytes.cell(peak.max);
    const std::string least = bytes.cell(peak.min);
    table.add({program.name, format_selector(program.on, plan.mesh), with_separators(found.ranks),
               range(found.operations, "-"),
               least == most ? most : fmt::format("{}-{}", least, most), rank_name(peak.max_rank),
               with_separators(std::ssize(program.buffers)), streams_of(program)});
  }
  return table.text(truncation.style) + truncation.rest(plan.programs.size());
}

std::string traffic_table(const Summary& summary, const Truncation& truncation) {
  if (summary.traffic.empty()) return "no communication between ranks\n";
  std::vector<std::int64_t> all;
  for (const plan::TrafficSummary& traffic : summary.traffic) {
    all.insert(all.end(), {traffic.payload.count, traffic.sent.count, traffic.sent_per_rank.max});
  }
  const ByteColumn bytes(all);
  const std::string unit(bytes.unit());
  Table table({Column::text("moves over", 9), Column::text("by", 9),
               Column::numbers("operations", 4), Column::numbers("payload " + unit, 2),
               Column::numbers("sent " + unit, 8), Column::numbers("busiest rank " + unit, 6),
               Column::numbers("which", 1)});
  for (std::size_t k = 0; k < truncation.shown(summary.traffic.size()); ++k) {
    const plan::TrafficSummary& traffic = summary.traffic[k];
    table.add({traffic.axes, traffic.kind, with_separators(traffic.operations),
               bytes.cell(traffic.payload.count), bytes.cell(traffic.sent.count),
               bytes.cell(traffic.sent_per_rank.max), rank_name(traffic.sent_per_rank.max_rank)});
  }
  return table.text(truncation.style) + truncation.rest(summary.traffic.size());
}

std::string tensors_table(const Plan& plan, const Truncation& truncation) {
  Table table({Column::text("tensor", 9), Column::text("kind", 4), Column::numbers("instances", 2),
               Column::text("dimensions", 8)});
  for (std::size_t k = 0; k < truncation.shown(plan.tensors.size()); ++k) {
    const plan::Tensor& tensor = plan.tensors[k];
    table.add({tensor.name, tensor.kind,
               with_separators(std::max<std::int64_t>(tensor.instances, 1)),
               format_dimensions(tensor, plan)});
  }
  return table.text(truncation.style) + truncation.rest(plan.tensors.size());
}

std::string tables_table(const Plan& plan, const Truncation& truncation) {
  Table table({Column::text("table", 9), Column::numbers("messages", 9), Column::numbers("rows", 8),
               Column::numbers("to self", 2)});
  for (std::size_t k = 0; k < truncation.shown(plan.tables.size()); ++k) {
    std::int64_t rows = 0;
    std::int64_t to_self = 0;
    for (const plan::TableRow& row : plan.tables[k].sends()) {
      rows += row.count;
      if (row.rank == row.peer) ++to_self;
    }
    table.add({plan.tables[k].name, with_separators(std::ssize(plan.tables[k].sends())),
               with_separators(rows), with_separators(to_self)});
  }
  return table.text(truncation.style) + truncation.rest(plan.tables.size());
}

std::string lists_line(const Plan& plan) {
  std::int64_t entries = 0;
  for (const plan::List& list : plan.lists) entries += std::ssize(list.values);
  return fmt::format("{}, {} in total\n", counted(std::ssize(plan.lists), "list"),
                     counted(entries, "number"));
}

}  // namespace

std::string show_plan(const Plan& plan, const Summary& summary, const ShowOptions& options,
                      const TextStyle& style) {
  const Truncation truncation{.limit = options.limit.value_or(kMaxTableRows), .style = style};
  const auto width = static_cast<std::size_t>(truncation.style.width);
  const std::string first = wrapped(answer(plan, summary, options.title), 2, width);
  std::string text = styled(first, kBold, style.colour) + "\n";
  if (!options.detail.empty()) text += wrapped(options.detail, 2, width) + "\n";
  text += places(plan, summary);
  if (!plan.programs.empty()) text += "\n" + programs_table(plan, summary, truncation);
  text += "\n" + traffic_table(summary, truncation);
  if (!plan.tensors.empty()) text += "\n" + tensors_table(plan, truncation);
  if (!plan.tables.empty()) text += "\n" + tables_table(plan, truncation);
  if (!plan.lists.empty()) text += "\n" + lists_line(plan);
  return text;
}

}  // namespace shiplap::report
