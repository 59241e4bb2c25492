// What messages are made of, and how numbers are combined on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/collective.h"
#include "shiplap/base/dtype.h"

namespace shiplap::comm {

// The types that can be sent. A plain byte is sent as u8.
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

// into[i] = left[i] combined with right[i], of a type that can be sent, by sum, max or min. `into`
// may be one of the two.
void combine(ReduceOp reduction, DType type, std::byte* into, const std::byte* left,
             const std::byte* right, std::size_t count);

}  // namespace shiplap::comm
