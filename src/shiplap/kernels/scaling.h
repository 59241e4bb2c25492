// Scales of FP8 quantization, and their layouts.
//
// Values are multiplied by the scale when quantized; the inverse is stored and used to dequantize.
// For MXFP8 (blocks of 32), the stored scale is the inverse, a power of two.
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
// Returns nothing if the name is unknown.
[[nodiscard]] std::optional<ScalingMode> parse_scaling_mode(std::string_view text);
// Throws InputError D810 if the integer is unknown.
[[nodiscard]] ScalingMode scaling_mode_from_int(std::int64_t integer);

// Returns fp8_max / amax / 2^margin, which maps amax to the largest value of the format; 1 if amax
// is 0 or not finite. Clamped to 2^-126 .. 2^126, so that both it and its inverse are normal.
[[nodiscard]] float current_scale(float amax, DType format, int margin = 0);

// Which amax of the history determines the scale.
enum class AmaxRule : std::uint8_t { max, most_recent };

// The defaults are those of TransformerEngine.
struct DelayedScaling {
  DType format = DType::fp8_e4m3;
  std::int64_t length = 1024;  // of the history, in steps
  AmaxRule rule = AmaxRule::max;
  int margin = 0;
};

// Delayed scaling: the scale of a step is computed from the amax of earlier steps.
//
// A step whose amax is 0 or not finite does not change the scale, unless AmaxRule::max finds
// another one in the history; an amax that is not finite is not recorded. (TransformerEngine
// records an infinite one, which keeps the scale for the length of the history.)
class AmaxHistory {
 public:
  explicit AmaxHistory(const DelayedScaling& scaling = {});

  // Records the amax of a tensor of this step; the largest of a step counts.
  void record(float amax);
  // Ends the step: updates the scale and drops the oldest step.
  void update();

  [[nodiscard]] float scale() const { return scale_; }  // 1 at first
  [[nodiscard]] float scale_inv() const { return 1 / scale_; }

 private:
  DelayedScaling scaling_;
  std::vector<float> steps_;  // ring buffer
  std::size_t now_ = 0;
  float scale_ = 1;
};

// How the scale of a block is computed from its amax.
enum class MxRule : std::uint8_t {
  round_up,  // the smallest power of two that is at least amax / largest: TransformerEngine's
  ocp_floor  // floor(log2(amax)) - floor(log2(largest)), of the standard: may saturate numbers
};

// Within codes 0 .. 254: 0 for an amax of zero, 254 for an infinite one, 0xff for NaN.
[[nodiscard]] E8m0 mx_scale(float block_amax, DType format, MxRule rule = MxRule::round_up);

// Row-major, or the layout of cuBLAS block scaling: tiles of 128 rows by 4
// columns one after another by rows, in a tile (row % 32) * 16 + (row / 32) * 4 + column, with
// zero padding.
enum class ScaleOrder : std::uint8_t { plain, swizzled };

// Returns the shape of the scales of a rows x columns matrix, with blocks of 32 along its rows.
[[nodiscard]] MatrixShape mx_scale_shape(std::int64_t rows, std::int64_t columns, ScaleOrder order);

// `matrix` is the shape of the scales in plain order. REQUIRES: the spans have the matching sizes.
void swizzle(const MatrixShape& matrix, std::span<const std::byte> plain,
             std::span<std::byte> swizzled);
void unswizzle(const MatrixShape& matrix, std::span<const std::byte> swizzled,
               std::span<std::byte> plain);

}  // namespace shiplap::kernels
