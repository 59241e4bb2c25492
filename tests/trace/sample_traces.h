// Traces made by hand, without a strategy or a simulator, to look at and to read back.
#pragma once

#include <cstdint>

#include "shiplap/trace/trace.h"

namespace shiplap::trace {

// Layers of one kind, dealt out to the ranks.
struct Pipeline {
  int ranks = 4;
  int microbatches = 8;
  int layers_per_rank = 2;
};

// Forward and backward of one microbatch in turn (PipeDream-flush). A send is asynchronous, a recv
// is waited for; both are under way from when the later one starts.
[[nodiscard]] Trace one_forward_one_backward(const Pipeline& pipeline);

// Weights are gathered one layer ahead and gradients scattered, on a stream of their own.
struct Sharded {
  int ranks = 4;
  int layers = 6;
};
[[nodiscard]] Trace sharded_weights(const Sharded& sharded);

// Events of all kinds, anywhere in time, also over one another and without length; every recv has a
// send that begins no later.
[[nodiscard]] Trace random_trace(std::uint64_t seed);

}  // namespace shiplap::trace
