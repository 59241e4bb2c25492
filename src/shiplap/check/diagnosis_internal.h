// From violations to causes: one finding for each cause.
#pragma once

#include <vector>

#include "shiplap/check/format_internal.h"
#include "shiplap/check/job_internal.h"
#include "shiplap/check/mismatches_internal.h"
#include "shiplap/plan/execution.h"

namespace shiplap::check {

[[nodiscard]] Finding finding_at(Formatter& formatter, OperationId place, Diagnostic diagnostic);
// A consequence of another finding, as a line under it.
[[nodiscard]] Diagnostic as_note(Diagnostic diagnostic);

[[nodiscard]] std::vector<Finding> diagnose_idle(const Job& job);
[[nodiscard]] std::vector<Finding> diagnose_calls(const Job& job, const Mismatches& mismatches);
[[nodiscard]] std::vector<Finding> diagnose_messages(const Job& job, const Mismatches& mismatches);
[[nodiscard]] std::vector<Finding> diagnose_tables(const Job& job, const Mismatches& mismatches);
[[nodiscard]] std::vector<Finding> diagnose_shapes(const Job& job,
                                                   const std::vector<Violation>& violations);
// When the deadlock occurs: always; with rendezvous sends; if each communicator runs its operations
// in order; if all communication of a rank runs in order.
enum class Deadlock : std::uint8_t { always, rendezvous, communicators, one_queue };
// REQUIRES: the execution is stuck.
[[nodiscard]] Finding diagnose_deadlock(const Job& job, const plan::Execution& execution,
                                        Deadlock deadlock);
// Operations that the selected libraries do not support.
[[nodiscard]] std::vector<Finding> diagnose_rules(const Job& job, Rules rules);
[[nodiscard]] std::vector<Finding> diagnose_races(const Job& job,
                                                  const std::vector<Violation>& violations);
[[nodiscard]] std::vector<Finding> diagnose_values(Job& job,
                                                   const std::vector<Violation>& violations);
// Warnings about what the plan leaves unstated.
[[nodiscard]] std::vector<Diagnostic> advise(const plan::Plan& plan);

}  // namespace shiplap::check
