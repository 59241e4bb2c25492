// Products with their communication, as users of TransformerEngine know them: an object holds one
// communicated matrix, and a function does what its name says, piece by piece while other pieces
// travel.
//
//   const auto id = registry.create_comm_overlap_buffer({.comm_type = Type::all_gather,
//                                                        .method = Method::ring_exchange,
//                                                        .buffer_shape = {1000, 4096}});
//   registry.find(id)->split_overlap_ag({.x = own_rows, .w = weights, .result = y});
//
// A call that cannot be done throws InputError before anything has been sent. A rank that fails in
// the middle makes the others throw comm::Failure; later calls of the object throw it, too.
//
// Any thread may call, and another one the next time. Calls of one object take turns; calls of
// different objects go on at the same time. All ranks call an object in the same order. What is to
// be computed where is not said here, so that other devices can stand behind the same interface.
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

// What the codes of an FP8 matrix are to be multiplied by: one float, or, of MXFP8, an E8M0 for
// every 32 numbers along the inner size of the product. Their shape is that of the matrix with its
// inner size in blocks, or that of the tiles of cuBLAS (kernels::mx_scale_shape()).
struct ScaleInverse {
  void* data = nullptr;  // null: not given
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  kernels::ScaleOrder order = kernels::ScaleOrder::plain;
};

// Numbers by rows, without gaps. It owns nothing unless it is told what does.
struct Matrix {
  void* data = nullptr;  // null: it is not given
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::bf16;
  // Keeps `data` alive. Of a result: a transport writes straight there only if it can keep this,
  // for ever if it fails. Without one, what a collective brings is copied once.
  std::shared_ptr<void> owner;
  ScaleInverse scale_inv;  // of FP8
};
[[nodiscard]] std::int64_t bytes_of(const Matrix& matrix);

// Whether the communicated matrix has memory of its own, or borrows some for each call.
enum class Contents { during_call, between_calls };

// A buffer to create: for all_gather what is gathered, for the others the whole result, in bulk
// what is scattered. The names are those of the original.
struct BufferRequest {
  overlap::Type comm_type = overlap::Type::none;
  overlap::Method method = overlap::Method::none;
  std::vector<std::int64_t> buffer_shape;  // over all ranks
  // The dimensions before it are rows, those from it on are columns; -1: the last one alone is.
  int axis_boundary = -1;
  // What travels. As FP8, rows or parts of sums travel with their scales, one behind the other;
  // then sums are made in f32, and contents do not last.
  DType buffer_dtype = DType::bf16;
  // How FP8 is scaled: what travels, and factors. Delayed scaling differs from current scaling only
  // in how the caller of it found the scale of the codes.
  kernels::ScalingMode scaling_mode = kernels::ScalingMode::no_scaling;
  // Of results, and of factors that are not FP8, where FP8 travels; otherwise they are as what
  // travels.
  DType result_dtype = DType::bf16;
  int tp_size = 0;  // 0: all ranks of the communicator
  bool atomic_gemm = false;
  int chunks = 1;  // into which the rows of each rank are cut
  overlap::Cut cut = overlap::Cut::even;
  Contents contents = Contents::during_call;
  // By which ranks know that they mean the same buffer; "": by its id.
  std::string name;
};

// One product, y = x w. P ranks cut things as evenly as can be; the first have one more.
//
//                  x                   w                   result
//   all_gather     own rows x depth    depth x own columns all rows x own columns
//   reduce_scatter all rows x own depth  own depth x columns  own rows x columns
//   all_reduce     all rows x own depth  own depth x columns  all rows x columns
//   bulk           any                 any                 any, of the same sizes on all ranks; has
//                                                          nothing to do with the buffer
struct OverlapCall {
  // Not given: all_gather takes the rows that lie in the buffer. Rows that are gathered as FP8 may
  // be given so, or wide: then each row, or block, gets the scale of its largest number.
  Matrix x;
  // For groups, those of one group after another.
  Matrix w;
  bool x_is_transposed = false;  // `x` is depth x rows
  bool w_is_transposed = false;  // `w` is columns x depth, as a Linear of PyTorch has it
  // What is cut over ranks: the columns of all ranks (all_gather) or their depth. 0: every rank has
  // as much as this one.
  std::int64_t size_of_all = 0;
  // If not empty, a number of rows of x for each group: they are sorted by group, and each group
  // has weights of its own. Where a product is summed, all ranks give the same.
  std::vector<std::int64_t> group_sizes;
  // Two calls of the same sizes with the same number have the same weights, which then are prepared
  // only once. 0: they may be others.
  std::int64_t weights_version = 0;

  // result = activation(alpha * y + beta * result + bias), where y has been summed over ranks: bias
  // and activation come once. Not given: all_reduce leaves it in the buffer.
  Matrix result;
  float alpha = 1;
  float beta = 0;
  // 1 x columns of the result, f32 or of its type. For groups of gathered rows, one row for each.
  Matrix bias;
  kernels::Activation activation = kernels::Activation::none;
  Matrix before_activation;  // of the shape of the result, f32 or of its type

  Matrix gathered;    // all_gather: a copy of all rows of x, for the way back
  Matrix to_scatter;  // bulk: all rows. Not given: those that lie in the buffer
  Matrix scattered;   // bulk: own rows of the sum
};

// Which rows of the communicated matrix.
enum class Part { all, own_rows };

class OverlapObject;

class CommOverlapCore {
 public:
  CommOverlapCore(const CommOverlapCore&) = delete;
  CommOverlapCore& operator=(const CommOverlapCore&) = delete;
  virtual ~CommOverlapCore();

  [[nodiscard]] std::int64_t id() const;
  [[nodiscard]] const BufferRequest& request() const;
  [[nodiscard]] overlap::Choice choice() const;

  // The communicated matrix, between calls. Its owner keeps it alive. In a reduce_scatter other
  // than bulk it holds parts of sums, in no order. Throws InputError D807 if its contents do not
  // last.
  [[nodiscard]] Matrix buffer(Part part = Part::all) const;
  // Throws InputError D804, D807.
  void copy_into_buffer(const Matrix& source, Part part = Part::own_rows);
  // What it holds between calls, and what its largest call so far took from the memory that calls
  // share.
  [[nodiscard]] std::int64_t own_bytes() const;
  [[nodiscard]] std::int64_t shared_bytes() const;

  // Meets the other ranks, which the first call does otherwise: all ranks together, for one buffer
  // after another in the same order. Needed where threads make their first calls in any order.
  // Throws InputError D808 on all ranks if they mean different buffers.
  void connect();

  // Does what the object was made for. The first call with each size of weights makes what that
  // needs: all ranks together. Throws InputError D801, D802, D804,
  // D807, D808, D809, D811, D812, D813, D814.
  StepResult multiply(const OverlapCall& call);

  // The same by name. Throws InputError D803 if the object was made for something else.
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
  // Throws InputError D803 unless this is what the object was made for.
  StepResult multiply_as(std::string_view function, const OverlapCall& call);
  [[noreturn]] void refuse(std::string_view function) const;
  std::unique_ptr<OverlapObject> object_;
};

// By collectives: bulk and pipeline, and one after the other (multiply() alone).
class CommOverlapBase final : public CommOverlapCore {
 public:
  explicit CommOverlapBase(std::unique_ptr<OverlapObject> object);
};

// By messages between pairs of ranks: ring_exchange.
class CommOverlapP2PBase final : public CommOverlapCore {
 public:
  explicit CommOverlapP2PBase(std::unique_ptr<OverlapObject> object);
};

// The function that does it, as it is called here: "split_overlap_rs"; "multiply" if it has no
// other name.
[[nodiscard]] std::string function_of(const overlap::Choice& choice);

}  // namespace shiplap::run
