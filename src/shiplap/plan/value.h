// The symbolic contents of buffers: which part of which tensor, and which contributions are summed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/plan/expr.h"

namespace shiplap::plan {

using TensorId = Id<struct TensorTag>;

// A positive fraction in lowest terms.
class Ratio {
 public:
  Ratio() = default;
  // REQUIRES: both are positive.
  Ratio(std::int64_t numerator, std::int64_t denominator);
  [[nodiscard]] std::int64_t numerator() const { return numerator_; }
  [[nodiscard]] std::int64_t denominator() const { return denominator_; }
  friend bool operator==(const Ratio&, const Ratio&) = default;

 private:
  std::int64_t numerator_ = 1;
  std::int64_t denominator_ = 1;
};

// "1/8", "2".
[[nodiscard]] std::string format_ratio(const Ratio& ratio);

// A dimension has the same meaning and the same size in all tensors of a plan that name it.
struct Dimension {
  std::string name;
  std::int64_t size = 1;
  friend bool operator==(const Dimension&, const Dimension&) = default;
};

// A dimension of one tensor: first those of its part, then those of its sum.
using DimensionId = Id<struct DimensionTag>;

// One side of a comparison in a mask: a coordinate, or the entry of a list at that coordinate.
struct MaskSide {
  ListId list;
  DimensionId dimension;
  friend bool operator==(const MaskSide&, const MaskSide&) = default;
};

struct MaskTerm {
  MaskSide left;
  Comparator comparator = Comparator::equal;  // equal or less_equal
  MaskSide right;
  friend bool operator==(const MaskTerm&, const MaskTerm&) = default;
};

// Kinds with versions: `new W[l]` is the result of an update.
inline constexpr const char* kWeight = "Weight";
inline constexpr const char* kOptState = "OptState";

struct Tensor {
  std::string name;
  std::string kind;            // "WeightGrad"
  std::int64_t instances = 0;  // 0: a single one, without an index
  std::vector<Dimension> part;
  std::vector<Dimension> sum;
  Ratio scale;                 // at which `update` must find it
  std::vector<MaskTerm> mask;  // joined by `and`; clips the sums
  friend bool operator==(const Tensor&, const Tensor&) = default;

  [[nodiscard]] bool has_versions() const { return kind == kWeight || kind == kOptState; }
  [[nodiscard]] std::size_t dimensions() const { return part.size() + sum.size(); }
  [[nodiscard]] const Dimension& dimension(DimensionId id) const {
    return id.index() < part.size() ? part[id.index()] : sum[id.index() - part.size()];
  }
  [[nodiscard]] bool in_sum(DimensionId id) const { return id.index() >= part.size(); }
};

// begin, begin+stride, ..: `count` coordinates of one dimension; or that many entries of a list.
// Neighbouring runs of one dimension make one set.
struct Run {
  DimensionId dimension;
  ListId list;
  Expr begin;
  Expr count = 1;
  Expr stride = 1;
  friend bool operator==(const Run&, const Run&) = default;
};

enum class Sum : std::uint8_t {
  complete,  // all contributions (the default)
  some,      // those of the runs; a sum dimension without runs is whole
  none,      // zero
};

// `new G[l] shard dp +1 sum sample 2*dp +2 scale 1/8`. Dimensions of the part without runs
// are whole.
struct Value {
  TensorId tensor;
  bool is_new = false;
  bool indexed = false;
  Sum sum = Sum::complete;
  Expr index;             // 0 unless indexed
  std::vector<Run> runs;  // of the part, then of the sum, as written
  Ratio scale;
  friend bool operator==(const Value&, const Value&) = default;
};

}  // namespace shiplap::plan
