// The table of a token exchange: what every rank sends, and where it arrives.
//
// The send buffer of a rank is a sequence of rows of consecutive tokens. A row has copies:
// destinations in the buffer of one rank (queries) or several (keys and values). Receives are
// derived from sends. The reverse direction is another such table.
//
// Offsets and lengths are in *tokens*, so that one table serves rows of any width; `bytes_at`
// converts (docs/decisions/012-tables-in-tokens.md).
//
// Tables are sparse: their size is O(copies), not O(ranks^2). dense.h converts to padded tensors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::dispatch {

// One destination of a row.
struct Copy {
  std::int32_t rank = -1;    // -1: none. Allowed for rows of length 0 and unused copies
  std::uint32_t offset = 0;  // in the buffer of that rank
  friend bool operator==(const Copy&, const Copy&) = default;
};

// How received tokens are stored.
enum class ArrivalMode : std::uint8_t {
  placed,  // written; destinations must not overlap
  summed,  // added (gradients of copies), ordered by sending rank, then row
};
[[nodiscard]] std::string_view name(ArrivalMode arrival);

// Converts tokens to bytes.
[[nodiscard]] constexpr Bytes bytes_at(std::uint64_t tokens, std::int64_t row_bytes) {
  return {static_cast<std::int64_t>(tokens) * row_bytes};
}

// Padded tensors, dense.h.
template <class RankType, class TokenType, class CountType>
struct BasicDenseMetadata;
using DenseMetadata = BasicDenseMetadata<std::int64_t, std::int64_t, std::int64_t>;
using NormalizedMetadata = BasicDenseMetadata<std::int32_t, std::uint32_t, std::uint64_t>;

class Metadata {
 public:
  struct Row {
    std::uint32_t begin = 0;  // in the sending rank's buffer
    std::uint32_t length = 0;
    std::span<const Copy> copies;
  };
  class Builder;

  Metadata() = default;  // of no ranks
  // Implicit, so that every function that takes a table also takes padded tensors. Throws
  // InputError with the findings of validate(dense).
  Metadata(const DenseMetadata& dense);       // NOLINT(google-explicit-constructor)
  Metadata(const NormalizedMetadata& dense);  // NOLINT(google-explicit-constructor)

  [[nodiscard]] int world_size() const { return static_cast<int>(first_row_.size()) - 1; }
  // 0: every row has exactly one copy (2-D). Otherwise the maximum number of copies (3-D).
  [[nodiscard]] int max_cp() const { return max_cp_; }
  [[nodiscard]] ArrivalMode arrival() const { return arrival_; }
  // Rows of a rank, including placeholders.
  [[nodiscard]] std::uint32_t num_seqs(int rank) const {
    return first_row_[at(rank) + 1] - first_row_[rank];
  }
  [[nodiscard]] std::uint32_t max_seqs() const;
  [[nodiscard]] Row row(int rank, std::uint32_t index) const;
  // Tokens in the send buffer of a rank, and tokens that it receives.
  [[nodiscard]] std::uint32_t num_send_tokens(int rank) const {
    return begins_[first_row_[at(rank) + 1] + at(rank)];
  }
  [[nodiscard]] std::uint64_t num_total_recv_tokens(int rank) const { return received_[rank]; }
  // Tokens that `rank` receives from each rank, and last the total. Reads the whole table; see
  // traffic.h for all ranks at once.
  [[nodiscard]] std::vector<std::uint64_t> num_recv_tokens(int rank) const;

  [[nodiscard]] std::size_t rows() const { return first_row_.back(); }
  [[nodiscard]] std::size_t copies() const { return copies_.size(); }
  // Memory usage.
  [[nodiscard]] Bytes bytes() const;

  friend bool operator==(const Metadata&, const Metadata&) = default;

  // One hash per field, to compare tables across ranks.
  static constexpr std::array<std::string_view, 5> kHashedFields{
      "world_size", "seq_len", "dst_rank", "dst_offset", "arrival"};
  [[nodiscard]] std::array<std::uint64_t, kHashedFields.size()> hashes() const;

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  int max_cp_ = 0;
  ArrivalMode arrival_ = ArrivalMode::placed;
  std::vector<std::uint32_t> first_row_{0};  // by rank, and the end
  std::vector<std::uint32_t> begins_;        // of the rows, and for each rank its end
  std::vector<std::uint32_t> first_copy_;    // by row, and the end; only if max_cp_ > 0
  std::vector<Copy> copies_;
  std::vector<std::uint64_t> received_;  // by rank
};

// Builds a table row by row, rank by rank. Accepts any values; validate.h checks them. Throws
// InputError D410 if a count does not fit 32 bits.
class Metadata::Builder {
 public:
  // max_cp 0: every row has exactly one copy.
  struct TableShape {
    int world_size = 0;
    int max_cp = 0;
    ArrivalMode arrival = ArrivalMode::placed;
  };
  explicit Builder(const TableShape& shape);

  // Avoids reallocation.
  struct Capacity {
    std::size_t rows = 0;
    std::size_t copies = 0;
  };
  void reserve(const Capacity& capacity);

  // Adds a row to the current rank. Drops trailing copies without destination in the 3-D form.
  void add_row(std::uint32_t length, std::span<const Copy> copies);
  void end_rank();

  // REQUIRES: called once, after `world_size` calls of end_rank().
  [[nodiscard]] Metadata take();

 private:
  TableShape shape_;
  Metadata metadata_;
  std::uint64_t begin_ = 0;
};

}  // namespace shiplap::dispatch
