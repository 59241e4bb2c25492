// One step of one rank on the calling thread (Progress::polled).
//
// No thread takes a core from the computation. In return, messages make progress only when polled:
// between operations, and inside a kernel that calls KernelCall::poll_progress().
//
// Each stream has a position in its list of operations. Operations fall into three classes:
//
//   nonblocking   everything but computations and collectives: start or run them as soon as their
//                 dependencies are complete, on every poll, also from within a kernel
//   compute       run when nothing nonblocking can start; the one listed first
//   collective    run when no computation can start, because it blocks until all ranks have entered
//
// Polling inside a kernel never starts a computation or a collective, so kernels are not nested.
//
// Since a collective blocks the only thread, other communication of this rank stops meanwhile. If
// another rank needs that communication before it can enter the collective, the job deadlocks.
// polling_conflicts() rejects plans where this can happen (D643): communication on two streams of
// which some is collective, or other communication between the start and the end of a collective
// that is asynchronous or in a batch.
#include <fmt/format.h>

#include <exception>
#include <span>
#include <thread>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/polled_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;

class PolledRunner {
 public:
  explicit PolledRunner(const StepContext& context)
      : context_(context),
        runner_(context, [this] { static_cast<void>(poll()); }),
        streams_(context.schedule.streams.size()),
        messages_({.memory = context.state.memory,
                   .communicators = context.communicators,
                   .staging = context.state.stream_staging.front()},
                  context.tracker,
                  {.on_start = [this](std::int32_t op) { runner_.begin(op); },
                   .on_complete = [this](std::int32_t op) { runner_.end(op); }}) {}

  void run() {
    int idle_rounds = 0;
    while (!is_done()) {
      const bool moved = poll();
      idle_rounds = run_next() || moved ? 0 : idle_rounds + 1;
      if (idle_rounds > 0) back_off(idle_rounds);
    }
  }

 private:
  struct StreamPosition {
    std::size_t next = 0;
    bool waits = false;  // operation `next` has started, and the stream waits for it
  };
  enum class OpClass { nonblocking, compute, collective };  // in order of priority

  [[nodiscard]] const std::vector<std::int32_t>& listed(std::size_t stream) const {
    return context_.schedule.streams[stream];
  }
  [[nodiscard]] bool is_at_end(std::size_t stream) const {
    return streams_[stream].next == listed(stream).size();
  }
  [[nodiscard]] std::int32_t head(std::size_t stream) const {
    return listed(stream)[streams_[stream].next];
  }
  [[nodiscard]] OpClass op_class(std::int32_t op) const {
    const Operation& here = runner_.operation(op);
    if (std::holds_alternative<plan::Compute>(here.source->action)) return OpClass::compute;
    return here.group.exists() ? OpClass::collective : OpClass::nonblocking;
  }
  [[nodiscard]] bool is_done() const {
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      if (!is_at_end(stream)) return false;
    }
    return messages_.empty() && collectives_.empty();
  }

  // Completes messages, and starts all nonblocking operations that can start. Returns whether there
  // were any. Also called from within a kernel.
  bool poll() {
    bool moved = messages_.poll() > 0;
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      while (advance(stream)) moved = true;
    }
    return moved;
  }

  // Advances the stream past one nonblocking operation. Returns whether it could.
  bool advance(std::size_t stream) {
    if (is_at_end(stream)) return false;
    StreamPosition& position = streams_[stream];
    const std::int32_t op = head(stream);
    if (!position.waits) {
      if (op_class(op) != OpClass::nonblocking ||
          !context_.tracker.is_ready(runner_.operation(op))) {
        return false;
      }
      start(stream, op);
      position.waits = !runner_.operation(op).source->async;
    }
    if (position.waits && !context_.tracker.is_complete(op)) return false;
    position = {.next = position.next + 1};
    return true;
  }

  void start(std::size_t stream, std::int32_t op) {
    const Operation& here = runner_.operation(op);
    if (message_channel(here) != nullptr) return start_message(op);
    if (!std::holds_alternative<plan::Batch>(here.source->action)) {
      return runner_.run(stream, op);
    }
    context_.tracker.start(op);
    for (const std::int32_t member : runner_.members(op)) {
      if (message_channel(runner_.operation(member)) != nullptr) {
        start_message(member);
      } else {
        collectives_.push_back({stream, member});
      }
    }
    if (runner_.members(op).empty()) context_.tracker.complete(op);
  }
  void start_message(std::int32_t op) {
    context_.tracker.start(op);
    messages_.start(op);
  }

  // The stream, besides one, whose computation or collective is the next to run; none: kNoStream.
  static constexpr std::size_t kNoStream = -1;
  [[nodiscard]] std::size_t next_stream(std::size_t besides = kNoStream) const {
    std::size_t chosen = kNoStream;
    for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
      if (stream == besides || is_at_end(stream) || streams_[stream].waits) continue;
      const std::int32_t op = head(stream);
      if (op_class(op) == OpClass::nonblocking ||
          !context_.tracker.is_ready(runner_.operation(op))) {
        continue;
      }
      const auto priority = [&](std::int32_t each) { return std::pair(op_class(each), each); };
      if (chosen == kNoStream || priority(op) < priority(head(chosen))) chosen = stream;
    }
    return chosen;
  }

  // Runs the first listed computation that can start, or else a collective.
  bool run_next() {
    const std::size_t chosen = next_stream();
    const bool computes = chosen != kNoStream && op_class(head(chosen)) == OpClass::compute;
    if (!computes && !collectives_.empty()) {
      const auto [stream, op] = collectives_.front();
      collectives_.erase(collectives_.begin());
      runner_.run(stream, op);
      return true;
    }
    if (chosen == kNoStream) return false;
    const std::size_t count = runner_.call_size(listed(chosen), streams_[chosen].next);
    if (count > 1) {
      streams_[chosen].next += run_joined(chosen, count);
      return true;
    }
    runner_.run(chosen, head(chosen));
    ++streams_[chosen].next;
    return true;
  }

  // The call ends early if it waits for a message and something else on this rank can run: the
  // message may depend on that.
  std::size_t run_joined(std::size_t stream, std::size_t count) {
    const std::size_t first = streams_[stream].next;
    const auto await = [&](std::int32_t op) {
      for (int idle_rounds = 0; !context_.tracker.is_ready(runner_.operation(op)); ++idle_rounds) {
        if (poll()) idle_rounds = 0;
        if (context_.tracker.is_ready(runner_.operation(op))) break;
        if (!collectives_.empty() || next_stream(stream) != kNoStream) return false;
        if (idle_rounds > 0) back_off(idle_rounds);
      }
      return true;
    };
    return runner_.run_joined(stream, std::span(listed(stream)).subspan(first, count), await);
  }

  void back_off(int idle_rounds) {
    ensure(!messages_.empty(), "an idle rank has a message in flight");
    if (idle_rounds <= kSpinRounds) return std::this_thread::yield();
    messages_.check_timeout();
    std::this_thread::sleep_for(kPollInterval);
  }

  StepContext context_;
  OperationRunner runner_;
  std::vector<StreamPosition> streams_;
  InFlightMessages messages_;
  std::vector<std::pair<std::size_t, std::int32_t>> collectives_;  // of started batches: stream, op
};

}  // namespace

void run_polled(const StepContext& context) {
  PolledRunner runner(context);
  try {
    runner.run();
  } catch (...) {
    abort_with_failure(context.world, std::current_exception());
    throw;
  }
}

std::vector<Diagnostic> polling_conflicts(const plan::RankProgram& program) {
  // The batch of an operation, or the operation itself.
  const auto outer = [&](const Operation* op) {
    return op->batch < 0 ? op : &program.operations[op->batch];
  };
  const auto conflict = [&](const Operation& collective, const Operation& other, const char* why) {
    return Diagnostic{
        .code = "D643",
        .where = program.where(other),
        .what = fmt::format("unsupported with polled progress: {}", why),
        .why = fmt::format("{} and {}", program.describe(collective), program.describe(other)),
        .help = "run with thread progress"};
  };
  const Operation* collective = nullptr;  // the first
  const Operation* first = nullptr;
  const Operation* other = nullptr;       // on another stream than the first
  const Operation* unfinished = nullptr;  // a collective that its stream does not wait for
  for (const Operation& op : program.operations) {
    if (!op.group.exists() && message_channel(op) == nullptr) continue;
    const bool is_past_batch =
        unfinished != nullptr && !outer(unfinished)->source->async && op.batch != unfinished->batch;
    if (is_past_batch) unfinished = nullptr;
    if (unfinished != nullptr && op.group != unfinished->group) {
      return {conflict(*unfinished, op, "other communication while a collective is in flight")};
    }
    if (op.group.exists() && (outer(&op)->source->async || op.batch >= 0)) unfinished = &op;
    if (op.group.exists() && collective == nullptr) collective = &op;
    if (first == nullptr) first = &op;
    if (other == nullptr && outer(&op)->stream != outer(first)->stream) other = &op;
  }
  if (collective == nullptr || other == nullptr) return {};
  return {conflict(*first, *other, "collectives, and communication on two streams")};
}

}  // namespace shiplap::run
