// A dispatch as a plan: exchanges with their tables, and what every buffer holds, so that whatever
// reads plans can read it.
#pragma once

#include <cstdint>

#include "shiplap/dispatch/compute.h"
#include "shiplap/plan/plan.h"

namespace shiplap::dispatch {

struct LowerOptions {
  std::int64_t q_row_bytes = 8;
  std::int64_t kv_row_bytes = 8;
};

// Up to so many tokens the plan has the whole step: Q and KV there, attention, outputs back, the
// same backwards, gradients of keys added up. Above, it has only the ways there and that of the
// queries back: which token sees which would need a list of all tokens.
inline constexpr std::uint64_t kMostAttendedTokens = 65536;

// `dispatch` must be that of `routing`. Throws InputError with what validate(routing) finds, D400
// if there is no token.
[[nodiscard]] plan::Plan lower(const Routing& routing, const QkvDispatch& dispatch,
                               const LowerOptions& options = {});

}  // namespace shiplap::dispatch
