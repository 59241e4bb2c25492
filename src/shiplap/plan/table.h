// The messages of an irregular exchange: who sends which rows to whom.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shiplap::plan {

// One message as one of its two ends sees it.
struct TableRow {
  std::int32_t rank = 0;  // whose end this is
  std::int32_t peer = 0;
  std::int64_t first = 0;  // row of the region
  std::int64_t count = 0;
  friend bool operator==(const TableRow&, const TableRow&) = default;
};

// Both ends of every message. The k-th from a to b among the senders meets the k-th among the
// receivers. Ranks are global, and only messages that exist are listed: it grows with the messages.
class ExchangeTable {
 public:
  std::string name;

  ExchangeTable() = default;
  // In any order; messages between the same two ranks keep theirs.
  ExchangeTable(std::string name, std::vector<TableRow> sends, std::vector<TableRow> receives);

  // By rank, then peer.
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
