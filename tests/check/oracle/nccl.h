// The behaviour of NCCL on a plan, as torch uses it: an independent model of check's NCCL rules.
#pragma once

#include "matching.h"

namespace shiplap::oracle {

// All ranks together, rendezvous; what a rank gives to one communicator happens in the order of the
// plan, whatever streams it is on.
[[nodiscard]] Machine machine_on_nccl(const Job& job, const Matching& matching);

// Messages from one rank to another on one channel are not received in the order of their sends.
[[nodiscard]] bool messages_cross(const Job& job, const Matching& matching);
// A message is in a batch at one end, and alone at the other.
[[nodiscard]] bool batched_by_half(const Job& job, const Matching& matching);
[[nodiscard]] bool turns_in_place(const Job& job);

}  // namespace shiplap::oracle
