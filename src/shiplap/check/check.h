// Proves that a plan is sound on every rank, before it is launched: no deadlocks, mismatches, races
// or wrong values. docs/check.md defines the properties and their limits.
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

// The library whose rules a plan must obey; `any`: the rules of all three.
enum class Rules : std::uint8_t { any, nccl, mpi, gloo };
[[nodiscard]] constexpr bool includes(Rules rules, Rules one) {
  return rules == Rules::any || rules == one;
}
[[nodiscard]] std::string_view name(Rules rules);
// Parses "any", "nccl", ..; none if the name is unknown.
[[nodiscard]] std::optional<Rules> parse_rules(std::string_view name);
[[nodiscard]] std::vector<std::string> rules_names();

struct Options {
  Rules rules = Rules::any;
  Sends sends = Sends::both;
  // Sends of up to this many bytes are eager, others rendezvous; if given, `sends` is ignored.
  std::optional<Bytes> eager_limit;
  // Ranks that differ only in which part and which samples they hold are checked as one. The
  // verdict does not depend on it.
  bool symmetry = true;
  std::int64_t operations = 200'000'000;           // of all representatives; beyond that, D632
  std::int64_t iterations = plan::kMaxIterations;  // likewise, of loops that are expanded
  plan::ExpandLimits one_rank;                     // beyond that, D207
  ProgressCallback progress;
};

using plan::OperationId;

// One cause, with its follow-on errors folded into it.
struct Finding {
  Diagnostic diagnostic;  // its `where` names the same rank and operation as `place`
  OperationId place;      // the cause
  std::vector<OperationId>
      witness;  // the wait cycle; the two operations in conflict; the waiting operations
  std::vector<Diagnostic> notes;  // the witness as text
  std::int64_t folded = 0;        // follow-on errors that are not reported
  // A deadlock that eager sends hide.
  bool only_rendezvous = false;
};

// How much was checked.
struct Examined {
  std::string property;  // "messages", "declared values", ..: a plural in s
  std::int64_t objects = 0;
  bool reached = true;  // no: an earlier finding made it pointless
  friend bool operator==(const Examined&, const Examined&) = default;
};

// Computations of one kernel whose output is assumed, not derived from their operands: `other`, or
// a kernel without a contract that reads nothing, or nothing along a dimension of its output.
struct Assumed {
  std::string kernel;
  std::int64_t computations = 0;
  friend bool operator==(const Assumed&, const Assumed&) = default;
};

struct Report {
  std::vector<Finding> findings;  // the most severe first; errors and warnings
  std::vector<Examined> examined;
  bool declares_values = true;  // no: what buffers hold, and when they are allocated, is unchecked
  std::int64_t ranks = 0;
  std::int64_t programs = 0;     // representatives that were checked
  std::int64_t operations = 0;   // of these
  std::vector<Assumed> assumed;  // by name
  std::int64_t absent = 0;       // `after` with an index that does not occur
  // Warnings about what the plan leaves unstated; its statements are proved all the same.
  std::vector<Diagnostic> advice;

  // No finding is an error.
  [[nodiscard]] bool sound() const;
};

// Near-linear in the operations. Throws InputError if the plan is invalid (D108, D2xx) or too large
// (D632).
[[nodiscard]] Report check(const plan::Plan& plan, const Options& options);

}  // namespace shiplap::check
