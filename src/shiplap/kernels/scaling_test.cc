#include "shiplap/kernels/scaling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::kernels {
namespace {

constexpr DType kFormats[] = {DType::fp8_e4m3, DType::fp8_e5m2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

TEST(ScalingMode, HasANameAndAnInteger) {
  const char* const names[] = {"no_scaling", "delayed_tensor_scaling", "mxfp8_1d_scaling",
                               "current_tensor_scaling"};
  for (int i = 0; i < 4; ++i) {
    const ScalingMode mode = scaling_mode_from_int(i);
    EXPECT_EQ(static_cast<int>(mode), i);
    EXPECT_EQ(name(mode), names[i]);
    EXPECT_EQ(parse_scaling_mode(names[i]), mode);
  }
  EXPECT_EQ(parse_scaling_mode("nvfp4"), std::nullopt);
  EXPECT_EQ(parse_scaling_mode(""), std::nullopt);
}

std::string refusal(std::int64_t integer) {
  try {
    static_cast<void>(scaling_mode_from_int(integer));
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D810");
    return error.diagnostics().front().what;
  }
  return "";
}

TEST(ScalingMode, OthersAreRefused) {
  EXPECT_EQ(refusal(4), "scaling mode 4 is NVFP4, which is unsupported");
  EXPECT_EQ(refusal(5), "scaling mode 5 is NVFP4, which is unsupported");
  EXPECT_EQ(refusal(6), "unknown scaling mode 6");
  EXPECT_EQ(refusal(-1), "unknown scaling mode -1");
  EXPECT_EQ(refusal(std::int64_t{1} << 32), "unknown scaling mode 4294967296");
}

TEST(CurrentScale, MakesTheLargestNumberTheLargestOfTheFormat) {
  EXPECT_EQ(current_scale(448, DType::fp8_e4m3), 1);
  EXPECT_EQ(current_scale(1, DType::fp8_e4m3), 448);
  EXPECT_EQ(current_scale(1, DType::fp8_e5m2), 57344);
  EXPECT_EQ(current_scale(1, DType::fp8_e4m3, 3), 56);
  EXPECT_EQ(current_scale(0, DType::fp8_e4m3), 1);
  EXPECT_EQ(current_scale(kInfinity, DType::fp8_e4m3), 1);
  EXPECT_EQ(current_scale(kNan, DType::fp8_e4m3), 1);
}

TEST(CurrentScale, AndItsInverseAreNormalNumbers) {
  for (const DType format : kFormats) {
    for (int exponent = -149; exponent < 128; ++exponent) {
      for (const int margin : {-300, -10, 0, 10, 300}) {
        const float scale = current_scale(std::ldexp(1.0F, exponent), format, margin);
        EXPECT_TRUE(std::isnormal(scale)) << exponent << " " << margin;
        EXPECT_TRUE(std::isnormal(1 / scale)) << exponent << " " << margin;
      }
    }
  }
}

TEST(AmaxHistory, BeginsWithOne) {
  AmaxHistory history;
  EXPECT_EQ(history.scale(), 1);
  history.update();
  EXPECT_EQ(history.scale(), 1);
  EXPECT_EQ(history.scale_inv(), 1);
}

TEST(AmaxHistory, RemembersTheLargestAsLongAsItIs) {
  AmaxHistory history({.length = 3});
  const auto step = [&](float amax) {
    history.record(amax);
    history.update();
    return 448 / history.scale();
  };
  EXPECT_EQ(step(8), 8);
  EXPECT_EQ(step(2), 8);
  EXPECT_EQ(step(1), 8);
  EXPECT_EQ(step(1), 2);
  EXPECT_EQ(step(1), 1);
  EXPECT_EQ(step(4), 4);
}

TEST(AmaxHistory, MostRecentForgetsAtOnce) {
  AmaxHistory history({.format = DType::fp8_e5m2, .rule = AmaxRule::most_recent, .margin = 1});
  for (const float amax : {8.0F, 2.0F, 16.0F}) {
    history.record(1);
    history.record(amax);
    history.record(-1);
    history.update();
    EXPECT_EQ(history.scale(), 57344 / amax / 2);
    EXPECT_EQ(history.scale_inv(), 1 / history.scale());
  }
}

TEST(AmaxHistory, WhatSaysNothingKeepsTheScale) {
  for (const AmaxRule rule : {AmaxRule::max, AmaxRule::most_recent}) {
    for (const float amax : {0.0F, kInfinity, kNan, -kInfinity}) {
      AmaxHistory history({.length = 2, .rule = rule});
      history.record(7);
      history.update();
      for (int i = 0; i < 5; ++i) {
        history.record(amax);
        history.update();
        EXPECT_EQ(history.scale(), 64);
      }
      history.record(14);
      history.update();
      EXPECT_EQ(history.scale(), 32);
    }
  }
}

TEST(AmaxHistory, IsTheMaximumOverAWindow) {
  Random random(1);
  for (std::int64_t length = 1; length < 6; ++length) {
    AmaxHistory history({.length = length});
    std::vector<float> all;
    for (std::int64_t i = 0; i < 40; ++i) {
      all.push_back(static_cast<float>(1 + random.unit()));
      history.record(all.back());
      history.update();
      const auto first = all.end() - std::min(length, i + 1);
      EXPECT_EQ(history.scale(),
                current_scale(*std::max_element(first, all.end()), DType::fp8_e4m3));
    }
  }
}

TEST(AmaxHistory, PromisesAStep) { EXPECT_THROW(AmaxHistory({.length = 0}), InternalError); }

// By trying all codes, in double.
int searched_up(float amax, DType format) {
  for (int code = 0; code < 254; ++code) {
    if (std::ldexp(1.0, code - 127) * static_cast<double>(fp8_max(format)) >= amax) return code;
  }
  return 254;
}

int searched_floor(float amax, DType format) {
  const int exponent = amax == 0 ? -1000 : static_cast<int>(std::floor(std::log2(double{amax})));
  return std::clamp(exponent - (format == DType::fp8_e4m3 ? 8 : 15) + 127, 0, 254);
}

TEST(MxScale, FollowsItsRuleForEverySize) {
  for (const DType format : kFormats) {
    for (int exponent = -149; exponent < 128; ++exponent) {
      for (const float part : {1.0F, 1.5F, 1.75F, 1.99F}) {
        const float middle = std::ldexp(part, exponent);
        for (const float amax :
             {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, kInfinity)}) {
          if (!std::isfinite(amax)) continue;
          ASSERT_EQ(mx_scale(amax, format, MxRule::round_up).bits, searched_up(amax, format))
              << amax;
          ASSERT_EQ(mx_scale(amax, format, MxRule::ocp_floor).bits, searched_floor(amax, format))
              << amax;
        }
      }
    }
  }
}

TEST(MxScale, KnowsWhatIsNoSize) {
  for (const DType format : kFormats) {
    for (const MxRule rule : {MxRule::round_up, MxRule::ocp_floor}) {
      EXPECT_EQ(mx_scale(0, format, rule).bits, 0);
      EXPECT_EQ(mx_scale(kInfinity, format, rule).bits, 254);
      EXPECT_EQ(mx_scale(kNan, format, rule).bits, 255);
    }
  }
}

// The layout that cuBLAS documents, told as nested loops over the bytes of the result instead of a
// formula for a place.
std::vector<std::byte> swizzled_by_loops(const MatrixShape& matrix,
                                         const std::vector<std::byte>& plain) {
  std::vector<std::byte> result;
  for (std::int64_t tile_row = 0; tile_row * 128 < matrix.rows; ++tile_row) {
    for (std::int64_t tile_column = 0; tile_column * 4 < matrix.columns; ++tile_column) {
      for (std::int64_t lane = 0; lane < 32; ++lane) {
        for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
          for (std::int64_t k = 0; k < 4; ++k) {
            const std::int64_t row = tile_row * 128 + quarter * 32 + lane;
            const std::int64_t column = tile_column * 4 + k;
            const bool is_inside = row < matrix.rows && column < matrix.columns;
            result.push_back(is_inside ? plain[row * matrix.columns + column] : std::byte{});
          }
        }
      }
    }
  }
  return result;
}

void expect_swizzles(const MatrixShape& matrix, Random& random) {
  std::vector<std::byte> plain(matrix.count());
  for (std::byte& scale : plain) scale = static_cast<std::byte>(random.between(1, 256));
  const std::vector<std::byte> expected = swizzled_by_loops(matrix, plain);
  std::vector<std::byte> swizzled(expected.size(), std::byte{0xaa});
  swizzle(matrix, plain, swizzled);
  ASSERT_EQ(swizzled, expected) << matrix.rows << " x " << matrix.columns;
  std::vector<std::byte> back(plain.size());
  unswizzle(matrix, swizzled, back);
  ASSERT_EQ(back, plain) << matrix.rows << " x " << matrix.columns;
}

TEST(ScaleOrder, SwizzlesThereAndBack) {
  Random random(2);
  for (const std::int64_t rows : {0, 1, 2, 31, 32, 33, 127, 128, 129, 256, 300}) {
    for (std::int64_t columns = 0; columns <= 9; ++columns) {
      expect_swizzles({.rows = rows, .columns = columns}, random);
    }
  }
}

TEST(ScaleOrder, ShapesArePaddedToTiles) {
  EXPECT_EQ(mx_scale_shape(5, 33, ScaleOrder::plain), (MatrixShape{5, 2}));
  EXPECT_EQ(mx_scale_shape(5, 33, ScaleOrder::swizzled), (MatrixShape{128, 4}));
  EXPECT_EQ(mx_scale_shape(129, 128, ScaleOrder::plain), (MatrixShape{129, 4}));
  EXPECT_EQ(mx_scale_shape(129, 129, ScaleOrder::swizzled), (MatrixShape{256, 8}));
  EXPECT_EQ(mx_scale_shape(0, 0, ScaleOrder::swizzled), (MatrixShape{0, 0}));
  EXPECT_THROW(static_cast<void>(mx_scale_shape(-1, 1, ScaleOrder::plain)), InternalError);
}

TEST(ScaleOrder, PromisesTheSizes) {
  std::vector<std::byte> some(512);
  const std::span<std::byte> six(some.data(), 6);
  EXPECT_NO_THROW(swizzle({.rows = 2, .columns = 3}, six, some));
  EXPECT_THROW(swizzle({.rows = 3, .columns = 3}, six, some), InternalError);
  EXPECT_THROW(swizzle({.rows = 2, .columns = 3}, six, six), InternalError);
  EXPECT_THROW(unswizzle({.rows = 2, .columns = 3}, six, six), InternalError);
}

}  // namespace
}  // namespace shiplap::kernels
