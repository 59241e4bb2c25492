// The report of one Q/KV dispatch: which tokens of which document go where, how many bytes that is
// from rank to rank, and how even the work is that it leads to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/layout.h"
#include "shiplap/report/page.h"

namespace shiplap::cli {

// What is known when it is drawn. The references are used only during the call.
struct DispatchReport {
  const dispatch::Routing& routing;
  const dispatch::QkvDispatch& dispatch;  // made from it
  int ranks_per_node = 8;
  std::int64_t q_row_bytes = 0;  // of one token; at least 1, as the next
  std::int64_t kv_row_bytes = 0;
  struct Measured {
    double seconds = 0;
    std::int64_t bytes = 0;
    std::string name;  // "Q there"
  };
  std::vector<Measured> measured;  // empty if it was not run
  std::string backend;             // "threads", "mpi"; empty: not run
  std::string command;             // that made it
  std::string version;
};

// Throws InputError D400 if `ranks_per_node` is below 1.
[[nodiscard]] report::Page dispatch_page_of(const DispatchReport& about);
// As one HTML file; see report/page.h.
[[nodiscard]] std::string dispatch_report(const DispatchReport& about);

}  // namespace shiplap::cli
