#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shiplap/base/units.h"
#include "shiplap/report/fold.h"
#include "shiplap/report/plan.h"
#include "shiplap/report/plan_words.h"
#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using plan::Plan;
using plan::ProgramSummary;
using plan::Spread;
using plan::Summary;

constexpr std::int64_t kMaxTableRows = 8;  // of each table, so that all of them fit a screen

std::string range(const Spread& spread, std::string_view between) {
  std::string most = with_separators(spread.most);
  if (spread.least == spread.most) return most;
  return fmt::format("{}{}{}", with_separators(spread.least), between, most);
}

std::string rank_name(Rank rank) { return rank.exists() ? with_separators(rank.value) : ""; }

// Over all programs.
Spread operations_of(const Summary& summary) {
  Spread all;
  bool first = true;
  for (const ProgramSummary& program : summary.programs) {
    if (program.ranks == 0) continue;
    all.least = first ? program.operations.least : std::min(all.least, program.operations.least);
    all.most = std::max(all.most, program.operations.most);
    first = false;
  }
  return all;
}

std::string answer(const Plan& plan, const Summary& summary, const std::string& title) {
  std::string text =
      fmt::format("{}: {} on {}, {}", printable(title), counted(summary.ranks, "rank"),
                  words(plan.mesh), counted(std::ssize(plan.programs), "program"));
  if (summary.spares > 0) text += fmt::format(", {}", counted(summary.spares, "spare"));
  const Spread operations = operations_of(summary);
  return text + fmt::format(", {} operation{} a rank", range(operations, " to "),
                            operations.most == 1 ? "" : "s");
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
    text += fmt::format("spare on {}\n", words(spare, plan.mesh));
  }
  if (!text.empty()) text = "\nmesh  " + words(plan.mesh) + "\n" + text;
  if (!summary.complete()) {
    text += fmt::format(
        "\nnote: the ranks differ in too many ways to look at all of them;\n"
        "      what follows covers {} of {}\n",
        with_separators(summary.ranks_counted), with_separators(summary.ranks - summary.spares));
  }
  return text;
}

std::string streams_of(const plan::Program& program) {
  std::string text = "main";
  for (const std::string& stream : program.streams) text += ", " + stream;
  return text;
}

std::string programs_table(const Plan& plan, const Summary& summary, const Fold& fold) {
  std::vector<std::int64_t> peaks;
  for (const ProgramSummary& program : summary.programs) {
    peaks.push_back(program.peak_bytes.least);
    peaks.push_back(program.peak_bytes.most);
  }
  const ByteColumn bytes(peaks);
  Table table(
      {Column::words("program", 9), Column::words("on", 4), Column::numbers("ranks", 8),
       Column::numbers("operations", 7), Column::numbers(fmt::format("peak {}", bytes.unit()), 6),
       Column::numbers("on rank", 2), Column::numbers("buffers", 1), Column::words("streams", 1)});
  for (std::size_t k = 0; k < fold.shown(plan.programs.size()); ++k) {
    const plan::Program& program = plan.programs[k];
    const ProgramSummary& found = summary.programs[k];
    const Spread& peak = found.peak_bytes;
    const std::string most = bytes.cell(peak.most);
    const std::string least = bytes.cell(peak.least);
    table.add({program.name, words(program.on, plan.mesh), with_separators(found.ranks),
               range(found.operations, "-"),
               least == most ? most : fmt::format("{}-{}", least, most), rank_name(peak.where_most),
               with_separators(std::ssize(program.buffers)), streams_of(program)});
  }
  return table.text(fold.look) + fold.rest(plan.programs.size());
}

std::string traffic_table(const Summary& summary, const Fold& fold) {
  if (summary.traffic.empty()) return "nothing moves between ranks\n";
  std::vector<std::int64_t> all;
  for (const plan::TrafficSummary& traffic : summary.traffic) {
    all.insert(all.end(), {traffic.payload.count, traffic.sent.count, traffic.sent_per_rank.most});
  }
  const ByteColumn bytes(all);
  const std::string unit(bytes.unit());
  Table table({Column::words("moves over", 9), Column::words("by", 9),
               Column::numbers("operations", 4), Column::numbers("payload " + unit, 2),
               Column::numbers("sent " + unit, 8), Column::numbers("busiest rank " + unit, 6),
               Column::numbers("which", 1)});
  for (std::size_t k = 0; k < fold.shown(summary.traffic.size()); ++k) {
    const plan::TrafficSummary& traffic = summary.traffic[k];
    table.add({traffic.axes, traffic.kind, with_separators(traffic.operations),
               bytes.cell(traffic.payload.count), bytes.cell(traffic.sent.count),
               bytes.cell(traffic.sent_per_rank.most),
               rank_name(traffic.sent_per_rank.where_most)});
  }
  return table.text(fold.look) + fold.rest(summary.traffic.size());
}

std::string tensors_table(const Plan& plan, const Fold& fold) {
  Table table({Column::words("tensor", 9), Column::words("kind", 4),
               Column::numbers("instances", 2), Column::words("dimensions", 8)});
  for (std::size_t k = 0; k < fold.shown(plan.tensors.size()); ++k) {
    const plan::Tensor& tensor = plan.tensors[k];
    table.add({tensor.name, tensor.kind,
               with_separators(std::max<std::int64_t>(tensor.instances, 1)),
               dimensions(tensor, plan)});
  }
  return table.text(fold.look) + fold.rest(plan.tensors.size());
}

std::string tables_table(const Plan& plan, const Fold& fold) {
  Table table({Column::words("table", 9), Column::numbers("messages", 9),
               Column::numbers("rows", 8), Column::numbers("to oneself", 2)});
  for (std::size_t k = 0; k < fold.shown(plan.tables.size()); ++k) {
    std::int64_t rows = 0;
    std::int64_t to_oneself = 0;
    for (const plan::TableRow& row : plan.tables[k].sends()) {
      rows += row.count;
      if (row.rank == row.peer) ++to_oneself;
    }
    table.add({plan.tables[k].name, with_separators(std::ssize(plan.tables[k].sends())),
               with_separators(rows), with_separators(to_oneself)});
  }
  return table.text(fold.look) + fold.rest(plan.tables.size());
}

std::string lists_line(const Plan& plan) {
  std::int64_t entries = 0;
  for (const plan::List& list : plan.lists) entries += std::ssize(list.values);
  return fmt::format("{}, {} in all\n", counted(std::ssize(plan.lists), "list"),
                     counted(entries, "number"));
}

}  // namespace

std::string show_plan(const Plan& plan, const Summary& summary, const ShowOptions& options,
                      const TextLook& look) {
  const Fold fold{.limit = options.limit.value_or(kMaxTableRows), .look = look};
  const auto width = static_cast<std::size_t>(fold.look.width);
  const std::string first = wrapped(answer(plan, summary, options.title), 2, width);
  std::string text = painted(first, kBold, look.colour) + "\n";
  text += places(plan, summary);
  if (!plan.programs.empty()) text += "\n" + programs_table(plan, summary, fold);
  text += "\n" + traffic_table(summary, fold);
  if (!plan.tensors.empty()) text += "\n" + tensors_table(plan, fold);
  if (!plan.tables.empty()) text += "\n" + tables_table(plan, fold);
  if (!plan.lists.empty()) text += "\n" + lists_line(plan);
  return text;
}

}  // namespace shiplap::report
