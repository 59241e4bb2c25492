// Which rows are alive: at the start of a step, and whether it ends with as few.
#include <algorithm>
#include <optional>
#include <tuple>

#include "shiplap/check/values_internal.h"

namespace shiplap::check {
namespace {

// The first rows that `a` has and `b` has not. REQUIRES: both are in order.
template <class Ranges>
std::optional<typename Ranges::value_type> first_outside(const Ranges& a, const Ranges& b) {
  auto other = b.begin();
  for (auto rows : a) {
    const auto is_before = [&] {
      return std::tie(other->buffer, other->end) <= std::tie(rows.buffer, rows.begin);
    };
    while (other != b.end() && is_before()) ++other;
    if (other == b.end() || other->buffer != rows.buffer || other->begin >= rows.end) return rows;
    if (other->begin > rows.begin) {
      rows.end = other->begin;
      return rows;
    }
    if (other->end >= rows.end) continue;
    rows.begin = other->end;
    const auto next = other + 1;
    if (next != b.end() && next->buffer == rows.buffer) rows.end = std::min(rows.end, next->begin);
    return rows;
  }
  return std::nullopt;
}

bool has_row(const Script& script, const Zone& zone, std::int32_t row) {
  if (zone.listed < 0) return zone.begin <= row && row < zone.end();
  return std::ranges::find(script.rows_of(zone), row) != script.rows_of(zone).end();
}

// Whether an operation touches the row.
bool uses(const Script& script, const Op& op, const Zone& row) {
  const auto has = [&](const Zone& zone) {
    return zone.buffer == row.buffer && has_row(script, zone, row.begin);
  };
  return has(op.from) || has(op.to) || std::ranges::any_of(script.claims_of(op), has, &Claim::zone);
}

}  // namespace

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
    memory[op.from.buffer].put(op.from.begin, op.from.end(), std::span(&dead, 1));
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
void Values::find_leak(std::size_t index) {
  const std::optional<DeadRows> leaked = first_outside(dead_at_start_[index], dead_rows(index));
  if (!leaked) return;
  const Script& script = job_.scripts[index];
  const Zone row{.buffer = leaked->buffer, .begin = leaked->begin, .count = 1};
  std::int32_t allocation = -1;
  std::int32_t last_use = -1;
  for (std::int32_t k = 0; k < std::ssize(script.ops); ++k) {
    if (!uses(script, script[k], row)) continue;
    last_use = k;
    if (script[k].act == Act::allocate) allocation = k;
    if (script[k].act == Act::free) allocation = -1;
  }
  if (allocation < 0) return;  // it was used after it was freed
  const std::int32_t end = std::min(leaked->end, script[allocation].from.end());
  report({.symptom = Symptom::not_freed,
          .place = {script.rank, allocation},
          .other = {script.rank, last_use == allocation ? -1 : last_use},
          .zone = {.buffer = row.buffer, .begin = row.begin, .count = end - row.begin}});
}

}  // namespace shiplap::check
