// Element types of messages, and the reduction operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/collective.h"
#include "shiplap/base/dtype.h"

namespace shiplap::comm {

// The types that can be sent. std::byte is sent as u8.
template <class T>
struct TypeOf;
template <>
struct TypeOf<std::byte> {
  static constexpr DType kType = DType::u8;
};
template <>
struct TypeOf<std::uint8_t> {
  static constexpr DType kType = DType::u8;
};
template <>
struct TypeOf<std::int32_t> {
  static constexpr DType kType = DType::i32;
};
template <>
struct TypeOf<std::int64_t> {
  static constexpr DType kType = DType::i64;
};
template <>
struct TypeOf<float> {
  static constexpr DType kType = DType::f32;
};
template <>
struct TypeOf<double> {
  static constexpr DType kType = DType::f64;
};

template <class T>
concept Element = requires { TypeOf<T>::kType; };

// into[i] = reduction(left[i], right[i]), for sum, max and min. `into` may be `left` or `right`.
void combine(ReduceOp reduction, DType type, std::byte* into, const std::byte* left,
             const std::byte* right, std::size_t count);

}  // namespace shiplap::comm
