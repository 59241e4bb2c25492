// By what numbers are multiplied before they are rounded to eight bits, and how such scales are
// stored.
//
// A scale multiplies on the way into FP8; its inverse is stored and multiplies on the way back. Of
// MXFP8 (blocks of 32), the scale that is stored is the inverse, a power of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/matrix_view.h"

namespace shiplap::kernels {

// The integers are those of JAXX_Scaling_Mode of TransformerEngine.
enum class ScalingMode : int {
  no_scaling = 0,
  delayed_tensor_scaling = 1,
  mxfp8_1d_scaling = 2,
  current_tensor_scaling = 3
};

// "no_scaling" and so on.
[[nodiscard]] std::string_view name(ScalingMode mode);
// Nothing if none is called so.
[[nodiscard]] std::optional<ScalingMode> scaling_mode_called(std::string_view text);
// Throws InputError D810 if it is none of these.
[[nodiscard]] ScalingMode scaling_mode_of(std::int64_t integer);

// largest / amax / 2^margin, so that the largest number becomes the largest that the format has; 1
// if amax is 0 or not finite. It is kept within 2^-126 .. 2^126, so that neither it nor its inverse
// is zero, infinite or subnormal.
[[nodiscard]] float current_scale(float amax, DType format, int margin = 0);

// Of the sizes in a history: the largest, or that of the last step.
enum class AmaxRule : std::uint8_t { max, most_recent };

// The defaults are those of TransformerEngine.
struct DelayedScaling {
  DType format = DType::fp8_e4m3;
  std::int64_t length = 1024;  // of the history, in steps
  AmaxRule rule = AmaxRule::max;
  int margin = 0;
};

// The scale of a step follows from the sizes of tensors of steps before.
//
// A step whose amax is 0 or not finite leaves the scale as it is unless, by AmaxRule::max, others
// in the history say more; what is not finite is not kept. (TransformerEngine keeps an infinite
// one, and with it the scale, for as long as the history is.)
class AmaxHistory {
 public:
  explicit AmaxHistory(const DelayedScaling& scaling = {});

  // The largest absolute number of a tensor of this step. Of several in a step, the largest counts.
  void record(float amax);
  // The step is over: the scale follows from the history, of which the oldest step is forgotten.
  void update();

  [[nodiscard]] float scale() const { return scale_; }  // 1 at first
  [[nodiscard]] float scale_inv() const { return 1 / scale_; }

 private:
  DelayedScaling scaling_;
  std::vector<float> steps_;  // a ring
  std::size_t now_ = 0;
  float scale_ = 1;
};

// How the scale of a block follows from its largest absolute number.
enum class MxRule : std::uint8_t {
  round_up,  // the smallest power of two that is at least amax / largest: TransformerEngine's
  ocp_floor  // floor(log2(amax)) - floor(log2(largest)), of the standard: may saturate numbers
};

// Within codes 0 .. 254: 0 for an amax of zero, 254 for an infinite one, 0xff for NaN.
[[nodiscard]] E8m0 mx_scale(float block_amax, DType format, MxRule rule = MxRule::round_up);

// By rows without gaps, or as the block scaling of cuBLAS wants them: tiles of 128 rows by 4
// columns one after another by rows, in a tile (row % 32) * 16 + (row / 32) * 4 + column, with
// zeros in what the matrix does not reach.
enum class ScaleOrder : std::uint8_t { plain, swizzled };

// Of the scales of a matrix of rows x columns, in blocks of 32 along its rows.
[[nodiscard]] MatrixShape mx_scale_shape(std::int64_t rows, std::int64_t columns, ScaleOrder order);

// `matrix` is the shape of the scales in plain order; promises that the spans have the sizes.
void swizzle(const MatrixShape& matrix, std::span<const std::byte> plain,
             std::span<std::byte> swizzled);
void unswizzle(const MatrixShape& matrix, std::span<const std::byte> swizzled,
               std::span<std::byte> plain);

}  // namespace shiplap::kernels
