// Bindings of an exchange on arrays: the reference implementation, and the index arrays that the
// torch Dispatcher uses.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "arrays.h"
#include "dispatch.h"
#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/dispatch/indices.h"
#include "shiplap/dispatch/simulate.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/run/agreement.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::python {
namespace {

using dispatch::BufferViews;
using dispatch::ExchangeIndices;
using dispatch::Metadata;

[[noreturn]] void throw_invalid(const char* argument, std::string what, std::string help = "") {
  throw InputError(Diagnostic{.code = "D400",
                              .where = {.flag = argument},
                              .what = std::move(what),
                              .help = std::move(help)});
}

// ---- buffers of all ranks

// One array whose first dimension is the rank, or a list of one array per rank. A row holds one
// token.
class Buffers {
 public:
  Buffers(nb::handle from, const char* argument, int world_size) : argument_(argument) {
    if (nb::isinstance<nb::list>(from) || nb::isinstance<nb::tuple>(from)) {
      for (const nb::handle one : nb::borrow<nb::object>(from)) add(one, 0);
    } else {
      add(from, 1);
    }
    if (ranks() != static_cast<std::size_t>(world_size)) {
      throw_invalid(argument, fmt::format("world size mismatch: buffers of {} ranks, a table of {}",
                                          ranks(), world_size));
    }
  }

  [[nodiscard]] std::size_t ranks() const { return starts_.size(); }
  [[nodiscard]] nb::dlpack::dtype type() const { return type_; }
  [[nodiscard]] std::size_t row_elements() const { return row_elements_; }
  [[nodiscard]] std::size_t row_bytes() const { return row_elements_ * type_.bits / 8; }

  // The memory of each rank as elements of type T.
  template <class T>
  [[nodiscard]] BufferViews<const T> as() const {
    BufferViews<const T> views;
    for (std::size_t r = 0; r < ranks(); ++r) {
      views.emplace_back(static_cast<const T*>(starts_[r]), bytes_[r] / sizeof(T));
    }
    return views;
  }
  // The same, writable. REQUIRES: make_writable() was called.
  template <class T>
  [[nodiscard]] BufferViews<T> writable() const {
    BufferViews<T> views;
    for (std::size_t r = 0; r < ranks(); ++r) {
      views.emplace_back(static_cast<T*>(writable_[r]), bytes_[r] / sizeof(T));
    }
    return views;
  }
  // DLPack does not always report this; the buffer protocol does.
  static bool is_read_only(nb::handle array) {
    if (PyObject_CheckBuffer(array.ptr()) == 0) return false;
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES | PyBUF_WRITABLE) != 0) {
      PyErr_Clear();
      return true;
    }
    PyBuffer_Release(&view);
    return false;
  }
  // Throws InputError D003 if one of the arrays is read-only.
  void make_writable(nb::handle from) {
    const auto add_one = [&](nb::handle one, std::size_t parts) {
      nb::ndarray<> array;
      if (is_read_only(one) || !nb::try_cast(one, array)) {
        throw_argument_error(argument_, "the array is read-only",
                             "use numpy or torch arrays; jax arrays are immutable");
      }
      auto* const begin = static_cast<std::byte*>(array.data());
      const std::size_t step = parts == 0 ? 0 : array.nbytes() / parts;
      for (std::size_t k = 0; k < std::max<std::size_t>(parts, 1); ++k) {
        writable_.push_back(begin + k * step);
      }
    };
    if (nb::isinstance<nb::list>(from) || nb::isinstance<nb::tuple>(from)) {
      for (const nb::handle one : nb::borrow<nb::object>(from)) add_one(one, 0);
    } else if (ranks() > 0) {
      add_one(from, ranks());
    }
  }

 private:
  void add(nb::handle from, std::size_t rank_dimensions) {
    AnyArray array = any_array(from, argument_);
    if (array.ndim() < 1 + rank_dimensions) {
      throw_invalid(argument_, fmt::format("shape {}", format_shape(array)),
                    rank_dimensions == 1 ? "(ranks, tokens, ..)" : "(tokens, ..) for each rank");
    }
    if (!is_contiguous(array)) {
      throw_invalid(argument_, "the array is not contiguous", "pass a contiguous one");
    }
    std::size_t row = 1;
    for (std::size_t k = 1 + rank_dimensions; k < array.ndim(); ++k) row *= array.shape(k);
    if (arrays_.empty()) {
      type_ = array.dtype();
      row_elements_ = row;
    } else if (type_ != array.dtype() || row_elements_ != row) {
      throw_invalid(argument_, "dtype or shape mismatch between the arrays of the ranks");
    }
    const std::size_t parts = rank_dimensions == 1 ? array.shape(0) : 1;
    const std::size_t bytes = parts == 0 ? 0 : array.nbytes() / parts;
    for (std::size_t k = 0; k < parts; ++k) {
      starts_.push_back(static_cast<const std::byte*>(array.data()) + k * bytes);
      bytes_.push_back(bytes);
    }
    arrays_.push_back(std::move(array));
  }

  const char* argument_;
  nb::dlpack::dtype type_;
  std::size_t row_elements_ = 1;
  std::vector<AnyArray> arrays_;
  std::vector<const void*> starts_;
  std::vector<void*> writable_;
  std::vector<std::size_t> bytes_;
};

void check_same(const Buffers& input, const Buffers& output) {
  if (input.type() != output.type()) {
    throw_invalid("output_tensor", fmt::format("it has {}, the input {}", dtype_name(output.type()),
                                               dtype_name(input.type())));
  }
  if (input.row_elements() != output.row_elements()) {
    throw_invalid("output_tensor", fmt::format("a token has {} numbers, in the input {}",
                                               output.row_elements(), input.row_elements()));
  }
}

nb::object orchestrate(nb::object tensor, nb::object output_tensor, nb::object table) {
  const SharedTable shared = table_of(table);
  const Metadata& metadata = *shared;
  const Buffers input(tensor, "tensor", metadata.world_size());
  Buffers output(output_tensor, "output_tensor", metadata.world_size());
  check_same(input, output);
  output.make_writable(output_tensor);
  const LongCall released;
  dispatch::orchestrate_simulate(input.as<std::byte>(), output.writable<std::byte>(), metadata,
                                 static_cast<std::int64_t>(input.row_bytes()));
  const nb::gil_scoped_acquire acquired;
  return output_tensor;
}

// ---- sums

// Half precision is accumulated in float32 and rounded once, as the executor does.
struct Half {
  using Bits = std::uint16_t;
  static float wide(Bits bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
  static Bits narrow(float value) { return std::bit_cast<Bits>(static_cast<_Float16>(value)); }
};
struct Brain {
  using Bits = std::uint16_t;
  static float wide(Bits bits) { return kernels::to_float({bits}); }
  static Bits narrow(float value) { return kernels::to_bf16(value).bits; }
};

template <class Kind>
void sum_narrow(const Buffers& input, const Buffers& output, const Metadata& metadata,
                std::int64_t width) {
  using Bits = Kind::Bits;
  const auto widen = [](const BufferViews<const Bits>& from) {
    dispatch::Buffers<float> wide;
    for (const auto& rank : from) {
      std::vector<float>& to = wide.emplace_back();
      for (const Bits bits : rank) to.push_back(Kind::wide(bits));
    }
    return wide;
  };
  const dispatch::Buffers<float> from = widen(input.as<Bits>());
  dispatch::Buffers<float> to = widen(output.as<Bits>());
  dispatch::sum_simulate(from, to, metadata, width);
  const BufferViews<Bits> narrow = output.writable<Bits>();
  for (std::size_t r = 0; r < to.size(); ++r) {
    for (std::size_t i = 0; i < to[r].size(); ++i) narrow[r][i] = Kind::narrow(to[r][i]);
  }
}

template <class T>
void sum_plain(const Buffers& input, const Buffers& output, const Metadata& metadata,
               std::int64_t width) {
  dispatch::sum_simulate<T>(input.as<T>(), output.writable<T>(), metadata, width);
}

using Summing = void (*)(const Buffers&, const Buffers&, const Metadata&, std::int64_t);

Summing summing_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type == nb::dtype<float>()) return &sum_plain<float>;
  if (type == nb::dtype<double>()) return &sum_plain<double>;
  if (type == nb::dtype<std::int32_t>()) return &sum_plain<std::int32_t>;
  if (type == nb::dtype<std::int64_t>()) return &sum_plain<std::int64_t>;
  if (type.bits == 16 && type.code == static_cast<std::uint8_t>(Code::Float)) {
    return &sum_narrow<Half>;
  }
  if (type.bits == 16 && type.code == static_cast<std::uint8_t>(Code::Bfloat)) {
    return &sum_narrow<Brain>;
  }
  throw_invalid("tensor", fmt::format("unsupported dtype {} for sums", dtype_name(type)),
                "float16, bfloat16, float32, float64, int32 or int64");
}

nb::object sum(nb::object tensor, nb::object output_tensor, nb::object table) {
  const SharedTable shared = table_of(table);
  const Metadata& metadata = *shared;
  const Buffers input(tensor, "tensor", metadata.world_size());
  Buffers output(output_tensor, "output_tensor", metadata.world_size());
  check_same(input, output);
  output.make_writable(output_tensor);
  const Summing add = summing_of(input.type());
  const LongCall released;
  add(input, output, metadata, static_cast<std::int64_t>(input.row_elements()));
  const nb::gil_scoped_acquire acquired;
  return output_tensor;
}

// ---- index arrays

// Writable, since C++ does not read them again.
auto numbers(std::vector<std::int64_t> ExchangeIndices::* field) {
  return [field](nb::handle self) {
    std::vector<std::int64_t>& values = nb::cast<ExchangeIndices&>(self).*field;
    return array_view(std::span(values), {values.size()}, self);
  };
}

void bind_indices(nb::module_& m) {
  nb::class_<ExchangeIndices> type(m, "ExchangeIndices",
                                   R"(The index arrays of one rank, for gather and scatter.

Rows ``send_rows`` of the input are sent, ordered by destination rank; received rows, ordered by
source rank, go to rows ``recv_rows`` of the output. If they are summed, they are added level by
level; no level contains an output row twice.

>>> table = shiplap.dispatch.Metadata.from_rows([[(2, [(1, 0)]), (1, [(0, 0)])], []])
>>> shiplap.dispatch.exchange_indices(table, 0).send_rows.tolist()
[2, 0, 1])");
  type.def_ro("rank", &ExchangeIndices::rank)
      .def_prop_ro("arrival", [](const ExchangeIndices& i) { return dispatch::name(i.arrival); })
      .def_ro("send_tokens", &ExchangeIndices::send_tokens, "Rows of the input.")
      .def_ro("receive_tokens", &ExchangeIndices::receive_tokens,
              "Rows of the output, up to the last one that receives anything.")
      .def("__repr__", [](const ExchangeIndices& i) {
        return fmt::format("<ExchangeIndices: rank {}, {} rows out, {} rows in, {}>", i.rank,
                           i.send_rows.size(), i.recv_rows.size(), dispatch::name(i.arrival));
      });
  const auto add = [&](const char* name, std::vector<std::int64_t> ExchangeIndices::* field) {
    type.def_prop_ro(name, numbers(field),
                     nb::sig(fmt::format("def {}(self) -> Any", name).c_str()));
  };
  add("send_rows", &ExchangeIndices::send_rows);
  add("send_counts", &ExchangeIndices::send_counts);
  add("recv_counts", &ExchangeIndices::recv_counts);
  add("recv_rows", &ExchangeIndices::recv_rows);
  add("level_ends", &ExchangeIndices::level_ends);
  add("level_rows", &ExchangeIndices::level_rows);
  add("level_arrivals", &ExchangeIndices::level_arrivals);
  m.def(
      "exchange_indices",
      [](nb::object metadata, int rank) {
        const SharedTable table = table_of(metadata);
        const LongCall released;
        return dispatch::exchange_indices(*table, rank);
      },
      "metadata"_a, "rank"_a,
      "Returns the index arrays of one rank's exchange, for gather and scatter.");
}

// ---- exceptions raised from Python code

Diagnostic diagnostic_of(const std::string& code, const std::string& what, const std::string& why,
                         const std::string& help, std::optional<std::int64_t> rank) {
  return {.code = code, .where = {.rank = rank}, .what = what, .why = why, .help = help};
}

[[noreturn]] void raise_for(const std::string& code, const std::string& what,
                            const std::string& why, const std::string& help,
                            std::optional<std::int64_t> rank) {
  Diagnostic diagnostic = diagnostic_of(code, what, why, help, rank);
  const int failed = static_cast<int>(rank.value_or(-1));
  if (code == "D301") throw comm::TimeoutError(std::move(diagnostic), {});
  if (code == "D302") throw comm::RankFailed(std::move(diagnostic), failed);
  if (code == "D303") throw comm::Mismatch(std::move(diagnostic), {});
  if (code == "D305") throw comm::Failure(std::move(diagnostic));
  if (code == "D306") throw MissingDependency(std::move(diagnostic));
  throw InputError(std::move(diagnostic));
}

void compare(const std::vector<std::string>& names, nb::object hashes,
             const std::vector<int>& ranks) {
  std::vector<run::TableField> fields;
  fields.reserve(names.size());
  for (const std::string& name : names) fields.push_back({.name = name});
  const Integers<std::int64_t> numbers(hashes, "hashes");
  if (std::optional<Diagnostic> found = run::metadata_mismatch(fields, numbers.values(), ranks)) {
    throw run::MetadataMismatch(std::move(*found));
  }
}

}  // namespace

void bind_dispatch_exchange(nb::module_& m) {
  m.def("orchestrate_simulate", &orchestrate, "tensor"_a, "output_tensor"_a, "metadata"_a,
        nb::sig("def orchestrate_simulate(tensor: Any, output_tensor: Any, metadata: Any) -> "
                "Any"),
        R"(The reference implementation: copies every row to all its destinations.

Both have rank, token, and what a token has; or are lists of one array per rank. Any type; the
output is written to where it is. It does not send, sum, or check: the last one to arrive stays.

>>> table = shiplap.dispatch.Metadata.from_rows([[(1, [(1, 0)])], [(1, [(0, 0)])]])
>>> import numpy
>>> out = numpy.zeros((2, 1), dtype=numpy.float32)
>>> shiplap.dispatch.orchestrate_simulate(numpy.float32([[3], [5]]), out, table).tolist()
[[5.0], [3.0]])");
  m.def(
      "sum_simulate", &sum, "tensor"_a, "output_tensor"_a, "metadata"_a,
      nb::sig("def sum_simulate(tensor: Any, output_tensor: Any, metadata: Any) -> Any"),
      "The reverse direction of keys and values: adds every row to its destinations, in the order "
      "of ranks, then rows. The output starts at zero.");
  bind_indices(m);
  m.def("_raise", &raise_for, "code"_a, "what"_a, "why"_a = "", "help"_a = "",
        "rank"_a = nb::none(),
        nb::sig("def _raise(code: str, what: str, why: str = '', help: str = '', rank: int | None "
                "= None) -> NoReturn"));
  m.def(
      "_raise_all",
      [](const std::vector<Diagnostic>& found) {
        if (!found.empty()) throw InputError(found);
      },
      "found"_a);
  m.def("_compare_hashes", &compare, "names"_a, "hashes"_a, "ranks"_a);
  // The address that C++ reads lengths from: the argument's own memory, if its dtype matches.
  m.def(
      "_address_of_lengths",
      [](nb::object lengths) {
        const Integers<std::uint32_t> numbers(lengths, "lengths");
        return reinterpret_cast<std::uintptr_t>(numbers.values().data());
      },
      "lengths"_a);
}

}  // namespace shiplap::python
