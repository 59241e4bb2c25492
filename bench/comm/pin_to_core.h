// Pins each rank to a core of its own, as in a training run.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdio>
#include <vector>

namespace shiplap {

inline void pin_to_core(int rank) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  }
  cpu_set_t local;
  CPU_ZERO(&local);
  CPU_SET(cores[static_cast<std::size_t>(rank) % cores.size()], &local);
  if (sched_setaffinity(0, sizeof local, &local) != 0) std::perror("sched_setaffinity");
}

}  // namespace shiplap
