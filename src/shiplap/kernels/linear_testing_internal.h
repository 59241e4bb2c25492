// Reference GEMM in double, for tests of LinearKernel; independent of it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <ostream>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"
#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

inline constexpr DType kFloatTypes[] = {DType::f32, DType::bf16, DType::f16};

// An array whose dtype is known at run time.
class TypedArray {
 public:
  TypedArray() = default;
  TypedArray(DType type, std::int64_t count)
      : type_(type), bytes_(static_cast<std::size_t>(count) * bytes_of(type)) {}

  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(bytes_.size() / bytes_of(type_));
  }
  [[nodiscard]] const void* data(std::int64_t first = 0) const { return bytes_.data() + at(first); }
  [[nodiscard]] void* data(std::int64_t first = 0) { return bytes_.data() + at(first); }

  [[nodiscard]] double get(std::int64_t index) const {
    if (type_ == DType::f32) return static_cast<double>(read<float>(index));
    if (type_ == DType::bf16) return static_cast<double>(to_float(read<Bf16>(index)));
    return static_cast<double>(to_float(read<F16>(index)));
  }
  void put(std::int64_t index, double value) {
    const auto narrow = static_cast<float>(value);
    if (type_ == DType::f32) return write(index, narrow);
    if (type_ == DType::bf16) return write(index, to_bf16(narrow));
    write(index, to_f16(narrow));
  }

  friend bool operator==(const TypedArray&, const TypedArray&) = default;  // of the bits

 private:
  [[nodiscard]] std::size_t at(std::int64_t index) const {
    return static_cast<std::size_t>(index) * bytes_of(type_);
  }
  template <class T>
  [[nodiscard]] T read(std::int64_t index) const {
    T value;
    std::memcpy(&value, bytes_.data() + at(index), sizeof value);
    return value;
  }
  template <class T>
  void write(std::int64_t index, T value) {
    std::memcpy(bytes_.data() + at(index), &value, sizeof value);
  }

  DType type_ = DType::f32;
  std::vector<std::byte> bytes_;
};

enum class Fill { whole_numbers, fractions };

inline TypedArray random_array(Random& random, DType type, std::int64_t count, Fill fill) {
  TypedArray numbers(type, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto whole = static_cast<double>(random.between(-8, 9));
    numbers.put(i, fill == Fill::whole_numbers ? whole : 2 * random.unit() - 1);
  }
  return numbers;
}

// What a test asks of a kernel.
struct GemmCase {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType type = DType::f32;
  DType out = DType::f32;
  bool a_is_transposed = false;
  bool weights_are_transposed = false;
  std::int64_t gap = 0;  // in every stride
  float alpha = 1;
  float beta = 0;
  bool has_bias = false;
  DType bias = DType::f32;
  Activation activation = Activation::none;
  bool saves = false;
};

inline std::ostream& operator<<(std::ostream& out, const GemmCase& q) {
  return out << q.m << " x " << q.n << " x " << q.k << ", type " << static_cast<int>(q.type)
             << " to " << static_cast<int>(q.out) << ", transposed " << q.a_is_transposed
             << q.weights_are_transposed << ", gap " << q.gap << ", alpha " << q.alpha << ", beta "
             << q.beta << ", bias " << q.has_bias << static_cast<int>(q.bias) << ", activation "
             << static_cast<int>(q.activation) << ", saves " << q.saves;
}

// Draws dtypes, gaps and epilogue.
inline void randomize_rest(Random& random, GemmCase& spec) {
  spec.out = kFloatTypes[random.between(0, 3)];
  spec.gap = random.chance(0.3) ? random.between(1, 20) : 0;
  if (random.chance(0.3)) return;
  spec.alpha = random.chance() ? 1 : -0.5F;
  spec.beta = static_cast<float>(random.between(0, 3));
  spec.has_bias = random.chance();
  spec.bias = random.chance() ? DType::f32 : spec.type;
  spec.activation = random.chance() ? Activation::gelu_tanh : Activation::none;
  spec.saves = random.chance();
}

// The arrays of a case.
struct GemmArrays {
  GemmCase spec;
  TypedArray a;
  TypedArray weights;
  TypedArray bias;
  TypedArray c;
  TypedArray before;

  GemmArrays(const GemmCase& q, Random& random, Fill fill)
      : spec(q),
        a(random_array(random, q.type, a_lines() * a_stride(), fill)),
        weights(random_array(random, q.type, weights_lines() * weights_stride(), fill)),
        bias(random_array(random, q.bias, q.n, fill)),
        c(random_array(random, q.out, q.m * c_stride(), fill)),
        before(q.out, q.m * c_stride()) {}

  [[nodiscard]] std::int64_t a_lines() const { return spec.a_is_transposed ? spec.k : spec.m; }
  [[nodiscard]] std::int64_t a_stride() const {
    return (spec.a_is_transposed ? spec.m : spec.k) + spec.gap;
  }
  [[nodiscard]] std::int64_t weights_lines() const {
    return spec.weights_are_transposed ? spec.n : spec.k;
  }
  [[nodiscard]] std::int64_t weights_stride() const {
    return (spec.weights_are_transposed ? spec.k : spec.n) + spec.gap;
  }
  [[nodiscard]] std::int64_t c_stride() const { return spec.n + spec.gap; }

  [[nodiscard]] std::int64_t a_at(std::int64_t i, std::int64_t k) const {
    return spec.a_is_transposed ? k * a_stride() + i : i * a_stride() + k;
  }
  [[nodiscard]] std::int64_t weights_at(std::int64_t k, std::int64_t j) const {
    return spec.weights_are_transposed ? j * weights_stride() + k : k * weights_stride() + j;
  }

  [[nodiscard]] LinearShape shape() const { return {.n = spec.n, .k = spec.k, .type = spec.type}; }
  void prepare(LinearKernel& kernel) {
    kernel.prepare({.data = weights.data(),
                    .type = weights.type(),
                    .stride = weights_stride(),
                    .is_transposed = spec.weights_are_transposed});
  }
  // Some of the rows.
  void multiply(LinearKernel& kernel, std::int64_t first, std::int64_t count) {
    Epilogue epilogue{.alpha = spec.alpha, .beta = spec.beta, .activation = spec.activation};
    const std::int64_t at = first * c_stride();
    if (spec.has_bias) epilogue.bias = {.data = bias.data(), .type = bias.type()};
    if (spec.saves) {
      epilogue.pre_activation = {
          .data = before.data(at), .type = before.type(), .stride = c_stride()};
    }
    kernel.multiply({.data = a.data(a_at(first, 0)),
                     .type = a.type(),
                     .rows = count,
                     .stride = a_stride(),
                     .is_transposed = spec.a_is_transposed},
                    {.data = c.data(at), .type = c.type(), .stride = c_stride()}, epilogue);
  }
};

inline double gelu(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x / 2 * (1 + std::tanh(u));
}

// One number of the result as it should be, and how large the terms are that it is the sum of.
struct Expected {
  double before = 0;
  double c = 0;
  double size = 0;
};

inline Expected expected_at(const GemmArrays& arrays, std::int64_t i, std::int64_t j) {
  const GemmCase& q = arrays.spec;
  Expected result;
  const auto add = [&](double term) {
    result.before += term;
    result.size += std::abs(term);
  };
  for (std::int64_t k = 0; k < q.k; ++k) {
    add(static_cast<double>(q.alpha) * arrays.a.get(arrays.a_at(i, k)) *
        arrays.weights.get(arrays.weights_at(k, j)));
  }
  if (q.beta != 0) {
    add(static_cast<double>(q.beta) * arrays.c.get(i * arrays.c_stride() + j));
  }
  if (q.has_bias) add(arrays.bias.get(j));
  result.c = q.activation == Activation::none ? result.before : gelu(result.before);
  return result;
}

// Half the distance of neighbours, relative to a number.
inline double unit(DType type) {
  if (type == DType::f32) return 0x1p-24;
  return type == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

// A sum of n terms in float is off by at most n units of their sizes, and what is stored by one of
// its own type; the smallest numbers of f16 are 2^-24 apart. The activation is a little steeper
// than 1, and good to a few units of float.
inline double bound(const GemmCase& q, const Expected& expected, double value) {
  const auto terms = static_cast<double>(q.k + 4);
  return 1.2 * terms * 0x1p-24 * expected.size + 1.01 * unit(q.out) * std::abs(value) + 0x1p-25 +
         1e-6 * std::abs(expected.before);
}

}  // namespace shiplap::kernels
