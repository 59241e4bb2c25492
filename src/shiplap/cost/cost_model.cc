#include "shiplap/cost/cost_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"

namespace shiplap::cost {
namespace {

using hardware::MemoryTier;
using hardware::Network;
using hardware::Processor;
using hardware::System;

// The formula of hardware::Network.
Seconds network_time(const Network& network, const Network::Factor& factor, double bytes,
                     std::int64_t ranks) {
  const double moved = bytes * factor.scalar * (1 + factor.offset / static_cast<double>(ranks));
  return network.latency +
         Seconds{moved / (network.bandwidth.bytes_per_second * network.efficiency)};
}

// The factor of the buffer's bytes, as in hardware::Network.
Network::Factor factor_of(const Network& network, CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return network.all_reduce;
    case CollectiveKind::all_gather:
      return network.all_gather;
    case CollectiveKind::reduce_scatter:
      return network.reduce_scatter;
    case CollectiveKind::all_to_all:
      return {.scalar = 1, .offset = -1};
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
      return {.scalar = 1, .offset = 0};
    case CollectiveKind::barrier:
      return {.scalar = 0, .offset = 0};
  }
  throw InternalError("unknown collective");
}

Seconds memory_time(const MemoryTier& memory, double bytes) {
  if (bytes == 0) return {};
  return {bytes / (memory.peak.bytes_per_second * memory.efficiency.of(bytes))};
}

bool on_matrix_unit(std::string_view kernel_class) {
  return kernel_class == "gemm" || kernel_class == "attention";
}

Seconds flop_time(const System& system, const ComputeWork& work) {
  if (work.flop == 0) return {};
  const bool matrix = on_matrix_unit(work.kernel_class);
  const Processor::Speed* const speed = (matrix ? system.matrix : system.vector).usable(work.type);
  if (speed != nullptr) return Flops{work.flop} / speed->throughput({work.flop});
  const std::string_view unit = matrix ? "matrix" : "vector";
  throw InputError({.code = "D602",
                    .what = fmt::format("`{}` has no speed of its {} unit in {}", system.name, unit,
                                        hardware::Processor::speed_name(work.type)),
                    .help = fmt::format("add `{}.{}` to its file, or compute in a narrower type",
                                        unit, hardware::Processor::speed_name(work.type))});
}

}  // namespace

Seconds collective_time(const System& system, CollectiveKind kind, Bytes whole,
                        const RankSpan& span) {
  if (span.ranks <= 1) return {};
  if (has_collective_rates(system)) {
    const auto found = estimate_collective(system, kind, whole, span);
    if (!found) throw InternalError("there is no algorithm for a collective");
    return found->time;
  }
  const Network& network = network_for(system, span);
  return network_time(network, factor_of(network, kind), static_cast<double>(whole.count),
                      span.ranks);
}

Seconds message_time(const System& system, Bytes bytes, Rank from, Rank to) {
  if (from == to) return copy_time(system, bytes, plan::Memory::device, plan::Memory::device);
  const auto [lowest, highest] = std::minmax(from.value, to.value);
  const Network& network = network_for(system, {.ranks = 2, .lowest = lowest, .highest = highest});
  if (network.collectives) return estimate_message(system, network, bytes);
  return network_time(network, network.p2p, static_cast<double>(bytes.count), 2);
}

Seconds exchange_time(const System& system, const ExchangeLoad& load) {
  ensure(load.out.size() == load.in.size() && load.out.size() <= system.networks.size(),
         "an exchange lists its traffic by network, in both directions");
  Seconds longest;
  for (std::size_t k = 0; k < load.out.size(); ++k) {
    if (load.out[k].messages == 0 && load.in[k].messages == 0) continue;
    const Network& network = system.networks[k];
    const Bytes busier = std::max(load.out[k].bytes, load.in[k].bytes);
    longest = std::max(longest, network_time(network, {}, static_cast<double>(busier.count), 2));
  }
  return longest;
}

Seconds compute_time(const System& system, const ComputeWork& work) {
  if (work.kernel_class == "load") return memory_time(system.mem2, work.bytes);
  const Seconds computing = flop_time(system, work);
  const Seconds moving = memory_time(system.mem1, work.bytes);
  switch (system.processing_mode) {
    case hardware::ProcessingMode::roofline:
      return std::max(computing, moving);
    case hardware::ProcessingMode::no_overlap:
      return computing + moving;
  }
  throw InternalError("unknown processing mode");
}

Seconds copy_time(const System& system, Bytes bytes, plan::Memory from, plan::Memory to) {
  const auto count = static_cast<double>(bytes.count);
  const bool within = from == plan::Memory::device && to == plan::Memory::device;
  return within ? memory_time(system.mem1, 2 * count) : memory_time(system.mem2, count);
}

}  // namespace shiplap::cost
