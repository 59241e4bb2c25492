// What every rank sends, and where it arrives: the table that an exchange of tokens follows.
//
// The buffer of a rank consists of rows, one after another: some consecutive tokens each. A row has
// copies: it goes to a place in the buffer of one rank (queries), or of several (keys and values).
// What a rank receives follows from what all send. The way back is another such table, from the
// other side.
//
// Offsets and lengths are counted in *tokens*. The first description of this type called
// `dst_offset` a byte offset and counted tokens in its examples; a count of tokens serves rows of
// any width, so it is the one we keep, and bytes come from `bytes_at`.
//
// The tables grow with the copies, not with the square of the ranks. The padded tensors that other
// programs use are made on request: dense.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::dispatch {

// One place where a row goes.
struct Copy {
  std::int32_t rank = -1;    // -1: nowhere. A row of length 0 may go nowhere; so may one of several
  std::uint32_t offset = 0;  // in the buffer of that rank
  friend bool operator==(const Copy&, const Copy&) = default;
};

// What becomes of tokens that arrive at the same place.
enum class Arrival : std::uint8_t {
  placed,  // there must be no two
  summed,  // gradients of several copies: added up, by sending rank, then by row
};
[[nodiscard]] std::string_view name(Arrival arrival);

// A count of tokens as bytes of a buffer whose rows have `row_bytes` bytes each.
[[nodiscard]] constexpr Bytes bytes_at(std::uint64_t tokens, std::int64_t row_bytes) {
  return {static_cast<std::int64_t>(tokens) * row_bytes};
}

class Metadata {
 public:
  struct Row {
    std::uint32_t begin = 0;  // in the sending rank's buffer
    std::uint32_t length = 0;
    std::span<const Copy> copies;
  };
  class Builder;

  Metadata() = default;  // of no ranks

  [[nodiscard]] int world_size() const { return static_cast<int>(first_row_.size()) - 1; }
  // 0: every row has exactly one place (2-D). Otherwise the most places a row may have (3-D).
  [[nodiscard]] int max_cp() const { return max_cp_; }
  [[nodiscard]] Arrival arrival() const { return arrival_; }
  // Rows of a rank, placeholders included.
  [[nodiscard]] std::uint32_t num_seqs(int rank) const {
    return first_row_[at(rank) + 1] - first_row_[rank];
  }
  [[nodiscard]] std::uint32_t max_seqs() const;
  [[nodiscard]] Row row(int rank, std::uint32_t index) const;
  // The length of a rank's buffer on the sending side, and what it gets on the other one.
  [[nodiscard]] std::uint32_t num_send_tokens(int rank) const {
    return begins_[first_row_[at(rank) + 1] + at(rank)];
  }
  [[nodiscard]] std::uint64_t num_total_recv_tokens(int rank) const { return received_[rank]; }
  // How many tokens `rank` receives from each rank; last, in all. Reads the whole table: for all
  // ranks at once see traffic.h.
  [[nodiscard]] std::vector<std::uint64_t> num_recv_tokens(int rank) const;

  [[nodiscard]] std::size_t rows() const { return first_row_.back(); }
  [[nodiscard]] std::size_t copies() const { return copies_.size(); }
  // What it takes in memory.
  [[nodiscard]] Bytes bytes() const;

  friend bool operator==(const Metadata&, const Metadata&) = default;

  // One number per field, so that ranks can tell whether they hold the same table, and if not, what
  // differs.
  static constexpr std::array<std::string_view, 5> kHashedFields{
      "world_size", "seq_len", "dst_rank", "dst_offset", "arrival"};
  [[nodiscard]] std::array<std::uint64_t, kHashedFields.size()> hashes() const;

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  int max_cp_ = 0;
  Arrival arrival_ = Arrival::placed;
  std::vector<std::uint32_t> first_row_{0};  // by rank, and the end
  std::vector<std::uint32_t> begins_;        // of the rows, and for each rank its end
  std::vector<std::uint32_t> first_copy_;    // by row, and the end; only if max_cp_ > 0
  std::vector<Copy> copies_;
  std::vector<std::uint64_t> received_;  // by rank
};

// Row by row, rank by rank. It takes any numbers that can be held: whether they make sense is for
// validate.h to say. Throws InputError D410 for what 32 bits do not count.
class Metadata::Builder {
 public:
  // max_cp 0: every row has exactly one copy.
  struct Form {
    int world_size = 0;
    int max_cp = 0;
    Arrival arrival = Arrival::placed;
  };
  explicit Builder(const Form& form);

  // So that nothing moves while it grows.
  struct Room {
    std::size_t rows = 0;
    std::size_t copies = 0;
  };
  void reserve(const Room& room);

  // Of the current rank. At the end, copies to nowhere are left out in the 3-D form.
  void add_row(std::uint32_t length, std::span<const Copy> copies);
  void end_rank();

  // Once, after `world_size` ranks.
  [[nodiscard]] Metadata take();

 private:
  Form form_;
  Metadata metadata_;
  std::uint64_t begin_ = 0;
};

}  // namespace shiplap::dispatch
