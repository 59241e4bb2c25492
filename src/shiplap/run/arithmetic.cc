#include <cstdint>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/run/arithmetic_internal.h"

namespace shiplap::run {
namespace {

using kernels::Bf16;
using plan::ElementType;

template <class T>
std::span<T> numbers_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
std::span<const T> numbers_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

void scale_bf16(std::span<Bf16> numbers, float factor) {
  for (Bf16& number : numbers) number = kernels::to_bf16(kernels::to_float(number) * factor);
}

template <class T>
void scale_as(std::span<T> numbers, T factor) {
  for (T& number : numbers) number *= factor;
}

void add_bf16(std::span<Bf16> into, std::span<const Bf16> from) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] = kernels::to_bf16(kernels::to_float(into[i]) + kernels::to_float(from[i]));
  }
}

}  // namespace

bool can_add(ElementType type) {
  return is_floating(type) || type == ElementType::i64 || type == ElementType::i32;
}

bool is_floating(ElementType type) {
  return type == ElementType::f64 || type == ElementType::f32 || type == ElementType::bf16;
}

comm::Type combined_as(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return comm::Type::f64;
    case ElementType::f32:
    case ElementType::bf16:
      return comm::Type::f32;
    case ElementType::i64:
      return comm::Type::i64;
    case ElementType::i32:
      return comm::Type::i32;
    default:
      throw InternalError("a type that cannot be combined");
  }
}

void add(ElementType type, std::span<std::byte> into, std::span<const std::byte> from) {
  ensure(into.size() == from.size(), "what is added has the size of what it is added to");
  if (into.empty()) return;
  if (type == ElementType::bf16) return add_bf16(numbers_of<Bf16>(into), numbers_of<Bf16>(from));
  const comm::Type as = combined_as(type);
  comm::combine(comm::Reduction::sum, as, into.data(), into.data(), from.data(),
                into.size() / comm::bytes_of(as));
}

void scale(ElementType type, std::span<std::byte> numbers, plan::Ratio factor) {
  if (factor == plan::Ratio()) return;
  const double value =
      static_cast<double>(factor.numerator()) / static_cast<double>(factor.denominator());
  switch (type) {
    case ElementType::f64:
      return scale_as(numbers_of<double>(numbers), value);
    case ElementType::f32:
      return scale_as(numbers_of<float>(numbers), static_cast<float>(value));
    case ElementType::bf16:
      return scale_bf16(numbers_of<Bf16>(numbers), static_cast<float>(value));
    default:
      throw InternalError("a type that cannot be scaled");
  }
}

std::vector<float> widen(std::span<const std::byte> bf16) {
  const std::span<const Bf16> from = numbers_of<Bf16>(bf16);
  std::vector<float> wide(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) wide[i] = kernels::to_float(from[i]);
  return wide;
}

void narrow(std::span<const float> numbers, std::span<std::byte> bf16) {
  const std::span<Bf16> to = numbers_of<Bf16>(bf16);
  ensure(to.size() == numbers.size(), "as many numbers as there is room for");
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = kernels::to_bf16(numbers[i]);
}

bool can_combine(plan::Operator op) { return op != plan::Operator::product; }

comm::Reduction reduction_of(plan::Operator op) {
  switch (op) {
    case plan::Operator::sum:
      return comm::Reduction::sum;
    case plan::Operator::max:
      return comm::Reduction::max;
    case plan::Operator::min:
      return comm::Reduction::min;
    case plan::Operator::product:
      break;
  }
  throw InternalError("an operator that no communicator has");
}

}  // namespace shiplap::run
