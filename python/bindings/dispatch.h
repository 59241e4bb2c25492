// What the files that bind shiplap::dispatch share.
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

// All five results of one dispatch, as Python holds them: with what they were made from, if that is
// known. Only then is there a picture, because the tables do not say what is a document.
struct Dispatch {
  dispatch::QkvDispatch dispatch;
  std::shared_ptr<const dispatch::Routing> routing;
};

// Throws InputError D003.
[[nodiscard]] dispatch::Arrival arrival_called(const std::string& word);
// Throws InputError D400 unless 0 <= rank < world_size.
void check_rank(std::int64_t rank, int world_size);

// For __repr__: "4 ranks".
[[nodiscard]] std::string ranks_text(int ranks);

}  // namespace shiplap::python
