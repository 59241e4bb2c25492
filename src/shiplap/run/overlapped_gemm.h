// A GEMM overlapped with its communication, on real ranks: executes overlap::make_plan().
//
//   OverlappedGemm gemm({Type::all_gather, Method::ring_exchange}, problem, world);
//   fill(gemm.buffer("x")), fill(gemm.buffer("w"));
//   gemm.prepare();                      // packs the weights once
//   gemm.run();                          // for each new "x"
//   use(gemm.buffer("y"));
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

// comm_only runs the communication without the GEMM, to time it; there is no result.
enum class GemmMode { full, comm_only };

// Arguments of one run.
struct GemmArgs {
  GemmMode mode = GemmMode::full;
  // Applied in f32, before the only rounding. Its outputs have the rows of `y` or `out`,
  // contiguous. With groups, the bias has one row each. REQUIRES: the identity unless
  // applies_epilogue().
  kernels::Epilogue epilogue;
  // The memory bound to `x` is column-major. REQUIRES: its rows are not communicated.
  bool x_is_transposed = false;
  // With groups: the runs of all rows of x. Empty for all_gather: each row carries its group
  // number.
  std::span<const kernels::GroupRows> runs;
  // Packed when the first tile runs, while the first messages are in flight. Empty: already packed.
  std::span<const kernels::MatrixView> weights;
};

// Which elements share a scale, if the format has one scale per row: a row, or all rows (weights).
enum class ScaleScope { per_row, per_tensor };
// Quantizes rows to `format`, and back to f32 or bf16. Rows are `row_bytes` apart and contain their
// scales.
void quantize_rows(const kernels::ConstMatrixView& from, const overlap::QuantFormat& format,
                   std::byte* to, std::int64_t row_bytes, ScaleScope scale);
void dequantize_rows(std::byte* from, const overlap::QuantFormat& format, std::int64_t row_bytes,
                     const kernels::MatrixView& to);

class OverlappedGemm {
 public:
  // Collective. REQUIRES: `world` outlives this. Throws InputError D800, D801, D802 on all ranks if
  // the GEMM is unsupported or `world` has another size than the problem.
  OverlappedGemm(const overlap::Choice& choice, const overlap::Problem& problem,
                 comm::Communicator& world, const ExecuteOptions& options = {});
  OverlappedGemm(OverlappedGemm&&) noexcept;
  OverlappedGemm& operator=(OverlappedGemm&&) noexcept;
  ~OverlappedGemm();

  [[nodiscard]] const plan::Plan& plan() const;
  // Returns the local memory of a buffer of the plan. REQUIRES: no run is active.
  [[nodiscard]] std::span<std::byte> buffer(std::string_view name) const;

  // Returns the local size of a buffer, bound or not.
  [[nodiscard]] std::int64_t buffer_bytes(std::string_view buffer) const;
  // See Executor::bind().
  void bind(std::string_view buffer, std::span<std::byte> bytes,
            std::shared_ptr<void> owner = nullptr);
  // See Executor::skip_allocation().
  void skip_allocation(std::string_view buffer);
  // Unbinds all buffers.
  void unbind();

  // Packs the weights in buffer `w`. To be called again when they change.
  void prepare();
  // Packs these weights instead of `w`: one per group, or one, in the format of the problem.
  void prepare(const kernels::MatrixView& weights);
  void prepare(std::span<const kernels::MatrixView> weights);
  // Collective. REQUIRES: weights were passed to prepare() or are in `args`. Throws comm::Failure
  // that names the overlap and the failed operation; the object is unusable afterwards.
  StepResult run(GemmMode mode = GemmMode::full);
  StepResult run(const GemmArgs& args);
  // Returns whether run() applies the epilogue. Otherwise sums are already rounded when they are
  // complete, and the caller uses kernels::apply_epilogue().
  [[nodiscard]] bool applies_epilogue() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::run
