// Bindings of RuntimePredictor.
#include <fmt/format.h>

#include <type_traits>
#include <utility>
#include <variant>

#include "shiplap/base/argument_error.h"
#include "shiplap/cost/runtime_predictor.h"
#include "strategy.h"

namespace shiplap::python {
namespace {

using cost::RuntimePredictor;

int positive(const char* argument, std::int64_t number) {
  if (number >= 1 && number <= (1 << 20)) return static_cast<int>(number);
  throw_argument_error(argument, fmt::format("expected 1 to 1048576, found {}", number));
}

struct Shards {
  std::int64_t held = 1;
  std::int64_t of = 1;
};
Shards shards(std::int64_t held, std::int64_t of) {
  return {.held = positive("num_shards_on_device", held), .of = positive("num_shards", of)};
}

template <class Ask>
auto ask_of(nb::handle value, const Ask& ask) {
  return std::visit(
      [&]<class T>(const T& known) -> decltype(ask(workload::Weight{})) {
        if constexpr (std::is_same_v<T, std::monostate>) {
          throw InternalError("a value of Python is one of five kinds");
        } else {
          return ask(known);
        }
      },
      any_value(value));
}

double collective_time(const RuntimePredictor& p, const std::string& name, nb::handle value) {
  return ask_of(value, [&](const auto& v) { return p.get_collective_time(name, v).value; });
}

// The ends of a message: by default the first rank and the last.
std::pair<Rank, Rank> message_ends(const RuntimePredictor& p, std::optional<std::int64_t> source,
                                   std::optional<std::int64_t> dest) {
  const auto rank = [&](const char* argument, std::optional<std::int64_t> given,
                        std::int64_t otherwise) {
    const std::int64_t found = given.value_or(otherwise);
    if (found >= 0 && found < p.world_size()) return Rank(static_cast<std::int32_t>(found));
    throw_argument_error(argument, fmt::format("there is no rank {}", found),
                         fmt::format("there are ranks 0 to {}", p.world_size() - 1));
  };
  return {rank("source", source, 0), rank("dest", dest, p.world_size() - 1)};
}

double message_time(const RuntimePredictor& p, nb::handle value, std::optional<std::int64_t> source,
                    std::optional<std::int64_t> dest) {
  const auto [from, to] = message_ends(p, source, dest);
  return ask_of(value, [&, from = from, to = to](const auto& v) {
    return p.get_send_recv_time(v, from, to).value;
  });
}

Bytes buffer(std::int64_t bytes) {
  if (bytes < 0) throw_negative("bytes");
  return {bytes};
}

// The parts of a machine, as RuntimePredictor shows them.
void bind_machine(nb::module_& m) {
  nb::class_<hardware::Processor>(m, "Processor", R"(A compute unit of a machine.

>>> f"{shiplap.RuntimePredictor(8).processor.throughput('float16', 1e12):.4g}"
'7.681e+14')")
      .def(
          "throughput",
          [](const hardware::Processor& p, const std::string& datatype, double flops) {
            const hardware::Processor::Speed* speed = p.usable(parse_datatype(datatype));
            if (speed != nullptr) return speed->throughput({flops}).flops_per_second;
            throw InputError(Diagnostic{.code = "D602",
                                        .where = {.flag = "datatype"},
                                        .what = "unsupported datatype " + datatype,
                                        .help = "choose one that the hardware file lists"});
          },
          "datatype"_a, "flops"_a, "Flops per second of an operation of ``flops`` flops.");
  nb::class_<hardware::MemoryTier>(m, "MemoryTier", "A memory of a machine.")
      .def_prop_ro(
          "capacity", [](const hardware::MemoryTier& t) { return t.capacity.count; }, "Bytes.")
      .def(
          "throughput",
          [](const hardware::MemoryTier& t, std::int64_t bytes) {
            return t.throughput(buffer(bytes)).bytes_per_second;
          },
          "bytes"_a, "Bytes per second of an operation that moves ``bytes``.");
  using hardware::Network;
  nb::class_<Network>(m, "Network", "A network of a machine: it connects blocks of ``size`` ranks.")
      .def_prop_ro(
          "bandwidth", [](const Network& n) { return n.bandwidth.bytes_per_second; },
          "Bytes per second of a rank, in one direction.")
      .def_ro("efficiency", &Network::efficiency, "The fraction of the bandwidth that is reached.")
      .def_prop_ro(
          "latency", [](const Network& n) { return n.latency.value; }, "Seconds.")
      .def_ro("size", &Network::size, "The number of consecutive ranks that it connects.");
}

}  // namespace

void bind_predictor(nb::module_& m) {
  bind_machine(m);
  using P = RuntimePredictor;
  nb::class_<P>(m, "RuntimePredictor", R"(Predicts the time of operations on a machine, in seconds.

>>> predictor = shiplap.RuntimePredictor(8)
>>> gradient = shiplap.strategy.WeightGrad(0, 2, range(4), total_samples=4)
>>> print(f"{predictor.get_forward_backward_time(1) * 1e6:.1f} us")
50.7 us
>>> print(f"{predictor.get_collective_time('all_reduce', gradient) * 1e6:.1f} us")
187.6 us)")
      .def(
          "__init__",
          [](P* self, std::int64_t world_size, const std::string& hardware,
             const std::optional<workload::ModelShape>& shape) {
            new (self) P(positive("world_size", world_size), hardware::find_system(hardware),
                         shape.value_or(workload::ModelShape{}));
          },
          "world_size"_a, "hardware"_a = "h100_80g_nvl8", "shape"_a = nb::none(),
          "``hardware`` is one of ``shiplap.known_systems()``, or a file.")
      .def_prop_ro("world_size", &P::world_size)
      .def_prop_ro("hardware", [](const P& p) { return p.system().name; })
      .def_prop_ro("shape", [](const P& p) { return p.shape(); })
      .def_prop_ro(
          "processor", [](const P& p) { return p.system().matrix; }, "The matrix unit.")
      .def_prop_ro(
          "mem_hbm", [](const P& p) { return p.system().mem1; }, "The memory of the device.")
      .def_prop_ro(
          "mem_pcie", [](const P& p) { return p.system().mem2; },
          "The memory of the host, over the bus.")
      .def_prop_ro(
          "network",
          [](const P& p) -> hardware::Network { return cost::network_for(p.system(), p.world()); },
          "The network that connects all ranks.")
      .def(
          "compute_flops_time",
          [](const P& p, double flops) { return p.compute_flops_time({flops}).value; }, "flops"_a,
          "The time on the matrix unit.")
      .def(
          "compute_mem_time",
          [](const P& p, std::int64_t bytes) { return p.compute_mem_time({bytes}).value; },
          "bytes_read_write"_a)
      .def(
          "get_processing_time",
          [](const P& p, double flops, std::int64_t bytes) {
            return p.get_processing_time({flops}, {bytes}).value;
          },
          "flops"_a, "bytes_read_write"_a, "The time of both, combined as the machine does.")
      .def(
          "get_forward_backward_time",
          [](const P& p, std::int64_t batch) {
            return p.get_forward_backward_time(positive("batch_size", batch)).value;
          },
          "batch_size"_a, "The time of one GEMM of forward or backward.")
      .def(
          "get_update_step_time",
          [](const P& p, std::int64_t held, std::int64_t of) {
            const Shards s = shards(held, of);
            return p.get_update_step_time(s.held, s.of).value;
          },
          "num_shards_on_device"_a = 1, "num_shards"_a = 1)
      .def(
          "get_weight_load_time",
          [](const P& p, std::int64_t held, std::int64_t of) {
            const Shards s = shards(held, of);
            return p.get_weight_load_time(s.held, s.of).value;
          },
          "num_shards_on_device"_a = 1, "num_shards"_a = 1)
      .def(
          "get_comm_bytes",
          [](const P& p, nb::handle value) {
            return ask_of(value, [&](const auto& v) { return p.get_comm_bytes(v).count; });
          },
          "value"_a,
          nb::sig("def get_comm_bytes(self, value: Weight | OptState | Activation | ActivationGrad "
                  "| WeightGrad) -> int"),
          "The bytes of the shards held.")
      .def("get_collective_time", &collective_time, "collective_name"_a, "value"_a,
           nb::sig("def get_collective_time(self, collective_name: str, value: Weight | OptState | "
                   "Activation | ActivationGrad | WeightGrad) -> float"),
           "The time of a collective of all ranks; ``value`` is the input of each rank.")
      .def("get_send_recv_time", &message_time, "value"_a, "source"_a = nb::none(),
           "dest"_a = nb::none(),
           nb::sig("def get_send_recv_time(self, value: Weight | OptState | Activation | "
                   "ActivationGrad | WeightGrad, source: int | None = None, dest: "
                   "int | None = None) -> float"),
           "The time from one rank to another; by default from the first to the last.")
      .def(
          "collective_time",
          [](const P& p, const std::string& name, std::int64_t bytes) {
            return p.get_collective_time(name, buffer(bytes)).value;
          },
          "collective_name"_a, "bytes"_a,
          "The time of a collective of all ranks on a whole buffer: the result of an all_gather, "
          "the input of a reduce_scatter.")
      .def(
          "message_time",
          [](const P& p, std::int64_t bytes, std::optional<std::int64_t> source,
             std::optional<std::int64_t> dest) {
            const auto [from, to] = message_ends(p, source, dest);
            return cost::message_time(p.system(), buffer(bytes), from, to).value;
          },
          "bytes"_a, "source"_a = nb::none(), "dest"_a = nb::none(),
          "The time of a message; by default from the first rank to the last.")
      .def("__repr__", [](const P& p) {
        return fmt::format("<RuntimePredictor for {} ranks of {}>", p.world_size(),
                           p.system().name);
      });
}

}  // namespace shiplap::python
