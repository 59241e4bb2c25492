// Is a plan sound? Proved for every rank before anyone launches it; docs/check.md says exactly what
// that means, and what it does not.
//
//   const check::Report report = check::check(plan, {});
//   if (!report.sound()) std::cerr << render(report.findings.front().diagnostic);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/progress.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/matching.h"
#include "shiplap/plan/plan.h"

namespace shiplap::check {

// When a send is complete: at once, or when its receive has started.
enum class Sends : std::uint8_t { eager, rendezvous, both };

// The libraries whose rules a plan must keep; `any`: those of all three, so that it runs on any.
enum class Rules : std::uint8_t { any, nccl, mpi, gloo };
[[nodiscard]] constexpr bool includes(Rules rules, Rules one) {
  return rules == Rules::any || rules == one;
}
[[nodiscard]] std::string_view name(Rules rules);
// "any", "nccl", ..; none if it is not the name of any.
[[nodiscard]] std::optional<Rules> rules_called(std::string_view name);
[[nodiscard]] std::vector<std::string> rules_names();

struct Options {
  Rules rules = Rules::any;
  Sends sends = Sends::both;
  // Sends of so many bytes or less are eager, others rendezvous; if given, `sends` is not looked
  // at.
  std::optional<Bytes> eager_up_to;
  // Ranks that differ only in which part and which samples they hold are looked at once. The
  // verdict is the same without.
  bool symmetry = true;
  std::int64_t operations = 200'000'000;  // of all ranks that are looked at; beyond that, D632
  std::int64_t iterations = plan::kMaxIterations;  // likewise, of loops that are expanded
  plan::ExpandLimits one_rank;                     // beyond that, D207
  ProgressCallback progress;
};

using plan::Place;

// One cause. What follows from it is folded under it.
struct Finding {
  Diagnostic diagnostic;          // its `where` names the same rank and operation as `place`
  Place place;                    // where to look
  std::vector<Place> witness;     // the circle; the two operations in conflict; who waits
  std::vector<Diagnostic> notes;  // the witness in words
  std::int64_t folded = 0;        // consequences that are not told
  // A deadlock that eager sends hide.
  bool only_rendezvous = false;
};

// How much was looked at.
struct Examined {
  std::string property;  // "messages", "statements", ..: a plural in s
  std::int64_t objects = 0;
  bool reached = true;  // no: something found earlier made it pointless
  friend bool operator==(const Examined&, const Examined&) = default;
};

// Computations of one kernel that state what nothing derives from what they read: `other`, or a
// name without a rule that reads nothing, or nothing of what its result is a sum over.
struct Assumed {
  std::string kernel;
  std::int64_t computations = 0;
  friend bool operator==(const Assumed&, const Assumed&) = default;
};

struct Report {
  std::vector<Finding> findings;  // the gravest first; errors and warnings
  std::vector<Examined> examined;
  std::int64_t ranks = 0;
  std::int64_t programs = 0;     // so many ranks stood for all of them
  std::int64_t operations = 0;   // of these
  std::vector<Assumed> assumed;  // by name
  std::int64_t absent = 0;       // `after` with an index that does not occur
  // Warnings about what the plan does not say: what it says is proved all the same.
  std::vector<Diagnostic> advice;

  // No finding is an error.
  [[nodiscard]] bool sound() const;
};

// Near-linear in the operations. Throws InputError where the plan has no meaning (D108, D2xx) or is
// too large (D632).
[[nodiscard]] Report check(const plan::Plan& plan, const Options& options);

}  // namespace shiplap::check
