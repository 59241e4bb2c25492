// The order in which the ranks of a pipeline compute and receive.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/schedule/schedule.h"

namespace shiplap::step {

// What a rank does with one chunk and one microbatch. A pass sends its result when it is complete.
enum class Turn : std::uint8_t {
  forward,
  backward,         // of a schedule that splits backwards: the input half
  backward_weight,  // the other half
  receive_forward,  // of the activations that a forward reads
  receive_backward,
};

struct OrderedTurn {
  Turn turn = Turn::forward;
  int chunk = 0;
  int microbatch = 0;
  friend bool operator==(const OrderedTurn&, const OrderedTurn&) = default;
};

// By rank. `actions` are the passes of each rank, in its order. If `splits` is set, a whole
// backward becomes its two halves.
//
// The orders are those of one sequence of all passes of all ranks, in which each message is sent
// and received right after the pass that computes it. So the communication of a rank may be
// executed one after the other, with any sends, and nothing hangs (torch orders the messages of its
// schedules in the same way). Passes come in the order in which they could start if messages took
// no time: a message is received before all passes that start after the one that computes it.
[[nodiscard]] std::vector<std::vector<OrderedTurn>> pipeline_order(
    const schedule::Pipeline& pipeline,
    const std::vector<std::vector<schedule::PipelineAction>>& actions, bool splits);

// How many microbatches of one chunk have a gradient on a rank at a time: received, in use or, of
// the one before, sent. At least 2.
[[nodiscard]] std::int64_t gradients_at_once(const std::vector<std::vector<OrderedTurn>>& order,
                                             int chunks);

}  // namespace shiplap::step
