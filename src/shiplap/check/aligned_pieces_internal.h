// Iterates several lists of pieces in lockstep, split so that the current pieces have equal
// lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/check/content_internal.h"

namespace shiplap::check {

class AlignedPieces {
 public:
  // REQUIRES: all lists have the same number of rows; the pieces outlive it.
  AlignedPieces(Contents& contents, std::span<const std::span<const Piece>> lists);

  // Advances to the next rows; false at the end. Call it before the first access.
  [[nodiscard]] bool next();
  // One piece of every list, of equal length.
  [[nodiscard]] std::span<const Piece> pieces() const { return pieces_; }
  [[nodiscard]] std::int32_t row() const { return row_; }

 private:
  struct Cursor {
    std::span<const Piece> pieces;
    std::size_t at = 0;
    std::int32_t row = 0;  // in the piece
  };
  // Takes the next `count` rows of each list. Returns false if those of some list are several
  // pieces; `count` is then the length of the first one.
  [[nodiscard]] bool slice(std::int32_t& count);

  Contents& contents_;
  std::vector<Cursor> cursors_;
  Pieces pieces_;
  Pieces cut_;
  std::int32_t row_ = 0;
};

}  // namespace shiplap::check
