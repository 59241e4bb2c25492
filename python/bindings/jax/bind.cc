// shiplap._shiplap.jax: groups, buffers and handlers, for shiplap/jax/ and
// shiplap/_torch_linear.py.
#include "../bind.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../trace.h"
#include "gemm.h"
#include "group.h"
#include "handlers.h"
#include "parse.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::python {
namespace {

using jax::Group;

// A key-value store in Python, of JAX or any other: put(key, value), and get(key, seconds) -> value
// or None.
class PythonStore final : public comm::Rendezvous {
 public:
  PythonStore(nb::object put, nb::object get) : put_(std::move(put)), get_(std::move(get)) {}

  void put(const std::string& key, const std::string& value) override {
    const nb::gil_scoped_acquire held;
    put_(key, value);
  }
  [[nodiscard]] std::optional<std::string> get(const std::string& key, Seconds within) override {
    const nb::gil_scoped_acquire held;
    const nb::object found = get_(key, within.value);
    if (found.is_none()) return std::nullopt;
    return nb::cast<std::string>(found);
  }

 private:
  nb::object put_;
  nb::object get_;
};

// device, rank, subgroup, rank names
using PlacementTuple = std::tuple<int, int, std::string, std::vector<std::string>>;

std::int64_t open_group(const std::string& name, const std::vector<PlacementTuple>& placements,
                        const std::string& address, double timeout, double connect_timeout,
                        bool traces, nb::object put, nb::object get) {
  jax::GroupRequest request{.name = name,
                            .address = address,
                            .timeout = {timeout},
                            .connect_timeout = {connect_timeout},
                            .traces = traces};
  for (const auto& [device, rank, subgroup, rank_names] : placements) {
    request.placements.push_back({device, rank, subgroup, rank_names});
  }
  PythonStore store(std::move(put), std::move(get));
  const nb::gil_scoped_release released;
  return jax::add_group(std::make_shared<Group>(std::move(request), store));
}

// The same with a single rank in this process, and a rendezvous at the address of rank 0.
std::int64_t open_group_at(const std::string& name, const PlacementTuple& placement,
                           const std::string& store_address, const std::string& address,
                           double timeout, double connect_timeout, bool traces) {
  const auto& [device, rank, subgroup, rank_names] = placement;
  const auto store = comm::connect_store(
      store_address, {.rank = rank, .size = static_cast<int>(rank_names.size())},
      {connect_timeout});
  return jax::add_group(std::make_shared<Group>(
      jax::GroupRequest{.name = name,
                        .placements = {{device, rank, subgroup, rank_names}},
                        .address = address.empty() ? store->local_host() : address,
                        .timeout = {timeout},
                        .connect_timeout = {connect_timeout},
                        .traces = traces},
      *store));
}

nb::capsule handler(void* address) { return nb::capsule(address, "xla._CUSTOM_CALL_TARGET"); }

void bind_buffers(nb::module_& m) {
  // see shiplap.jax.create_buffer
  m.def(
      "create",
      [](std::int64_t group, const std::string& comm_type, const std::string& method,
         std::vector<std::int64_t> shape, const std::string& dtype, const std::string& result_dtype,
         int scaling_mode, bool atomic_gemm, int chunks, const std::string& cut, int axis_boundary,
         const std::string& name) {
        run::BufferRequest request{
            .comm_type = jax::parse_comm_type(comm_type),
            .method = jax::parse_method(method),
            .buffer_shape = std::move(shape),
            .axis_boundary = axis_boundary,
            .buffer_dtype = jax::parse_dtype(dtype),
            .scaling_mode = kernels::scaling_mode_from_int(scaling_mode),
            .result_dtype = jax::parse_dtype(result_dtype),
            .atomic_gemm = atomic_gemm,
            .chunks = chunks,
            .cut = cut == "tapered" ? overlap::Cut::tapered : overlap::Cut::even,
            .name = name};
        return jax::group_of(group)->create(request);
      },
      Released());
  m.def(
      "destroy", [](std::int64_t group, std::int64_t id) { jax::group_of(group)->destroy(id); },
      Released());
  m.def(
      "destroy_all",
      [](std::int64_t group) {
        jax::group_of(group)->destroy_all();
        jax::destroy_single_rank_buffers();
      },
      Released());
  m.def("memory", [](std::int64_t group) {
    return to_python(to_json(jax::group_of(group)->first().registry().memory()));
  });
}

// A matrix in memory: address, rows, columns.
using MatrixTuple = std::tuple<std::uintptr_t, std::int64_t, std::int64_t>;

jax::Array array_at(const MatrixTuple& at, const std::string& dtype) {
  const auto& [address, rows, columns] = at;
  return {.data = reinterpret_cast<void*>(address),  // NOLINT(performance-no-int-to-ptr)
          .shape = {rows, columns},
          .type = jax::parse_dtype(dtype)};
}

// Operands and results by name; the others are not given.
using Matrices = std::map<std::string, MatrixTuple>;

// The GEMM of a torch program. `transposed` names its transposed operands: "", "w" or "x".
void multiply(std::int64_t group, const std::string& comm_type, const std::string& method,
              int chunks, const std::string& dtype, const std::string& transposed,
              const Matrices& matrices) {
  const auto find = [&](const char* name) {
    const auto found = matrices.find(name);
    return found == matrices.end() ? jax::Array{} : array_at(found->second, dtype);
  };
  const jax::GemmAttributes attributes{
      .group = group,
      .choice = {.type = jax::parse_comm_type(comm_type), .method = jax::parse_method(method)},
      .lhs_transposed = transposed == "x",
      .rhs_transposed = transposed == "w",
      .chunks = chunks};
  jax::GemmOperands operands;
  operands.lhs = find("x");
  operands.rhs = find("w");
  operands.bias = find("bias");
  operands.to_scatter = find("to_scatter");
  jax::multiply(
      0, attributes, operands,
      {.output = find("y"), .gathered = find("gathered"), .scattered = find("scattered")});
}

double time_direct(std::int64_t group, int device, const std::string& comm_type,
                   const std::string& method, int chunks, const std::string& dtype,
                   const MatrixTuple& x, const MatrixTuple& w, const MatrixTuple& y, int calls) {
  const jax::GemmAttributes attributes{
      .group = group,
      .choice = {.type = jax::parse_comm_type(comm_type), .method = jax::parse_method(method)},
      .chunks = chunks};
  jax::GemmOperands operands;
  operands.lhs = array_at(x, dtype);
  operands.rhs = array_at(w, dtype);
  return jax::time_directly(device, attributes, operands, {.output = array_at(y, dtype)}, calls);
}

}  // namespace

void bind_jax(nb::module_& whole) {
  nb::module_ m = whole.def_submodule("jax", "For shiplap.jax and shiplap.torch. Use these.");
  m.def("gemm_handler", [] { return handler(jax::gemm_handler()); });
  m.def("grouped_gemm_handler", [] { return handler(jax::grouped_gemm_handler()); });
  m.def("open_group", &open_group);
  m.def("open_group_at", &open_group_at, Released());
  m.def("close_group", &jax::remove_group, Released());
  m.def(
      "abort_group",
      [](std::int64_t group, const std::string& reason) { jax::group_of(group)->abort(reason); },
      Released(), "Ranks that wait for this process raise RankFailed with this reason.");
  m.def("rethrow_failure", &jax::rethrow_failure,
        "Raises the exception of a handler that XLA reported with this message.");
  m.def("addresses", [](std::int64_t group, int device) {
    return jax::group_of(group)->rank_on(device).addresses();
  });
  m.def("check_supported", [](const std::string& type, const std::string& method, bool atomic) {
    overlap::check_supported({jax::parse_comm_type(type), jax::parse_method(method), atomic});
  });
  m.def("multiply", &multiply, "group"_a, "comm_type"_a, "method"_a, "chunks"_a, "dtype"_a,
        "transposed"_a, "matrices"_a, Released(),
        "A GEMM of matrices (address, rows, columns) by name, all of one dtype: x, w, y, bias, "
        "gathered, to_scatter, scattered.");
  m.def(
      "time_direct", &time_direct, "group"_a, "device"_a, "comm_type"_a, "method"_a, "chunks"_a,
      "dtype"_a, "x"_a, "w"_a, "y"_a, "calls"_a, Released(),
      "Returns the seconds of a call of the C++ function. Matrices are (address, rows, columns).");
  m.def("take_trace", [](std::int64_t group) {
    auto taken = std::make_shared<NamedTrace>();
    {
      const nb::gil_scoped_release released;
      taken->trace = jax::group_of(group)->take_trace();
    }
    taken->name = "shiplap.jax";
    return std::shared_ptr<const NamedTrace>(taken);
  });
  bind_buffers(m);
}

}  // namespace shiplap::python
