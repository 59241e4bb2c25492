#include "shiplap/plan/table.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace shiplap::plan {
namespace {

bool by_rank_then_peer(const TableRow& a, const TableRow& b) {
  return std::tie(a.rank, a.peer) < std::tie(b.rank, b.peer);
}

void sort_rows(std::vector<TableRow>& rows) {
  if (!std::ranges::is_sorted(rows, by_rank_then_peer)) {
    std::ranges::stable_sort(rows, by_rank_then_peer);
  }
}

std::span<const TableRow> rows_of(const std::vector<TableRow>& rows, std::int64_t rank) {
  const auto [first, last] = std::ranges::equal_range(
      rows, rank, {}, [](const TableRow& row) { return std::int64_t{row.rank}; });
  return {first, last};
}

}  // namespace

ExchangeTable::ExchangeTable(std::string table_name, std::vector<TableRow> sends,
                             std::vector<TableRow> receives)
    : name(std::move(table_name)), sends_(std::move(sends)), receives_(std::move(receives)) {
  sort_rows(sends_);
  sort_rows(receives_);
}

std::span<const TableRow> ExchangeTable::sends_of(std::int64_t rank) const {
  return rows_of(sends_, rank);
}

std::span<const TableRow> ExchangeTable::receives_of(std::int64_t rank) const {
  return rows_of(receives_, rank);
}

}  // namespace shiplap::plan
