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
    : context_(context),
      poll_(std::move(poll)),
      timings_(context.state.program.operations.size()),
      members_(context.state.program.operations.size()) {
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

void OperationRunner::compute(std::size_t stream, std::int32_t op) {
  const CompletionTracker::Computing computing(context_.tracker);
  const plan::RankProgram& program = context_.state.program;
  const Operation& here = operation(op);
  std::vector<KernelAccess> accesses;
  for (const plan::flat::Access& access : program.accesses_of(here)) {
    accesses.push_back(
        kernel_access(context_.state.memory, access.kind, access.region, access.value));
  }
  (*context_.kernels[op])(KernelCall{.program = &program,
                                     .operation = &here,
                                     .step = context_.step,
                                     .stream = static_cast<std::int32_t>(stream),
                                     .accesses = accesses,
                                     .poll = poll_ ? &poll_ : nullptr});
}

}  // namespace shiplap::run
