#include "shiplap/comm/type.h"

#include <algorithm>
#include <type_traits>

#include "shiplap/base/error.h"

namespace shiplap::comm {
namespace {

template <class T>
struct Operands {
  T* into;
  const T* left;
  const T* right;
  std::size_t count;
};

// Integers wrap around.
template <class T>
T sum(T left, T right) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
  } else {
    return left + right;
  }
}

template <class T, class Function>
void into_third(T* __restrict into, const T* __restrict left, const T* __restrict right,
                std::size_t count, Function function) {
  for (std::size_t i = 0; i < count; ++i) into[i] = function(left[i], right[i]);
}

template <class T, class Function>
void into_left(T* __restrict into, const T* __restrict right, std::size_t count,
               Function function) {
  for (std::size_t i = 0; i < count; ++i) into[i] = function(into[i], right[i]);
}

// The compiler vectorizes only where it knows that nothing overlaps, so each case has its loop.
template <class T, class Function>
void for_each(const Operands<T>& o, Function function) {
  if (o.into == o.left) {
    into_left(o.into, o.right, o.count, function);
  } else if (o.into == o.right) {
    into_left(o.into, o.left, o.count, [&](T own, T other) { return function(other, own); });
  } else {
    into_third(o.into, o.left, o.right, o.count, function);
  }
}

template <class T>
void combine_all(Reduction reduction, const Operands<T>& o) {
  switch (reduction) {
    case Reduction::sum:
      return for_each(o, [](T a, T b) { return sum(a, b); });
    case Reduction::max:
      return for_each(o, [](T a, T b) { return std::max(a, b); });
    case Reduction::min:
      return for_each(o, [](T a, T b) { return std::min(a, b); });
  }
  throw InternalError("unknown reduction");
}

}  // namespace

std::size_t bytes_of(Type type) {
  switch (type) {
    case Type::u8:
      return 1;
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::i64:
    case Type::f64:
      return 8;
  }
  throw InternalError("unknown type");
}

std::string_view name(Type type) {
  switch (type) {
    case Type::u8:
      return "u8";
    case Type::i32:
      return "i32";
    case Type::i64:
      return "i64";
    case Type::f32:
      return "f32";
    case Type::f64:
      return "f64";
  }
  throw InternalError("unknown type");
}

std::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::max:
      return "max";
    case Reduction::min:
      return "min";
  }
  throw InternalError("unknown reduction");
}

void combine(Reduction reduction, Type type, std::byte* into, const std::byte* left,
             const std::byte* right, std::size_t count) {
  const auto as = [&]<class T>(T) {
    combine_all<T>(reduction, {.into = reinterpret_cast<T*>(into),
                               .left = reinterpret_cast<const T*>(left),
                               .right = reinterpret_cast<const T*>(right),
                               .count = count});
  };
  switch (type) {
    case Type::u8:
      return as(std::uint8_t{});
    case Type::i32:
      return as(std::int32_t{});
    case Type::i64:
      return as(std::int64_t{});
    case Type::f32:
      return as(float{});
    case Type::f64:
      return as(double{});
  }
  throw InternalError("unknown type");
}

}  // namespace shiplap::comm
