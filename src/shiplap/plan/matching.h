// Matching: which operations of different ranks belong together. The n-th send from one rank to
// another over a channel with a tag matches the n-th receive there; the n-th calls of all members
// of a group match. Counted in program order, so matching is known before anything is executed.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/expand.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/plan/symmetry.h"

namespace shiplap::plan {

// Identifies an operation: its rank, and its index in the expansion of that rank.
struct OperationId {
  std::int32_t rank = -1;
  std::int32_t operation = -1;  // -1: none in particular
  [[nodiscard]] bool exists() const { return rank >= 0; }
  friend auto operator<=>(const OperationId&, const OperationId&) = default;
};

// Messages from one rank to another over one channel with one tag.
struct MessageQueue {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t channel = 0;  // in Matching::channels
  std::int64_t tag = 0;
  std::vector<std::int32_t> sends;     // operations of `from`
  std::vector<std::int32_t> receives;  // operations of `to`
  std::int64_t first = 0;              // index of its first message among those of all queues
};

// The collective calls on a group, by slot. Each rank that makes at least one call has a slot.
struct GroupCalls {
  RankSet ranks;
  std::string channel;
  std::vector<std::int32_t> callers;     // by slot: the rank, ascending
  std::vector<std::int32_t> operations;  // the calls of slot 0, then those of slot 1, ..
  std::vector<std::int64_t> ends;        // by slot: the end of its calls in `operations`
  std::int64_t first = 0;                // index of its first call among those of all groups
  std::int64_t max_calls = 0;            // of one slot
  bool complete = false;                 // every member has a slot or a representative

  [[nodiscard]] std::span<const std::int32_t> calls(std::size_t slot) const {
    const std::int64_t begin = slot == 0 ? 0 : ends[slot - 1];
    return std::span(operations).subspan(begin, ends[slot] - begin);
  }
  // Returns call number `n` of a slot, or none if it makes fewer calls.
  [[nodiscard]] OperationId call(std::size_t slot, std::int64_t n) const {
    const std::span<const std::int32_t> made = calls(slot);
    return n < std::ssize(made) ? OperationId{callers[slot], made[n]} : OperationId{};
  }
  // Returns the slot of a rank, or -1.
  [[nodiscard]] std::int32_t slot_of(std::int32_t rank) const;
};

// The match of one operation.
struct Match {
  std::int32_t with = -1;  // of a message, its queue; of a call, its group; -1: none
  std::int32_t n = -1;     // its number in that queue or group
};

struct Matching {
  std::vector<MessageQueue> queues;
  std::vector<std::string> channels;
  std::vector<GroupCalls> groups;
  std::int64_t messages = 0;  // of all queues
  std::int64_t calls = 0;     // of all groups
};

class Matcher {
 public:
  // Appends the match of each operation of the rank to `matches`.
  // REQUIRES: ranks join in ascending order.
  void join(const RankProgram& program, std::vector<Match>& matches);
  // Numbers messages and calls. REQUIRES: all representatives have joined.
  [[nodiscard]] Matching finish(const Symmetry& symmetry) &&;

 private:
  struct Key {
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int32_t channel = 0;
    std::int64_t tag = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  [[nodiscard]] Match message(const Key& key, bool sends, std::int32_t operation);
  std::int32_t channel(const std::string& name);
  std::int32_t group(const flat::Group& group);

  Matching matching_;
  std::unordered_map<Key, std::int32_t, KeyHash> queues_;
  std::unordered_map<std::string, std::int32_t> channels_;
  std::unordered_multimap<std::uint64_t, std::int32_t> groups_;
  // Scratch for the rank that joins, by its local group ids: the global group, and the calls.
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<std::int32_t>> calls_;
};

}  // namespace shiplap::plan
