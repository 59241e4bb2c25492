#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "shiplap/base/exhausted.h"
#include "shiplap/run/lanes_internal.h"
#include "shiplap/run/location_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;

class Lanes {
 public:
  explicit Lanes(const StepContext& context);

  void run();
  [[nodiscard]] const std::vector<Timing>& timings() const { return performer_.timings(); }

 private:
  void start_all(std::vector<std::jthread>& threads);
  void stream_lane(std::size_t stream);
  void group_lane(std::size_t group);
  // Does one operation of a stream, or hands it over.
  void pass(std::size_t stream, std::int32_t op);
  void hand(std::int32_t op);
  void start_batch(std::int32_t batch);
  template <class Work>
  void guarded(const Work& work);
  void fail(const std::exception_ptr& failure);

  StepContext context_;
  Performer performer_;
  std::map<std::string, std::unique_ptr<MessageLane>> messages_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

Lanes::Lanes(const StepContext& context) : context_(context), performer_(context) {
  for (const auto& [channel, count] : context.schedule.channels) {
    messages_[channel] = std::make_unique<MessageLane>(
        MessageContext{.memory = context.holdings.memory,
                       .links = context.links,
                       .parcels = context_.holdings.channel_parcels[channel]},
        context.board,
        UnderWay::Hooks{.begun = [this](std::int32_t op) { performer_.begin(op); },
                        .ended = [this](std::int32_t op) { performer_.end(op); }});
  }
}

// ---- together

template <class Work>
void Lanes::guarded(const Work& work) {
  try {
    work();
  } catch (const Stopped&) {
    return;  // another lane has told why
  } catch (...) {
    fail(std::current_exception());
  }
}

void Lanes::fail(const std::exception_ptr& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;
    failure_ = failure;
  }
  context_.board.stop();
  for (const auto& [channel, lane] : messages_) lane->wake();
  // Wakes the lanes of this rank that wait for others, and tells the others.
  leave(context_.world, failure);
}

void Lanes::run() {
  std::vector<std::jthread> threads;
  guarded([&] {
    start_all(threads);
    stream_lane(0);
  });
  threads.clear();  // joins them
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void Lanes::start_all(std::vector<std::jthread>& threads) {
  const auto start = [&](auto work) {
    threads.push_back(start_thread([this, work] { guarded(work); }));
  };
  for (std::size_t k = 1; k < context_.schedule.streams.size(); ++k) {
    if (!context_.schedule.streams[k].empty()) start([this, k] { stream_lane(k); });
  }
  for (std::size_t k = 0; k < context_.schedule.groups.size(); ++k) {
    if (!context_.schedule.groups[k].empty()) start([this, k] { group_lane(k); });
  }
  for (const auto& [channel, count] : context_.schedule.channels) {
    MessageLane& lane = *messages_.at(channel);
    start([&lane, count = count] { lane.run(count); });
  }
}

// ---- lanes

void Lanes::stream_lane(std::size_t stream) {
  for (const std::int32_t op : context_.schedule.streams[stream]) pass(stream, op);
}

void Lanes::group_lane(std::size_t group) {
  Scratch& scratch = context_.holdings.group_scratch[group];
  for (const std::int32_t op : context_.schedule.groups[group]) {
    context_.board.await_start(op);
    performer_.begin(op);
    located(context_.holdings.program, op, [&] { performer_.communicate(scratch, op); });
    performer_.end(op);
  }
}

void Lanes::pass(std::size_t stream, std::int32_t op) {
  const Operation& here = performer_.operation(op);
  context_.board.await_dependencies(here);
  const bool is_batch = std::holds_alternative<plan::Batch>(here.source->action);
  if (!is_batch && !context_.schedule.handed[op]) {
    return performer_.perform(stream, op);
  }
  is_batch ? start_batch(op) : hand(op);
  if (!here.source->async) context_.board.await_completion(op);
}

void Lanes::hand(std::int32_t op) {
  context_.board.start(op);
  if (const std::string* const channel = message_channel(performer_.operation(op))) {
    messages_.at(*channel)->post(op);
  }
}

void Lanes::start_batch(std::int32_t batch) {
  context_.board.start(batch);
  for (const std::int32_t member : performer_.members(batch)) hand(member);
  if (performer_.members(batch).empty()) context_.board.complete(batch);
}

}  // namespace

std::vector<Timing> run_on_threads(const StepContext& context) {
  Lanes lanes(context);
  lanes.run();
  return lanes.timings();
}

}  // namespace shiplap::run
