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
#include <string>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"
#include "shiplap/trace/trace.h"

namespace shiplap::plan {

// An operation: of which rank, and where in its expansion.
struct Place {
  std::int32_t rank = -1;
  std::int32_t operation = -1;
  [[nodiscard]] bool exists() const { return rank >= 0; }
  friend auto operator<=>(const Place&, const Place&) = default;
};

// How an operation becomes complete.
enum class Act : std::uint8_t {
  timed,   // a computation or a copy: on its own, some time after its start
  moment,  // allocate, free: at once
  collective,
  exchange,
  send,
  receive,
  batch,
};

// One operation, as far as ranks may share it.
struct Step {
  const Operation* source = nullptr;
  std::int64_t bytes = 0;   // as trace::Event has them; of a moment: by how much memory grows
  std::int64_t memory = 0;  // alive when it is listed
  std::int64_t detail = 0;  // of a collective its root, of an exchange the bytes of a row it sends,
                            // of a batch how many members it has
  double cost = 0;          // what LinkOptions::cost returned
  std::int32_t gate = -1;   // what comes before it in its stream; of a member, its batch
  std::int32_t after_first = 0;  // in RankTemplate::after
  std::int32_t after_count = 0;
  std::int32_t event = -1;   // among those of the rank
  std::int32_t stream = -1;  // of the trace
  Act act = Act::timed;
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
  std::int64_t memory = 0;  // alive throughout
  std::int32_t events = 0;

  // What follows from the above; see connect().
  std::vector<std::int32_t> inputs;  // how many things must happen before it starts
  std::vector<Releases> releases;
  std::vector<std::int32_t> successors;

  [[nodiscard]] const Step& operator[](std::int32_t operation) const { return steps[operation]; }
  [[nodiscard]] bool same_steps(const RankTemplate& other) const {
    return memory == other.memory && steps == other.steps && after == other.after;
  }
};

// One collective or exchange: the n-th call of every member of a group.
struct Call {
  std::int32_t group = -1;
  std::int32_t listed = 0;  // by so many members
  Place first;              // the member of the lowest rank; LinkedProgram::links has the next
  Place last;
  Place root;  // of a broadcast or reduce: the member that says it is the root
};

struct LinkedGroup {
  RankSet ranks;
  std::string channel;
  std::vector<std::int32_t> calls;  // by n
};

struct RankPart {
  std::int64_t first = 0;  // of its operations among those of all ranks
  std::int32_t rank_template = -1;
};

struct LinkedProgram {
  const Plan* plan = nullptr;
  std::deque<RankTemplate> templates;
  std::vector<RankPart> ranks;
  // By operation of all ranks:
  std::vector<Place> links;  // of a message, its other end; in a call, the next member
  std::vector<std::int32_t> call_of;
  std::vector<Call> calls;
  std::vector<LinkedGroup> groups;
  trace::Trace trace;  // times are still to be filled in

  [[nodiscard]] const RankTemplate& template_of(std::int32_t rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return templates[ranks[r].rank_template];
  }
  [[nodiscard]] std::size_t index(Place place) const {
    const auto r = static_cast<std::size_t>(place.rank);
    return static_cast<std::size_t>(ranks[r].first + place.operation);
  }
  [[nodiscard]] const Step& step(Place place) const {
    return template_of(place.rank)[place.operation];
  }
  [[nodiscard]] Place link(Place place) const { return links[index(place)]; }
  [[nodiscard]] const Call& call(Place place) const { return calls[call_of[index(place)]]; }
  [[nodiscard]] const LinkedGroup& group(const Call& call) const { return groups[call.group]; }
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
