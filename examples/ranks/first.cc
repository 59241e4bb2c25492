// Four ranks: as threads if started by hand, as processes under `mpirun` or `tools/ranks`.
#include <array>
#include <cstdio>
#include <span>
#include <vector>

#include "shiplap/comm/ranks.h"

using namespace shiplap::comm;

int main() {
  run_ranks({.threads = 4}, [](Communicator& world) {
    std::vector<float> gradients(1024, static_cast<float>(world.rank()));
    world.all_reduce(std::span(gradients));

    const std::array sizes{2, 2};  // a mesh dp x tp; tp varies fastest
    const std::array along{1};
    const auto tp = world.split_along(sizes, along, "tp");
    tp->barrier();
    if (world.rank() == 3) {
      std::printf("rank 3 of %d is rank %d of %d in `%s`; the sum is %g\n", world.size(),
                  tp->rank(), tp->size(), tp->name().c_str(), static_cast<double>(gradients[0]));
    }
  });
}
