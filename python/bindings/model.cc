// Bindings of strategy::Model, one rank's view of training, and its storage.
#include "shiplap/strategy/model.h"

#include <fmt/format.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <utility>

#include "communication.h"
#include "shiplap/base/argument_error.h"
#include "strategy.h"

namespace shiplap::python {
namespace {

using strategy::Activation;
using strategy::ActivationGrad;
using strategy::Key;
using strategy::Model;
using strategy::OptState;
using strategy::ValueMap;
using strategy::Weight;
using strategy::WeightGrad;
using trace::EventKind;

// ---------------------------------------------------------------- value maps

[[noreturn]] void throw_invalid_key(nb::handle key) {
  throw nb::type_error(fmt::format("expected a key of one or two integers, such as [layer] or "
                                   "[layer, microbatch]; found {}",
                                   nb::cast<std::string>(nb::repr(key)))
                           .c_str());
}

int key_number(nb::handle part, nb::handle key) {
  const nb::object number = nb::steal(PyNumber_Index(part.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    throw_invalid_key(key);
  }
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(number.ptr(), &overflow);
  const bool fits = overflow == 0 && value < (1L << 31) && value >= -(1L << 31);
  if (!fits) throw_invalid_key(key);
  return static_cast<int>(value);
}

Key key_of(nb::handle key) {
  if (PyTuple_Check(key.ptr()) == 0) return {key_number(key, key)};
  if (nb::len(key) != 2) throw_invalid_key(key);
  const int second = key_number(key[1], key);
  if (second < 0) throw_invalid_key(key);  // a negative second number marks a key of one number
  return {key_number(key[0], key), second};
}

nb::object to_python(Key key) {
  if (key.second < 0) return nb::int_(key.first);
  return nb::make_tuple(key.first, key.second);
}

template <class T>
struct PyValueMap {
  SharedRanks ranks;
  ValueMap<T>* map;

  [[nodiscard]] const T& at(Key key) const {
    // erase() throws if the key is missing.
    if (!map->contains(key)) erase(key);
    return (*map)[key].value();
  }
  void erase(Key key) const {
    rethrowing_as<InputKeyError>([&] { map->erase(key); });
  }
  [[nodiscard]] nb::list keys() const {
    nb::list all;
    map->for_each([&](Key key, const auto& slot) {
      if (!slot.empty()) all.append(to_python(key));
    });
    return all;
  }
};

template <class T>
void set(const PyValueMap<T>& self, nb::handle key, nb::handle value, const char* kind) {
  const T* found = nullptr;
  if (!nb::try_cast<const T*>(value, found) || found == nullptr) {
    const std::string other = python_type_name(value);
    throw nb::type_error(fmt::format("type mismatch: expected a value of type {}, found {}{}", kind,
                                     other,
                                     other == "Communication" ? "; is an `await` missing?" : "")
                             .c_str());
  }
  (*self.map)[key_of(key)] = T(*found);
}

// The methods of MutableMapping that these make are added in shiplap/strategy.py.
template <class T>
void bind_value_map(nb::module_& m, const char* name, const char* kind) {
  using S = PyValueMap<T>;
  const std::string key_type = "int | tuple[int, int]";
  const std::string is = fmt::format("class {}(MutableMapping[{}, {}])", name, key_type, kind);
  const std::string get = fmt::format("def __getitem__(self, key: {}) -> {}", key_type, kind);
  const std::string put =
      fmt::format("def __setitem__(self, key: {}, value: {}) -> None", key_type, kind);
  const std::string remove = fmt::format("def __delitem__(self, key: {}) -> None", key_type);
  const std::string iterate = fmt::format("def __iter__(self) -> Iterator[{}]", key_type);
  nb::class_<S>(m, name, nb::sig(is.c_str()),
                "A map of values of one type, by one or two integers, in ascending order. Only "
                "stored values count as memory and can be used.")
      .def(
          "__getitem__", [](const S& s, nb::handle key) { return T(s.at(key_of(key))); },
          nb::sig(get.c_str()))
      .def(
          "__setitem__",
          [kind](const S& s, nb::handle key, nb::handle value) { set(s, key, value, kind); },
          nb::sig(put.c_str()))
      .def(
          "__delitem__", [](const S& s, nb::handle key) { s.erase(key_of(key)); },
          nb::sig(remove.c_str()))
      .def("__contains__", [](const S& s, nb::handle key) { return s.map->contains(key_of(key)); })
      .def("__len__", [](const S& s) { return nb::len(s.keys()); })
      .def(
          "__iter__", [](const S& s) { return nb::iter(s.keys()); }, nb::sig(iterate.c_str()))
      .def("__repr__", [name](const S& s) {
        return fmt::format("<{} {}>", name, nb::cast<std::string>(nb::repr(s.keys())));
      });
}

nb::tuple storage(const RankModel& rank) {
  strategy::Storage& all = rank.model->storage();
  return nb::make_tuple(PyValueMap<Weight>{rank.ranks, &all.weights},
                        PyValueMap<OptState>{rank.ranks, &all.opt_states},
                        PyValueMap<Activation>{rank.ranks, &all.activations},
                        PyValueMap<ActivationGrad>{rank.ranks, &all.grad_activations},
                        PyValueMap<WeightGrad>{rank.ranks, &all.grad_weights});
}

// ---------------------------------------------------------------- properties and events

void log_event(const RankModel& rank, const std::string& typ, std::optional<int> layer,
               nb::handle samples, int num_shards_on_device, int num_shards) {
  if (num_shards_on_device < 1 || num_shards < 1) {
    throw_argument_error("num_shards", "expected 1 or more",
                         "a weight that is not sharded is shard 0 of 1");
  }
  rank.model->log_event(parse_event_kind(typ), {.layer = layer.value_or(-1),
                                                .samples = index_set(samples),
                                                .shards_on_device = num_shards_on_device,
                                                .num_shards = num_shards});
}

// A method of Model as one of its rank in Python.
template <class Result, class... Args>
auto of_model(Result (Model::*method)(Args...)) {
  return [method](const RankModel& r, Args... args) -> Result {
    return (r.model->*method)(std::forward<Args>(args)...);
  };
}
template <class Result, class... Args>
auto of_model(Result (Model::*method)(Args...) const) {
  return [method](const RankModel& r, Args... args) -> Result {
    return (r.model->*method)(std::forward<Args>(args)...);
  };
}

void bind_place(nb::class_<RankModel>& type) {
  type.def_prop_ro("rank", of_model(&Model::rank), "The number of this rank.")
      .def_prop_ro("ranks", of_model(&Model::ranks), "The number of ranks.")
      .def_prop_ro("world_size", of_model(&Model::ranks), "``ranks``, as the puzzles call it.")
      .def_prop_ro("layers", of_model(&Model::layers), "The number of layers.")
      .def_prop_ro("num_layers", of_model(&Model::layers), "``layers``, as the puzzles call it.")
      .def_prop_ro("batch", of_model(&Model::batch), "The global batch size, in samples.")
      .def_prop_ro("global_batch_size", of_model(&Model::batch),
                   "``batch``, as the puzzles call it.")
      .def_prop_ro("microbatches", of_model(&Model::microbatches),
                   "The number of microbatches of a rank.")
      .def_prop_ro("zero_stage", of_model(&Model::zero_stage),
                   "The stage of ZeRO, for strategies that take one.")
      .def_prop_ro("chunks", of_model(&Model::chunks),
                   "The number of model chunks on each rank of an interleaved pipeline.")
      .def("position", of_model(&Model::position), "axis"_a,
           "The coordinate of this rank along an axis of the mesh.")
      .def("size", of_model(&Model::size), "axis"_a, "The size of an axis of the mesh.")
      .def("peer", of_model(&Model::peer), "axis"_a, "position"_a,
           "The rank that differs from this one only in its coordinate along that axis.")
      .def(
          "samples",
          [](const RankModel& r, int part, int parts) {
            return range_or_set(r.model->samples(part, parts));
          },
          "part"_a, "parts"_a, nb::sig("def samples(self, part: int, parts: int) -> range"),
          "The samples of one part, if the batch is split into equal parts.");
}

void bind_holdings(nb::class_<RankModel>& type) {
  type.def("storage", &storage,
           nb::sig("def storage(self) -> tuple[Weights, OptStates, Activations, GradActivations, "
                   "GradWeights]"),
           "The five value maps that hold the memory of this rank.")
      .def(
          "memory", [](const RankModel& r) { return r.model->memory().count; },
          "The bytes of the stored values.")
      .def(
          "status",
          [](const RankModel& r) {
            (void)r.ranks->timeline();
            return r.model->status();
          },
          "A readable summary of the stored values.")
      .def_prop_ro(
          "time",
          [](const RankModel& r) { return r.ranks->timeline().clock[r.model->rank()].value; },
          "The time in seconds at which all its calls so far are complete.")
      .def_prop_ro(
          "log",
          [](const RankModel& r) {
            return events_to_python(r.ranks->timeline().trace.ranks[r.model->rank()].events);
          },
          nb::sig("def log(self) -> list[Event]"), "The events of this rank, in program order.")
      .def_prop_ro(
          "final_weights",
          [](const RankModel& r) {
            nb::dict all;
            for (const auto& [layer, weight] : r.model->final_weights()) {
              all[nb::int_(layer)] = weight;
            }
            return all;
          },
          nb::sig("def final_weights(self) -> dict[int, Weight]"), "The final weights, by layer.")
      .def("log_event", &log_event, "typ"_a, "layer"_a = nb::none(), "samples"_a = nb::tuple(),
           "num_shards_on_device"_a = 1, "num_shards"_a = 1,
           nb::sig("def log_event(self, typ: str, layer: int | None = None, samples: Iterable[int] "
                   "= (), num_shards_on_device: int = 1, num_shards: int = 1) -> None"),
           "Logs an event that takes time and has no value: ``forward`` of these samples takes the "
           "time of a forward.");
}

void bind_computations(nb::class_<RankModel>& type) {
  type.def("load_weights", of_model(&Model::load_weights), "layer"_a, "shard"_a = 0,
           "num_shards"_a = 1, "Loads a weight and its optimizer state from the host.")
      .def("set_final_weight", of_model(&Model::set_final_weight), "layer"_a, "weight"_a,
           "Declares a result of the training.")
      .def(
          "get_input_activation",
          [](const RankModel& r, nb::handle samples) {
            return r.model->get_input_activation(index_set(samples));
          },
          "samples"_a,
          nb::sig("def get_input_activation(self, samples: Iterable[int]) -> Activation"),
          "The input of layer 0.")
      .def("forward", of_model(&Model::forward), "layer"_a, "inp"_a, "weight"_a,
           "The input of the next layer.")
      .def("loss", of_model(&Model::loss), "inp"_a, "The gradient of the output of the last layer.")
      .def("backward", of_model(&Model::backward), "layer"_a, "inp"_a, "grad"_a, "weight"_a,
           "The gradients of the weight and of the input of a layer.")
      .def("backward_input", of_model(&Model::backward_input), "layer"_a, "inp"_a, "grad"_a,
           "weight"_a, "The half of backward that computes the gradient of the input.")
      .def("backward_weight", of_model(&Model::backward_weight), "layer"_a, "inp"_a, "grad"_a,
           "weight"_a, "The half of backward that computes the gradient of the weight.")
      .def("update", of_model(&Model::update), "layer"_a, "weight_grad"_a, "weight"_a,
           "opt_state"_a, "The optimizer step. The gradient must be that of all samples.");
}

// ---------------------------------------------------------------- communication

using When = Communication::When;

template <EventKind kKind>
void bind_collective(nb::class_<RankModel>& type, const char* doc) {
  const std::string name(trace::name(kKind));
  const std::string now =
      fmt::format("def {}(self, value: V, layer: int, over: str = '') -> Communication[V]", name);
  const std::string later = fmt::format(
      "def start_{}(self, value: V, layer: int, over: str = '', stream: str = 'net') -> "
      "Communication[V]",
      name);
  const std::string start = "start_" + name;
  type.def(
          name.c_str(),
          [](const RankModel& r, nb::handle value, int layer, std::string over) {
            return std::make_unique<Communication>(r,
                                                   Communication::Call{.kind = kKind,
                                                                       .value = any_value(value),
                                                                       .layer = layer,
                                                                       .over = std::move(over),
                                                                       .stream = ""},
                                                   When::awaited);
          },
          "value"_a, "layer"_a, "over"_a = "", nb::sig(now.c_str()), doc)
      .def(
          start.c_str(),
          [](const RankModel& r, nb::handle value, int layer, std::string over,
             std::string stream) {
            return std::make_unique<Communication>(r,
                                                   Communication::Call{.kind = kKind,
                                                                       .value = any_value(value),
                                                                       .layer = layer,
                                                                       .over = std::move(over),
                                                                       .stream = std::move(stream)},
                                                   When::now);
          },
          "value"_a, "layer"_a, "over"_a = "", "stream"_a = "net", nb::sig(later.c_str()),
          "The same, started now on a stream other than ``main``, to be awaited later.");
}

template <When kWhen>
void bind_messages(nb::class_<RankModel>& type, const char* send, const char* receive) {
  const std::string send_sig = fmt::format(
      "def {}(self, dest: int, value: Weight | OptState | Activation | ActivationGrad | "
      "WeightGrad, tag: int = 0, channel: str = '') -> Communication[None]",
      send);
  const std::string receive_sig = fmt::format(
      "def {}(self, source: int, tag: int = 0, channel: str = '') -> "
      "Communication[Any]",
      receive);
  type.def(
          send,
          [](const RankModel& r, int dest, nb::handle value, int tag, std::string channel) {
            return std::make_unique<Communication>(
                r,
                Communication::Call{.kind = EventKind::send,
                                    .value = any_value(value),
                                    .over = "",
                                    .stream = "",
                                    .peer = dest,
                                    .tag = tag,
                                    .channel = std::move(channel)},
                kWhen);
          },
          "dest"_a, "value"_a, "tag"_a = 0, "channel"_a = "", nb::sig(send_sig.c_str()),
          "Sends to a rank, which receives with the same tag on the same channel.")
      .def(
          receive,
          [](const RankModel& r, int source, int tag, std::string channel) {
            return std::make_unique<Communication>(
                r,
                Communication::Call{.kind = EventKind::recv,
                                    .value = {},
                                    .over = "",
                                    .stream = "",
                                    .peer = source,
                                    .tag = tag,
                                    .channel = std::move(channel)},
                kWhen);
          },
          "source"_a, "tag"_a = 0, "channel"_a = "", nb::sig(receive_sig.c_str()),
          "Receives from a rank, which sends with the same tag on the same channel.");
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_value_map<Weight>(m, "Weights", "Weight");
  bind_value_map<OptState>(m, "OptStates", "OptState");
  bind_value_map<Activation>(m, "Activations", "Activation");
  bind_value_map<ActivationGrad>(m, "GradActivations", "ActivationGrad");
  bind_value_map<WeightGrad>(m, "GradWeights", "WeightGrad");
  nb::class_<RankModel> type(
      m, "Model", R"(One rank's view of training: its storage, computation and communication.

``shiplap.train`` creates one for every rank. A single one, for experiments:

>>> model = shiplap.strategy.Model(layers=2, batch=4)
>>> weights, opt_states, activations, grad_activations, grad_weights = model.storage()
>>> weights[0], opt_states[0] = model.load_weights(0)
>>> activations[0] = model.get_input_activation([0, 1])
>>> activations[1] = model.forward(0, activations[0], weights[0])
>>> activations[1]
<the activation of layer 1, samples 0, 1 of 4>
>>> print(f"{model.memory() / 2**20:.0f} MiB, {model.time * 1e3:.2f} ms")
128 MiB, 2.07 ms)");
  type.def(
      "__init__",
      [](RankModel* self, int layers, int batch) {
        auto ranks = std::make_shared<Ranks>(
            strategy::World{}, strategy::Training{.layers = layers, .batch = batch}, "alone");
        Model* const model = &ranks->trainer.model(0);
        new (self) RankModel{.ranks = std::move(ranks), .model = model};
      },
      nb::kw_only(), "layers"_a = 2, "batch"_a = 1);
  bind_place(type);
  bind_holdings(type);
  bind_computations(type);
  bind_collective<EventKind::all_reduce>(type, R"(Sums over the ranks along ``over``: axes of
the mesh such as ``"dp"``; ``""`` is all ranks. ``layer`` is that of the value.)");
  bind_collective<EventKind::all_gather>(type, "Gathers the shards of all ranks.");
  bind_collective<EventKind::reduce_scatter>(type, "Returns a shard of the sum.");
  bind_messages<When::awaited>(type, "send", "receive");
  bind_messages<When::now>(type, "start_send", "start_receive");
  type.def("__repr__", [](const RankModel& r) {
    return fmt::format("<Model of rank {} of {}: {}, {}>", r.model->rank(), r.model->ranks(),
                       to_string(r.ranks->timeline().clock[r.model->rank()]),
                       to_string(r.model->memory()));
  });
}

}  // namespace shiplap::python
