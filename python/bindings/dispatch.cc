// Bindings of shiplap::dispatch: Q/KV dispatch.
#include "dispatch.h"

#include <fmt/format.h>

#include <map>

#include "shiplap/base/argument_error.h"

namespace shiplap::python {

dispatch::ArrivalMode parse_arrival(const std::string& word) {
  if (word == "placed") return dispatch::ArrivalMode::placed;
  if (word == "summed") return dispatch::ArrivalMode::summed;
  throw_argument_error("arrival", fmt::format("there is no `{}`", word), "`placed` or `summed`");
}

void check_rank(std::int64_t rank, int world_size) {
  if (rank >= 0 && rank < world_size) return;
  throw InputIndexError(
      Diagnostic{.code = "D400",
                 .what = fmt::format("there is no rank {}", rank),
                 .help = world_size == 0 ? "there are no ranks"
                                         : fmt::format("there are ranks 0 to {}", world_size - 1)});
}

nb::handle TupleMaker::cached(const std::string& name) {
  static std::map<std::string, nb::handle> kept;  // as all objects of Python: with the lock held
  const auto found = kept.find(name);
  if (found != kept.end()) return found->second;
  nb::object object = name.empty()
                          ? nb::handle(reinterpret_cast<PyObject*>(&PyTuple_Type)).attr("__new__")
                          : nb::module_::import_("shiplap._dispatch_values").attr(name.c_str());
  return kept.emplace(name, object.release()).first->second;
}

std::string ranks_text(int ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

void bind_dispatch(nb::module_& m) {
  bind_dispatch_layout(m);
  bind_dispatch_metadata(m);
  bind_dispatch_dense(m);
  bind_dispatch_whole(m);
  bind_dispatch_exchange(m);
}

}  // namespace shiplap::python
