#include "arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"

namespace shiplap::python {
namespace {

using Code = nb::dlpack::dtype_code;

std::string kind_of(nb::handle value) {
  return nb::cast<std::string>(value.type().attr("__name__"));
}

// Calls act with a null pointer to the C++ type of `type`. Returns false if it is not an integer.
template <class Act>
bool with_integer(nb::dlpack::dtype type, const Act& act) {
  const bool is_signed = type.code == static_cast<std::uint8_t>(Code::Int);
  const bool is_bool = type.code == static_cast<std::uint8_t>(Code::Bool);
  if (!is_signed && !is_bool && type.code != static_cast<std::uint8_t>(Code::UInt)) return false;
  if (type.lanes != 1) return false;
  switch (type.bits) {  // NOLINTBEGIN(bugprone-branch-clone): each is of another type
    case 8:
      is_signed ? act(std::int8_t()) : act(std::uint8_t());
      return true;
    case 16:
      is_signed ? act(std::int16_t()) : act(std::uint16_t());
      return true;
    case 32:
      is_signed ? act(std::int32_t()) : act(std::uint32_t());
      return true;
    case 64:
      is_signed ? act(std::int64_t()) : act(std::uint64_t());
      return true;
    default:
      return false;
  }  // NOLINTEND(bugprone-branch-clone)
}

template <class T>
bool is_type(nb::dlpack::dtype type) {
  const bool is_bool = sizeof(T) == 1 && type.code == static_cast<std::uint8_t>(Code::Bool);
  return type == nb::dtype<T>() || (is_bool && type.bits == 8);
}

template <class T, class From>
T fitting(From number, const std::string& argument) {
  if (std::in_range<T>(number)) return static_cast<T>(number);
  throw_argument_error(
      argument, fmt::format("{} is out of range {} to {}", number, std::numeric_limits<T>::min(),
                            std::numeric_limits<T>::max()));
}

// Calls act(address) for every element, the last index fastest.
template <class Act>
void for_each_element(const AnyArray& array, const Act& act) {
  if (array.size() == 0) return;
  std::vector<std::int64_t> index(array.ndim());
  const auto* const base = static_cast<const std::byte*>(array.data());
  const auto item = static_cast<std::int64_t>(array.itemsize());
  std::int64_t at = 0;  // in elements
  for (std::size_t left = array.size(); left > 0; --left) {
    act(base + at * item);
    for (std::size_t k = array.ndim(); k-- > 0;) {
      at += array.stride(k);
      if (++index[k] < static_cast<std::int64_t>(array.shape(k))) break;
      at -= index[k] * array.stride(k);
      index[k] = 0;
    }
  }
}

bool is_sequence(nb::handle value) {
  return nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value);
}

}  // namespace

bool has_numpy() {
  // Retried until it succeeds: a program may install numpy later.
  static bool found = false;
  if (found) return true;
  try {
    (void)nb::module_::import_("numpy");
    found = true;
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_ImportError)) throw;
  }
  return found;
}

AnyArray any_array(nb::handle from, const char* argument) {
  AnyArray array;
  if (!nb::ndarray_check(from)) {
    throw_type_error(argument, fmt::format("expected an array, found a {}", kind_of(from)),
                     "numpy, torch, jax, or anything that supports DLPack or the buffer protocol");
  }
  if (!nb::try_cast(from, array)) {
    throw_argument_error(
        argument,
        fmt::format("unsupported {}: DLPack cannot describe its dtype, byte order or device",
                    kind_of(from)),
        "pass a copy with a plain dtype in CPU memory");
  }
  constexpr int kCpu = nb::device::cpu::value;
  if (array.device_type() != kCpu && array.size() > 0) {
    throw_argument_error(argument, "the array is not in CPU memory", "pass x.cpu()");
  }
  return array;
}

bool is_contiguous(const AnyArray& array) {
  if (array.size() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t k = array.ndim(); k-- > 0;) {
    if (array.shape(k) != 1 && array.stride(k) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(k));
  }
  return true;
}

std::string dtype_name(nb::dlpack::dtype type) {
  const char* word = "type of";
  switch (static_cast<Code>(type.code)) {
    case Code::Int:
      word = "int";
      break;
    case Code::UInt:
      word = "uint";
      break;
    case Code::Float:
      word = "float";
      break;
    case Code::Bfloat:
      word = "bfloat";
      break;
    case Code::Complex:
      word = "complex";
      break;
    case Code::Bool:
      return "bool";
    default:
      return fmt::format("type {} of {} bits", type.code, type.bits);
  }
  return fmt::format("{}{}", word, type.bits);
}

std::string format_shape(const AnyArray& array) {
  std::vector<std::size_t> shape;
  for (std::size_t k = 0; k < array.ndim(); ++k) shape.push_back(array.shape(k));
  return fmt::format("({})", fmt::join(shape, ", "));
}

template <class T>
Integers<T>::Integers(nb::handle from, const char* argument) : argument_(argument) {
  if (is_sequence(from)) {
    read_list(from, 0);
    const std::size_t expected =
        std::accumulate(shape_.begin(), shape_.end(), std::size_t{1}, std::multiplies<>());
    if (copy_.size() != expected)
      throw_argument_error(argument_, "shape mismatch: a number among rows");
    values_ = copy_;
  } else {
    read(any_array(from, argument));
  }
}

template <class T>
const Integers<T>& Integers<T>::with_dimensions(std::size_t count) const {
  if (shape_.size() == count) return *this;
  throw_argument_error(argument_, fmt::format("expected {} dimensions, found shape ({})", count,
                                              fmt::join(shape_, ", ")));
}

template <class T>
void Integers<T>::read(const AnyArray& array) {
  for (std::size_t k = 0; k < array.ndim(); ++k) shape_.push_back(array.shape(k));
  if (is_type<T>(array.dtype()) && is_contiguous(array)) {
    array_ = array;
    values_ = {static_cast<const T*>(array.data()), array.size()};
    return;
  }
  copy_.reserve(array.size());
  const bool is_integer = with_integer(array.dtype(), [&]<class From>(From) {
    for_each_element(array, [&](const std::byte* at) {
      copy_.push_back(fitting<T>(*reinterpret_cast<const From*>(at), argument_));
    });
  });
  if (!is_integer) {
    throw_type_error(argument_,
                     fmt::format("expected integers, found {}", dtype_name(array.dtype())));
  }
  values_ = copy_;
}

template <class T>
void Integers<T>::read_list(nb::handle list, std::size_t depth) {
  constexpr std::size_t kMaxDimensions = 32;  // also where a list contains itself
  if (depth == kMaxDimensions) throw_argument_error(argument_, "the lists are nested too deeply");
  const std::size_t size = nb::len(list);
  check_size(depth, size);
  for (const nb::handle item : nb::borrow<nb::object>(list)) {
    if (is_sequence(item)) {
      read_list(item, depth + 1);
    } else if (nb::ndarray_check(item) && any_array(item, argument_.c_str()).ndim() > 0) {
      const Integers<T> row(item, argument_.c_str());
      take_row(row, depth + 1);
    } else if (shape_.size() > depth + 1) {
      throw_argument_error(argument_, "shape mismatch: a number among rows");
    } else {
      const nb::object number = nb::steal(PyNumber_Index(item.ptr()));
      if (!number.is_valid()) {
        PyErr_Clear();
        throw_type_error(argument_, fmt::format("expected integers, found a {}", kind_of(item)));
      }
      long long value = 0;
      if (!nb::try_cast(number, value)) {
        throw_argument_error(
            argument_, fmt::format("{} is too large", nb::cast<std::string>(nb::str(number))));
      }
      copy_.push_back(fitting<T>(value, argument_));
    }
  }
}

template <class T>
void Integers<T>::take_row(const Integers& row, std::size_t depth) {
  for (std::size_t k = 0; k < row.shape().size(); ++k) check_size(depth + k, row.shape()[k]);
  copy_.insert(copy_.end(), row.values().begin(), row.values().end());
}

template <class T>
void Integers<T>::check_size(std::size_t depth, std::size_t size) {
  if (shape_.size() == depth) {
    shape_.push_back(size);
  } else if (shape_[depth] != size) {
    throw InputError(Diagnostic{
        .code = "D401",
        .where = {.flag = argument_},
        .what = fmt::format("shape mismatch: rows of {} and of {}", shape_[depth], size)});
  }
}

template class Integers<int>;
template class Integers<std::uint8_t>;
template class Integers<std::uint32_t>;
template class Integers<std::int64_t>;
template class Integers<std::uint64_t>;

}  // namespace shiplap::python
