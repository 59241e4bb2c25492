// The messages of an irregular exchange (all_to_allv): which rows each rank sends to which rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shiplap::plan {

// One end of a message.
struct TableRow {
  std::int32_t rank = 0;
  std::int32_t peer = 0;
  std::int64_t first = 0;  // row of the region
  std::int64_t count = 0;
  friend bool operator==(const TableRow&, const TableRow&) = default;
};

// Both ends of every message, as a sparse table. The k-th send from a to b matches the k-th
// receive. Ranks are global.
class ExchangeTable {
 public:
  std::string name;

  ExchangeTable() = default;
  // Rows may be in any order; those between the same two ranks keep their order.
  ExchangeTable(std::string name, std::vector<TableRow> sends, std::vector<TableRow> receives);

  // Sorted by rank, then peer.
  [[nodiscard]] std::span<const TableRow> sends() const { return sends_; }
  [[nodiscard]] std::span<const TableRow> receives() const { return receives_; }
  [[nodiscard]] std::span<const TableRow> sends_of(std::int64_t rank) const;
  [[nodiscard]] std::span<const TableRow> receives_of(std::int64_t rank) const;

  friend bool operator==(const ExchangeTable&, const ExchangeTable&) = default;

 private:
  std::vector<TableRow> sends_;
  std::vector<TableRow> receives_;
};

}  // namespace shiplap::plan
