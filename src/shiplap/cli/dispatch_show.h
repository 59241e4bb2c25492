// What `shiplap dispatch` says of a dispatch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shiplap/base/json.h"
#include "shiplap/cli/context.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/run/dispatch_trial.h"

namespace shiplap::cli {

struct DispatchView {
  const dispatch::QkvDispatch& dispatch;
  std::int64_t documents = 0;  // 0: not known
  int ranks_per_node = 8;
  std::int64_t q_row_bytes = 0;
  std::int64_t kv_row_bytes = 0;
  std::optional<std::int64_t> pairs;  // at most so many pairs of ranks; 0: all
  const run::TrialResult* trial = nullptr;
  std::string backend;  // if it was run
};

[[nodiscard]] std::string show_dispatch(const DispatchView& view, const Context& context);
[[nodiscard]] Json dispatch_to_json(const DispatchView& view);

}  // namespace shiplap::cli
