// Strongly typed ids: an index into one list, with its own type.
//
//   using BufferId = Id<struct BufferTag>;
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shiplap {

template <class Tag>
struct Id {
  std::int32_t value = -1;  // -1: none

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}
  [[nodiscard]] constexpr bool exists() const { return value >= 0; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr auto operator<=>(Id, Id) = default;
};

// A vector indexed by one id type; subscripts of other id types do not compile.
template <class Key, class T>
class IdVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  using std::vector<T>::operator[];
  explicit IdVector(std::vector<T> elements) : std::vector<T>(std::move(elements)) {}
  [[nodiscard]] T& operator[](Key key) { return (*this)[key.index()]; }
  [[nodiscard]] const T& operator[](Key key) const { return (*this)[key.index()]; }
};

// Converts an integer to std::size_t for use as an index.
template <std::integral Integer>
[[nodiscard]] constexpr std::size_t at(Integer value) {
  return static_cast<std::size_t>(value);
}

// The global rank of a process.
using Rank = Id<struct RankTag>;

}  // namespace shiplap
