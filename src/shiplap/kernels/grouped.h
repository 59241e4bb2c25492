// Many products at once, each with weights of its own: rows sorted by group, as the experts of a
// mixture get them.
//
//   GroupedLinear experts({.groups = 64, .columns = n, .depth = k, .type = DType::bf16});
//   experts.prepare(weights);  // one for each group
//   const GroupRows runs[] = {{.group = 5, .rows = 7}, {.group = 9, .rows = 130}};
//   experts.multiply({.data = x, .count = 137}, runs, {.data = y, .type = DType::bf16});
//
// computes, for each row on its own and with all sums in float,
//
//   before = alpha * a w[group] + beta * c + bias[group];   c = activation(before)
//
// and rounds once, to nearest even, when a number is stored. The numbers of rows may be others in
// every call, and any size may be zero.
//
// A call uses only the thread that makes it. On tiles of AMX no number of rows is new; oneDNN
// compiles something for every multiple of 4 rows (bf16: 16) up to the typical number when it is
// first needed, a millisecond each. Other than that, later calls allocate nothing of note.
//
// A row has the same bits whether it comes alone, in a chunk or in the whole, and whatever other
// groups there are, as long as the kernel (or another of the same shape, on the same kind of
// processor) computes it in the same layout of `a` and with the same epilogue. They may differ in
// the last bits of the sum from those of a LinearKernel. Where by() names oneDNN or AMX, subnormal
// bf16 are taken as zero.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/base/dtype.h"
#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

struct GroupedShape {
  std::int64_t groups = 0;
  std::int64_t columns = 0;  // of the weights and of the result
  std::int64_t depth = 0;    // the inner size
  DType type = DType::f32;   // of both factors
  Packing packing = Packing::once;
  std::int64_t typical_rows = 64;  // of a group
  Engine engine = Engine::best;
};

// Some rows that belong to one group.
struct GroupRows {
  std::int64_t group = 0;
  std::int64_t rows = 0;
};

// One row of `columns` numbers for each group. Stride counts elements; 0 means that there are no
// gaps.
struct GroupedBias {
  const void* data = nullptr;  // null: none
  DType type = DType::f32;     // or that of the factors
  std::int64_t stride = 0;
};

// As Epilogue.
struct GroupedEpilogue {
  float alpha = 1;
  float beta = 0;  // if 0, what was in `c` is not read
  GroupedBias bias;
  Activation activation = Activation::none;
  Result before_activation;  // if not null, what the activation was taken of, for the way back
};

// Not const: it keeps what calls need from one to the next. One thread at a time may use one;
// several may have one each.
class GroupedLinear {
 public:
  explicit GroupedLinear(const GroupedShape& shape);
  GroupedLinear(GroupedLinear&&) noexcept;
  GroupedLinear& operator=(GroupedLinear&&) noexcept;
  ~GroupedLinear();

  // The weights of each group, all at once or one at a time. With Packing::once they are copied
  // into the blocks that the engine wants and not used after it, and have to be prepared again when
  // they have changed; else every call packs those it uses, from where they lie.
  void prepare(std::span<const Weights> weights);
  void prepare(std::int64_t group, const Weights& weights);

  // `a` is cut into these runs, one after the other, which together have as many rows as it. A
  // group may occur several times, in any order, or not at all. Results overlap neither each other
  // nor the factors. Promises that the weights of the groups that occur with rows are prepared.
  void multiply(const Rows& a, std::span<const GroupRows> runs, const Result& c,
                const GroupedEpilogue& epilogue = {});

  // "plain loops", "tiles of AMX", or what oneDNN calls its way.
  [[nodiscard]] std::string_view by() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::kernels
