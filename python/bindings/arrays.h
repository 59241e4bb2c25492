// Arrays on their way between C++ and Python, without a copy where none is needed.
//
// Out: memory of a C++ object is shown as it is; the object lives as long as the array does.
// Whoever has numpy gets numpy's arrays, others an object that speaks DLPack and the buffer
// protocol. In: anything that speaks one of the two (numpy, torch, jax, array, memoryview), and
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

// A view of `values`, which belong to `owner`. Of const ones the array cannot be written to.
template <class T>
[[nodiscard]] nb::object array_view(std::span<T> values, const Shape& shape, nb::handle owner) {
  ensure(std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()) ==
             values.size(),
         "an array has as many numbers as its shape says");
  if (has_numpy()) {
    return nb::cast(nb::ndarray<nb::numpy, T>(values.data(), shape.size(), shape.data(), owner));
  }
  return nb::cast(nb::ndarray<nb::array_api, T>(values.data(), shape.size(), shape.data(), owner));
}

// An array that owns its numbers.
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
// Throws InputError D003, naming the argument, for what is no array, or not in the CPU's memory.
[[nodiscard]] AnyArray any_array(nb::handle from, const char* argument);
[[nodiscard]] bool is_contiguous(const AnyArray& array);
// "float32", "(4, 16)": for messages.
[[nodiscard]] std::string type_words(nb::dlpack::dtype type);
[[nodiscard]] std::string shape_words(const AnyArray& array);

// Whole numbers of an argument. Arrays of the right type without gaps are used where they are; of
// another integer type, or with strides, and lists, they are converted. Throws InputError D003 for
// anything else, and for numbers outside of T; D401 for a list whose rows have different lengths.
// To be made and destroyed with the GIL held; `values()` may be read without.
template <class T>
class Integers {
 public:
  Integers(nb::handle from, const char* argument);

  [[nodiscard]] std::span<const T> values() const { return values_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  // Throws InputError D003 unless there are so many dimensions.
  [[nodiscard]] const Integers& with_dimensions(std::size_t count) const;

 private:
  void read(const AnyArray& array);
  void read_list(nb::handle list, std::size_t depth);
  void take_row(const Integers& row, std::size_t depth);
  // That dimension `depth` has this size, as all before it had.
  void expect_size(std::size_t depth, std::size_t size);

  std::string argument_;
  AnyArray array_;  // keeps what `values_` shows, unless that is own_
  std::vector<T> own_;
  std::span<const T> values_;
  Shape shape_;
};
extern template class Integers<int>;
extern template class Integers<std::uint8_t>;
extern template class Integers<std::uint32_t>;
extern template class Integers<std::int64_t>;
extern template class Integers<std::uint64_t>;

// Rows of any length, one per rank: a list of what Integers takes, or an array of two dimensions.
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
