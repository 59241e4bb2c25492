// One communication of one rank, from the moment it is asked for until its result is taken.
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
// Of the activations and their gradients; those of other values are of no interest to people.
[[nodiscard]] const IndexSet& shown_samples(const AnyValue& value);
[[nodiscard]] std::int32_t layer_of(const AnyValue& value);

struct Flight : engine::Waiter {
  trace::Kind kind = trace::Kind::all_reduce;
  std::int32_t rank = 0;
  std::int32_t group = 0;    // of a collective: the kind of group (Dist::group)
  std::int32_t number = 0;   // of a collective: how many this rank had on that group before
  std::int32_t peer = -1;    // of a message
  std::int32_t tag = 0;      // of a message
  std::int32_t channel = 0;  // of a message, in Dist
  std::int32_t step = -1;    // in the rank's record
  bool beside = false;       // the rank goes on meanwhile
  bool complete = false;
  bool awaited = false;  // a coroutine sleeps until it is complete
  AnyValue in;
  AnyValue out;
  Flight* behind = nullptr;  // the next on its stream, that cannot start before this is complete
};

}  // namespace shiplap::strategy
