#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include "shiplap/base/units.h"
#include "shiplap/report/plan.h"
#include "shiplap/report/plan_format.h"
#include "shiplap/report/table.h"
#include "shiplap/report/truncation.h"

namespace shiplap::report {
namespace {

using plan::RankProgram;

constexpr std::int64_t kMaxShownOperations = 40;
constexpr std::int64_t kMaxOthers = 12;  // buffers, facts
constexpr std::size_t kMaxDependencies = 4;

std::string position(const plan::Mesh& mesh, Rank rank) {
  const std::vector<std::int64_t> positions = mesh.positions(rank);
  std::string text;
  for (std::size_t k = 0; k < positions.size(); ++k) {
    text += fmt::format("{}{}={}", k == 0 ? "" : " ", mesh.name(plan::AxisId(k)), positions[k]);
  }
  return text;
}

std::string answer(const RankProgram& rank, const std::string& title) {
  const plan::Mesh& mesh = rank.plan->mesh;
  const std::string who =
      fmt::format("{}: rank {} of {}, at {}", printable(title), with_separators(rank.rank.value),
                  with_separators(mesh.ranks()), position(mesh, rank.rank));
  if (!rank.program.exists()) return who + ", is a spare and has no operations";
  return fmt::format("{}, runs {}: {}, peak memory {}", who, rank.plan->programs[rank.program].name,
                     counted(std::ssize(rank.operations), "operation"),
                     to_string(Bytes{plan::peak_bytes(rank)}));
}

std::string buffers_table(const RankProgram& rank, const Truncation& truncation) {
  const plan::Program& program = rank.plan->programs[rank.program];
  std::vector<std::int64_t> sizes;
  for (const plan::flat::Buffer& buffer : rank.buffers) {
    sizes.push_back(buffer.rows * buffer.row_bytes);
  }
  const ByteColumn bytes(sizes);
  Table table({Column::text("buffer", 9), Column::numbers("rows", 9),
               Column::numbers("bytes a row", 8), Column::text("type", 7),
               Column::text("memory", 2), Column::numbers(std::string(bytes.unit()), 6)});
  for (std::size_t k = 0; k < truncation.shown(rank.buffers.size()); ++k) {
    const plan::Buffer& source = program.buffers[k];
    const plan::flat::Buffer& buffer = rank.buffers[k];
    table.add({source.name, with_separators(buffer.rows), with_separators(buffer.row_bytes),
               std::string(shiplap::name(source.type)),
               source.memory == plan::Memory::device ? "device" : "host", bytes.cell(sizes[k])});
  }
  return table.text(truncation.style) + truncation.rest(rank.buffers.size());
}

std::string facts(std::string_view word, std::span<const plan::flat::Fact> list,
                  const RankProgram& rank, const Truncation& truncation) {
  std::string text;
  for (std::size_t k = 0; k < truncation.shown(list.size()); ++k) {
    const std::string says = fmt::format("{:5}  {} = {}", word, format_region(list[k].region, rank),
                                         format_value(list[k].value, rank));
    text += truncated(printable(says), static_cast<std::size_t>(truncation.style.width)) + "\n";
  }
  return text + truncation.rest(list.size());
}

std::string action_of(const plan::flat::Operation& op) {
  const plan::Action& action = op.source->action;
  std::string text = op.batch >= 0 ? "| " : "";  // a member of the batch above
  text += plan::keyword(action);
  if (const auto* compute = std::get_if<plan::Compute>(&action)) text += " " + compute->kernel;
  if (const auto* collective = std::get_if<plan::Collective>(&action)) {
    if (collective->op != ReduceOp::sum) text += fmt::format(" {}", name(collective->op));
    if (collective->scale != plan::Ratio()) text += " scale " + format_ratio(collective->scale);
  }
  if (op.source->async) text += " async";
  if (op.source->joined) text += " joined";
  return text;
}

bool adds(const plan::Action& action) {
  if (const auto* copy = std::get_if<plan::Copy>(&action)) return copy->add;
  if (const auto* receive = std::get_if<plan::Receive>(&action)) return receive->add;
  const auto* exchange = std::get_if<plan::Exchange>(&action);
  return exchange != nullptr && exchange->add;
}

std::string accesses(const plan::flat::Operation& op, const RankProgram& rank) {
  std::string text;
  for (const plan::flat::Access& access : rank.accesses_of(op)) {
    if (!text.empty()) text += ' ';
    if (access.kind == plan::Access::Kind::writes) text += '>';
    if (access.kind == plan::Access::Kind::adds) text += "+>";
    text += format_region(access.region, rank);
  }
  return text;
}

// "a w >b": reads a and w, writes b; "+>b" adds to it.
std::string regions(const plan::flat::Operation& op, const RankProgram& rank) {
  if (op.accesses.count > 0) return accesses(op, rank);
  std::string text = op.from.buffer.exists() ? format_region(op.from, rank) : "";
  if (!op.to.buffer.exists()) return text;
  const std::string to = format_region(op.to, rank);
  if (to == text && !adds(op.source->action)) return text;
  if (!text.empty()) text += ' ';
  return text + (adds(op.source->action) ? "+>" : ">") + to;
}

std::string channel_of(const plan::Action& action) {
  if (const auto* send = std::get_if<plan::Send>(&action)) return send->channel;
  if (const auto* receive = std::get_if<plan::Receive>(&action)) return receive->channel;
  return "";
}

std::string partner(const plan::flat::Operation& op, const RankProgram& rank) {
  const plan::Action& action = op.source->action;
  std::string text;
  if (op.peer.exists()) {
    const bool sends = std::holds_alternative<plan::Send>(action);
    text = fmt::format("{} {}", sends ? "to" : "from", op.peer.value);
    if (const std::string channel = channel_of(action); !channel.empty()) text += " /" + channel;
    return text;
  }
  text = format_group(op, rank);
  const auto* collective = std::get_if<plan::Collective>(&action);
  if (collective != nullptr && has_root(collective->kind)) text += fmt::format(" root {}", op.root);
  if (const auto* exchange = std::get_if<plan::Exchange>(&action)) {
    text += " by " + rank.plan->tables[exchange->table].name;
    if (exchange->reversed) text += " reversed";
  }
  return text;
}

std::string after(const plan::flat::Operation& op, const RankProgram& rank) {
  const auto list = rank.after(op);
  std::string text;
  for (std::size_t k = 0; k < std::min(list.size(), kMaxDependencies); ++k) {
    const auto index = static_cast<std::size_t>(list[k]);
    const std::string name = format_name(rank.operations[index], rank);
    text += (k == 0 ? "" : ", ") + (name.empty() ? fmt::format("#{}", index) : name);
  }
  if (list.size() > kMaxDependencies) {
    text += fmt::format(" and {} more", list.size() - kMaxDependencies);
  }
  return text;
}

// The bytes that it moves; "" for a computation.
std::string bytes_moved(const plan::flat::Operation& op, const RankProgram& rank) {
  if (!op.from.buffer.exists() && !op.to.buffer.exists()) return "";
  return with_separators(std::max(rank.bytes_of(op.from), rank.bytes_of(op.to)));
}

std::string stream_of(const plan::flat::Operation& op, const plan::Program& program) {
  if (!op.stream.exists()) return "";
  return op.stream.value == 0 ? "main" : program.streams[op.stream.index() - 1];
}

std::string operations_table(const RankProgram& rank, const Truncation& truncation) {
  const plan::Program& program = rank.plan->programs[rank.program];
  Table table(
      {Column::numbers("#", 9), Column::text("stream", 4),
       Column::text("name", 9).hidden_if_empty(), Column::text("action", 9),
       Column::text("reads >writes +>adds to", 8), Column::text("with", 7).hidden_if_empty(),
       Column::text("after", 3).hidden_if_empty(), Column::numbers("bytes", 2).hidden_if_empty(),
       Column::numbers("tag", 1).hidden_if_empty(), Column::text("label", 1).hidden_if_empty()});
  for (std::size_t k = 0; k < truncation.shown(rank.operations.size()); ++k) {
    const plan::flat::Operation& op = rank.operations[k];
    table.add({with_separators(static_cast<std::int64_t>(k)), stream_of(op, program),
               format_name(op, rank), action_of(op), regions(op, rank), partner(op, rank),
               after(op, rank), bytes_moved(op, rank), op.tag == 0 ? "" : with_separators(op.tag),
               op.source->label});
  }
  return table.text(truncation.style) + truncation.rest(rank.operations.size());
}

}  // namespace

std::string show_rank(const RankProgram& rank, const ShowOptions& options, const TextStyle& style) {
  const Colour colour = style.colour;
  const auto width = static_cast<std::size_t>(style.width);
  std::string text = styled(wrapped(answer(rank, options.title), 2, width), kBold, colour) + "\n";
  if (!rank.program.exists()) return text;
  const Truncation others{options.limit.value_or(kMaxOthers), style};
  const Truncation operations{options.limit.value_or(kMaxShownOperations), style};
  if (!rank.buffers.empty()) text += "\n" + buffers_table(rank, others);
  const std::string known =
      facts("given", rank.given, rank, others) + facts("goal", rank.goal, rank, others);
  if (!known.empty()) text += "\n" + known;
  if (!rank.operations.empty()) text += "\n" + operations_table(rank, operations);
  return text;
}

}  // namespace shiplap::report
