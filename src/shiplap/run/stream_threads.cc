// One step of one rank on threads.
//
// Each stream is a thread that runs its operations in program order (stream 0 is the calling
// thread). A communicator may be used by one thread at a time. So a group or channel whose
// communication is asynchronous, batched, or comes from several streams has a thread of its own;
// schedule() decides that from the program alone. Streams post such operations to that thread:
//
// - A stream thread waits for dependencies, runs the operation or posts it, and waits for its
//   completion unless it is asynchronous.
// - A group thread runs the collectives of one group in program order, each after it was posted.
// - A channel thread (ChannelWorker) starts and completes the messages of one channel.
//
// All waiting between these threads goes through the CompletionTracker.
//
// Failure. The first exception on any thread wins. It cancels the tracker, which ends all waits on
// this rank with Cancelled, and the rank aborts its communicators, which wakes threads that are
// blocked in communication and notifies the other ranks. Then all threads are joined and the first
// exception is rethrown on the caller's thread.
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/resources.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/stream_threads_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;

class StreamThreads {
 public:
  explicit StreamThreads(const StepContext& context);

  void run();

 private:
  void start_all(std::vector<std::jthread>& threads);
  void run_stream(std::size_t stream);
  void run_group(std::size_t group);
  // Runs one operation of a stream, or posts it to the thread of its group or channel.
  void execute(std::size_t stream, std::int32_t op);
  // Runs `joined` computations by one call.
  void execute_joined(std::size_t stream, std::span<const std::int32_t> ops);
  void post_operation(std::int32_t op);
  void start_batch(std::int32_t batch);
  template <class Task>
  void guarded(const Task& task);
  void fail(const std::exception_ptr& failure);

  StepContext context_;
  OperationRunner runner_;
  std::map<std::string, std::unique_ptr<ChannelWorker>> channels_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

StreamThreads::StreamThreads(const StepContext& context) : context_(context), runner_(context) {
  for (const auto& [channel, count] : context.schedule.channels) {
    channels_[channel] = std::make_unique<ChannelWorker>(
        MessageContext{.memory = context.state.memory,
                       .communicators = context.communicators,
                       .staging = context_.state.channel_staging[channel]},
        context.tracker,
        InFlightMessages::Callbacks{.on_start = [this](std::int32_t op) { runner_.begin(op); },
                                    .on_complete = [this](std::int32_t op) { runner_.end(op); }});
  }
}

// ---- failure

template <class Task>
void StreamThreads::guarded(const Task& task) {
  try {
    task();
  } catch (const Cancelled&) {
    return;  // the thread that failed has reported why
  } catch (...) {
    fail(std::current_exception());
  }
}

void StreamThreads::fail(const std::exception_ptr& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;
    failure_ = failure;
  }
  context_.tracker.cancel();
  for (const auto& [channel, worker] : channels_) worker->wake();
  // Wakes threads of this rank that are blocked in communication, and notifies the other ranks.
  abort_with_failure(context_.world, failure);
}

void StreamThreads::run() {
  std::vector<std::jthread> threads;
  guarded([&] {
    start_all(threads);
    run_stream(0);
  });
  threads.clear();  // joins them
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void StreamThreads::start_all(std::vector<std::jthread>& threads) {
  const auto start = [&](auto task) {
    threads.push_back(start_thread([this, task] { guarded(task); }));
  };
  for (std::size_t k = 1; k < context_.schedule.streams.size(); ++k) {
    if (!context_.schedule.streams[k].empty()) start([this, k] { run_stream(k); });
  }
  for (std::size_t k = 0; k < context_.schedule.groups.size(); ++k) {
    if (!context_.schedule.groups[k].empty()) start([this, k] { run_group(k); });
  }
  for (const auto& [channel, count] : context_.schedule.channels) {
    ChannelWorker& worker = *channels_.at(channel);
    start([&worker, count = count] { worker.run(count); });
  }
}

// ---- threads

void StreamThreads::run_stream(std::size_t stream) {
  const std::vector<std::int32_t>& listed = context_.schedule.streams[stream];
  std::size_t next = 0;
  while (next < listed.size()) {
    throw_if_cancelled();
    const std::size_t count = runner_.call_size(listed, next);
    count == 1 ? execute(stream, listed[next])
               : execute_joined(stream, std::span(listed).subspan(next, count));
    next += count;
  }
}

void StreamThreads::run_group(std::size_t group) {
  Scratch& scratch = context_.state.group_scratch[group];
  for (const std::int32_t op : context_.schedule.groups[group]) {
    context_.tracker.await_start(op);
    runner_.begin(op);
    with_location(context_.state.program, op, [&] { runner_.communicate(scratch, op); });
    runner_.end(op);
  }
}

void StreamThreads::execute(std::size_t stream, std::int32_t op) {
  const Operation& here = runner_.operation(op);
  context_.tracker.await_dependencies(here);
  const bool is_batch = std::holds_alternative<plan::Batch>(here.source->action);
  if (!is_batch && !context_.schedule.is_posted[op]) {
    return runner_.run(stream, op);
  }
  is_batch ? start_batch(op) : post_operation(op);
  if (!here.source->async) context_.tracker.await_completion(op);
}

void StreamThreads::execute_joined(std::size_t stream, std::span<const std::int32_t> ops) {
  const auto await = [&](std::int32_t op) {
    context_.tracker.await_dependencies(runner_.operation(op));
    return true;
  };
  await(ops.front());
  runner_.run_joined(stream, ops, await);
}

void StreamThreads::post_operation(std::int32_t op) {
  context_.tracker.start(op);
  if (const std::string* const channel = message_channel(runner_.operation(op))) {
    channels_.at(*channel)->post(op);
  }
}

void StreamThreads::start_batch(std::int32_t batch) {
  context_.tracker.start(batch);
  for (const std::int32_t member : runner_.members(batch)) post_operation(member);
  if (runner_.members(batch).empty()) context_.tracker.complete(batch);
}

}  // namespace

void run_on_threads(const StepContext& context) { StreamThreads(context).run(); }

}  // namespace shiplap::run
