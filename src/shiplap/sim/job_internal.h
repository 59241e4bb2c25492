// A plan as the replay holds it: flat arrays over the operations of all ranks, and what ranks that
// behave alike share. Times are the clock's business (clock_internal.h).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/cost/price.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"
#include "shiplap/sim/replay.h"
#include "shiplap/trace/trace.h"

namespace shiplap::sim {

// An operation: of which rank, and where in its expansion.
struct Place {
  std::int32_t rank = -1;
  std::int32_t operation = -1;
  [[nodiscard]] bool exists() const { return rank >= 0; }
  friend auto operator<=>(const Place&, const Place&) = default;
};

// What the clock must know of an action.
enum class Act : std::uint8_t {
  timed,   // a computation or a copy: complete so long after its start
  moment,  // allocate, free: complete when it starts
  collective,
  exchange,
  send,
  receive,
  batch,
};

// One operation, as far as ranks may share it.
struct Step {
  const plan::Operation* source = nullptr;
  std::int64_t bytes = 0;   // as trace::Event has them; of a moment: by how much memory grows
  std::int64_t memory = 0;  // alive when it is listed
  std::int64_t detail = 0;  // of a collective its root, of an exchange the bytes of a row it sends,
                            // of a batch how many members it has
  double price = 0;         // of what is timed, and of an exchange
  std::int32_t gate = -1;   // what comes before it in its stream; of a member, its batch
  std::int32_t after_first = 0;  // in Skeleton::after
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
struct Skeleton {
  std::vector<Step> steps;
  std::vector<std::int32_t> after;
  std::int64_t memory = 0;  // alive throughout
  std::int32_t events = 0;

  // What follows from the above; see connect().
  std::vector<std::int32_t> inputs;  // how many things must happen before it starts
  std::vector<Releases> releases;
  std::vector<std::int32_t> successors;

  [[nodiscard]] const Step& operator[](std::int32_t operation) const { return steps[operation]; }
  [[nodiscard]] bool same_steps(const Skeleton& other) const {
    return memory == other.memory && steps == other.steps && after == other.after;
  }
};

// The n-th operation of every member of a group.
struct Meeting {
  std::int32_t group = -1;
  std::int32_t listed = 0;  // by so many members
  Place first;              // the member of the lowest rank; Job::links has the next
  Place last;
  Place root;  // of a broadcast or reduce: the member that says it is the root
};

struct Group {
  plan::RankSet ranks;
  std::string channel;
  cost::Reach reach;
  std::vector<std::int32_t> meetings;  // by n
};

struct RankPart {
  std::int64_t first = 0;  // of its operations among those of all ranks
  std::int32_t skeleton = -1;
};

struct Job {
  const plan::Plan* plan = nullptr;
  const hardware::System* system = nullptr;
  std::deque<Skeleton> skeletons;
  std::vector<RankPart> ranks;
  // By operation of all ranks:
  std::vector<Place> links;  // of a message, its other end; in a meeting, the next member
  std::vector<std::int32_t> meeting_of;
  std::vector<Meeting> meetings;
  std::vector<Group> groups;
  trace::Trace trace;  // times are still to be filled in

  [[nodiscard]] const Skeleton& skeleton(std::int32_t rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return skeletons[ranks[r].skeleton];
  }
  [[nodiscard]] std::size_t index(Place place) const {
    const auto r = static_cast<std::size_t>(place.rank);
    return static_cast<std::size_t>(ranks[r].first + place.operation);
  }
  [[nodiscard]] const Step& step(Place place) const {
    return skeleton(place.rank)[place.operation];
  }
  [[nodiscard]] Place link(Place place) const { return links[index(place)]; }
  [[nodiscard]] const Meeting& meeting(Place place) const {
    return meetings[meeting_of[index(place)]];
  }
  [[nodiscard]] const Group& group(const Meeting& meeting) const { return groups[meeting.group]; }
  // Promises that the operation has an event.
  [[nodiscard]] trace::Event& event(Place place) {
    return trace.ranks[place.rank].events[step(place).event];
  }
};

// Expands every rank once. Throws as replay() does.
[[nodiscard]] Job load(const plan::Plan& plan, const ReplayOptions& options);

}  // namespace shiplap::sim
