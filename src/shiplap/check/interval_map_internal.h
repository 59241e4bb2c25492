// An interval map: a value for each row of a buffer, stored once for each range of rows.
//
// Ranges are sorted in blocks of limited size, so a write moves at most one block, even if rows are
// written one by one in any order. Most buffers have one block with few ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace shiplap::check {

// T::skip(n) turns the value of a range into that of the range without its first n rows.
template <class T>
class IntervalMap {
 public:
  struct Range {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    T value;
  };

  IntervalMap() = default;
  IntervalMap(std::int32_t rows, const T& value) {
    if (rows > 0) blocks_.push_back({{0, rows, value}});
  }

  // Calls visit(range) for the ranges that overlap these rows, in order.
  template <class Visit>
  void for_each(std::int32_t begin, std::int32_t end, const Visit& visit) const {
    if (begin == end) return;
    for (Position at = find(begin); at.block < blocks_.size(); step(at)) {
      const Range& range = blocks_[at.block][at.index];
      if (range.begin >= end) return;
      visit(range);
    }
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Block& block : blocks_) {
      for (const Range& range : block) visit(range);
    }
  }
  // Splits ranges at both ends, then calls change(range) for the ranges of exactly these rows.
  template <class Change>
  void change(std::int32_t begin, std::int32_t end, const Change& change) {
    if (begin == end) return;
    split(begin);
    split(end);
    for (Position at = find(begin); at.block < blocks_.size(); step(at)) {
      Range& range = blocks_[at.block][at.index];
      if (range.begin >= end) return;
      change(range);
    }
  }
  // Replaces the ranges of these rows. REQUIRES: `made` covers exactly these rows, in order.
  void put(std::int32_t begin, std::int32_t end, std::span<const Range> made) {
    if (begin == end) return;
    const Position at = find(begin);
    Range& range = blocks_[at.block][at.index];
    if (range.begin == begin && range.end == end && made.size() == 1) {
      range.value = made.front().value;
      return;
    }
    split(begin);
    split(end);
    insert(erase(begin, end), made);
  }

 private:
  static constexpr std::size_t kMaxBlock = 256;
  using Block = std::vector<Range>;
  struct Position {
    std::size_t block = 0;
    std::size_t index = 0;
  };

  void step(Position& at) const {
    if (++at.index < blocks_[at.block].size()) return;
    ++at.block;
    at.index = 0;
  }

  // The range that contains a row; the end if there is none.
  [[nodiscard]] Position find(std::int32_t row) const {
    Position at;
    if (blocks_.size() != 1) {
      const auto last = [](const Block& block) { return block.back().end; };
      at.block = static_cast<std::size_t>(std::ranges::upper_bound(blocks_, row, {}, last) -
                                          blocks_.begin());
      if (at.block == blocks_.size()) return at;
    }
    const Block& block = blocks_[at.block];
    if (block.size() < 8) {
      while (at.index < block.size() && block[at.index].end <= row) ++at.index;
    } else {
      at.index = static_cast<std::size_t>(std::ranges::upper_bound(block, row, {}, &Range::end) -
                                          block.begin());
    }
    return at.index < block.size() ? at : Position{blocks_.size(), 0};
  }

  // Splits the range that contains a row, so that one begins there.
  void split(std::int32_t row) {
    const Position at = find(row);
    if (at.block == blocks_.size()) return;
    Block& block = blocks_[at.block];
    if (block[at.index].begin == row) return;
    Range lower = block[at.index];
    lower.value.skip(row - lower.begin);
    lower.begin = row;
    block[at.index].end = row;
    insert({at.block, at.index + 1}, std::span(&lower, 1));
  }

  // Returns where the erased ranges were. REQUIRES: ranges begin at both rows.
  Position erase(std::int32_t begin, std::int32_t end) {
    const Position at = find(begin);
    std::size_t block = at.block;
    std::size_t index = at.index;
    while (block < blocks_.size() && index < blocks_[block].size() &&
           blocks_[block][index].begin < end) {
      Block& here = blocks_[block];
      const auto first = here.begin() + static_cast<std::ptrdiff_t>(index);
      const auto last = std::ranges::lower_bound(first, here.end(), end, {}, &Range::begin);
      here.erase(first, last);
      if (index < here.size()) break;
      ++block;
      index = 0;
    }
    return at;
  }

  // Inserts ranges, splits blocks that are too large and removes empty ones.
  void insert(Position at, std::span<const Range> made) {
    Block& block = blocks_[at.block];
    block.insert(block.begin() + static_cast<std::ptrdiff_t>(at.index), made.begin(), made.end());
    while (blocks_[at.block].size() > kMaxBlock) {
      Block& full = blocks_[at.block];
      const std::size_t keep =
          full.size() > 2 * kMaxBlock ? full.size() - kMaxBlock : full.size() / 2;
      const auto middle = full.begin() + static_cast<std::ptrdiff_t>(keep);
      Block rest(std::make_move_iterator(middle), std::make_move_iterator(full.end()));
      full.erase(middle, full.end());
      blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(at.block) + 1, std::move(rest));
    }
    if (blocks_.size() > 1) std::erase_if(blocks_, [](const Block& it) { return it.empty(); });
  }

  std::vector<Block> blocks_;
};

}  // namespace shiplap::check
