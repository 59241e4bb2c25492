// All that a check works on: the programs, and which of their operations meet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/check/content_internal.h"
#include "shiplap/check/script_internal.h"
#include "shiplap/check/statement_internal.h"
#include "shiplap/check/trouble_internal.h"

namespace shiplap::check {

// The axes along which ranks are looked at once; the one at position 0 of them stands for all.
struct Symmetry {
  std::vector<plan::AxisId> axes;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  [[nodiscard]] std::int32_t representative(std::int32_t rank) const;
  [[nodiscard]] std::vector<std::int64_t> positions(std::int32_t rank) const;
};

using plan::MessageQueue;

// A member of a group: which of its programs, where.
struct Member {
  std::int32_t slot = 0;
  std::int32_t rank = 0;
  std::vector<std::int64_t> positions;  // on the axes of symmetry that the group goes along
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
  std::vector<std::int32_t> script_of;  // by rank, -1: another stands for it
  plan::LinkedProgram linked;           // of the ranks that are looked at
  std::vector<CallGroup> groups;        // as those of `linked`
  std::int64_t accesses = 0;            // looked at for races
  std::int64_t computations = 0;        // held against the contracts of their kernels
  std::vector<Assumed> assumed;

  [[nodiscard]] const Script& script(std::int32_t rank) const { return scripts[script_of[rank]]; }
  [[nodiscard]] const Op& op(Place place) const { return script(place.rank)[place.operation]; }
  [[nodiscard]] const std::vector<MessageQueue>& queues() const { return linked.matching.queues; }
};

// Expands every rank that must be looked at and finds what it can on each alone. Throws Asymmetric
// where ranks that should be alike are not.
[[nodiscard]] std::unique_ptr<Job> load(const plan::Plan& plan, const Symmetry& symmetry,
                                        const Options& options, std::vector<Trouble>& troubles);

// The axes along which a plan's ranks differ only in their values, by its expressions alone.
[[nodiscard]] Symmetry find_symmetry(const plan::Plan& plan);

// How many ranks are expanded for each that is looked at.
[[nodiscard]] std::int64_t expansions_of(const Symmetry& symmetry);

// How runs move along the axes, by comparing the expansions of neighbours. Throws Asymmetric.
[[nodiscard]] std::vector<SlopeId> slopes_of(const plan::RankProgram& program,
                                             const Symmetry& symmetry, Slopes& slopes);

// Fills in the groups, when all ranks are linked.
void find_members(Job& job);

// Whether two operations that meet fit; what differs first, if they do not.
enum class Misfit : std::uint8_t { none, kind, size, type, op, root, split, table };
[[nodiscard]] Misfit fit(const Job& job, Place a, Place b);

}  // namespace shiplap::check
