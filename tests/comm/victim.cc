// Exchanges 64 MiB among all ranks in a loop until a failure; for death_test.py, which kills or
// stops a rank meanwhile.
//
//   victim SECONDS    the timeout
//
// Each rank prints `rank R process P begins`, then the failure: `rank R: failed F` or `rank R:
// missing M..`.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "shiplap/comm/ranks.h"

namespace shiplap::comm {
namespace {

constexpr std::size_t kBytes = std::size_t{64} * 1024 * 1024;

void report(int rank, const std::string& what) {
  std::printf("rank %d: %s\n", rank, what.c_str());
  std::fflush(stdout);
}

// Buffers of a rank. After a failure the transport may still access them.
struct Memory {
  std::vector<std::byte> in;
  std::vector<std::byte> out;
};

void exchange_until_failure(Communicator& world, Memory& memory) {
  memory.in.resize(kBytes);
  memory.out.resize(kBytes);
  const std::span<const std::byte> in(memory.in);
  const std::span<std::byte> out(memory.out);
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(kBytes / ranks));
  std::printf("rank %d process %d begins\n", world.rank(), getpid());
  std::fflush(stdout);
  try {
    while (true) {
      world.all_to_all_v(in, {.counts = counts}, out, {.counts = counts});
    }
  } catch (const RankFailed& error) {
    report(world.rank(), "failed " + std::to_string(error.rank()));
  } catch (const TimeoutError& error) {
    std::string ranks_missing;
    for (const int rank : error.missing()) ranks_missing += " " + std::to_string(rank);
    report(world.rank(), "missing" + ranks_missing);
  }
}

}  // namespace
}  // namespace shiplap::comm

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 3;
  std::array<shiplap::comm::Memory, 4> memory;  // of each rank
  try {
    shiplap::comm::run_ranks({.threads = 4, .timeout = shiplap::Seconds{seconds}},
                             [&](shiplap::comm::Communicator& world) {
                               shiplap::comm::exchange_until_failure(world,
                                                                     memory.at(world.rank()));
                             });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
