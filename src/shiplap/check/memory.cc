// Which rows are alive: at the start of a step, and whether it ends with as few.
#include <algorithm>

#include "shiplap/check/values_internal.h"

namespace shiplap::check {

void Values::start(std::size_t index) {
  const Script& script = job_.scripts[index];
  std::vector<Buffer>& memory = memories_[index];
  for (const std::int32_t rows : script.rows) {
    memory.emplace_back(rows, Cell{.nature = Nature::nothing, .rows = rows});
  }
  // Rows that an `allocate` names live from there.
  for (const Op& op : script.ops) {
    if (op.act != Act::allocate || op.from.count == 0) continue;
    const Buffer::Range dead{
        op.from.begin, op.from.end(), {.nature = Nature::dead, .rows = op.from.count}};
    memory[static_cast<std::size_t>(op.from.buffer)].put(op.from.begin, op.from.end(),
                                                         std::span(&dead, 1));
  }
  for (const Claim& claim : script.given) {
    put({static_cast<std::int32_t>(index), -1}, claim.zone, script.pieces_of(claim));
  }
}

std::vector<Values::DeadRows> Values::dead_rows(std::size_t script) const {
  std::vector<DeadRows> dead;
  for (std::size_t buffer = 0; buffer < memories_[script].size(); ++buffer) {
    memories_[script][buffer].for_each([&](const Buffer::Range& range) {
      if (range.value.nature != Nature::dead) return;
      const auto id = static_cast<std::int32_t>(buffer);
      if (!dead.empty() && dead.back().buffer == id && dead.back().end == range.begin) {
        dead.back().end = range.end;
      } else {
        dead.push_back({id, range.begin, range.end});
      }
    });
  }
  return dead;
}

// The next step allocates again what this one does.
Place Values::find_leak(std::size_t script) const {
  const auto row = first_outside(dead_at_start_[script], dead_rows(script));
  if (!row) return {};
  const Script& here = job_.scripts[script];
  const auto allocates = [&](const Op& op) {
    return op.act == Act::allocate && op.from.buffer == row->buffer &&
           op.from.begin <= row->begin && row->begin < op.from.end();
  };
  auto last = static_cast<std::int32_t>(here.ops.size()) - 1;
  while (last >= 0 && !allocates(here[last])) --last;
  return {here.rank, last};
}

// A row that `a` has and `b` has not.
std::optional<Values::DeadRows> Values::first_outside(std::span<const DeadRows> a,
                                                      std::span<const DeadRows> b) {
  for (const DeadRows& rows : a) {
    std::int32_t row = rows.begin;
    for (const DeadRows& other : b) {
      if (other.buffer == rows.buffer && other.begin <= row && row < other.end) row = other.end;
    }
    if (row < rows.end) return DeadRows{rows.buffer, row, row + 1};
  }
  return std::nullopt;
}

}  // namespace shiplap::check
