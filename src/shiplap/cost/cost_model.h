// The cost model: the time of one operation of a plan on a system, without contention.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shiplap/base/dtype.h"
#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/collective.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/plan/operation.h"

namespace shiplap::cost {

// `whole` is the whole buffer on one rank: the result of an all_gather, the input of a
// reduce_scatter, either of the others. A group of one takes no time.
//
// Without Network::collectives, hardware files have no factors for four of the kinds. In an
// all_to_all, 1/n of the buffer stays on its rank; a broadcast and a reduce are pipelined in small
// chunks and take the time of one transfer; a barrier takes one latency.
[[nodiscard]] Seconds collective_time(const hardware::System& system, CollectiveKind kind,
                                      Bytes whole, const RankSpan& span);

// From one rank to another. A message to the same rank takes the time of a copy in device memory.
[[nodiscard]] Seconds message_time(const hardware::System& system, Bytes bytes, Rank from, Rank to);

// The traffic of one rank in an irregular all-to-all, by network (System::networks).
struct ExchangeLoad {
  struct Traffic {
    std::int64_t messages = 0;
    Bytes bytes;
  };
  std::vector<Traffic> out;
  std::vector<Traffic> in;
};
// The networks overlap, and so do both directions of each (full duplex). A network takes one
// latency plus the bytes of its busier direction at full bandwidth, since messages go to many ranks
// at once.
[[nodiscard]] Seconds exchange_time(const hardware::System& system, const ExchangeLoad& load);

// A computation. Classes `gemm` and `attention` run on the matrix unit, `load` copies its bytes
// from the host (its flops do not count), all others run on the vector unit. Throws InputError D602
// if that unit supports neither `type` nor a wider one.
struct ComputeWork {
  std::string_view kernel_class;
  double flop = 0;
  double bytes = 0;
  DType type = DType::f16;
  friend bool operator==(const ComputeWork&, const ComputeWork&) = default;
};
[[nodiscard]] Seconds compute_time(const hardware::System& system, const ComputeWork& work);

// A copy on the device reads and writes every byte; all others cross the host bus once.
[[nodiscard]] Seconds copy_time(const hardware::System& system, Bytes bytes, plan::Memory from,
                                plan::Memory to);

}  // namespace shiplap::cost
