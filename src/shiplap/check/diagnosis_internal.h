// From what was stumbled over to what is wrong: one finding for each cause.
#pragma once

#include <vector>

#include "shiplap/check/job_internal.h"
#include "shiplap/check/mismatches_internal.h"
#include "shiplap/check/words_internal.h"
#include "shiplap/plan/execution.h"

namespace shiplap::check {

[[nodiscard]] Finding finding_at(Words& words, Place place, Diagnostic said);
// What follows from another finding, in a line under it.
[[nodiscard]] Diagnostic as_note(Diagnostic diagnostic);

[[nodiscard]] std::vector<Finding> diagnose_idle(const Job& job);
[[nodiscard]] std::vector<Finding> diagnose_calls(const Job& job, const Mismatches& mismatches);
[[nodiscard]] std::vector<Finding> diagnose_messages(const Job& job, const Mismatches& mismatches);
[[nodiscard]] std::vector<Finding> diagnose_tables(const Job& job, const Mismatches& mismatches);
[[nodiscard]] std::vector<Finding> diagnose_shapes(const Job& job,
                                                   const std::vector<Trouble>& troubles);
// When ranks wait for each other: always; if sends wait for their receives; if every communicator
// works in order; if all communication of a rank does.
enum class Deadlock : std::uint8_t { always, rendezvous, communicators, one_queue };
// Promises that the execution got stuck.
[[nodiscard]] Finding diagnose_deadlock(const Job& job, const plan::Execution& execution,
                                        Deadlock deadlock);
// What the libraries do not do for which it is meant.
[[nodiscard]] std::vector<Finding> diagnose_rules(const Job& job, Rules rules);
[[nodiscard]] std::vector<Finding> diagnose_races(const Job& job,
                                                  const std::vector<Trouble>& troubles);
[[nodiscard]] std::vector<Finding> diagnose_values(Job& job, const std::vector<Trouble>& troubles);
// Warnings about what the plan does not say.
[[nodiscard]] std::vector<Diagnostic> advise(const plan::Plan& plan);

}  // namespace shiplap::check
