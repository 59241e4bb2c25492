#include <algorithm>

#include "shiplap/check/aligned_pieces_internal.h"

namespace shiplap::check {

AlignedPieces::AlignedPieces(Contents& contents, std::span<const std::span<const Piece>> lists)
    : contents_(contents) {
  cursors_.reserve(lists.size());
  for (const std::span<const Piece> list : lists) cursors_.push_back({.pieces = list});
}

bool AlignedPieces::next() {
  if (!pieces_.empty()) {
    const std::int32_t done = pieces_.front().rows;
    row_ += done;
    for (Cursor& cursor : cursors_) {
      cursor.row += done;
      if (cursor.row < cursor.pieces[cursor.at].rows) continue;
      ++cursor.at;
      cursor.row = 0;
    }
  }
  std::int32_t count = INT32_MAX;
  for (const Cursor& cursor : cursors_) {
    if (cursor.at == cursor.pieces.size()) return false;
    count = std::min(count, cursor.pieces[cursor.at].rows - cursor.row);
  }
  while (!slice(count)) {
  }
  return true;
}

bool AlignedPieces::slice(std::int32_t& count) {
  pieces_.clear();
  for (const Cursor& cursor : cursors_) {
    cut_.clear();
    contents_.slice(cursor.pieces[cursor.at], cursor.row, count, cut_);
    if (cut_.size() > 1) {
      count = cut_.front().rows;
      return false;
    }
    pieces_.push_back(cut_.front());
  }
  return true;
}

}  // namespace shiplap::check
