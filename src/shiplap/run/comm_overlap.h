// GEMMs overlapped with their communication, in the interface of TransformerEngine: an object holds
// one communicated matrix, and its functions split the GEMM into chunks, so that the transfer of
// one chunk overlaps the GEMM of another.
//
//   const auto id = registry.create_comm_overlap_buffer({.comm_type = Type::all_gather,
//                                                        .method = Method::ring_exchange,
//                                                        .buffer_shape = {1000, 4096}});
//   registry.find(id)->split_overlap_ag({.x = local_rows, .w = weights, .result = y});
//
// An invalid call throws InputError before anything is sent. If a rank fails during a call, the
// others throw comm::Failure; so do later calls of the object.
//
// Thread-safe: calls of one object are serialized, calls of different objects run concurrently. All
// ranks must call an object in the same order. The interface does not name a device, so that others
// can implement it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/scaling.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/operation.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {

// The inverse scales of an FP8 matrix: one float, or, for MXFP8, one E8M0 per 32 values along K.
// The shape is that of the matrix with K in blocks, or that of the tiles of cuBLAS
// (kernels::mx_scale_shape()).
struct ScaleInverse {
  void* data = nullptr;  // null: missing
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  kernels::ScaleOrder order = kernels::ScaleOrder::plain;
};

// A contiguous row-major matrix. It does not own its data unless `owner` does.
struct Matrix {
  void* data = nullptr;  // null: missing
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::bf16;
  // Keeps `data` alive. A transport writes directly into a result only if this is set: if a rank
  // fails, it is leaked, because the transport may still write there. Without an owner, the result
  // of a collective is copied once.
  std::shared_ptr<void> owner;
  ScaleInverse scale_inv;  // of FP8
};
[[nodiscard]] std::int64_t bytes_of(const Matrix& matrix);

// The lifetime of the communicated matrix: leased from the pool for each call, or kept.
enum class BufferLifetime { per_call, persistent };

// A buffer to create. It holds the gathered matrix (all_gather), the whole result (reduce_scatter,
// all_reduce), or the scattered matrix (bulk). The names are those of TransformerEngine.
struct BufferRequest {
  overlap::Type comm_type = overlap::Type::none;
  overlap::Method method = overlap::Method::none;
  std::vector<std::int64_t> buffer_shape;  // global
  // Dimensions before it are flattened to rows, the others to columns; -1: only the last is
  // columns.
  int axis_boundary = -1;
  // The communicated dtype. With FP8, rows or partial sums are sent together with their scales;
  // sums are accumulated in f32, and the buffer cannot be persistent.
  DType buffer_dtype = DType::bf16;
  // How FP8 is scaled, in communication and in operands. Delayed and current scaling differ only in
  // how the caller has computed the scale.
  kernels::ScalingMode scaling_mode = kernels::ScalingMode::no_scaling;
  // The dtype of results, and of operands that are not FP8, if the buffer is FP8. Otherwise both
  // have the dtype of the buffer.
  DType result_dtype = DType::bf16;
  int tp_size = 0;  // 0: all ranks of the communicator
  bool atomic_gemm = false;
  int chunks = 1;  // per rank
  overlap::Cut cut = overlap::Cut::even;
  BufferLifetime lifetime = BufferLifetime::per_call;
  // Identifies the buffer across ranks; "": its id does.
  std::string name;
};

// One GEMM, y = x w, where x is M x K and w is K x N. Splits over ranks are even, remainders go to
// the lowest ranks.
//
//                  x              w              result
//   all_gather     local M x K    K x local N    M x local N
//   reduce_scatter M x local K    local K x N    local M x N
//   all_reduce     M x local K    local K x N    M x N
//   bulk           any            any            any, the same sizes on all ranks; unrelated to the
//                                                buffer
struct OverlapCall {
  // Missing: all_gather uses the local rows in the buffer. Rows that are gathered as FP8 may be
  // passed as FP8, or in high precision: then each row, or block, is quantized with the scale of
  // its amax.
  Matrix x;
  // With groups: those of one group after another.
  Matrix w;
  bool x_is_transposed = false;  // `x` is K x M
  bool w_is_transposed = false;  // `w` is N x K, as in torch.nn.Linear
  // The global size of the dimension that is split over ranks: N (all_gather) or K. 0: all ranks
  // have the same share.
  std::int64_t global_size = 0;
  // If not empty, the number of rows of x in each group: rows are sorted by group, and each group
  // has its own weights. For reduce_scatter and all_reduce, all ranks pass the same.
  std::vector<std::int64_t> group_sizes;
  // Calls of the same sizes and the same version have the same weights, which are packed only once.
  // 0: always pack.
  std::int64_t weights_version = 0;

  // result = activation(alpha * y + beta * result + bias), where y is already summed over ranks:
  // bias and activation are applied once. Missing: all_reduce leaves the result in the buffer.
  Matrix result;
  float alpha = 1;
  float beta = 0;
  // 1 x N of the result, f32 or the dtype of the result. With groups of gathered rows, one row
  // each.
  Matrix bias;
  kernels::Activation activation = kernels::Activation::none;
  Matrix pre_activation;  // of the shape of the result; f32 or its dtype

  Matrix gathered;    // all_gather: a copy of all rows of x, for backward
  Matrix to_scatter;  // bulk: all rows. Missing: those in the buffer
  Matrix scattered;   // bulk: local rows of the sum
};

// Which rows of the communicated matrix.
enum class BufferRows { all, local };

class OverlapObject;

class CommOverlapCore {
 public:
  CommOverlapCore(const CommOverlapCore&) = delete;
  CommOverlapCore& operator=(const CommOverlapCore&) = delete;
  virtual ~CommOverlapCore();

  [[nodiscard]] std::int64_t id() const;
  [[nodiscard]] const BufferRequest& request() const;
  [[nodiscard]] overlap::Choice choice() const;

  // Returns the communicated matrix. Its owner keeps it alive. For a reduce_scatter other than bulk
  // it holds partial sums in unspecified order. Throws InputError D807 if the buffer is not
  // persistent. REQUIRES: no call is running.
  [[nodiscard]] Matrix buffer(BufferRows rows = BufferRows::all) const;
  // Throws InputError D804, D807.
  void copy_into_buffer(const Matrix& source, BufferRows rows = BufferRows::local);
  // The memory that the buffer keeps between calls, and the largest amount that a call has leased
  // from the shared pool.
  [[nodiscard]] std::int64_t persistent_bytes() const;
  [[nodiscard]] std::int64_t shared_bytes() const;

  // Connects to the other ranks; otherwise the first call does. Collective, in the same order of
  // buffers on all ranks. Needed if threads make their first calls in different orders. Throws
  // InputError D808 on all ranks if their buffers differ.
  void connect();

  // Runs the GEMM with its communication. The first call of each size is collective: it creates the
  // plan. Throws InputError D801, D802, D804, D807, D808, D809, D811, D812, D813, D814.
  StepResult multiply(const OverlapCall& call);

  // The same by name. Throws InputError D803 if the buffer was created for another function.
  StepResult bulk_overlap(const OverlapCall& call);
  StepResult split_overlap_ag(const OverlapCall& call);
  StepResult split_overlap_rs(const OverlapCall& call);
  StepResult split_overlap_ar(const OverlapCall& call);
  StepResult atomic_gemm_overlap_ag(const OverlapCall& call);
  StepResult atomic_gemm_overlap_rs(const OverlapCall& call);
  StepResult atomic_gemm_overlap_ar(const OverlapCall& call);

 protected:
  explicit CommOverlapCore(std::unique_ptr<OverlapObject> object);

 private:
  // Throws InputError D803 unless the buffer was created for `function`.
  StepResult multiply_as(std::string_view function, const OverlapCall& call);
  [[noreturn]] void throw_wrong_function(std::string_view function) const;
  std::unique_ptr<OverlapObject> object_;
};

// Based on collectives: bulk, pipeline, and no overlap (multiply() only).
class CommOverlapBase final : public CommOverlapCore {
 public:
  explicit CommOverlapBase(std::unique_ptr<OverlapObject> object);
};

// Based on point-to-point messages: ring_exchange.
class CommOverlapP2PBase final : public CommOverlapCore {
 public:
  explicit CommOverlapP2PBase(std::unique_ptr<OverlapObject> object);
};

// Returns the function for a choice: "split_overlap_rs"; "multiply" if there is no other.
[[nodiscard]] std::string function_name(const overlap::Choice& choice);

}  // namespace shiplap::run
