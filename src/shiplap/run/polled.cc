#include <fmt/format.h>

#include <exception>
#include <thread>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/polled_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;

class Polled {
 public:
  explicit Polled(const StepContext& context)
      : context_(context),
        performer_(context, [this] { static_cast<void>(look()); }),
        streams_(context.schedule.streams.size()),
        messages_({.memory = context.holdings.memory,
                   .links = context.links,
                   .parcels = context.holdings.stream_parcels.front()},
                  context.board,
                  {.begun = [this](std::int32_t op) { performer_.begin(op); },
                   .ended = [this](std::int32_t op) { performer_.end(op); }}) {}

  void run() {
    int idle_rounds = 0;
    while (!is_over()) {
      const bool moved = look();
      idle_rounds = do_next() || moved ? 0 : idle_rounds + 1;
      if (idle_rounds > 0) rest(idle_rounds);
    }
  }
  [[nodiscard]] const std::vector<Timing>& timings() const { return performer_.timings(); }

 private:
  // Where a stream is.
  struct Place {
    std::size_t next = 0;
    bool waits = false;  // for the completion of that operation, which has started
  };
  enum class Weight { light, computing, collective };

  [[nodiscard]] const std::vector<std::int32_t>& listed(std::size_t stream) const {
    return context_.schedule.streams[stream];
  }
  [[nodiscard]] bool is_at_end(std::size_t stream) const {
    return streams_[stream].next == listed(stream).size();
  }
  [[nodiscard]] std::int32_t head(std::size_t stream) const {
    return listed(stream)[streams_[stream].next];
  }
  [[nodiscard]] Weight weight(std::int32_t op) const {
    const Operation& here = performer_.operation(op);
    if (std::holds_alternative<plan::Compute>(here.source->action)) return Weight::computing;
    return here.group.exists() ? Weight::collective : Weight::light;
  }
  [[nodiscard]] bool is_over() const {
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      if (!is_at_end(stream)) return false;
    }
    return messages_.empty() && collectives_.empty();
  }

  // What takes no time: sees which messages are complete, and starts all that can start and is
  // neither a computation nor a collective. Returns whether there was anything. Also called from
  // within a computation.
  bool look() {
    bool moved = messages_.look() > 0;
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      while (step(stream)) moved = true;
    }
    return moved;
  }

  // One light operation further, if it can.
  bool step(std::size_t stream) {
    if (is_at_end(stream)) return false;
    Place& place = streams_[stream];
    const std::int32_t op = head(stream);
    if (!place.waits) {
      if (weight(op) != Weight::light || !context_.board.is_ready(performer_.operation(op))) {
        return false;
      }
      start(stream, op);
      place.waits = !performer_.operation(op).source->async;
    }
    if (place.waits && !context_.board.is_complete(op)) return false;
    place = {.next = place.next + 1};
    return true;
  }

  void start(std::size_t stream, std::int32_t op) {
    const Operation& here = performer_.operation(op);
    if (message_channel(here) != nullptr) return start_message(op);
    if (!std::holds_alternative<plan::Batch>(here.source->action)) {
      return performer_.perform(stream, op);
    }
    context_.board.start(op);
    for (const std::int32_t member : performer_.members(op)) {
      if (message_channel(performer_.operation(member)) != nullptr) {
        start_message(member);
      } else {
        collectives_.push_back({stream, member});
      }
    }
    if (performer_.members(op).empty()) context_.board.complete(op);
  }
  void start_message(std::int32_t op) {
    context_.board.start(op);
    messages_.start(op);
  }

  // The computation that is listed first of those that can start, or else a collective.
  bool do_next() {
    std::size_t chosen = streams_.size();
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      if (is_at_end(stream) || streams_[stream].waits) continue;
      const std::int32_t op = head(stream);
      if (weight(op) == Weight::light || !context_.board.is_ready(performer_.operation(op))) {
        continue;
      }
      const auto rank_of = [&](std::int32_t each) { return std::pair(weight(each), each); };
      if (chosen == streams_.size() || rank_of(op) < rank_of(head(chosen))) chosen = stream;
    }
    const bool computes = chosen != streams_.size() && weight(head(chosen)) == Weight::computing;
    if (!computes && !collectives_.empty()) {
      const auto [stream, op] = collectives_.front();
      collectives_.erase(collectives_.begin());
      performer_.perform(stream, op);
      return true;
    }
    if (chosen == streams_.size()) return false;
    performer_.perform(chosen, head(chosen));
    ++streams_[chosen].next;
    return true;
  }

  void rest(int idle_rounds) {
    ensure(!messages_.empty(), "a plan in which something can start or is under way");
    if (idle_rounds <= kEagerRounds) return std::this_thread::yield();
    messages_.check_deadline();
    std::this_thread::sleep_for(kPause);
  }

  StepContext context_;
  Performer performer_;
  std::vector<Place> streams_;
  UnderWay messages_;
  std::vector<std::pair<std::size_t, std::int32_t>> collectives_;  // of batches that have started
};

}  // namespace

std::vector<Timing> run_polled(const StepContext& context) {
  Polled polled(context);
  try {
    polled.run();
  } catch (...) {
    leave(context.world, std::current_exception());
    throw;
  }
  return polled.timings();
}

std::vector<Diagnostic> not_to_be_polled(const plan::RankProgram& program) {
  // Of its batch, if it is in one.
  const auto outer = [&](const Operation* op) {
    return op->batch < 0 ? op : &program.operations[op->batch];
  };
  const auto refused = [&](const Operation& collective, const Operation& other, const char* why) {
    return Diagnostic{
        .code = "D643",
        .where = {.line = other.source->origin.line,
                  .rank = program.rank.value,
                  .operation = program.describe(other)},
        .what = fmt::format("collectives that cannot be polled: {}", why),
        .why = fmt::format("{} and {}", program.describe(collective), program.describe(other)),
        .help = "run it with threads for progress"};
  };
  const Operation* collective = nullptr;  // the first
  const Operation* first = nullptr;
  const Operation* other = nullptr;       // of another stream than the first
  const Operation* unfinished = nullptr;  // a collective beside which its stream goes on
  for (const Operation& op : program.operations) {
    if (!op.group.exists() && message_channel(op) == nullptr) continue;
    const bool is_past_batch =
        unfinished != nullptr && !outer(unfinished)->source->async && op.batch != unfinished->batch;
    if (is_past_batch) unfinished = nullptr;
    if (unfinished != nullptr && op.group != unfinished->group) {
      return {refused(*unfinished, op, "other communication goes on beside one")};
    }
    if (op.group.exists() && (outer(&op)->source->async || op.batch >= 0)) unfinished = &op;
    if (op.group.exists() && collective == nullptr) collective = &op;
    if (first == nullptr) first = &op;
    if (other == nullptr && outer(&op)->stream != outer(first)->stream) other = &op;
  }
  if (collective == nullptr || other == nullptr) return {};
  return {refused(*first, *other, "there is communication on two streams")};
}

}  // namespace shiplap::run
