// A linked program: the operations of all ranks, which of them match (the two ends of a message,
// the calls of one collective), what each waits for on its own rank, and its event in a trace.
// `sim` adds times to it, the executor of a rank takes its events from it, `check` proves
// properties of it.
//
//   const LinkedProgram linked = link(plan, {});
//   const trace::RankTrace& events = linked.trace.ranks[3];  // of rank 3, without times
//
// Ranks with equal operations share one RankTemplate. What differs from rank to rank (matches,
// layers and samples) is in flat arrays over the operations of all ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/base/progress.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/matching.h"
#include "shiplap/plan/plan.h"
#include "shiplap/plan/symmetry.h"
#include "shiplap/trace/trace.h"

namespace shiplap::plan {

// The alternatives of Action.
enum class ActionKind : std::uint8_t {
  compute,
  copy,
  allocate,
  free,
  send,
  receive,
  collective,
  exchange,
  batch,
};

// A send or receive; a call on a group.
[[nodiscard]] constexpr bool is_message(ActionKind action) {
  return action == ActionKind::send || action == ActionKind::receive;
}
[[nodiscard]] constexpr bool is_call(ActionKind action) {
  return action == ActionKind::collective || action == ActionKind::exchange;
}
// Allocates or frees rows; takes no time.
[[nodiscard]] constexpr bool is_lifetime(ActionKind action) {
  return action == ActionKind::allocate || action == ActionKind::free;
}

// The progress of an operation in an execution or a replay.
enum class OperationState : std::uint8_t { waiting, started, complete };

// One operation of a RankTemplate: the attributes that ranks may share.
struct Step {
  const Operation* source = nullptr;
  std::int64_t bytes = 0;   // as in trace::Event; of `allocate` and `free`: the change of memory
  std::int64_t memory = 0;  // bytes alive before it, in program order
  std::int64_t detail = 0;  // of a collective its root, of an exchange the bytes of a row it sends,
                            // of a batch how many members it has
  double cost = 0;          // as returned by LinkOptions::cost
  std::int32_t predecessor = -1;  // the operation before it in its stream; of a member, its batch
  std::int32_t next = -1;         // the operation after it in its stream
  std::int32_t after_first = 0;   // in RankTemplate::after
  std::int32_t after_count = 0;
  std::int32_t event = -1;  // index among the events of the rank
  std::int32_t stream = 0;  // of its program; of a member, the stream of its batch
  ActionKind action = ActionKind::compute;
  trace::EventKind kind = trace::EventKind::compute;
  DType type = DType::bf16;           // of the rows that it moves
  bool overlaps_predecessor = false;  // it may start as soon as its predecessor has started
  bool member = false;                // of a batch
  friend bool operator==(const Step&, const Step&) = default;
};

// The successors that an operation releases: successors[first .. at_end-1] when it starts,
// successors[at_end .. last-1] when it completes.
struct Releases {
  std::int32_t first = 0;
  std::int32_t at_end = 0;
  std::int32_t last = 0;
};

// All operations of a rank. Ranks with equal operations share one template.
struct RankTemplate {
  std::vector<Step> steps;
  std::vector<std::int32_t> after;
  std::vector<std::int32_t> heads;  // by stream: its first operation, or -1
  std::int64_t memory = 0;          // bytes alive throughout
  std::int32_t events = 0;

  // Derived from the above by connect().
  std::vector<std::int32_t> in_degree;  // dependencies on its own rank
  std::vector<Releases> releases;
  std::vector<std::int32_t> successors;

  [[nodiscard]] const Step& operator[](std::int32_t operation) const { return steps[operation]; }
  [[nodiscard]] std::span<const std::int32_t> after_of(const Step& step) const {
    return std::span(after).subspan(step.after_first, step.after_count);
  }
  // The index after the last member of a batch.
  [[nodiscard]] std::int32_t batch_end(std::int32_t batch) const {
    return batch + 1 + static_cast<std::int32_t>(steps[batch].detail);
  }
  [[nodiscard]] bool same_steps(const RankTemplate& other) const {
    return memory == other.memory && steps == other.steps && after == other.after;
  }
};

struct LinkedRank {
  std::int64_t first = 0;           // index of its first operation among those of all ranks
  std::int32_t rank_template = -1;  // -1: not linked
};

struct LinkedProgram {
  const Plan* plan = nullptr;
  Symmetry symmetry;
  std::deque<RankTemplate> templates;
  std::vector<LinkedRank> ranks;
  Matching matching;
  std::vector<Match> matches;  // by operation of all ranks
  trace::Trace trace;          // without times

  [[nodiscard]] bool is_linked(std::size_t rank) const { return ranks[rank].rank_template >= 0; }
  // REQUIRES: the rank is linked.
  [[nodiscard]] const RankTemplate& template_of(std::size_t rank) const {
    return templates[ranks[rank].rank_template];
  }
  [[nodiscard]] std::size_t index(OperationId id) const {
    const auto r = static_cast<std::size_t>(id.rank);
    return static_cast<std::size_t>(ranks[r].first + id.operation);
  }
  [[nodiscard]] const Step& step(OperationId id) const {
    return template_of(id.rank)[id.operation];
  }
  [[nodiscard]] Match match(OperationId id) const { return matches[index(id)]; }
  // The group of a collective or exchange.
  [[nodiscard]] const GroupCalls& group(OperationId id) const {
    return matching.groups[match(id).with];
  }
  // Returns the matching end of a message, or none.
  [[nodiscard]] OperationId other_end(OperationId id) const;
  // REQUIRES: the operation has an event.
  [[nodiscard]] trace::Event& event(OperationId id) {
    return trace.ranks[id.rank].events[step(id).event];
  }
};

// The streams of a trace. Streams with the same name in several programs are one stream.
struct TraceStreams {
  std::vector<std::string> names;                               // `main` first
  IdVector<ProgramId, IdVector<StreamId, std::int32_t>> index;  // by program and its stream
};
[[nodiscard]] TraceStreams trace_streams(const Plan& plan);

struct LinkOptions {
  std::int64_t operations = 50'000'000;      // limit for all ranks together (D632)
  std::int64_t iterations = kMaxIterations;  // the same for loop iterations
  // The cost of a computation, copy or exchange, in any unit; called while its rank is expanded.
  // Ranks share a template only if their costs are equal.
  std::function<double(const RankProgram&, const flat::Operation&)> cost;
  // If false: no trace, no memory, and templates have steps only.
  bool events = true;
  // Only representatives are linked, and counted; a group is complete if all members have one.
  Symmetry symmetry;
  ProgressCallback progress;
};

// Links ranks one after the other, for callers that link only some of the ranks or need the
// expansions too.
class Linker {
 public:
  // REQUIRES: `plan` outlives the result.
  Linker(const Plan& plan, LinkOptions options);
  ~Linker();
  Linker(const Linker&) = delete;
  Linker& operator=(const Linker&) = delete;
  // REQUIRES: ranks are added in ascending order.
  void add(const RankProgram& program);
  // The templates and matches of the ranks so far. References to templates stay valid.
  [[nodiscard]] const LinkedProgram& linked() const;
  [[nodiscard]] LinkedProgram finish() &&;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Expands every rank once, or with symmetry every representative and some of the ranks that it
// stands for. Throws InputError if the plan is invalid (D108, D2xx) or too large (D632, D633), and
// rethrows errors of `cost` with the operation. Throws Asymmetric if ranks differ from their
// representative in more than peers, groups and values.
[[nodiscard]] LinkedProgram link(const Plan& plan, const LinkOptions& options);

// The whole buffer of a collective on this rank: the output of an all_gather, the output of a
// broadcast except on its root, the input of the others. A barrier has none.
[[nodiscard]] const flat::Region& whole_buffer(const RankProgram& program,
                                               const flat::Operation& op,
                                               const Collective& collective);

}  // namespace shiplap::plan
