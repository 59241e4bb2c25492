// What is told of a Q/KV dispatch: as text, as JSON and as a page that shows which tokens of which
// document go where, how many bytes that is from rank to rank, and how even the work is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shiplap/base/json.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/summary.h"
#include "shiplap/report/page.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

// What is known when it is told. The references are used only during the calls.
struct DispatchView {
  const dispatch::QkvDispatch& dispatch;
  const dispatch::Routing* routing = nullptr;  // that it was made from; a page needs it
  std::int64_t documents = 0;                  // 0: not known
  dispatch::RowSizes sizes;                    // on a page, at least a byte
  const dispatch::Trial* trial = nullptr;      // if it was run
  std::string backend;                         // "threads", "mpi"
};

// At most so many pairs of ranks are listed; 0: all.
[[nodiscard]] std::string dispatch_text(const DispatchView& view, const TextLook& look,
                                        std::int64_t pairs = 10);
// Schema "shiplap.dispatch.summary/1".
[[nodiscard]] Json dispatch_json(const DispatchView& view);

// Throw InputError D400 if a node has no rank.
[[nodiscard]] Page dispatch_page(const DispatchView& view, const std::string& command = "");

}  // namespace shiplap::report
