// Declarations shared by the bindings of shiplap::dispatch.
#pragma once

#include <memory>
#include <string>

#include "bind.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::python {

// In the order in which bind_dispatch calls them.
void bind_dispatch_layout(nb::module_& m);
void bind_dispatch_metadata(nb::module_& m);
void bind_dispatch_dense(nb::module_& m);
void bind_dispatch_whole(nb::module_& m);
void bind_dispatch_exchange(nb::module_& m);

// All five results of one dispatch, with the routing that they were computed from, if it is known.
// Only then can it be drawn, because the tables do not contain document boundaries.
struct Dispatch {
  dispatch::QkvDispatch dispatch;
  std::shared_ptr<const dispatch::Routing> routing;
};

// Throws InputError D003.
[[nodiscard]] dispatch::ArrivalMode parse_arrival(const std::string& word);
// Throws InputError D400 unless 0 <= rank < world_size.
void check_rank(std::int64_t rank, int world_size);

// For __repr__: "4 ranks".
[[nodiscard]] std::string ranks_text(int ranks);

}  // namespace shiplap::python
