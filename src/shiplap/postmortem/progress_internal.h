// The calls of all ranks as units that complete as a whole, by rank and by group.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/dump/job.h"
#include "shiplap/postmortem/postmortem.h"

namespace shiplap::postmortem {

// One collective, one message, or all calls of one batch.
struct Unit {
  std::int32_t first = 0;  // in RankDump::calls
  std::int32_t last = 0;   // the last of its calls: of a batch its end, if there is one
  dump::GroupId group;
  std::int64_t sequence = -1;
  std::uint64_t key = 0;  // equal in programs that are equal; see program_key()
  bool is_p2p = false;
  bool started = false;
  bool complete = false;
  bool ended = false;  // complete or failed: a library that does not report completion retired it
  bool timed_out = false;  // the recorder gave it up
};

// The collectives of one member of a group, by number.
struct MemberCalls {
  std::int32_t rank = -1;
  std::int64_t first = 0;           // the number of units.front()
  std::vector<std::int32_t> units;  // -1: none with this number
  bool has_dump = false;
  bool knows_all = false;     // no call before `first` was evicted
  std::int64_t entered = -1;  // the last number that it is known to have entered

  // Returns the unit with this number, or -1.
  [[nodiscard]] std::int32_t unit(std::int64_t sequence) const {
    const std::int64_t k = sequence - first;
    return k < 0 || k >= std::ssize(units) ? -1 : units[static_cast<std::size_t>(k)];
  }
};

struct GroupProgress {
  std::vector<MemberCalls> members;
  std::int64_t first = 0;  // the numbers of all calls that any dump has
  std::int64_t end = 0;
};

class Progress {
 public:
  Progress(const dump::JobDump& job, std::int32_t world);

  [[nodiscard]] const dump::JobDump& job() const { return job_; }
  [[nodiscard]] std::int32_t world() const { return world_; }
  [[nodiscard]] const dump::RankDump* dump(std::int32_t rank) const { return dumps_[at(rank)]; }
  [[nodiscard]] const std::vector<Unit>& units(std::int32_t rank) const { return units_[at(rank)]; }
  [[nodiscard]] const GroupProgress& group(dump::GroupId id) const { return groups_[id]; }
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }
  [[nodiscard]] const dump::Call& call(std::int32_t rank, const Unit& unit) const {
    return dump(rank)->calls[at(unit.first)];
  }
  // The units of a rank that are not complete, in order of program.
  [[nodiscard]] std::span<const std::int32_t> pending(std::int32_t rank) const {
    return pending_[at(rank)];
  }
  // The last time of any call in any dump.
  [[nodiscard]] std::int64_t last_ns() const { return last_ns_; }

  // Equal for ranks that have the same place in all groups in which they exchange messages, such as
  // the stage of a pipeline.
  [[nodiscard]] std::uint64_t message_place(std::int32_t rank) const { return places_[at(rank)]; }

  // Names the part that a group has for a rank: groups of equal parts, such as the tensor-parallel
  // groups of different replicas, have equal roles.
  [[nodiscard]] std::uint64_t role(std::int32_t rank, dump::GroupId group) const;

 private:
  void make_units(const dump::RankDump& dump);
  void make_roles(const dump::RankDump& dump);
  void make_groups();
  void complete_in_order(std::int32_t rank);
  void make_keys(const dump::RankDump& dump);

  const dump::JobDump& job_;
  std::int32_t world_;
  std::vector<const dump::RankDump*> dumps_;  // by rank; null: absent
  std::vector<std::vector<Unit>> units_;      // by rank
  std::vector<std::vector<std::int32_t>> pending_;
  std::vector<std::vector<std::uint64_t>> roles_;  // by rank and group
  std::vector<std::uint64_t> places_;              // by rank
  IdVector<dump::GroupId, GroupProgress> groups_;
  std::int64_t last_ns_ = 0;
};

// Elements of all tensors.
[[nodiscard]] std::int64_t elements(const dump::Sizes& sizes);

// How two calls on a group with the same number contradict each other: operation, dtype, size, or
// none.
[[nodiscard]] Divergence contradiction(const dump::Signature& a, const dump::Signature& b);

// Under any of its names.
[[nodiscard]] bool is_all_to_all(std::string_view operation);

// Whether ranks may pass different sizes to this operation.
[[nodiscard]] bool has_uneven_sizes(const std::string& operation);

}  // namespace shiplap::postmortem
