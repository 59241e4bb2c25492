// Is a small plan sound? The slow way: try every order of starts and completions, and carry every
// contribution of every sum by hand. The second witness of check, with which it shares no code.
#pragma once

#include <cstddef>

#include "shiplap/plan/plan.h"

namespace shiplap::oracle {

struct Verdict {
  bool matched = true;          // everything that meets is there and agrees
  bool deadlock_eager = false;  // some order ends with operations that are not complete
  bool deadlock_rendezvous = false;
  bool race = false;          // on some rank, looked at alone
  bool unordered = false;     // two operations with one key may start in either order
  bool values_wrong = false;  // false unless matched, without deadlock (eager) and races
  bool explored = true;       // every state was visited; if not, one adversary per question
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// How many operations may stand in a machine all of whose states are visited, and how many states.
// Beyond that, the answer comes from runs in which one event is held back for ever: the same
// answer, as no event ever forbids another.
struct Patience {
  std::size_t operations = 12;
  std::size_t states = 5'000;
};

// Throws InputError where the plan has no meaning on a rank.
[[nodiscard]] Verdict judge(const plan::Plan& plan, const Patience& patience = {});

}  // namespace shiplap::oracle
