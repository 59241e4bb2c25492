// The receiving side of a table: the pieces that arrive on each rank, by offset.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct ReceivedPiece {
  std::uint32_t offset = 0;  // in the receiving buffer
  std::uint32_t length = 0;  // not 0
  std::int32_t from = 0;
  std::uint32_t row = 0;
  std::uint32_t begin = 0;  // in the buffer of `from`
  [[nodiscard]] std::uint64_t end() const { return std::uint64_t{offset} + length; }
};

class ReceivedPieces {
 public:
  // Skips copies to ranks that do not exist.
  explicit ReceivedPieces(const Metadata& metadata);

  // By offset, then sender, then row.
  [[nodiscard]] std::span<const ReceivedPiece> on(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(pieces_).subspan(first_[r], first_[r + 1] - first_[r]);
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<ReceivedPiece> pieces_;
};

}  // namespace shiplap::dispatch
