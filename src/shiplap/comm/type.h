// What messages are made of, and how numbers are combined on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shiplap::comm {

enum class Type : std::uint8_t { u8, i32, i64, f32, f64 };

[[nodiscard]] std::size_t bytes_of(Type type);
[[nodiscard]] std::string_view name(Type type);

// The types that can be sent. A plain byte is sent as u8.
template <class T>
struct TypeOf;
template <>
struct TypeOf<std::byte> {
  static constexpr Type kType = Type::u8;
};
template <>
struct TypeOf<std::uint8_t> {
  static constexpr Type kType = Type::u8;
};
template <>
struct TypeOf<std::int32_t> {
  static constexpr Type kType = Type::i32;
};
template <>
struct TypeOf<std::int64_t> {
  static constexpr Type kType = Type::i64;
};
template <>
struct TypeOf<float> {
  static constexpr Type kType = Type::f32;
};
template <>
struct TypeOf<double> {
  static constexpr Type kType = Type::f64;
};

template <class T>
concept Element = requires { TypeOf<T>::kType; };

enum class Reduction : std::uint8_t { sum, max, min };

[[nodiscard]] std::string_view name(Reduction reduction);

// into[i] = left[i] combined with right[i]. `into` may be one of the two.
void combine(Reduction reduction, Type type, std::byte* into, const std::byte* left,
             const std::byte* right, std::size_t count);

}  // namespace shiplap::comm
