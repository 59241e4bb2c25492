#include <cstdint>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/run/arithmetic_internal.h"
#include "shiplap/run/rounding_internal.h"

namespace shiplap::run {
namespace {

using kernels::Bf16;
using kernels::F16;

template <class T>
std::span<T> numbers_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
std::span<const T> numbers_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
void scale_narrow(std::span<T> numbers, float factor) {
  for (T& number : numbers) store(kernels::to_float(number) * factor, number);
}

template <class T>
void scale_as(std::span<T> numbers, T factor) {
  for (T& number : numbers) number *= factor;
}

template <class T>
void add_narrow(std::span<T> into, std::span<const T> from) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    store(kernels::to_float(into[i]) + kernels::to_float(from[i]), into[i]);
  }
}

template <class T>
std::vector<float> widened(std::span<const T> from) {
  std::vector<float> wide(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) wide[i] = kernels::to_float(from[i]);
  return wide;
}

template <class T>
void narrow_to(std::span<const float> numbers, std::span<T> to) {
  ensure(to.size() == numbers.size(), "equal sizes");
  for (std::size_t i = 0; i < to.size(); ++i) store(numbers[i], to[i]);
}

}  // namespace

bool can_add(DType type) { return is_floating(type) || type == DType::i64 || type == DType::i32; }

bool is_floating(DType type) { return type == DType::f64 || type == DType::f32 || is_narrow(type); }

bool is_narrow(DType type) { return type == DType::bf16 || type == DType::f16; }

DType accumulate_dtype(DType type) {
  switch (type) {
    case DType::f64:
      return DType::f64;
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return DType::f32;
    case DType::i64:
      return DType::i64;
    case DType::i32:
      return DType::i32;
    default:
      throw InternalError("a type that cannot be reduced");
  }
}

void add(DType type, std::span<std::byte> into, std::span<const std::byte> from) {
  ensure(into.size() == from.size(), "add requires equal sizes");
  if (into.empty()) return;
  if (type == DType::bf16) return add_narrow(numbers_of<Bf16>(into), numbers_of<Bf16>(from));
  if (type == DType::f16) return add_narrow(numbers_of<F16>(into), numbers_of<F16>(from));
  const DType as = accumulate_dtype(type);
  comm::combine(ReduceOp::sum, as, into.data(), into.data(), from.data(),
                into.size() / static_cast<std::size_t>(bytes_of(as)));
}

void scale(DType type, std::span<std::byte> numbers, plan::Ratio factor) {
  if (factor == plan::Ratio()) return;
  const double value =
      static_cast<double>(factor.numerator()) / static_cast<double>(factor.denominator());
  switch (type) {
    case DType::f64:
      return scale_as(numbers_of<double>(numbers), value);
    case DType::f32:
      return scale_as(numbers_of<float>(numbers), static_cast<float>(value));
    case DType::bf16:
      return scale_narrow(numbers_of<Bf16>(numbers), static_cast<float>(value));
    case DType::f16:
      return scale_narrow(numbers_of<F16>(numbers), static_cast<float>(value));
    default:
      throw InternalError("a type that cannot be scaled");
  }
}

std::vector<float> widen(DType type, std::span<const std::byte> numbers) {
  ensure(is_narrow(type), "widen requires bf16 or f16");
  return type == DType::bf16 ? widened(numbers_of<Bf16>(numbers))
                             : widened(numbers_of<F16>(numbers));
}

void narrow(std::span<const float> numbers, DType type, std::span<std::byte> to) {
  ensure(is_narrow(type), "narrow requires bf16 or f16");
  if (type == DType::bf16) return narrow_to(numbers, numbers_of<Bf16>(to));
  narrow_to(numbers, numbers_of<F16>(to));
}

bool can_combine(ReduceOp op) { return op != ReduceOp::product; }

}  // namespace shiplap::run
