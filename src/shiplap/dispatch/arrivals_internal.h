// A table seen from the receiving side: what arrives on each rank, in order of place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct Piece {
  std::uint32_t offset = 0;  // where it arrives
  std::uint32_t length = 0;  // not 0
  std::int32_t from = 0;
  std::uint32_t row = 0;
  std::uint32_t begin = 0;  // where it comes from, in the buffer of `from`
  [[nodiscard]] std::uint64_t end() const { return std::uint64_t{offset} + length; }
};

class Arrivals {
 public:
  // Copies to ranks that do not exist are left out.
  explicit Arrivals(const Metadata& metadata);

  // By offset, then sender, then row.
  [[nodiscard]] std::span<const Piece> on(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(pieces_).subspan(first_[r], first_[r + 1] - first_[r]);
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<Piece> pieces_;
};

}  // namespace shiplap::dispatch
