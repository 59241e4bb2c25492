// One event of one rank: what, when, for how long, on which data. Simulated and real runs write the
// same events.
#pragma once

#include <cstdint>
#include <string_view>

#include "shiplap/base/collective.h"
#include "shiplap/base/index_set.h"
#include "shiplap/base/units.h"

namespace shiplap::trace {

enum class EventKind : std::uint8_t {
  load_weights,
  forward,
  backward,         // both gradients in one
  backward_input,   // the gradient of the input
  backward_weight,  // the gradient of the weight
  loss,
  update,
  compute,  // any other computation
  copy,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  barrier,
  exchange,
  send,
  recv,
};
[[nodiscard]] std::string_view name(EventKind kind);  // "forward"
[[nodiscard]] bool is_communication(EventKind kind);
[[nodiscard]] EventKind kind_of(CollectiveKind collective);
// Of a part of a pass, such as `forward_attention`, the pass. Returns `compute` if the kernel has
// no kind of its own.
[[nodiscard]] EventKind kind_of_kernel(std::string_view kernel);
// REQUIRES: `kind` is that of a collective.
[[nodiscard]] CollectiveKind collective_of(EventKind kind);

struct Event {
  EventKind kind = EventKind::compute;
  std::int32_t rank = 0;
  std::int32_t layer = -1;      // -1: none
  std::int32_t stream = 0;      // 0 is `main`
  std::int32_t operation = -1;  // index in the expansion of the plan; -1: no plan
  std::int32_t peer = -1;       // of send and recv
  std::int32_t axis = -1;       // of communication: index in Trace::axes; -1: unknown
  std::int64_t match = -1;      // a send and its recv have the same number, unique among messages
  Seconds time;                 // when it began, after waiting for other ranks
  Seconds duration;
  Bytes bytes;   // of communication: moved bytes, counted once (see docs/trace.md)
  Bytes memory;  // alive on the rank while it runs, in program order
  IndexSet samples;

  [[nodiscard]] Seconds end() const { return time + duration; }
  friend bool operator==(const Event&, const Event&) = default;
};

}  // namespace shiplap::trace
