// One thing that happened on one rank: what, when, for how long, on which data. A strategy's own
// clock, the simulator and a real run all write the same.
#pragma once

#include <cstdint>
#include <string_view>

#include "shiplap/base/collective.h"
#include "shiplap/base/index_set.h"
#include "shiplap/base/units.h"

namespace shiplap::trace {

enum class Kind : std::uint8_t {
  load_weights,
  forward,
  backward,         // both halves in one
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
[[nodiscard]] std::string_view name(Kind kind);  // "forward"
[[nodiscard]] bool is_communication(Kind kind);
[[nodiscard]] Kind kind_of(CollectiveKind collective);
[[nodiscard]] Kind kind_of_kernel(
    std::string_view kernel);  // `compute` if it has no kind of its own
// REQUIRES: `kind` is that of a collective.
[[nodiscard]] CollectiveKind collective_of(Kind kind);

struct Event {
  Kind kind = Kind::compute;
  std::int32_t rank = 0;
  std::int32_t layer = -1;      // -1: none
  std::int32_t stream = 0;      // 0 is `main`
  std::int32_t operation = -1;  // in the expansion of the plan; -1: there is no plan
  std::int32_t peer = -1;       // of send and recv
  std::int64_t match = -1;      // a send and its recv have the same number, unique among messages
  Seconds time;                 // when it began to be done: waiting for others comes before
  Seconds duration;
  Bytes bytes;   // of communication: what it moves, counted once (see docs/trace.md)
  Bytes memory;  // alive on the rank while it runs, by listed order
  IndexSet samples;

  [[nodiscard]] Seconds end() const { return time + duration; }
  friend bool operator==(const Event&, const Event&) = default;
};

}  // namespace shiplap::trace
