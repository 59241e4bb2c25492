#include "rerun_checks.h"

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

struct RunResult {
  std::atomic<bool> failed = false;
  std::atomic<bool> prints = false;  // rank 0 is in this process
};

// Rank 0 makes one more communicator, while the others have finished. It must fail there; the
// others may fail too.
void end_unevenly(int threads, RunResult& result) {
  try {
    run_ranks({.threads = threads, .timeout = kShort}, [&](Communicator& world) {
      world.barrier();
      if (world.rank() != 0) return;
      result.prints = true;
      try {
        const auto extra = world.channel("extra");
        result.failed = true;
      } catch (const Failure&) {
        if (world.alive()) result.failed = true;
      }
    });
  } catch (const Failure& error) {
    if (result.prints) {
      result.failed = true;
      std::fprintf(stderr, "rerun: %s", error.what());
    }
  }
}

void run_after_failure(int threads, RunResult& result) {
  run_ranks({.threads = threads, .timeout = kTimeout}, [&](Communicator& world) {
    if (world.rank() == 0) result.prints = true;
    std::int64_t sum = world.rank();
    world.all_reduce(std::span(&sum, 1));
    const auto half = world.split(world.rank() % 2, 0, "half");
    half->barrier();
    if (sum != std::int64_t{world.size()} * (world.size() - 1) / 2) result.failed = true;
  });
}

}  // namespace

std::vector<Check> rerun_checks() {
  return {{.name = "rerun/uneven_end", .min_ranks = 2}, {.name = "rerun/after_a_failure"}};
}

bool run_rerun_checks(int threads, int ranks, const Selection& selection, int number) {
  const std::vector<Check> checks = rerun_checks();
  const std::vector<std::function<void(int, RunResult&)>> runs{end_unevenly, run_after_failure};
  bool passed = true;
  for (std::size_t k = 0; k < checks.size(); ++k) {
    if (!selection.wants(checks[k], ranks)) continue;
    RunResult result;
    runs[k](threads, result);
    if (result.prints) print_result(!result.failed, ++number, checks[k].name);
    passed = passed && !result.failed;
  }
  return passed;
}

}  // namespace shiplap::comm
