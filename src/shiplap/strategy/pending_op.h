// A pending communication of one rank, from the call until its result is taken.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "shiplap/base/units.h"
#include "shiplap/engine/scheduler.h"
#include "shiplap/trace/event.h"
#include "shiplap/workload/values.h"

namespace shiplap::strategy {

using AnyValue = std::variant<std::monostate, workload::Weight, workload::OptState,
                              workload::WeightGrad, workload::Activation, workload::ActivationGrad>;

[[nodiscard]] std::string describe(const AnyValue& value);
[[nodiscard]] Bytes memory(const AnyValue& value, const workload::ModelShape& shape);
// The samples that an event shows: those of an activation or its gradient, empty for other values.
[[nodiscard]] const IndexSet& shown_samples(const AnyValue& value);
[[nodiscard]] std::int32_t layer_of(const AnyValue& value);

struct PendingOp : engine::Waiter {
  trace::EventKind kind = trace::EventKind::all_reduce;
  std::int32_t rank = 0;
  std::int32_t group = 0;     // of a collective (Dist::group)
  std::int32_t seq = 0;       // of a collective: sequence number on this group
  std::int32_t peer = -1;     // of a message
  std::int32_t tag = 0;       // of a message
  std::int32_t channel = 0;   // of a message (Dist::channel)
  std::int32_t step = -1;     // in the rank's record
  bool non_blocking = false;  // the rank continues while it is in flight
  bool complete = false;
  bool awaited = false;  // a coroutine is suspended until it is complete
  AnyValue in;
  AnyValue out;
  PendingOp* next_on_stream = nullptr;  // successor on the stream, started when this is complete
};

}  // namespace shiplap::strategy
