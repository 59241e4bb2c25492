#include <span>
#include <utility>

#include "shiplap/plan/link.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/merge_traces_internal.h"
#include "shiplap/run/packing_internal.h"

namespace shiplap::run {
namespace {

void pack(const trace::Event& event, Packer& packer) {
  for (const std::int64_t number :
       {static_cast<std::int64_t>(event.kind), std::int64_t{event.rank}, std::int64_t{event.layer},
        std::int64_t{event.stream}, std::int64_t{event.operation}, std::int64_t{event.peer},
        std::int64_t{event.axis}, event.match, event.bytes.count, event.memory.count}) {
    packer.put(number);
  }
  packer.put(event.time.value);
  packer.put(event.duration.value);
  packer.put(std::ssize(event.samples.runs()));
  for (const IndexSet::Run& run : event.samples.runs()) {
    packer.put(std::int64_t{run.begin});
    packer.put(std::int64_t{run.count});
    packer.put(std::int64_t{run.stride});
  }
}

std::int32_t small(Unpacker& from) { return static_cast<std::int32_t>(from.number()); }

trace::Event unpack_event(Unpacker& from) {
  trace::Event event;
  event.kind = static_cast<trace::EventKind>(from.number());
  event.rank = small(from);
  event.layer = small(from);
  event.stream = small(from);
  event.operation = small(from);
  event.peer = small(from);
  event.axis = small(from);
  event.match = from.number();
  event.bytes = {from.number()};
  event.memory = {from.number()};
  event.time = {from.fraction()};
  event.duration = {from.fraction()};
  for (std::int64_t k = from.number(); k > 0; --k) {
    const std::int64_t begin = from.number();
    const std::int64_t count = from.number();
    event.samples = event.samples.united(IndexSet::range(begin, count, from.number()));
  }
  return event;
}

std::vector<std::byte> packed(const StepResult& result) {
  Packer packer;
  packer.put(result.start.value);
  packer.put(result.duration.value);
  packer.put(std::ssize(result.trace.events));
  for (const trace::Event& event : result.trace.events) pack(event, packer);
  packer.put(std::ssize(result.trace.memory));
  for (const trace::MemoryPoint& point : result.trace.memory) {
    packer.put(point.time.value);
    packer.put(point.bytes.count);
  }
  return packer.take();
}

StepResult unpack_step(std::vector<std::byte> bytes) {
  Unpacker from(std::move(bytes));
  StepResult made{.start = {from.fraction()}, .duration = {from.fraction()}};
  for (std::int64_t k = from.number(); k > 0; --k) {
    made.trace.events.push_back(unpack_event(from));
  }
  for (std::int64_t k = from.number(); k > 0; --k) {
    const Seconds time{from.fraction()};
    made.trace.memory.push_back({.time = time, .bytes = {from.number()}});
  }
  return made;
}

}  // namespace

std::vector<StepResult> gather_steps(comm::Communicator& world, const StepResult& result) {
  std::vector<StepResult> ranks;
  for (std::vector<std::byte>& bytes : gather_bytes(world, packed(result))) {
    ranks.push_back(unpack_step(std::move(bytes)));
    ranks.back().axes = result.axes;
  }
  return ranks;
}

trace::Trace gather_trace(comm::Communicator& world, const plan::Plan& plan,
                          const StepResult& result, const LocalClock& clock) {
  std::vector<StepResult> steps = gather_steps(world, result);
  const auto identity = static_cast<std::int64_t>(clock.identity);
  std::vector<std::int64_t> identities(steps.size());
  world.all_gather(std::span(&identity, 1), std::span(identities));
  std::vector<std::vector<RoundTrip>> round_trips = measure_round_trips(world, clock);
  if (world.rank() != 0) return {};
  std::vector<RankStep> ranks;
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    ranks.push_back({.result = std::move(steps[rank]),
                     .clock = static_cast<std::uint64_t>(identities[rank]),
                     .round_trips = std::move(round_trips[rank])});
  }
  return merge_traces(plan::link(plan, {}), std::move(ranks));
}

trace::Trace gather_trace(comm::Communicator& world, const plan::Plan& plan,
                          const StepResult& result) {
  return gather_trace(world, plan, result, local_clock());
}

}  // namespace shiplap::run
