#include <thread>
#include <utility>

#include "shiplap/run/lanes_internal.h"
#include "shiplap/run/location_internal.h"

namespace shiplap::run {

using plan::flat::Operation;

KernelAccess kernel_access(const RankMemory& memory, plan::Access::Kind kind,
                           const plan::flat::Region& region, const plan::flat::Value& value) {
  const plan::RankProgram& program = memory.program();
  return {.kind = kind,
          .bytes = memory.rows(region),
          .type = memory.type(region.buffer),
          .row_bytes = memory.row_bytes(region.buffer),
          .tensor = &program.plan->tensors[value.tensor.index()],
          .value = &value,
          .runs = program.runs_of(value)};
}

Lanes::Lanes(const LaneContext& context, std::int64_t step)
    : context_(context),
      step_(step),
      timings_(context.holdings.program.operations.size()),
      members_(context.holdings.program.operations.size()) {
  const std::vector<Operation>& operations = context.holdings.program.operations;
  for (std::size_t k = 0; k < operations.size(); ++k) {
    if (operations[k].batch < 0) continue;
    members_[static_cast<std::size_t>(operations[k].batch)].push_back(static_cast<std::int32_t>(k));
  }
  for (const auto& [channel, count] : context.schedule.channels) {
    messages_[channel] = std::make_unique<MessageLane>(
        MessageContext{.memory = context.holdings.memory,
                       .links = context.links,
                       .parcels = context_.holdings.channel_parcels[channel]},
        context.board,
        MessageLane::Hooks{.begun = [this](std::int32_t op) { begin(op); },
                           .ended = [this](std::int32_t op) { end(op); }});
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
  context_.world.leave(reason_of(failure));
}

void Lanes::run() {
  std::vector<std::thread> threads;
  const auto start = [&](auto work) { threads.emplace_back([this, work] { guarded(work); }); };
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
  guarded([this] { stream_lane(0); });
  for (std::thread& thread : threads) thread.join();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

// ---- lanes

void Lanes::stream_lane(std::size_t stream) {
  for (const std::int32_t op : context_.schedule.streams[stream]) pass(stream, op);
}

void Lanes::group_lane(std::size_t group) {
  Scratch& scratch = context_.holdings.group_scratch[group];
  for (const std::int32_t op : context_.schedule.groups[group]) {
    context_.board.await_start(op);
    begin(op);
    located(context_.holdings.program, op, [&] { communicate(scratch, op); });
    end(op);
  }
}

void Lanes::pass(std::size_t stream, std::int32_t op) {
  const Operation& here = operation(op);
  context_.board.await_dependencies(here);
  const bool is_batch = std::holds_alternative<plan::Batch>(here.source->action);
  if (!is_batch && !context_.schedule.handed[static_cast<std::size_t>(op)]) {
    return perform(stream, op);
  }
  is_batch ? start_batch(op) : hand(op);
  if (!here.source->async) context_.board.await_completion(op);
}

void Lanes::hand(std::int32_t op) {
  context_.board.start(op);
  if (const std::string* const channel = message_channel(operation(op))) {
    messages_.at(*channel)->post(op);
  }
}

void Lanes::start_batch(std::int32_t batch) {
  context_.board.start(batch);
  for (const std::int32_t member : members_[static_cast<std::size_t>(batch)]) hand(member);
  if (members_[static_cast<std::size_t>(batch)].empty()) context_.board.complete(batch);
}

// ---- operations

void Lanes::perform(std::size_t stream, std::int32_t op) {
  context_.board.start(op);
  begin(op);
  located(context_.holdings.program, op, [&] { act(stream, op); });
  end(op);
}

void Lanes::act(std::size_t stream, std::int32_t op) {
  const Operation& here = operation(op);
  Holdings& holdings = context_.holdings;
  Scratch& scratch = holdings.stream_scratch[stream];
  const plan::Action& action = here.source->action;
  if (std::holds_alternative<plan::Compute>(action)) return compute(stream, op);
  if (std::holds_alternative<plan::Copy>(action)) {
    return do_copy({.memory = holdings.memory, .scratch = scratch}, here);
  }
  if (here.group.exists()) return communicate(scratch, op);
  if (message_channel(here) != nullptr) {
    const MessageContext context{.memory = holdings.memory,
                                 .links = context_.links,
                                 .parcels = holdings.stream_parcels[stream]};
    Message message = start_message(context, op);
    return finish_message(context, message);
  }
  // What is left is `allocate` and `free`. Buffers are there throughout.
  if (context_.poison) holdings.memory.poison(here.from);
}

void Lanes::compute(std::size_t stream, std::int32_t op) {
  const Board::Computing computing(context_.board);
  const plan::RankProgram& program = context_.holdings.program;
  const Operation& here = operation(op);
  std::vector<KernelAccess> accesses;
  for (const plan::flat::Access& access : program.accesses_of(here)) {
    accesses.push_back(
        kernel_access(context_.holdings.memory, access.kind, access.region, access.value));
  }
  (*context_.kernels[static_cast<std::size_t>(op)])(
      KernelCall{.program = &program,
                 .operation = &here,
                 .step = step_,
                 .stream = static_cast<std::int32_t>(stream),
                 .accesses = accesses});
}

void Lanes::communicate(Scratch& scratch, std::int32_t op) {
  const Operation& here = operation(op);
  const ActionContext context{.memory = context_.holdings.memory, .scratch = scratch};
  comm::Communicator& group = *context_.links.groups[here.group.index()];
  if (std::holds_alternative<plan::Exchange>(here.source->action)) {
    return do_exchange(context, here, group);
  }
  do_collective(context, here, group);
}

}  // namespace shiplap::run
