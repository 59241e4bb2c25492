// A product as a program of XLA asks for it: arrays of any shape, flattened at an axis, and words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "group.h"
#include "shiplap/run/comm_overlap.h"

namespace shiplap::python::jax {

// An array of XLA. One of the shape (0), or without any and nowhere, was not given.
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
  Array to_scatter;   // of bulk
  Array place;        // one i32: where the device is along the axis of the group
};
struct GemmResults {
  Array output;
  Array gathered;
  Array before_activation;
  Array scattered;
};

struct GemmAttributes {
  std::int64_t group = 0;
  overlap::Choice choice;
  std::int64_t comm_overlap_id = -1;  // -1: a buffer is made for what is asked
  kernels::ScalingMode scaling_mode = kernels::ScalingMode::no_scaling;
  // The dimensions before it become rows, the others columns; -1: the last one alone does.
  std::int64_t lhs_axis_boundary = -1;
  std::int64_t rhs_axis_boundary = -1;
  bool lhs_transposed = false;
  bool rhs_transposed = false;
  bool lhs_scale_swizzled = false;
  bool rhs_scale_swizzled = false;
  bool is_grouped = false;
  // Of groups: rows of lhs and of rhs belong to a group, and each group has a product of its own,
  // lhs^T rhs: the gradient of its weights. Without communication.
  bool has_ragged_depth = false;
  std::int64_t rows = 0;         // of all ranks; 0: every rank has as many as this one
  std::int64_t size_of_all = 0;  // see OverlapCall
  int chunks = 1;
  overlap::Cut cut = overlap::Cut::even;
  kernels::Activation activation = kernels::Activation::none;
  // What travels, if it is not what lies there.
  std::string comm_dtype;
};

// Throws InputError D8xx before anything has been sent, comm::Failure.
void multiply(int device, const GemmAttributes& attributes, const GemmOperands& operands,
              const GemmResults& results);

// Seconds of a call of the same function, so many in a row, without XLA: for benchmarks.
double time_directly(int device, const GemmAttributes& attributes, const GemmOperands& operands,
                     const GemmResults& results, int calls);

}  // namespace shiplap::python::jax
