// Why did the job hang? From the dumps of its ranks: which rank is to blame, where in its program,
// and what makes that likely.
//
//   const Postmortem answer = diagnose(job, {});
//   answer.suspects.front();  // the most likely culprit
//
// The method is in docs/internals/postmortem.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/dump/job.h"
#include "shiplap/plan/plan.h"

namespace shiplap::postmortem {

// What is wrong with a rank.
enum class FaultClass : std::uint8_t {
  absent,        // it wrote no dump: it crashed, was killed, or its host is gone
  cpu_stuck,     // its CPU does not come to the call that others wait in
  divergence,    // it runs another program than its peers
  device_stuck,  // it is in the call, which does not complete: network, or a kernel before it
  order_across_groups,  // calls on several groups in different orders: a wait cycle
  message_cycle,        // sends or receives that wait for one another
  slow,                 // the job moves, and others wait for this rank
};
[[nodiscard]] std::string_view name(FaultClass fault);  // "cpu_stuck"

// How a rank's program differs from that of its peers.
enum class Divergence : std::uint8_t {
  none,
  operation,   // another operation
  size,        // another number of elements
  dtype,       // another element type
  group,       // on another group
  skipped,     // it does not make the call
  extra,       // it makes one more
  order,       // it makes two calls in the opposite order
  peer,        // a message to or from another rank
  splits,      // splits of an all-to-all that do not add up
  membership,  // it takes the group to have other members
};
[[nodiscard]] std::string_view name(Divergence divergence);

enum class HangStatus : std::uint8_t {
  hung,       // something in the dumps proves it
  slow,       // the job moves, and a rank is slow
  undecided,  // calls are pending, but the rank that others wait for may only be late
  finished,   // no call is pending
};
[[nodiscard]] std::string_view name(HangStatus status);

// A call, for people.
struct CallSite {
  std::int32_t rank = -1;
  std::string operation;       // "all_reduce"
  std::string group;           // "mesh_tp {4, 5, 6, 7}"
  std::int64_t sequence = -1;  // its number on the group
  std::string arguments;       // "f32 [4096]"
  dump::Frame frame;           // the innermost frame of the user
  [[nodiscard]] bool exists() const { return rank >= 0; }
};

struct Suspect {
  std::vector<std::int32_t> ranks;
  FaultClass fault = FaultClass::cpu_stuck;
  Divergence divergence = Divergence::none;
  double confidence = 0;  // 0 to 1
  std::string what;       // one line: what it did, or did not do
  std::vector<std::string> evidence;
  std::string by_plan;       // what the plan says of it
  std::string would_help;    // what would raise the confidence
  CallSite at;               // its last call, or the one that differs
  CallSite expected;         // the call that its peers make, or wait in
  std::int64_t victims = 0;  // ranks that wait for it, directly or not
};

// Where a rank was.
struct Position {
  // free: no call is pending
  enum class State : std::uint8_t { no_dump, waits, free };
  std::int32_t rank = -1;
  State state = State::no_dump;
  CallSite last;     // the last call that it made
  CallSite pending;  // the first that is not complete
  std::vector<std::int32_t> waits_for;
  dump::Frame now;         // from a stack, if there is one
  std::int64_t calls = 0;  // in the dump
};
[[nodiscard]] std::string_view name(Position::State state);

// The last calls of a rank that is worth a look: a suspect, a peer of it, a rank that waits.
struct History {
  struct Entry {
    CallSite call;
    bool started = false;
    bool complete = false;
    bool differs = false;  // where its program diverges
  };
  std::int32_t rank = -1;
  std::string role;          // "suspect", "peer of rank 3", "waits"
  std::vector<Entry> calls;  // in order of program
};

// An operation of the plan.
struct PlannedCall {
  std::int32_t operation = -1;  // its number on its rank, from 0; -1: none
  std::string what;             // "all_reduce of 16,384 bytes over {0, 1}"
  dump::Frame frame;
  [[nodiscard]] bool exists() const { return operation >= 0; }
};

// Where a rank is in its plan: what it should be doing, and whether it does.
struct PlannedPosition {
  enum class Relation : std::uint8_t { follows, skips, adds, changes };
  std::int32_t rank = -1;
  double fit = 0;  // the share of its last calls that the plan has, in this order
  Relation relation = Relation::follows;
  CallSite call;     // where it leaves the plan, or its first pending call, if there is one
  PlannedCall next;  // what the plan has there; what comes next if no call is pending
  PlannedCall done;  // the operation before it
};
[[nodiscard]] std::string_view name(PlannedPosition::Relation relation);

struct Postmortem {
  HangStatus status = HangStatus::finished;
  std::vector<Suspect> suspects;   // the most likely first
  std::vector<std::string> proof;  // why the job hung, or why this is not certain
  std::int32_t world = 0;
  bool by_ras_alone = false;  // without dumps: positions and calls are not known
  std::int64_t dumps = 0;
  std::int64_t calls = 0;
  std::vector<std::int32_t> absent;
  std::vector<Position> positions;       // by rank
  std::vector<History> histories;        // of at most six ranks
  std::vector<PlannedPosition> planned;  // of the ranks of interest, if there is a plan
  std::vector<std::string> notes;        // about the files

  // Whether a rank is to blame, beyond being late.
  [[nodiscard]] bool found_culprit() const {
    return status == HangStatus::hung && !suspects.empty();
  }
};

// "train.py:88 in main", or "".
[[nodiscard]] std::string frame_text(const dump::Frame& frame);

// "1, 2 and 5", "0 to 63"; long lists are cut.
[[nodiscard]] std::string ranks_text(const std::vector<std::int32_t>& ranks);

struct Options {
  std::string hung;                  // how the caller knows that the job hung; empty: it does not
  std::int32_t world = 0;            // ranks of the job, if known
  const plan::Plan* plan = nullptr;  // what the job should do; may be null
};
[[nodiscard]] Postmortem diagnose(const dump::JobDump& job, const Options& options);

}  // namespace shiplap::postmortem
