// A pipeline schedule of torch.distributed.pipelining, as a plan: the file that torchtitan takes as
// `pipeline_parallel_schedule_csv`.
//
// There is one row for each rank, of actions in the order in which the rank takes them; an empty
// cell is a step without one. An action is a stage, a word and a microbatch:
//
//   0F0 forward, 0B0 backward, 0I0 its half for the input, 0W0 its half for the weights;
//   0SEND_F0, 1RECV_F0, 1SEND_B0, 0RECV_B0 messages, 0WAIT_SEND_F0, 1WAIT_SEND_B0;
//   0UNSHARD, 0RESHARD, 0REDUCE_GRAD, 0WAIT_REDUCE_GRAD;
//   (0F1;1B0)OVERLAP_F_B several at once
#pragma once

#include <string_view>

#include "shiplap/plan/plan.h"

namespace shiplap::strategy {

// A stage is a layer and a microbatch a sample; a stage is on the rank that computes it, which is
// the one where torch has it, round the ranks or back and forth. If the file has no messages, they
// are put in where torch puts them. Sends and receives are posted, in the order of the row; a
// computation waits for the receives that it needs, and the end of the step for all messages.
// There is no mesh but `pp`: UNSHARD and RESHARD say when a stage's weights are there, REDUCE_GRAD
// when its gradient is complete. Lines of the plan are lines of the file. Throws InputError D626
// with all that cannot be read.
[[nodiscard]] plan::Plan plan_of_schedule(std::string_view csv, std::string_view file);

}  // namespace shiplap::strategy
