#include <algorithm>
#include <exception>
#include <optional>

#include "shiplap/base/error.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/operation_runner_internal.h"

namespace shiplap::run {

using plan::flat::Operation;

KernelAccess kernel_access(const RankMemory& memory, plan::Access::Kind kind,
                           const plan::flat::Region& region, const plan::flat::Value& value) {
  const plan::RankProgram& program = memory.program();
  return {.kind = kind,
          .bytes = memory.rows(region),
          .type = memory.type(region.buffer),
          .row_bytes = memory.row_bytes(region.buffer),
          .tensor = &program.plan->tensors[value.tensor],
          .value = &value,
          .runs = program.runs_of(value)};
}

OperationRunner::OperationRunner(const StepContext& context, std::function<void()> poll)
    : context_(context), poll_(std::move(poll)), members_(context.state.program.operations.size()) {
  const std::vector<Operation>& operations = context.state.program.operations;
  for (std::size_t k = 0; k < operations.size(); ++k) {
    if (operations[k].batch < 0) continue;
    members_[operations[k].batch].push_back(static_cast<std::int32_t>(k));
  }
}

void OperationRunner::run(std::size_t stream, std::int32_t op) {
  context_.tracker.start(op);
  begin(op);
  with_location(context_.state.program, op, [&] { run_action(stream, op); });
  end(op);
}

void OperationRunner::communicate(Scratch& scratch, std::int32_t op) {
  const Operation& here = operation(op);
  const ActionContext context{.memory = context_.state.memory, .scratch = scratch};
  comm::Communicator& group = *context_.communicators.groups[here.group];
  if (std::holds_alternative<plan::Exchange>(here.source->action)) {
    return do_exchange(context, here, group);
  }
  do_collective(context, here, group);
}

void OperationRunner::run_action(std::size_t stream, std::int32_t op) {
  const Operation& here = operation(op);
  RankState& state = context_.state;
  Scratch& scratch = state.stream_scratch[stream];
  const plan::Action& action = here.source->action;
  if (std::holds_alternative<plan::Compute>(action)) return compute(stream, op);
  if (std::holds_alternative<plan::Copy>(action)) {
    return do_copy({.memory = state.memory, .scratch = scratch}, here);
  }
  if (here.group.exists()) return communicate(scratch, op);
  if (message_channel(here) != nullptr) {
    const MessageContext context{.memory = state.memory,
                                 .communicators = context_.communicators,
                                 .staging = state.stream_staging[stream]};
    Message message = start_message(context, op);
    return finish_message(context, message);
  }
  // `allocate` and `free`. Buffers stay allocated throughout.
  if (context_.poison) state.memory.poison(here.from);
}

std::vector<KernelAccess> OperationRunner::accesses_of(std::int32_t op) const {
  std::vector<KernelAccess> accesses;
  for (const plan::flat::Access& access : context_.state.program.accesses_of(operation(op))) {
    accesses.push_back(
        kernel_access(context_.state.memory, access.kind, access.region, access.value));
  }
  return accesses;
}

KernelCall OperationRunner::kernel_call(std::size_t stream, std::int32_t op,
                                        std::span<const KernelAccess> accesses) const {
  return {.program = &context_.state.program,
          .operation = &operation(op),
          .step = context_.step,
          .stream = static_cast<std::int32_t>(stream),
          .accesses = accesses,
          .poll = poll_ ? &poll_ : nullptr};
}

void OperationRunner::compute(std::size_t stream, std::int32_t op) {
  const CompletionTracker::Computing computing(context_.tracker);
  (*context_.kernels[op].one)(kernel_call(stream, op, accesses_of(op)));
}

std::size_t OperationRunner::call_size(std::span<const std::int32_t> listed,
                                       std::size_t from) const {
  if (context_.kernels[listed[from]].joined == nullptr) return 1;
  std::size_t end = from + 1;
  while (end < listed.size() && operation(listed[end]).continues_call) ++end;
  return end - from;
}

std::size_t OperationRunner::run_joined(std::size_t stream, std::span<const std::int32_t> ops,
                                        const std::function<bool(std::int32_t op)>& await) {
  std::vector<std::vector<KernelAccess>> accesses;
  std::vector<KernelCall> tiles;
  for (const std::int32_t op : ops) {
    accesses.push_back(accesses_of(op));
    tiles.push_back(kernel_call(stream, op, accesses.back()));
  }
  // A rank that waits for a message does not compute.
  std::optional<CompletionTracker::Computing> computing(context_.tracker);
  std::size_t complete = 0;
  bool waits = false;
  const auto is_ready = [&](std::size_t tile) {
    return context_.tracker.is_ready(operation(ops[tile]));
  };
  const auto await_tile = [&](std::size_t tile) {
    if (is_ready(tile)) return true;
    computing.reset();
    waits = true;
    const bool can_go_on = await(ops[tile]);
    waits = false;
    computing.emplace(context_.tracker);
    if (can_go_on) begin(ops[tile]);
    return can_go_on;
  };
  const auto complete_tile = [&](std::size_t tile) {
    ensure(tile == complete, "tiles complete in order");
    end(ops[tile]);
    if (++complete == ops.size()) return;
    context_.tracker.start(ops[complete]);
    begin(ops[complete]);
  };
  context_.tracker.start(ops.front());
  begin(ops.front());
  try {
    (*context_.kernels[ops.front()].joined)(
        {.tiles = tiles, .is_ready = is_ready, .await = await_tile, .complete = complete_tile});
  } catch (const std::exception&) {
    if (waits) throw;  // what failed is the message that it waits for
    rethrow_with_location(context_.state.program, ops[std::min(complete, ops.size() - 1)]);
  }
  return complete;
}

}  // namespace shiplap::run
