// The state of a check: the programs, and which of their operations match.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/check/content_internal.h"
#include "shiplap/check/script_internal.h"
#include "shiplap/check/statement_internal.h"
#include "shiplap/check/violation_internal.h"
#include "shiplap/plan/symmetry.h"

namespace shiplap::check {

using plan::MessageQueue;
using plan::Symmetry;

// A member of a group, and the program that it runs.
struct Member {
  std::int32_t slot = 0;
  std::int32_t rank = 0;
  std::vector<std::int64_t> positions;  // on the axes of symmetry that the group spans
};

struct CallGroup {
  plan::GroupCalls* linked = nullptr;
  std::vector<std::int32_t> scripts;  // by slot
  std::vector<Member> members;        // in group order

  [[nodiscard]] const plan::RankSet& ranks() const { return linked->ranks; }
  [[nodiscard]] std::span<const std::int32_t> calls(std::size_t slot) const {
    return linked->calls(slot);
  }
};

struct Job {
  explicit Job(const plan::Plan& p) : plan(p), contents(p), statements(contents) {}

  const plan::Plan& plan;
  Contents contents;
  Statements statements;
  Symmetry symmetry;
  Arena arena;  // of the scripts
  std::vector<Script> scripts;
  std::vector<std::int32_t> script_of;  // by rank, -1: another rank represents it
  plan::LinkedProgram linked;           // of the representatives
  std::vector<CallGroup> groups;        // as those of `linked`
  std::int64_t accesses = 0;            // checked for races
  std::int64_t computations = 0;        // checked against kernel contracts
  std::vector<Assumed> assumed;

  [[nodiscard]] const Script& script(std::int32_t rank) const { return scripts[script_of[rank]]; }
  [[nodiscard]] const ScriptOp& op(OperationId place) const {
    return script(place.rank)[place.operation];
  }
  [[nodiscard]] const std::vector<MessageQueue>& queues() const { return linked.matching.queues; }
};

// Expands and links all representatives, and appends the violations that each rank has by itself.
// Throws Asymmetric if ranks that should be symmetric are not.
[[nodiscard]] std::unique_ptr<Job> load(const plan::Plan& plan, const Symmetry& symmetry,
                                        const Options& options, std::vector<Violation>& violations);

// Returns the slope of each run, by comparing the expansions of the images_of() the symmetry.
// Throws Asymmetric.
[[nodiscard]] std::vector<SlopeId> slopes_of(const plan::RankProgram& program,
                                             const Symmetry& symmetry,
                                             std::span<const plan::Image> images, Slopes& slopes);

// Fills in the groups. REQUIRES: all ranks are linked.
void find_members(Job& job);

// The first property in which two matched operations differ.
enum class MismatchKind : std::uint8_t { none, kind, size, type, op, root, split, table };
[[nodiscard]] MismatchKind mismatch_between(const Job& job, OperationId a, OperationId b);

}  // namespace shiplap::check
