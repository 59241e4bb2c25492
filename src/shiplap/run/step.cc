#include "shiplap/run/location_internal.h"
#include "shiplap/run/step_internal.h"

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

Performer::Performer(const StepContext& context, std::function<void()> look)
    : context_(context),
      look_(std::move(look)),
      timings_(context.holdings.program.operations.size()),
      members_(context.holdings.program.operations.size()) {
  const std::vector<Operation>& operations = context.holdings.program.operations;
  for (std::size_t k = 0; k < operations.size(); ++k) {
    if (operations[k].batch < 0) continue;
    members_[operations[k].batch].push_back(static_cast<std::int32_t>(k));
  }
}

void Performer::perform(std::size_t stream, std::int32_t op) {
  context_.board.start(op);
  begin(op);
  located(context_.holdings.program, op, [&] { act(stream, op); });
  end(op);
}

void Performer::communicate(Scratch& scratch, std::int32_t op) {
  const Operation& here = operation(op);
  const ActionContext context{.memory = context_.holdings.memory, .scratch = scratch};
  comm::Communicator& group = *context_.links.groups[here.group];
  if (std::holds_alternative<plan::Exchange>(here.source->action)) {
    return do_exchange(context, here, group);
  }
  do_collective(context, here, group);
}

void Performer::act(std::size_t stream, std::int32_t op) {
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

void Performer::compute(std::size_t stream, std::int32_t op) {
  const Board::Computing computing(context_.board);
  const plan::RankProgram& program = context_.holdings.program;
  const Operation& here = operation(op);
  std::vector<KernelAccess> accesses;
  for (const plan::flat::Access& access : program.accesses_of(here)) {
    accesses.push_back(
        kernel_access(context_.holdings.memory, access.kind, access.region, access.value));
  }
  (*context_.kernels[op])(KernelCall{.program = &program,
                                     .operation = &here,
                                     .step = context_.step,
                                     .stream = static_cast<std::int32_t>(stream),
                                     .accesses = accesses,
                                     .look = look_ ? &look_ : nullptr});
}

}  // namespace shiplap::run
