// The loops of combine(), always inlined, so that callers can compile them for several instruction
// sets.
#pragma once

#include <algorithm>
#include <type_traits>

#include "shiplap/base/error.h"
#include "shiplap/comm/type.h"

namespace shiplap::comm {

template <class T>
struct Operands {
  T* into;
  const T* left;
  const T* right;
  std::size_t count;
};

// Integers wrap around.
template <class T>
[[gnu::always_inline]] inline T sum(T left, T right) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
  } else {
    return left + right;
  }
}

template <class T, class Function>
[[gnu::always_inline]] inline void into_third(T* __restrict into, const T* __restrict left,
                                              const T* __restrict right, std::size_t count,
                                              Function function) {
  for (std::size_t i = 0; i < count; ++i) into[i] = function(left[i], right[i]);
}

template <class T, class Function>
[[gnu::always_inline]] inline void into_left(T* __restrict into, const T* __restrict right,
                                             std::size_t count, Function function) {
  for (std::size_t i = 0; i < count; ++i) into[i] = function(into[i], right[i]);
}

// The compiler vectorizes only loops without aliasing, so each case has its own.
template <class T, class Function>
[[gnu::always_inline]] inline void for_each(const Operands<T>& o, Function function) {
  if (o.into == o.left) {
    into_left(o.into, o.right, o.count, function);
  } else if (o.into == o.right) {
    into_left(o.into, o.left, o.count, [&](T own, T other) { return function(other, own); });
  } else {
    into_third(o.into, o.left, o.right, o.count, function);
  }
}

template <class T>
[[gnu::always_inline]] inline void combine_all(ReduceOp reduction, const Operands<T>& o) {
  switch (reduction) {
    case ReduceOp::sum:
      return for_each(o, [](T a, T b) { return sum(a, b); });
    case ReduceOp::max:
      return for_each(o, [](T a, T b) { return std::max(a, b); });
    case ReduceOp::min:
      return for_each(o, [](T a, T b) { return std::min(a, b); });
    default:
      throw InternalError("unsupported reduction operator");
  }
}

[[gnu::always_inline]] inline void combine_inline(ReduceOp reduction, DType type, std::byte* into,
                                                  const std::byte* left, const std::byte* right,
                                                  std::size_t count) {
  const auto as = [&]<class T>(T) __attribute__((always_inline)) {
    combine_all<T>(reduction, {.into = reinterpret_cast<T*>(into),
                               .left = reinterpret_cast<const T*>(left),
                               .right = reinterpret_cast<const T*>(right),
                               .count = count});
  };
  switch (type) {
    case DType::u8:
      return as(std::uint8_t{});
    case DType::i32:
      return as(std::int32_t{});
    case DType::i64:
      return as(std::int64_t{});
    case DType::f32:
      return as(float{});
    case DType::f64:
      return as(double{});
    default:
      throw InternalError("unsupported element type");
  }
}

}  // namespace shiplap::comm
