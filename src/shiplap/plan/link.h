// A plan as a whole: the operations of all ranks, which of them meet (the two ends of a message,
// the calls of one collective), what each waits for on its own rank, and the event it leaves in a
// trace. The replay adds times to it, the executor of a rank takes its events from it.
//
//   const LinkedProgram linked = link(plan, {});
//   const trace::RankTrace& events = linked.trace.ranks[3];  // of rank 3, without times
//
// Ranks with equal operations share one RankTemplate; what differs from rank to rank (who meets
// whom, layers and samples) lies in flat arrays over the operations of all ranks.
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
#include "shiplap/trace/trace.h"

namespace shiplap::plan {

enum class Act : std::uint8_t {
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

// Whether it moves rows between ranks; whether it is called on a group.
[[nodiscard]] constexpr bool is_message(Act act) { return act == Act::send || act == Act::receive; }
[[nodiscard]] constexpr bool is_call(Act act) {
  return act == Act::collective || act == Act::exchange;
}
// Whether it changes which rows are alive, and takes no time.
[[nodiscard]] constexpr bool is_lifetime(Act act) {
  return act == Act::allocate || act == Act::free;
}

// One operation, as far as ranks may share it.
struct Step {
  const Operation* source = nullptr;
  std::int64_t bytes = 0;   // as trace::Event has them; of a lifetime: by how much memory grows
  std::int64_t memory = 0;  // alive when it is listed
  std::int64_t detail = 0;  // of a collective its root, of an exchange the bytes of a row it sends,
                            // of a batch how many members it has
  double cost = 0;          // what LinkOptions::cost returned
  std::int32_t gate = -1;   // what comes before it in its stream; of a member, its batch
  std::int32_t next = -1;   // what comes behind it in its stream
  std::int32_t after_first = 0;  // in RankTemplate::after
  std::int32_t after_count = 0;
  std::int32_t event = -1;  // among those of the rank
  std::int32_t stream = 0;  // of its program; of a member, that of its batch
  Act act = Act::compute;
  trace::Kind kind = trace::Kind::compute;
  DType type = DType::bf16;     // of what is moved
  bool opens_at_start = false;  // it may start once its gate has started, not only when complete
  bool member = false;          // of a batch
  friend bool operator==(const Step&, const Step&) = default;
};

// Whom an operation releases: successors[first .. at_end-1] when it starts, [at_end .. last-1] when
// it is complete.
struct Releases {
  std::int32_t first = 0;
  std::int32_t at_end = 0;
  std::int32_t last = 0;
};

// All operations of a rank. Ranks whose operations do not differ have one together.
struct RankTemplate {
  std::vector<Step> steps;
  std::vector<std::int32_t> after;
  std::vector<std::int32_t> heads;  // by stream: its first operation, or -1
  std::int64_t memory = 0;          // alive throughout
  std::int32_t events = 0;

  // What follows from the above; see connect().
  std::vector<std::int32_t> inputs;  // how many things must happen before it starts
  std::vector<Releases> releases;
  std::vector<std::int32_t> successors;

  [[nodiscard]] const Step& operator[](std::int32_t operation) const { return steps[operation]; }
  [[nodiscard]] std::span<const std::int32_t> after_of(const Step& step) const {
    return std::span(after).subspan(step.after_first, step.after_count);
  }
  // Behind the last member of a batch.
  [[nodiscard]] std::int32_t batch_end(std::int32_t batch) const {
    return batch + 1 + static_cast<std::int32_t>(steps[batch].detail);
  }
  [[nodiscard]] bool same_steps(const RankTemplate& other) const {
    return memory == other.memory && steps == other.steps && after == other.after;
  }
};

struct RankPart {
  std::int64_t first = 0;           // of its operations among those of all ranks
  std::int32_t rank_template = -1;  // -1: it is not linked
};

struct LinkedProgram {
  const Plan* plan = nullptr;
  std::deque<RankTemplate> templates;
  std::vector<RankPart> ranks;
  Matching matching;
  std::vector<Match> matches;  // by operation of all ranks
  trace::Trace trace;          // times are still to be filled in

  [[nodiscard]] bool is_linked(std::size_t rank) const { return ranks[rank].rank_template >= 0; }
  // REQUIRES: the rank is linked.
  [[nodiscard]] const RankTemplate& template_of(std::size_t rank) const {
    return templates[ranks[rank].rank_template];
  }
  [[nodiscard]] std::size_t index(Place place) const {
    const auto r = static_cast<std::size_t>(place.rank);
    return static_cast<std::size_t>(ranks[r].first + place.operation);
  }
  [[nodiscard]] const Step& step(Place place) const {
    return template_of(place.rank)[place.operation];
  }
  [[nodiscard]] Match match(Place place) const { return matches[index(place)]; }
  // The group of a collective or exchange.
  [[nodiscard]] const GroupCalls& group(Place place) const {
    return matching.groups[match(place).with];
  }
  // The other end of a message; none if nothing meets it.
  [[nodiscard]] Place other_end(Place place) const;
  // REQUIRES: the operation has an event.
  [[nodiscard]] trace::Event& event(Place place) {
    return trace.ranks[place.rank].events[step(place).event];
  }
};

// Streams of one name in several programs are one stream of a trace.
struct TraceStreams {
  std::vector<std::string> names;                               // `main` is the first
  IdVector<ProgramId, IdVector<StreamId, std::int32_t>> index;  // of each stream of a program
};
[[nodiscard]] TraceStreams trace_streams(const Plan& plan);

struct LinkOptions {
  std::int64_t operations = 50'000'000;      // of all ranks together; beyond that, D632
  std::int64_t iterations = kMaxIterations;  // likewise, of loops that are expanded
  // The time of a computation, copy or exchange, by whatever measure the caller has; called while
  // its rank is expanded. Ranks share a template only if their costs are equal.
  std::function<double(const RankProgram&, const flat::Operation&)> cost;
  // Without: no trace, nothing about memory, and of templates only the steps.
  bool events = true;
  ProgressCallback progress;
};

// Links ranks one after the other, for those who want some of the ranks only or look at each
// expansion themselves.
class Linker {
 public:
  // `plan` must outlive the result.
  Linker(const Plan& plan, LinkOptions options);
  ~Linker();
  Linker(const Linker&) = delete;
  Linker& operator=(const Linker&) = delete;
  // REQUIRES: ranks come in ascending order.
  void add(const RankProgram& program);
  // Templates and matches of the ranks so far; templates stay where they are.
  [[nodiscard]] const LinkedProgram& linked() const;
  [[nodiscard]] LinkedProgram finish() &&;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Expands every rank once. Throws InputError where the plan has no meaning (D108, D2xx) or is too
// large (D632, D633), and what `cost` throws, with the operation.
[[nodiscard]] LinkedProgram link(const Plan& plan, const LinkOptions& options);

// The whole buffer of a collective on this rank: the result of an all_gather, what the receivers of
// a broadcast get, the input of the others. A barrier has none: no buffer.
[[nodiscard]] const flat::Region& whole_buffer(const RankProgram& program,
                                               const flat::Operation& op,
                                               const Collective& collective);

}  // namespace shiplap::plan
