#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {
namespace {

// Numbers that bf16 has.
std::vector<float> numbers(std::int64_t count, std::int64_t seed) {
  std::vector<float> made;
  for (std::int64_t k = 0; k < count; ++k) {
    made.push_back(static_cast<float>((k * 37 + seed * 11) % 64 - 32) / 16);
  }
  return made;
}

std::vector<Bf16> halved(const std::vector<float>& floats) {
  std::vector<Bf16> made;
  for (const float number : floats) made.push_back(to_bf16(number));
  return made;
}

double gelu(double x) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x / 2 * (1 + std::tanh(inner));
}

// Shapes of one row, of more rows than are done at once, and of rows that are longer than that.
TEST(Finish, IsTheEpilogueOfEveryRow) {
  for (const auto& [rows, columns] : {std::pair{1, 5}, std::pair{900, 7}, std::pair{3, 5000}}) {
    const std::vector<float> sums = numbers(std::int64_t{rows} * columns, 1);
    std::vector<float> c = numbers(std::int64_t{rows} * columns, 2);
    const std::vector<float> old = c;
    const std::vector<float> bias = numbers(columns, 3);
    std::vector<float> before(c.size());
    apply_epilogue({.data = sums.data(), .rows = rows, .columns = columns}, {.data = c.data()},
                   {.alpha = 2,
                    .beta = 0.5F,
                    .bias = {bias.data(), DType::f32},
                    .activation = Activation::gelu_tanh,
                    .pre_activation = {.data = before.data()}});
    for (std::size_t k = 0; k < c.size(); ++k) {
      const float right = 2 * sums[k] + 0.5F * old[k] + bias[k % static_cast<std::size_t>(columns)];
      ASSERT_EQ(before[k], right);
      ASSERT_NEAR(c[k], gelu(right), 1e-5 * (1 + std::abs(right)));
    }
  }
}

TEST(Finish, CanBeDoneInPlace) {
  std::vector<Bf16> c = halved(numbers(12000, 1));
  const std::vector<Bf16> sums = c;
  const std::vector<Bf16> bias = halved({1, 2, 3});
  apply_epilogue({.data = c.data(), .type = DType::bf16, .rows = 4000, .columns = 3},
                 {.data = c.data(), .type = DType::bf16}, {.bias = {bias.data(), DType::bf16}});
  for (std::size_t k = 0; k < c.size(); ++k) {
    ASSERT_EQ(to_float(c[k]), to_float(to_bf16(to_float(sums[k]) + to_float(bias[k % 3]))));
  }
}

TEST(Finish, NothingIsLeftAsItIs) {
  EXPECT_TRUE(is_identity({}));
  EXPECT_FALSE(is_identity({.alpha = 2}));
  EXPECT_FALSE(is_identity({.beta = 1}));
  EXPECT_FALSE(is_identity({.activation = Activation::gelu_tanh}));
  apply_epilogue({.rows = 0, .columns = 4}, {}, {});
  apply_epilogue({.rows = 4, .columns = 0}, {}, {});
}

}  // namespace
}  // namespace shiplap::kernels
