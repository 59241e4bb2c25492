// Exchanges 64 MiB among all ranks, again and again, until something goes wrong; for
// death_test.py, which kills or stops a rank meanwhile.
//
//   victim SECONDS    the deadline
//
// Each rank prints `rank R process P begins`, then what it learned: `rank R: failed F` or `rank R:
// missing M..`.
#include <cstdio>
#include <cstdlib>
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

void exchange_for_ever(Communicator& world) {
  const std::vector<std::byte> in(kBytes);
  std::vector<std::byte> out(kBytes);
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(kBytes / ranks));
  std::printf("rank %d process %d begins\n", world.rank(), getpid());
  std::fflush(stdout);
  try {
    while (true) {
      world.all_to_all_v(std::span<const std::byte>(in), {.counts = counts}, std::span(out),
                         {.counts = counts});
    }
  } catch (const RankFailed& error) {
    report(world.rank(), "failed " + std::to_string(error.rank()));
  } catch (const DeadlinePassed& error) {
    std::string ranks_missing;
    for (const int rank : error.missing()) ranks_missing += " " + std::to_string(rank);
    report(world.rank(), "missing" + ranks_missing);
  }
}

}  // namespace
}  // namespace shiplap::comm

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 3;
  try {
    shiplap::comm::run_ranks({.threads = 4, .timeout = shiplap::Seconds{seconds}},
                             shiplap::comm::exchange_for_ever);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
