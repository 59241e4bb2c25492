// Both GEMM backends: that of the build, and the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/engines_internal.h"

namespace shiplap::kernels {
namespace {

constexpr float kUntouched = 12345;

std::size_t at(const Layout& layout, std::int64_t row, std::int64_t column) {
  return static_cast<std::size_t>(layout.is_transposed ? column * layout.stride + row
                                                       : row * layout.stride + column);
}

void put(float& to, int value) { to = static_cast<float>(value); }
void put(Bf16& to, int value) { to = to_bf16(static_cast<float>(value)); }
float get(float value) { return value; }
float get(Bf16 value) { return to_float(value); }

// Small whole numbers, so that every product and sum is exact.
template <class T>
std::vector<T> whole_numbers(Random& random, std::size_t count) {
  std::vector<T> numbers(count);
  for (T& number : numbers) put(number, static_cast<int>(random.between(-8, 9)));
  return numbers;
}

template <class T>
void expect_exact(GemmEngine& engine, GemmDesc p, std::uint64_t seed) {
  p.type = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
  Random random(seed);
  const std::size_t a_size = at(p.a, p.m - 1, p.k - 1) + 1;
  const std::size_t b_size = at(p.b, p.k - 1, p.n - 1) + 1;
  std::vector<T> a = whole_numbers<T>(random, a_size);
  std::vector<T> b = whole_numbers<T>(random, b_size);
  std::vector<float> c(p.m * p.stride_c, kUntouched);
  std::vector<float> expected = c;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k) sum += get(a[at(p.a, i, k)]) * get(b[at(p.b, k, j)]);
      float& here = expected[i * p.stride_c + j];
      here = p.write_mode == WriteMode::accumulate ? here + sum : sum;
    }
  }
  engine.multiply(p, {.a = a.data(), .b = b.data(), .c = c.data()});
  EXPECT_EQ(c, expected) << p.m << " x " << p.n << " x " << p.k << ", seed " << seed;
}

GemmDesc random_desc(Random& random) {
  GemmDesc p{.m = random.between(1, 70), .n = random.between(1, 70), .k = random.between(1, 70)};
  const auto layout = [&](std::int64_t rows, std::int64_t columns) {
    const bool is_transposed = !random.chance();
    const std::int64_t least = is_transposed ? rows : columns;
    return Layout{is_transposed, least + (random.chance() ? random.between(0, 9) : 0)};
  };
  p.a = layout(p.m, p.k);
  p.b = layout(p.k, p.n);
  p.stride_c = p.n + (random.chance() ? random.between(0, 9) : 0);
  p.write_mode = random.chance() ? WriteMode::accumulate : WriteMode::overwrite;
  return p;
}

void expect_exact_everywhere(GemmEngine& engine) {
  Random random(1);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const GemmDesc desc = random_desc(random);
    expect_exact<float>(engine, desc, seed);
    expect_exact<Bf16>(engine, desc, seed);
  }
}

TEST(GemmEngine, ThoseOfThisBuildAreExactForWholeNumbers) {
  expect_exact_everywhere(*make_gemm_engine());
}

TEST(GemmEngine, PlainOnesAreExactForWholeNumbers) {
  expect_exact_everywhere(*make_reference_gemm_engine());
}

// The sizes of attention's blocks, where oneDNN takes other ways than for small ones.
TEST(GemmEngine, AreExactForTheBlocksOfAttention) {
  const std::vector<GemmDesc> blocks = {{.m = 512,
                                         .n = 256,
                                         .k = 64,
                                         .a = {.stride = 64},
                                         .b = {.is_transposed = true, .stride = 64},
                                         .stride_c = 256},
                                        {.m = 512,
                                         .n = 64,
                                         .k = 256,
                                         .a = {.stride = 256},
                                         .b = {.stride = 64},
                                         .stride_c = 64,
                                         .write_mode = WriteMode::accumulate},
                                        {.m = 256,
                                         .n = 64,
                                         .k = 512,
                                         .a = {.is_transposed = true, .stride = 256},
                                         .b = {.stride = 64},
                                         .stride_c = 64,
                                         .write_mode = WriteMode::accumulate}};
  for (const auto& engine : {make_gemm_engine(), make_reference_gemm_engine()}) {
    for (const GemmDesc& block : blocks) {
      expect_exact<float>(*engine, block, 2);
      expect_exact<Bf16>(*engine, block, 3);
    }
  }
}

// The order of the sum may differ, so only that much.
TEST(GemmEngine, BothWaysAgreeOnFractions) {
  Random random(4);
  std::vector<float> a(std::size_t{128} * 64);
  std::vector<float> b(std::size_t{64} * 96);
  for (std::vector<float>* matrix : {&a, &b}) {
    for (float& number : *matrix) number = static_cast<float>(2 * random.unit() - 1);
  }
  std::vector<float> left(std::size_t{128} * 96);
  std::vector<float> right(std::size_t{128} * 96);
  const GemmDesc desc{
      .m = 128, .n = 96, .k = 64, .a = {.stride = 64}, .b = {.stride = 96}, .stride_c = 96};
  make_gemm_engine()->multiply(desc, {a.data(), b.data(), left.data()});
  make_reference_gemm_engine()->multiply(desc, {a.data(), b.data(), right.data()});
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_NEAR(left[i], right[i], 2e-5F) << i;
}

}  // namespace
}  // namespace shiplap::kernels
