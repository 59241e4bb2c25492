#include <atomic>
#include <iostream>

#include "shiplap/base/catalogue.h"
#include "shiplap/base/units.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/run/dispatch_benchmark.h"

int main() {
  const shiplap::plan::Mesh mesh{.axes = {{.name = "dp", .size = 4}, {.name = "tp", .size = 2}},
                                 .aliases = {}};
  std::cout << mesh.ranks() << " ranks, " << shiplap::to_string(shiplap::Bytes{1536}) << ", "
            << shiplap::catalogue().size() << " diagnostics\n";
  std::atomic<int> ranks = 0;
  shiplap::comm::run_ranks({.threads = 3}, [&](shiplap::comm::Communicator& world) {
    const auto dispatch = shiplap::dispatch::create_qkv_dispatch(
        {.world_size = world.size(), .total_seq_len = 20, .num_seqs = 2, .max_cp_degree = 2});
    const auto result = shiplap::run::benchmark_dispatch(world, dispatch, {.steps = 1});
    if (result.wrong_bytes + result.wrong_sums == 0) ++ranks;
  });
  return mesh.ranks() == 8 && ranks == 3 ? 0 : 1;
}
