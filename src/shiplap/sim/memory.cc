#include "shiplap/sim/memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace shiplap::sim {

std::optional<Diagnostic> check_memory(const trace::Summary& summary,
                                       const hardware::System& system) {
  const Bytes capacity = system.mem1.capacity;
  if (capacity.count <= 0 || summary.all.peak <= capacity) return std::nullopt;
  const auto too_large = std::ranges::count_if(
      summary.ranks, [&](const trace::RankSummary& rank) { return rank.peak > capacity; });
  return Diagnostic{
      .code = "D635",
      .where = {.rank = summary.peak_rank},
      .what = fmt::format("out of memory: peak {} on rank {} exceeds the {} of {}",
                          to_string(summary.all.peak), summary.peak_rank, to_string(capacity),
                          system.name),
      .why = fmt::format("the peak of {} of {} ranks exceeds the device memory", too_large,
                         summary.ranks.size()),
      .help =
          "shard weights and optimizer state over more ranks (fsdp, tensor or pipeline "
          "parallelism), or use smaller microbatches"};
}

}  // namespace shiplap::sim
