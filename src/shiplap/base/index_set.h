// A set of indices (samples, shards) as sorted runs with a stride. A block or round-robin selection
// is one run, however many indices it has.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace shiplap {

class IndexSet {
 public:
  // begin, begin+stride, ..; the stride of a single index is 1.
  struct Run {
    std::int32_t begin = 0;
    std::int32_t count = 0;
    std::int32_t stride = 1;
    [[nodiscard]] std::int64_t last() const { return begin + (std::int64_t{count} - 1) * stride; }
    friend bool operator==(const Run&, const Run&) = default;
  };

  IndexSet() = default;
  explicit IndexSet(std::int64_t single) : IndexSet(range(single, 1)) {}
  // In any order; duplicates are allowed. REQUIRES: no index is negative.
  explicit IndexSet(std::vector<std::int32_t> indices);
  // REQUIRES: count >= 0, stride >= 1, and the last index is below 2^31 - 1.
  static IndexSet range(std::int64_t begin, std::int64_t count, std::int64_t stride = 1);

  // Inline, because sets are copied often and nearly always have one run.
  IndexSet(const IndexSet& other) : first_(other.first_) {
    if (other.more_) copy_more(other);
  }
  IndexSet(IndexSet&& other) noexcept = default;
  IndexSet& operator=(const IndexSet& other) {
    if (this == &other) return *this;
    first_ = other.first_;
    if (more_ || other.more_) copy_more(other);
    return *this;
  }
  IndexSet& operator=(IndexSet&& other) noexcept = default;
  ~IndexSet() = default;

  [[nodiscard]] std::int64_t size() const { return more_ ? size_of_many() : first_.count; }
  [[nodiscard]] bool empty() const { return first_.count == 0; }
  [[nodiscard]] bool contains(std::int64_t index) const;
  // Whether it is exactly 0 .. count-1.
  [[nodiscard]] bool covers(std::int64_t count) const {
    return first_.begin == 0 && first_.count == count && first_.stride == 1 && !more_;
  }
  // In order. Equal sets have equal runs.
  [[nodiscard]] std::span<const Run> runs() const {
    if (more_) return *more_;
    return {&first_, empty() ? std::size_t{0} : std::size_t{1}};
  }
  [[nodiscard]] std::vector<std::int32_t> indices() const;

  [[nodiscard]] bool overlaps(const IndexSet& other) const;
  [[nodiscard]] bool includes(const IndexSet& other) const;
  [[nodiscard]] IndexSet united(const IndexSet& other) const;
  [[nodiscard]] IndexSet intersected(const IndexSet& other) const;
  // The indices that `other` does not contain.
  [[nodiscard]] IndexSet without(const IndexSet& other) const;
  // Adds `by` to every index. REQUIRES: no index becomes negative or too large.
  [[nodiscard]] IndexSet shifted(std::int64_t by) const;
  friend bool operator==(const IndexSet& a, const IndexSet& b) {
    return a.first_ == b.first_ && (!a.more_ && !b.more_ ? true : equal_runs(a, b));
  }

 private:
  static IndexSet of_runs(std::vector<Run> runs);
  static bool equal_runs(const IndexSet& a, const IndexSet& b);
  void copy_more(const IndexSet& other);
  [[nodiscard]] std::int64_t size_of_many() const;

  // Most sets have one run, which needs no allocation.
  Run first_;
  std::unique_ptr<const std::vector<Run>> more_;  // all runs, if there are several
};

// The union of many sets, in time linear in the number of indices.
struct Union {
  IndexSet set;
  std::int64_t duplicate = -1;  // an index that several of them contain; -1 if none
};
[[nodiscard]] Union unite(std::span<const IndexSet* const> sets);

// The union of disjoint sets of one run each, if it is one run as well: consecutive blocks, or
// round robin. Otherwise empty.
[[nodiscard]] IndexSet one_run(std::span<const IndexSet* const> sets);

// "0-3", "1, 5, .. 29", "0-3 and 8"; long sets are truncated.
[[nodiscard]] std::string to_string(const IndexSet& set);

}  // namespace shiplap
