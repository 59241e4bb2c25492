// Something for each row of a buffer, kept as ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shiplap::check {

// T::skip(n) makes of what holds from some row on what holds n rows further down.
template <class T>
class Rows {
 public:
  struct Range {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    T value;
  };

  Rows() = default;
  Rows(std::int32_t rows, const T& value) {
    if (rows > 0) ranges_.push_back({0, rows, value});
  }

  // The ranges that make up exactly these rows, after cutting those that stick out.
  std::pair<std::size_t, std::size_t> cut(std::int32_t begin, std::int32_t end) {
    const std::size_t first = split(begin);
    return {first, split(end)};
  }
  // Promises that the rows are those of cut().
  Range& operator[](std::size_t k) { return ranges_[k]; }
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

  // Which range holds a row.
  [[nodiscard]] std::size_t find(std::int32_t row) const {
    if (ranges_.size() < 8) {
      std::size_t k = 0;
      while (k < ranges_.size() && ranges_[k].end <= row) ++k;
      return k;
    }
    const auto it = std::ranges::upper_bound(ranges_, row, {}, &Range::end);
    return static_cast<std::size_t>(it - ranges_.begin());
  }

  // Puts ranges in the place of what these rows had. Promises that they cover them, in order.
  void put(std::int32_t begin, std::int32_t end, const std::vector<Range>& made) {
    if (begin == end) return;
    const std::size_t at = find(begin);
    if (ranges_[at].begin == begin && ranges_[at].end == end && made.size() == 1) {
      ranges_[at].value = made.front().value;
      return;
    }
    const auto [first, last] = cut(begin, end);
    const auto from = ranges_.begin() + static_cast<std::ptrdiff_t>(first);
    const std::size_t both = std::min(last - first, made.size());
    std::copy_n(made.begin(), both, from);
    if (last - first > both) {
      ranges_.erase(from + static_cast<std::ptrdiff_t>(both),
                    from + static_cast<std::ptrdiff_t>(last - first));
    } else {
      ranges_.insert(from + static_cast<std::ptrdiff_t>(both),
                     made.begin() + static_cast<std::ptrdiff_t>(both), made.end());
    }
  }

 private:
  // The range that begins at a row.
  std::size_t split(std::int32_t row) {
    const std::size_t at = find(row);
    if (at == ranges_.size() || ranges_[at].begin == row) return at;
    Range lower = ranges_[at];
    lower.value.skip(row - lower.begin);
    lower.begin = row;
    ranges_[at].end = row;
    ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(at) + 1, lower);
    return at + 1;
  }

  std::vector<Range> ranges_;
};

}  // namespace shiplap::check
