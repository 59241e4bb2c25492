// Compares the log of a strategy with the replay of its plan.
#pragma once

#include "shiplap/sim/replay.h"
#include "shiplap/strategy/train.h"

namespace shiplap::strategy {

// Every event, in kind, layer, samples, bytes, memory; times to 1e-9.
void expect_agreement(const Trainer& trainer, const sim::Replay& replay);

}  // namespace shiplap::strategy
