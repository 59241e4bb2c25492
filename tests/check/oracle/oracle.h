// Is a small plan sound? The slow way: try every order of starts and completions, and execute the
// plan on numbers, with a coefficient for every contribution of every sum. The second witness of
// check, with which it shares no code.
#pragma once

#include <cstddef>
#include <string>

#include "rules.h"
#include "shiplap/plan/plan.h"

namespace shiplap::oracle {

struct Verdict {
  bool matched = true;          // everything that meets is there and agrees
  bool deadlock_eager = false;  // some order ends with operations that are not complete
  bool deadlock_rendezvous = false;
  bool race = false;       // on some rank, looked at alone
  bool unordered = false;  // two operations with one key may start in either order
  // False unless matched, without deadlock (eager), and without races but those of one operation
  // that writes a row twice.
  bool values_wrong = false;
  // On NCCL, checked separately.
  bool nccl_messages = false;  // meet others than they should
  bool nccl_calls = false;     // are not defined there
  bool nccl_deadlock = false;
  bool explored = true;  // every state was visited; if not, one adversary per question
  std::string rule;      // of the arithmetic, that is broken first
  RuleCounts rules;      // how often each was asked
};

// Up to this many operations and states, all states are visited. Beyond that, the answer comes from
// runs in which one event is delayed indefinitely: the answer is the same, as no event disables
// another.
struct SearchLimits {
  std::size_t operations = 12;
  std::size_t states = 5'000;
};

// Throws InputError where the plan has no meaning on a rank.
[[nodiscard]] Verdict judge(const plan::Plan& plan, const SearchLimits& limits = {});

// Returns the rule of the arithmetic that the plan breaks first, "" if there is none. For plans
// that are too large for `judge`. REQUIRES: everything matches, without deadlock (eager) and races.
[[nodiscard]] std::string broken_rule(const plan::Plan& plan);

}  // namespace shiplap::oracle
