// How long one operation of a plan takes on a system when nothing else runs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shiplap/base/dtype.h"
#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/plan/operation.h"

namespace shiplap::cost {

// What decides over which network ranks talk: how many they are and how far apart.
struct Reach {
  std::int64_t ranks = 1;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
};
// Looks at every one of them: ask once for a group, not once for each of its ranks.
[[nodiscard]] Reach reach_of(const plan::RankSet& ranks);

// The first network one of whose blocks of `size` neighbouring ranks holds them all; else the last.
[[nodiscard]] const hardware::Network& network_for(const hardware::System& system,
                                                   const Reach& reach);

// `whole` is the whole buffer on one rank: the result of an all_gather, the input of a
// reduce_scatter, either of the others. A group of one takes no time.
//
// A file has no factors for four of the kinds. In an all_to_all, 1/n of the buffer stays at home; a
// broadcast and a reduce hand the buffer on in pieces so small that it takes the time of one
// passage; a barrier takes a latency.
[[nodiscard]] Seconds collective_time(const hardware::System& system, CollectiveKind kind,
                                      Bytes whole, const Reach& reach);

// From one rank to another; nothing from a rank to itself but the copy in its memory.
[[nodiscard]] Seconds message_time(const hardware::System& system, Bytes bytes, Rank from, Rank to);

// What one rank sends and receives in an irregular exchange, by network (System::networks).
struct ExchangeLoad {
  struct Way {
    std::int64_t messages = 0;
    Bytes bytes;
  };
  std::vector<Way> out;
  std::vector<Way> in;
};
// The networks work side by side, and both directions of each; a network takes one latency, then
// the bytes of its busier direction at full speed, as the messages go to many ranks at once.
[[nodiscard]] Seconds exchange_time(const hardware::System& system, const ExchangeLoad& load);

// A computation as `work` states it. Class `gemm` and `attention` run on the matrix unit, `load`
// fetches its bytes over the bus to the host (its flops do not count), all others run on the vector
// unit. Throws InputError D602 if that unit knows neither `type` nor a wider one.
struct ComputeWork {
  std::string_view kernel_class;
  double flop = 0;
  double bytes = 0;
  DType type = DType::f16;
  friend bool operator==(const ComputeWork&, const ComputeWork&) = default;
};
[[nodiscard]] Seconds compute_time(const hardware::System& system, const ComputeWork& work);

// Within the device every byte is read and written; all else goes over the bus, once.
[[nodiscard]] Seconds copy_time(const hardware::System& system, Bytes bytes, plan::Memory from,
                                plan::Memory to);

}  // namespace shiplap::cost
