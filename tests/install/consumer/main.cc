#include <atomic>
#include <iostream>

#include "shiplap/base/catalogue.h"
#include "shiplap/base/units.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/plan/mesh.h"

int main() {
  const shiplap::plan::Mesh mesh{.axes = {{.name = "dp", .size = 4}, {.name = "tp", .size = 2}},
                                 .aliases = {}};
  std::cout << mesh.ranks() << " ranks, " << shiplap::to_string(shiplap::Bytes{1536}) << ", "
            << shiplap::catalogue().size() << " diagnostics\n";
  std::atomic<int> ranks = 0;
  shiplap::comm::run_ranks({.threads = 3}, [&](shiplap::comm::Communicator& world) {
    world.barrier();
    ++ranks;
  });
  return mesh.ranks() == 8 && ranks == 3 ? 0 : 1;
}
