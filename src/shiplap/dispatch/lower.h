// Lowers a dispatch to a plan: exchanges with their tables, and the contents of every buffer.
#pragma once

#include <cstdint>

#include "shiplap/dispatch/compute.h"
#include "shiplap/plan/plan.h"

namespace shiplap::dispatch {

struct LowerOptions {
  std::int64_t q_row_bytes = 8;
  std::int64_t kv_row_bytes = 8;
};

// Up to this many tokens the plan has the whole step: Q and KV forward, attention, outputs in
// reverse, the backward pass, and the sum of KV gradients. Above, it has only Q and KV forward and
// Q in reverse, because the causal mask needs a list of all tokens.
inline constexpr std::uint64_t kMaxAttendedTokens = 65536;

// REQUIRES: `dispatch` was computed from `routing`. Throws InputError with the findings of
// validate(routing), D400 if there are no tokens.
[[nodiscard]] plan::Plan lower(const Routing& routing, const QkvDispatch& dispatch,
                               const LowerOptions& options = {});

}  // namespace shiplap::dispatch
