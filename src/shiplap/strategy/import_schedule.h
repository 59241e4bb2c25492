// Imports a pipeline schedule of torch.distributed.pipelining as a plan: the file that torchtitan
// takes as `pipeline_parallel_schedule_csv`.
//
// One row per rank, with its actions in order; an empty cell is a step without an action. An action
// is a stage, a computation type and a microbatch:
//
//   0F0 forward, 0B0 backward, 0I0 its half for the input, 0W0 its half for the weights;
//   0SEND_F0, 1RECV_F0, 1SEND_B0, 0RECV_B0 messages, 0WAIT_SEND_F0, 1WAIT_SEND_B0;
//   0UNSHARD, 0RESHARD, 0REDUCE_GRAD, 0WAIT_REDUCE_GRAD;
//   (0F1;1B0)OVERLAP_F_B several at once;
//   (0SEND_F1;0RECV_B0)BATCH messages of one batch_isend_irecv
#pragma once

#include <string_view>

#include "shiplap/base/units.h"
#include "shiplap/plan/plan.h"

namespace shiplap::strategy {

// The time of each computation, on every stage: it is not in the file. By default a backward takes
// twice the time of a forward, and each of its halves as long as a forward.
struct ActionCosts {
  Seconds forward{0.010};
  Seconds backward{0.020};
  Seconds backward_input{0.010};
  Seconds backward_weight{0.010};
};

// Of the activation of a microbatch, and of its gradient: sizes are not in the file either.
inline constexpr Bytes kScheduleActivation{1 << 20U};

// A stage becomes a layer and a microbatch a sample. A stage must be on the rank where torch places
// it (round-robin or in a V). If the file has no messages, they are inserted where torch inserts
// them. Sends and receives are posted in the order of the row; a computation waits for the receives
// it needs, and the end of the step for all messages. The only axis is `pp`: UNSHARD and RESHARD
// delimit the lifetime of a stage's weights, REDUCE_GRAD requires its complete gradient. Line
// numbers of the plan are those of the file. Throws InputError D626, D628, D629 with all errors.
[[nodiscard]] plan::Plan plan_of_schedule(std::string_view csv, std::string_view file,
                                          const ActionCosts& costs = {});

}  // namespace shiplap::strategy
