// Bindings of shiplap::dispatch: Q/KV dispatch.
#include "dispatch.h"

#include <fmt/format.h>

#include "shiplap/base/error.h"

namespace shiplap::python {

dispatch::ArrivalMode parse_arrival(const std::string& word) {
  if (word == "placed") return dispatch::ArrivalMode::placed;
  if (word == "summed") return dispatch::ArrivalMode::summed;
  throw InputError(Diagnostic{.code = "D003",
                              .where = {.flag = "arrival"},
                              .what = fmt::format("there is no `{}`", word),
                              .help = "`placed` or `summed`"});
}

void check_rank(std::int64_t rank, int world_size) {
  if (rank >= 0 && rank < world_size) return;
  throw InputIndexError(
      Diagnostic{.code = "D400",
                 .what = fmt::format("there is no rank {}", rank),
                 .help = world_size == 0 ? "there are no ranks"
                                         : fmt::format("there are ranks 0 to {}", world_size - 1)});
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
