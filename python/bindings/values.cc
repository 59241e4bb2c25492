// Bindings of the values of training: weights, activations, gradients.
#include "shiplap/workload/values.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>
#include <variant>

#include "shiplap/base/argument_error.h"
#include "shiplap/base/dtype.h"
#include "shiplap/base/suggest.h"
#include "strategy.h"

namespace shiplap::python {
namespace {

using workload::Activation;
using workload::ActivationGrad;
using workload::ModelShape;
using workload::OptState;
using workload::Weight;
using workload::WeightGrad;

template <class Error>
[[noreturn]] void throw_invalid_indices(nb::handle found) {
  throw Error(Diagnostic{.code = "D003",
                         .what = fmt::format("expected non-negative integers, found {}",
                                             nb::cast<std::string>(nb::repr(found))),
                         .help = "give a range, a list or a set of them"});
}

std::int64_t integer(nb::handle value) {
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    throw_invalid_indices<InputTypeError>(value);
  }
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  const bool small = overflow == 0 && result >= 0 && result < (std::int64_t{1} << 31) - 1;
  if (!small) throw_invalid_indices<InputError>(value);
  return result;
}

bool is_range(nb::handle value) { return Py_TYPE(value.ptr()) == &PyRange_Type; }

// Only an ascending range is contiguous; others are read number by number.
std::optional<IndexSet> run_of(nb::handle range) {
  const auto number = [&](const char* name) { return nb::cast<std::int64_t>(range.attr(name)); };
  const std::int64_t start = number("start");
  const std::int64_t step = number("step");
  const auto count = static_cast<std::int64_t>(nb::len(range));
  if (count == 0 || step < 1 || start < 0) return std::nullopt;
  if (start + (count - 1) * step >= (std::int64_t{1} << 31) - 1) return std::nullopt;
  return IndexSet::range(start, count, step);
}

nb::object hash_key(const ModelShape& s) {
  return nb::make_tuple(s.hidden, s.block, long_name(s.datatype), s.moments);
}

void bind_shape(nb::module_& m) {
  nb::class_<ModelShape>(m, "ModelShape", R"(The sizes of values: a layer is one square matrix.

>>> shiplap.strategy.ModelShape(hidden=512, block=256).weight
524288)")
      .def(
          "__init__",
          [](ModelShape* self, std::int64_t hidden, std::int64_t block, const std::string& type,
             int moments) {
            const auto fits = [](std::int64_t n) { return n >= 1 && n <= (1 << 20); };
            if (!fits(hidden) || !fits(block) || moments < 0 || moments > 16) {
              throw InputError(
                  Diagnostic{.code = "D003",
                             .what = "a size is out of range",
                             .why = "hidden and block must be 1 to 1048576, moments 0 to 16"});
            }
            new (self) ModelShape{.hidden = hidden,
                                  .block = block,
                                  .datatype = parse_datatype(type),
                                  .moments = moments};
          },
          nb::kw_only(), "hidden"_a = 4096, "block"_a = 1024, "datatype"_a = "float16",
          "moments"_a = 2)
      .def_ro("hidden", &ModelShape::hidden, "A weight is hidden x hidden.")
      .def_ro("block", &ModelShape::block, "Tokens of a sample.")
      .def_prop_ro("datatype", [](const ModelShape& s) { return long_name(s.datatype); })
      .def_ro("moments", &ModelShape::moments,
              "Matrices of optimizer state: 2 for Adam, 1 as the puzzles count.")
      .def_prop_ro(
          "weight", [](const ModelShape& s) { return s.weight().count; }, "Bytes of a weight.")
      .def_prop_ro(
          "activation", [](const ModelShape& s) { return s.activation().count; },
          "Bytes of a sample.")
      .def_prop_ro(
          "opt_state", [](const ModelShape& s) { return s.opt_state().count; },
          "Bytes of a weight's optimizer state.")
      .def("__eq__", &equal<ModelShape>, nb::is_operator())
      .def("__hash__", [](const ModelShape& value) { return nb::hash(hash_key(value)); })
      .def("__repr__", [](const ModelShape& s) {
        return fmt::format("ModelShape(hidden={}, block={}, datatype='{}', moments={})", s.hidden,
                           s.block, long_name(s.datatype), s.moments);
      });
}

// ---------------------------------------------------------------- common members

template <class T>
nb::class_<T> bind_value(nb::module_& m, const char* name, const char* doc) {
  nb::class_<T> type(m, name, doc);
  type.def_ro("layer", &T::layer)
      .def_ro("layers", &T::layers, "The number of layers.")
      .def(
          "memory",
          [](const T& v, const std::optional<ModelShape>& shape) {
            return v.memory(shape.value_or(ModelShape{})).count;
          },
          "shape"_a = nb::none(), "Bytes.")
      .def("is_complete", &T::is_complete, "Whether no part is missing.")
      .def("__eq__", &equal<T>, nb::is_operator())
      .def("__repr__", [](const T& v) { return "<" + describe(v) + ">"; })
      .def("__str__", [](const T& v) { return describe(v); });
  type.attr("__hash__") = nb::none();  // as of a dataclass
  return type;
}

template <class T>
void bind_shards(nb::class_<T>& type) {
  type.def_prop_ro(
          "shards", [](const T& v) { return frozen_set(v.shards); },
          nb::sig("def shards(self) -> frozenset[int]"), "Of ``num_shards``.")
      .def_ro("num_shards", &T::num_shards)
      .def("shard", &T::shard, "shard"_a, "num_shards"_a, "One of its parts.")
      .def("combine", &T::combine, "other"_a, "Joins it with another part of the same value.");
}

template <class T>
void bind_samples(nb::class_<T>& type) {
  type.def_prop_ro(
          "samples", [](const T& v) { return frozen_set(v.samples); },
          nb::sig("def samples(self) -> frozenset[int]"), "Of ``total_samples``.")
      .def_ro("total_samples", &T::total_samples);
}

// The parts that a value holds, and their total number.
struct Parts {
  IndexSet held;
  std::int32_t of = 1;
};
Parts parts(const nb::object& held, std::int32_t of, const char* name) {
  Parts result{.held = held.is_none() ? IndexSet(std::int64_t{0}) : index_set(held), .of = of};
  const bool inside = !result.held.empty() && result.held.runs().back().last() < of;
  if (inside) return result;
  throw_argument_error(
      name,
      fmt::format("{} is out of range: there are {} parts",
                  result.held.empty() ? std::string("none") : to_string(result.held), of),
      "they count from 0");
}

// Weight and OptState.
template <class T>
void bind_of_step(nb::module_& m, const char* name, const char* doc) {
  nb::class_<T> type = bind_value<T>(m, name, doc);
  type.def(
          "__init__",
          [](T* self, std::int32_t layer, std::int32_t layers, std::int32_t step,
             const nb::object& shards, std::int32_t num_shards) {
            Parts held = parts(shards, num_shards, "shards");
            new (self) T{.layer = layer,
                         .layers = layers,
                         .step = step,
                         .shards = std::move(held.held),
                         .num_shards = held.of,
                         .provenance = {}};
          },
          "layer"_a, "layers"_a, "step"_a = 0, "shards"_a = nb::none(), "num_shards"_a = 1,
          nb::sig("def __init__(self, layer: int, layers: int, step: int = 0, shards: "
                  "Iterable[int] | None = None, num_shards: int = 1) -> None"))
      .def_ro("step", &T::step, "The number of updates.");
  bind_shards(type);
}

// WeightGrad and Activation.
template <class T>
nb::class_<T> bind_of_samples(nb::module_& m, const char* name, const char* doc) {
  nb::class_<T> type = bind_value<T>(m, name, doc);
  type.def(
      "__init__",
      [](T* self, std::int32_t layer, std::int32_t layers, const nb::object& samples,
         std::int32_t total_samples, const nb::object& shards, std::int32_t num_shards) {
        Parts some = parts(samples, total_samples, "samples");
        Parts held = parts(shards, num_shards, "shards");
        new (self) T{.layer = layer,
                     .layers = layers,
                     .samples = std::move(some.held),
                     .total_samples = some.of,
                     .shards = std::move(held.held),
                     .num_shards = held.of,
                     .provenance = {}};
      },
      "layer"_a, "layers"_a, "samples"_a, "total_samples"_a, "shards"_a = nb::none(),
      "num_shards"_a = 1,
      nb::sig("def __init__(self, layer: int, layers: int, samples: Iterable[int], total_samples: "
              "int, shards: Iterable[int] | None = None, num_shards: int = 1) -> None"));
  bind_samples(type);
  bind_shards(type);
  return type;
}

void bind_activation_grad(nb::module_& m) {
  nb::class_<ActivationGrad> type =
      bind_value<ActivationGrad>(m, "ActivationGrad",
                                 "The gradient of the output of layer ``layer``, for ``samples``. "
                                 "If the layer is sharded over "
                                 "ranks, it is a partial sum of the contributions ``summed``.");
  type.def(
          "__init__",
          [](ActivationGrad* self, std::int32_t layer, std::int32_t layers,
             const nb::object& samples, std::int32_t total_samples, const nb::object& summed,
             std::int32_t num_summed) {
            Parts some = parts(samples, total_samples, "samples");
            Parts sum = parts(summed, num_summed, "summed");
            new (self) ActivationGrad{.layer = layer,
                                      .layers = layers,
                                      .samples = std::move(some.held),
                                      .total_samples = some.of,
                                      .summed = std::move(sum.held),
                                      .num_summed = sum.of,
                                      .provenance = {}};
          },
          "layer"_a, "layers"_a, "samples"_a, "total_samples"_a, "summed"_a = nb::none(),
          "num_summed"_a = 1,
          nb::sig("def __init__(self, layer: int, layers: int, samples: Iterable[int], "
                  "total_samples: int, summed: Iterable[int] | None = None, num_summed: int = 1) "
                  "-> None"))
      .def_prop_ro(
          "summed", [](const ActivationGrad& v) { return frozen_set(v.summed); },
          nb::sig("def summed(self) -> frozenset[int]"), "Of ``num_summed``.")
      .def_ro("num_summed", &ActivationGrad::num_summed)
      .def(
          "__add__", [](const ActivationGrad& a, const ActivationGrad& b) { return a + b; },
          nb::is_operator());
  bind_samples(type);
}

template <class T>
bool give(nb::handle value, strategy::AnyValue& result) {
  const T* found = nullptr;
  if (!nb::try_cast<const T*>(value, found) || found == nullptr) return false;
  result = *found;
  return true;
}

}  // namespace

DType parse_datatype(const std::string& name) {
  for (const DType type : {DType::fp8_e4m3, DType::f16, DType::bf16, DType::f32}) {
    if (name == long_name(type)) return type;
  }
  throw_argument_error(
      "datatype", fmt::format("there is no `{}`", name),
      suggest(name, std::vector<std::string>{"float8", "float16", "bfloat16", "float32"}));
}

IndexSet index_set(nb::handle numbers) {
  if (is_range(numbers)) {
    if (std::optional<IndexSet> run = run_of(numbers)) return *std::move(run);
    std::int32_t end = 0;
    if (!nb::try_cast(numbers.attr("start"), end) || !nb::try_cast(numbers.attr("stop"), end)) {
      throw_invalid_indices<InputError>(numbers);
    }
  }
  std::vector<std::int32_t> indices;
  const nb::object iterator = nb::steal(PyObject_GetIter(numbers.ptr()));
  if (!iterator.is_valid()) {
    PyErr_Clear();
    throw_invalid_indices<InputTypeError>(numbers);
  }
  while (PyObject* const next = PyIter_Next(iterator.ptr())) {
    const nb::object held = nb::steal(next);
    indices.push_back(static_cast<std::int32_t>(integer(held)));
  }
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  return IndexSet(std::move(indices));
}

nb::object frozen_set(const IndexSet& set) {
  return nb::steal(PyFrozenSet_New(nb::cast(set.indices()).ptr()));
}

nb::object range_or_set(const IndexSet& set) {
  if (set.runs().size() != 1) return frozen_set(set);
  const IndexSet::Run run = set.runs().front();
  const nb::handle type(reinterpret_cast<PyObject*>(&PyRange_Type));
  return type(run.begin, run.last() + 1, run.stride);
}

std::string python_type_name(nb::handle value) {
  return nb::cast<std::string>(nb::handle(value.type()).attr("__name__"));
}

strategy::AnyValue any_value(nb::handle value) {
  strategy::AnyValue result;
  if (give<WeightGrad>(value, result) || give<Weight>(value, result) ||
      give<Activation>(value, result) || give<ActivationGrad>(value, result) ||
      give<OptState>(value, result)) {
    return result;
  }
  const std::string found = python_type_name(value);
  const char* const help = found == "Communication" ? "; is an `await` missing?" : "";
  throw nb::type_error(
      fmt::format(
          "expected a Weight, OptState, Activation, ActivationGrad or WeightGrad, found {}{}",
          found, help)
          .c_str());
}

nb::object to_python(strategy::AnyValue&& value) {
  return std::visit(
      []<class T>(T&& held) -> nb::object {
        if constexpr (std::is_same_v<std::decay_t<T>, std::monostate>) {
          return nb::none();
        } else {
          return nb::cast(std::forward<T>(held));
        }
      },
      std::move(value));
}

void bind_values(nb::module_& m) {
  bind_shape(m);
  bind_of_step<Weight>(m, "Weight", R"(The weight of a layer, or shards of it.

>>> weight = shiplap.strategy.Weight(layer=0, layers=2)
>>> weight.shard(1, 4)
<the weight of layer 0, shard 1 of 4, step 0>
>>> weight.shard(0, 2).combine(weight.shard(1, 2)).is_complete()
True)");
  bind_of_step<OptState>(m, "OptState",
                         "The optimizer state of a weight. It counts as ``moments`` weights.");
  bind_of_samples<Activation>(m, "Activation", "The input of layer ``layer``, for ``samples``.");
  bind_of_samples<WeightGrad>(m, "WeightGrad", R"(A weight's gradient, summed over ``samples``.

>>> part = lambda *samples: shiplap.strategy.WeightGrad(0, 2, samples, total_samples=4)
>>> (part(0, 1) + part(2, 3)).samples
frozenset({0, 1, 2, 3})
>>> part(0, 1) + part(1)
Traceback (most recent call last):
    ...
shiplap.InputError: error[D611]: ...)")
      .def(
          "__add__", [](const WeightGrad& a, const WeightGrad& b) { return a + b; },
          nb::is_operator());
  bind_activation_grad(m);
}

}  // namespace shiplap::python
