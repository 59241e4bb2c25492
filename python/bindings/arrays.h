// Array conversion between C++ and Python, zero-copy where possible.
//
// To Python: an array is a view of the memory of a C++ object, which it keeps alive. It is a numpy
// array if numpy is installed, otherwise an object that supports DLPack and the buffer protocol.
// From Python: anything that supports one of the two (numpy, torch, jax, array, memoryview), and
// nested lists.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "shiplap/base/error.h"

namespace shiplap::python {

using Shape = std::vector<std::size_t>;

[[nodiscard]] bool has_numpy();

// A view of `values`, which `owner` owns. The array is read-only if T is const.
template <class T>
[[nodiscard]] nb::object array_view(std::span<T> values, const Shape& shape, nb::handle owner) {
  ensure(std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()) ==
             values.size(),
         "an array has as many elements as its shape says");
  if (has_numpy()) {
    return nb::cast(nb::ndarray<nb::numpy, T>(values.data(), shape.size(), shape.data(), owner));
  }
  return nb::cast(nb::ndarray<nb::array_api, T>(values.data(), shape.size(), shape.data(), owner));
}

// An array that owns its elements.
template <class T>
[[nodiscard]] nb::object array_of(std::vector<T> values, const Shape& shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  const std::span<T> view(*kept);
  const nb::capsule owner(kept.get(), [](void* memory) noexcept {
    const std::unique_ptr<std::vector<T>> freed(static_cast<std::vector<T>*>(memory));
  });
  kept.release();  // NOLINT(bugprone-unused-return-value): the capsule has it
  return array_view(view, shape, owner);
}

using AnyArray = nb::ndarray<nb::ro>;
// Throws InputError D003, naming the argument, if it is not an array or not in CPU memory.
[[nodiscard]] AnyArray any_array(nb::handle from, const char* argument);
[[nodiscard]] bool is_contiguous(const AnyArray& array);
// "float32", "(4, 16)": for messages.
[[nodiscard]] std::string dtype_name(nb::dlpack::dtype type);
[[nodiscard]] std::string format_shape(const AnyArray& array);

// An argument of integers. Contiguous arrays of type T are used in place; other integer types,
// strided arrays and lists are converted. Throws InputError D003 for anything else, and if a value
// is out of the range of T; D401 for a list whose rows have different lengths.
// REQUIRES: the GIL is held during construction and destruction; `values()` may be read without it.
template <class T>
class Integers {
 public:
  Integers(nb::handle from, const char* argument);

  [[nodiscard]] std::span<const T> values() const { return values_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  // Throws InputError D003 unless there are `count` dimensions.
  [[nodiscard]] const Integers& with_dimensions(std::size_t count) const;

 private:
  void read(const AnyArray& array);
  void read_list(nb::handle list, std::size_t depth);
  void take_row(const Integers& row, std::size_t depth);
  // Throws InputError D401 unless dimension `depth` has this size in all rows so far.
  void check_size(std::size_t depth, std::size_t size);

  std::string argument_;
  AnyArray array_;  // keeps `values_` alive, unless that is a view of copy_
  std::vector<T> copy_;
  std::span<const T> values_;
  Shape shape_;
};
extern template class Integers<int>;
extern template class Integers<std::uint8_t>;
extern template class Integers<std::uint32_t>;
extern template class Integers<std::int64_t>;
extern template class Integers<std::uint64_t>;

// Rows of any length, one per rank: a list of arguments of Integers, or a two-dimensional array.
template <class T>
[[nodiscard]] std::vector<std::vector<T>> integer_rows(nb::handle from, const char* argument) {
  std::vector<std::vector<T>> rows;
  if (nb::isinstance<nb::list>(from) || nb::isinstance<nb::tuple>(from)) {
    for (const nb::handle row : nb::borrow<nb::object>(from)) {
      const Integers<T> numbers(row, argument);
      const std::span<const T> values = numbers.with_dimensions(1).values();
      rows.emplace_back(values.begin(), values.end());
    }
    return rows;
  }
  const Integers<T> all(from, argument);
  const Shape& shape = all.with_dimensions(2).shape();
  for (std::size_t r = 0; r < shape[0]; ++r) {
    const auto row = all.values().subspan(r * shape[1], shape[1]);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

}  // namespace shiplap::python
