// Lists of pieces that have as many rows each, side by side: rows where each has one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/check/content_internal.h"

namespace shiplap::check {

class Columns {
 public:
  // REQUIRES: the pieces outlive it.
  Columns(Contents& contents, std::span<const std::span<const Piece>> lists);

  // To the next rows, first to the first ones; false behind the last.
  [[nodiscard]] bool next();
  // Of every list one, with as many rows.
  [[nodiscard]] std::span<const Piece> pieces() const { return pieces_; }
  [[nodiscard]] std::int32_t row() const { return row_; }

 private:
  struct Cursor {
    std::span<const Piece> pieces;
    std::size_t at = 0;
    std::int32_t row = 0;  // in the piece
  };
  // The rows of each that follow; false if one of them falls into several pieces, and then `count`
  // is as many as its first one has.
  [[nodiscard]] bool slice(std::int32_t& count);

  Contents& contents_;
  std::vector<Cursor> cursors_;
  Pieces pieces_;
  Pieces cut_;
  std::int32_t row_ = 0;
};

}  // namespace shiplap::check
