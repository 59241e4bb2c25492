// Builds a small plan about values, step by step, on all ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"
#include "value_plan.h"

namespace shiplap::oracle {

// What is wrong with a plan by design: a statement and an operation that do not fit each other,
// while all later statements fit the wrong one. Changes of a single word are in value_change.h.
enum class Fault : std::uint8_t {
  none,
  claims_less,        // than the kernel read
  claims_more,        // than the kernel read
  operand_shape,      // one operand has more samples than the other
  reads_twice,        // one operand, in two regions
  scale_twice,        // in the loss and in the reduction, stated once
  scale_never,        // stated, and applied nowhere
  two_scales,         // one operand, in two regions
  scaled_operand,     // an activation is not as declared
  new_weights_early,  // read by a kernel of this step
  reads_nothing,
  wrong_layer,  // of an update
  loss_in_the_middle,
  same_row_twice,  // in a list, where it is one too many
  overlapping_sums,
  not_a_product,   // a box of a sum is missing
  other_instance,  // is what a cast makes
  old_as_new,      // is what a cast makes
  stale_update,    // states the version that it read
  partial_read,    // of a kernel that is not linear
  takes_sum_apart,
  unread_dimension,  // of a sum
  slice_summed,      // a dimension that is not whole
  freed_early,
  allocated_twice,
  not_freed,
  begins_new,  // is given the version that it makes
  last = begins_new,
};

class ValueBuilder {
 public:
  ValueBuilder(int ranks, Random& random, Fault lie);

  [[nodiscard]] int ranks() const { return static_cast<int>(plan.ranks.size()); }
  int upto(int first, int last) { return static_cast<int>(random.between(first, last + 1)); }
  [[nodiscard]] bool is(Fault one) const { return lie == one; }

  void declare(Declaration tensor) { plan.tensors.push_back(std::move(tensor)); }

  // A buffer of its own.
  BufferRows rows(int rank, int count);
  static BufferRows slice(BufferRows of, int begin, int count);

  void fact(int rank, const std::string& kind, const BufferRows& place, const StatedValue& value);
  void compute(int rank, const std::string& kernel, std::vector<Assertion> assertions);
  void copy(int rank, const BufferRows& from, const BufferRows& to, bool add = false);
  // On all ranks; `to` may be empty: in place.
  void collective(const std::string& action, const std::vector<BufferRows>& from,
                  const std::vector<BufferRows>& to, const std::string& words = "",
                  int denominator = 1);
  // One message, in program order.
  void message(int from, const BufferRows& what, int to, const BufferRows& where, bool add);
  // Leaves the sum of all ranks on all of them, by one of many ways.
  void all_reduce(const std::vector<BufferRows>& rows, int denominator = 1);

  ValuePlan plan;
  Random& random;
  Fault lie;
  bool pieces = false;   // operands may be in several regions
  bool layouts = false;  // a cell may be several rows, a row several cells

 private:
  ValueRank& at(int rank) { return plan.ranks[rank]; }
};

[[nodiscard]] std::vector<int> range(int begin, int count);

// Templates. All of them are sound without a Fault.
void build_training(ValueBuilder& builder);   // DDP, accumulation, ZeRO
void build_attention(ValueBuilder& builder);  // context parallel
void build_products(ValueBuilder& builder);   // tensor parallel
void build_boxes(ValueBuilder& builder);      // sums over two dimensions
void build_arbitrary(ValueBuilder& builder);  // kernels on any dimensions

}  // namespace shiplap::oracle
