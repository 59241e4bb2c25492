// A product whose communication is hidden, on real ranks: executes what overlap::make_plan() plans.
//
//   OverlappedProduct product({Type::all_gather, Method::ring_exchange}, problem, world);
//   fill(product.buffer("x")), fill(product.buffer("w"));
//   product.prepare();                      // the weights are packed once
//   product.run();                          // as often as there are new rows in "x"
//   use(product.buffer("y"));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/comm/communicator.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {

// What of it is really done.
enum class Work { all, communication };

// What else becomes of a product.
struct ProductTerms {
  Work work = Work::all;
  // Of the product of gathered rows or beside a bulk transfer, or of sums that messages bring to
  // their owner (finishes()), in float, before the only rounding. Its results have the rows of `y`
  // or `out`, without gaps. Groups have a row of the bias each.
  kernels::Epilogue epilogue;
  // What is bound to `x` lies by columns. Promises that its rows are not communicated.
  bool x_is_transposed = false;
  // Of groups: which rows of x belong to which, all of them. Not given where rows are gathered:
  // each of them says its own.
  std::span<const kernels::GroupRows> runs;
  // Prepared before the first product, when the first messages are on their way. Not given: they
  // are prepared already.
  std::span<const kernels::MatrixView> weights;
};

// Rows of numbers as a form with scales has them, each `row_bytes` after the one before; and back,
// to f32 or bf16.
// A row gets the scale of its own largest number, or that of the largest of all rows, which weights
// need; or each of its blocks does.
enum class ScaleOf { each_row, all_rows };
void encode(const kernels::ConstMatrixView& from, const overlap::Form& form, std::byte* to,
            std::int64_t row_bytes, ScaleOf scale);
void decode(std::byte* from, const overlap::Form& form, std::int64_t row_bytes,
            const kernels::MatrixView& to);

class OverlappedProduct {
 public:
  // All ranks of `world` together, which has as many as the problem; it must live longer. Throws
  // InputError D800, D801, D802 on all ranks if it cannot be done.
  OverlappedProduct(const overlap::Choice& choice, const overlap::Problem& problem,
                    comm::Communicator& world, const ExecuteOptions& options = {});
  OverlappedProduct(OverlappedProduct&&) noexcept;
  OverlappedProduct& operator=(OverlappedProduct&&) noexcept;
  ~OverlappedProduct();

  [[nodiscard]] const plan::Plan& plan() const;
  // This rank's memory, as the plan declares it. Between runs.
  [[nodiscard]] std::span<std::byte> buffer(std::string_view name) const;

  // How large a buffer of this rank is, bound or not.
  [[nodiscard]] std::int64_t buffer_bytes(std::string_view buffer) const;
  // See Executor::bind().
  void bind(std::string_view buffer, std::span<std::byte> bytes,
            std::shared_ptr<void> owner = nullptr);
  // See Executor::leave_out().
  void leave_out(std::string_view buffer);
  // Takes all memory away that was bound.
  void unbind();

  // Takes the weights that lie in `w`. Again whenever they have changed.
  void prepare();
  // Takes these, wherever they lie; `w` is not read then. One for each group, or one, of the form
  // of the problem.
  void prepare(const kernels::MatrixView& weights);
  void prepare(std::span<const kernels::MatrixView> weights);
  // All ranks together. Promises that there are weights, by prepare() or by `terms`. With the
  // communication alone, to time it, there is no result. Throws comm::Failure with the overlap and
  // the step of it where it happened; it is of no use then.
  StepResult run(Work work = Work::all);
  // Promises that nothing but finishes() has an epilogue.
  StepResult run(const ProductTerms& terms);
  // Whether the epilogue is done in the course of it. Otherwise sums come rounded out of a
  // collective, or from their owners; kernels::finish() is for those.
  [[nodiscard]] bool finishes() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::run
