// Blocks of which bf16 cannot hold every number, in one factor or in both.
#include "shiplap/kernels/scaled_testing_internal.h"

namespace shiplap::kernels {
namespace {

constexpr DType kFormats[] = {DType::fp8_e4m3, DType::fp8_e5m2};

std::vector<int> tails() {
  std::vector<int> scales;
  for (int i = 0; i <= 18; ++i) scales.push_back(i);
  for (int i = 236; i <= 254; ++i) scales.push_back(i);
  return scales;
}

// Three blocks, the last of which is ragged; row 1 is as usual.
constexpr ScaledGemmCase kCase{.m = 4, .n = 9, .k = 70};

void put_tail(ScaledMatrix& factor, int scale) {
  factor.put_block_scale(0, 0, scale);
  factor.put_block_scale(2, 1, scale);
  factor.put_block_scale(2, 2, 255 - scale == 255 ? 254 : 255 - scale);
  for (std::int64_t block = 0; block < 3; ++block) factor.put_block_scale(3, block, scale);
}

// The other factor so that products are of about 1.
void balance(ScaledMatrix& factor, int scale) {
  for (std::int64_t line = 0; line < factor.lines; ++line) {
    for (std::int64_t block = 0; block < 3; ++block) {
      factor.put_block_scale(line, block, 254 - scale);
    }
  }
}

void for_all_formats(const auto& act) {
  for (const DType a : kFormats) {
    for (const DType weights : kFormats) {
      for (const bool transposed : {false, true}) {
        ScaledGemmCase q = kCase;
        q.a_format = a;
        q.weights_format = weights;
        q.weights_are_transposed = transposed;
        act(q);
      }
    }
  }
}

TEST(ScaledTails, AreRightInEitherFactorAndInBoth) {
  for_all_formats([](const ScaledGemmCase& q) {
    for (const int scale : tails()) {
      for (int which = 0; which < 5; ++which) {
        SCOPED_TRACE(testing::Message() << "scale " << scale << ", case " << which);
        Random random(static_cast<std::uint64_t>(scale));
        ScaledArrays arrays(q, random);
        if (which != 1) put_tail(arrays.a, scale);
        if (which == 1 || which == 2) put_tail(arrays.weights, scale);
        if (which == 3) balance(arrays.weights, scale);
        if (which == 4) put_tail(arrays.weights, 254 - scale);
        LinearKernel linear(arrays.shape());
        expect_right(linear, arrays);
      }
    }
  });
}

// Every pair of scales, one number each, without a sum: the product is exact where f32 can
// represent it.
TEST(ScaledTails, ProductsOfAnyTwoScalesAreExact) {
  std::vector<int> all;
  for (int scale = 0; scale < 255; ++scale) all.push_back(scale);
  const auto count = static_cast<std::int64_t>(all.size());
  for (const DType format : kFormats) {
    Random random(1);
    ScaledArrays arrays(
        {.m = count, .n = count, .k = 1, .a_format = format, .weights_format = format}, random);
    for (std::int64_t i = 0; i < count; ++i) {
      for (ScaledMatrix* const factor : {&arrays.a, &arrays.weights}) {
        factor->put_block_scale(i, 0, all[i]);
        factor->put_block_codes(i, 0, std::byte{i % 3 == 0 ? std::uint8_t{1} : std::uint8_t{0x7b}});
      }
    }
    LinearKernel linear(arrays.shape());
    arrays.prepare(linear);
    arrays.multiply(linear, 0, count);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t j = 0; j < count; ++j) {
        const double expected = arrays.a.get(i, 0) * arrays.weights.get(j, 0);
        const double found = arrays.c.get(i * count + j);
        if (expected >= 0x1p128) {
          ASSERT_EQ(found, HUGE_VAL) << i << ", " << j;
        } else if (expected >= 0x1p-126) {
          ASSERT_EQ(found, expected) << i << ", " << j;
        } else {
          ASSERT_NEAR(found, expected, 0x1p-126) << i << ", " << j;
        }
      }
    }
  }
}

// A block of zeros may have any scale: an amax of zero has code 0.
TEST(ScaledTails, ZerosAreZerosWhateverTheirScale) {
  for_all_formats([](const ScaledGemmCase& q) {
    for (const int scale : {0, 5, 250, 254}) {
      Random random(2);
      ScaledArrays arrays(q, random);
      ScaledArrays plain = arrays;
      for (ScaledArrays* const each : {&arrays, &plain}) {
        for (ScaledMatrix* const factor : {&each->a, &each->weights}) {
          factor->put_block_codes(2, 1, std::byte{0x80});
          factor->put_block_codes(3, 0, std::byte{0});
        }
      }
      for (ScaledMatrix* const factor : {&arrays.a, &arrays.weights}) {
        factor->put_block_scale(2, 1, scale);
        factor->put_block_scale(3, 0, scale);
      }
      LinearKernel linear(arrays.shape());
      expect_right(linear, arrays);
      LinearKernel other(plain.shape());
      expect_right(other, plain);
      EXPECT_TRUE(arrays.c == plain.c);
    }
  });
}

// As a scale or as a code, in one row or column, next to usual blocks and to tails.
TEST(ScaledTails, ANanReachesItsRowOrColumnAndNoOther) {
  for_all_formats([](const ScaledGemmCase& q) {
    for (int which = 0; which < 8; ++which) {
      Random random(3);
      ScaledArrays arrays(q, random);
      ScaledMatrix& factor = which % 2 == 0 ? arrays.a : arrays.weights;
      if (which / 2 % 2 == 0) {
        factor.put_block_scale(2, 1, 0xff);
        if (which >= 4) factor.put_block_codes(2, 1, std::byte{});
      } else {
        factor.codes[factor.at(2, 40)] = std::byte{0x7f};
      }
      if (which >= 4) factor.put_block_scale(2, 0, 3);
      LinearKernel linear(arrays.shape());
      expect_right(linear, arrays);
      EXPECT_TRUE(std::isnan(arrays.c.get(which % 2 == 0 ? std::int64_t{2} * 9 : 2)));
    }
  });
}

// Numbers so small that their products vanish, and blocks of numbers below the normal ones.
TEST(ScaledTails, SubnormalCodesCount) {
  for_all_formats([](const ScaledGemmCase& q) {
    for (const int scale : {0, 9, 10, 16, 17, 127, 239, 240, 246, 247, 254}) {
      Random random(4);
      ScaledArrays arrays(q, random);
      for (std::int64_t block = 0; block < 3; ++block) {
        arrays.a.put_block_codes(2, block, std::byte{1});
        arrays.a.put_block_scale(2, block, scale);
      }
      balance(arrays.weights, scale);
      LinearKernel linear(arrays.shape());
      expect_right(linear, arrays);
      EXPECT_NE(arrays.c.get(std::int64_t{2} * 9), 0);
    }
  });
}

// More rows than are multiplied together, among usual ones.
TEST(ScaledTails, ManyRowsAndColumnsHaveThem) {
  for (const std::int64_t typical_rows : {5, 64, 256}) {
    Random random(5);
    ScaledArrays arrays({.m = 100, .n = 60, .k = 100, .out = DType::bf16}, random);
    for (ScaledMatrix* const factor : {&arrays.a, &arrays.weights}) {
      for (std::int64_t line = 0; line < factor->lines; ++line) {
        if (line % 3 != 0) factor->put_block_scale(line, line % 4, line % 3 == 1 ? 4 : 100);
      }
    }
    LinearShape shape = arrays.shape();
    shape.typical_rows = typical_rows;
    LinearKernel linear(shape);
    expect_right(linear, arrays);
  }
}

}  // namespace
}  // namespace shiplap::kernels
