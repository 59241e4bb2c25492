// Both ways to do products: that of the build, and plain loops.
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
void expect_exact(Products& products, Product p, std::uint64_t seed) {
  p.type = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
  Random random(seed);
  const std::size_t a_size = at(p.a, p.rows - 1, p.depth - 1) + 1;
  const std::size_t b_size = at(p.b, p.depth - 1, p.columns - 1) + 1;
  std::vector<T> a = whole_numbers<T>(random, a_size);
  std::vector<T> b = whole_numbers<T>(random, b_size);
  std::vector<float> c(p.rows * p.stride_c, kUntouched);
  std::vector<float> expected = c;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    for (std::int64_t j = 0; j < p.columns; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < p.depth; ++k)
        sum += get(a[at(p.a, i, k)]) * get(b[at(p.b, k, j)]);
      float& here = expected[i * p.stride_c + j];
      here = p.into == Into::accumulate ? here + sum : sum;
    }
  }
  products.multiply(p, {.a = a.data(), .b = b.data(), .c = c.data()});
  EXPECT_EQ(c, expected) << p.rows << " x " << p.columns << " x " << p.depth << ", seed " << seed;
}

Product random_product(Random& random) {
  Product p{.rows = random.between(1, 70),
            .columns = random.between(1, 70),
            .depth = random.between(1, 70)};
  const auto layout = [&](std::int64_t rows, std::int64_t columns) {
    const bool is_transposed = !random.chance();
    const std::int64_t least = is_transposed ? rows : columns;
    return Layout{is_transposed, least + (random.chance() ? random.between(0, 9) : 0)};
  };
  p.a = layout(p.rows, p.depth);
  p.b = layout(p.depth, p.columns);
  p.stride_c = p.columns + (random.chance() ? random.between(0, 9) : 0);
  p.into = random.chance() ? Into::accumulate : Into::overwrite;
  return p;
}

void expect_exact_everywhere(Products& products) {
  Random random(1);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Product product = random_product(random);
    expect_exact<float>(products, product, seed);
    expect_exact<Bf16>(products, product, seed);
  }
}

TEST(Products, ThoseOfThisBuildAreExactForWholeNumbers) {
  expect_exact_everywhere(*make_products());
}

TEST(Products, PlainOnesAreExactForWholeNumbers) {
  expect_exact_everywhere(*make_plain_products());
}

// The sizes of attention's blocks, where oneDNN takes other ways than for small ones.
TEST(Products, AreExactForTheBlocksOfAttention) {
  const std::vector<Product> blocks = {{.rows = 512,
                                        .columns = 256,
                                        .depth = 64,
                                        .a = {.stride = 64},
                                        .b = {.is_transposed = true, .stride = 64},
                                        .stride_c = 256},
                                       {.rows = 512,
                                        .columns = 64,
                                        .depth = 256,
                                        .a = {.stride = 256},
                                        .b = {.stride = 64},
                                        .stride_c = 64,
                                        .into = Into::accumulate},
                                       {.rows = 256,
                                        .columns = 64,
                                        .depth = 512,
                                        .a = {.is_transposed = true, .stride = 256},
                                        .b = {.stride = 64},
                                        .stride_c = 64,
                                        .into = Into::accumulate}};
  for (const auto& products : {make_products(), make_plain_products()}) {
    for (const Product& block : blocks) {
      expect_exact<float>(*products, block, 2);
      expect_exact<Bf16>(*products, block, 3);
    }
  }
}

// The order of the sum may differ, so only that much.
TEST(Products, BothWaysAgreeOnFractions) {
  Random random(4);
  std::vector<float> a(std::size_t{128} * 64);
  std::vector<float> b(std::size_t{64} * 96);
  for (std::vector<float>* matrix : {&a, &b}) {
    for (float& number : *matrix) number = static_cast<float>(2 * random.unit() - 1);
  }
  std::vector<float> left(std::size_t{128} * 96);
  std::vector<float> right(std::size_t{128} * 96);
  const Product product{.rows = 128,
                        .columns = 96,
                        .depth = 64,
                        .a = {.stride = 64},
                        .b = {.stride = 96},
                        .stride_c = 96};
  make_products()->multiply(product, {a.data(), b.data(), left.data()});
  make_plain_products()->multiply(product, {a.data(), b.data(), right.data()});
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_NEAR(left[i], right[i], 2e-5F) << i;
}

}  // namespace
}  // namespace shiplap::kernels
