// The GEMM behind the XLA handlers: arrays of any shape, flattened to matrices at an axis, and the
// attributes of the call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "group.h"
#include "shiplap/run/comm_overlap.h"

namespace shiplap::python::jax {

// An array of XLA. An absent optional argument has the shape (0), or no shape and no data.
struct Array {
  void* data = nullptr;
  std::vector<std::int64_t> shape;
  DType type = DType::f32;
  [[nodiscard]] bool is_given() const;
  [[nodiscard]] std::int64_t count() const;
};

// The names are those of TransformerEngine's handlers where they have one.
struct GemmOperands {
  Array lhs;
  Array lhs_scale_inv;
  Array rhs;
  Array rhs_scale_inv;
  Array bias;
  Array group_sizes;  // of GroupedGemm: i32 or i64
  Array alpha;        // one f32; not given: 1
  Array beta;         // one f32; not given: 0
  Array to_scatter;   // for method bulk
  Array axis_index;   // one i32: the device's index along the axis of the group
};
struct GemmResults {
  Array output;
  Array gathered;
  Array pre_activation;
  Array scattered;
};

struct GemmAttributes {
  std::int64_t group = 0;
  overlap::Choice choice;
  std::int64_t comm_overlap_id = -1;  // -1: use a cached buffer for these sizes, or create one
  kernels::ScalingMode scaling_mode = kernels::ScalingMode::no_scaling;
  // Dimensions before the boundary are flattened to rows, the others to columns; -1: only the last
  // dimension becomes columns.
  std::int64_t lhs_axis_boundary = -1;
  std::int64_t rhs_axis_boundary = -1;
  bool lhs_transposed = false;
  bool rhs_transposed = false;
  bool lhs_scale_swizzled = false;
  bool rhs_scale_swizzled = false;
  bool is_grouped = false;
  // Grouped GEMM with a ragged K dimension: rows of lhs and rhs belong to groups, and each group
  // has its own lhs^T rhs, the gradient of its weights. No communication.
  bool has_ragged_k = false;
  std::int64_t rows = 0;         // of all ranks; 0: every rank has as many as this one
  std::int64_t global_size = 0;  // see OverlapCall
  int chunks = 1;
  overlap::Cut cut = overlap::Cut::even;
  kernels::Activation activation = kernels::Activation::none;
  std::string comm_dtype;  // the dtype on the wire; empty: that of the array
};

// Throws InputError D8xx before anything is sent; comm::Failure if the communication fails.
void multiply(int device, const GemmAttributes& attributes, const GemmOperands& operands,
              const GemmResults& results);

// Returns the mean seconds of one of `calls` calls in a row of the same function, without XLA. For
// benchmarks.
double time_directly(int device, const GemmAttributes& attributes, const GemmOperands& operands,
                     const GemmResults& results, int calls);

}  // namespace shiplap::python::jax
