#include "again.h"

#include <atomic>
#include <cstdio>
#include <functional>

#include "shiplap/base/units.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::comm {
namespace {

constexpr Seconds kTimeout{20};
constexpr Seconds kShort{1};

struct Seen {
  std::atomic<bool> wrong = false;
  std::atomic<bool> prints = false;  // rank 0 is in this process
};

// Rank 0 makes one communicator more than the others, which have come to their end. It must fail
// there; the others may learn of it.
void end_unevenly(int threads, Seen& seen) {
  try {
    run_ranks({.threads = threads, .timeout = kShort}, [&](Communicator& world) {
      world.barrier();
      if (world.rank() != 0) return;
      seen.prints = true;
      try {
        const auto extra = world.channel("extra");
        seen.wrong = true;
      } catch (const Failure&) {
        if (world.alive()) seen.wrong = true;
      }
    });
  } catch (const Failure& error) {
    if (seen.prints) {
      seen.wrong = true;
      std::fprintf(stderr, "again: %s", error.what());
    }
  }
}

void work_again(int threads, Seen& seen) {
  run_ranks({.threads = threads, .timeout = kTimeout}, [&](Communicator& world) {
    if (world.rank() == 0) seen.prints = true;
    std::int64_t sum = world.rank();
    world.all_reduce(std::span(&sum, 1));
    const auto half = world.split(world.rank() % 2, 0, "half");
    half->barrier();
    if (sum != std::int64_t{world.size()} * (world.size() - 1) / 2) seen.wrong = true;
  });
}

}  // namespace

std::vector<Check> again_checks() {
  return {{.name = "again/uneven_end", .least_ranks = 2}, {.name = "again/after_a_failure"}};
}

bool run_again(int threads, int ranks, const Selection& selection, int number) {
  const std::vector<Check> checks = again_checks();
  const std::vector<std::function<void(int, Seen&)>> runs{end_unevenly, work_again};
  bool passed = true;
  for (std::size_t k = 0; k < checks.size(); ++k) {
    if (!selection.wants(checks[k], ranks)) continue;
    Seen seen;
    runs[k](threads, seen);
    if (seen.prints) print_verdict(!seen.wrong, ++number, checks[k].name);
    passed = passed && !seen.wrong;
  }
  return passed;
}

}  // namespace shiplap::comm
