// Runs one overlap on four ranks in a loop; after a while rank 1 kills or stops itself, at any
// point. For death_test.py.
//
//   overlap_victim NUMBER kill|stop      NUMBER counts the rows of `shiplap overlap --list` from 0
//
// Each surviving rank prints its error: `rank R: failed F | WHERE` or `rank R: missing M |
// WHERE`.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "reference_gemm.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::tests {
namespace {

using Clock = std::chrono::steady_clock;

void report(int rank, const std::string& what, const comm::Failure& failure) {
  fmt::print("rank {}: {} | {}\n", rank, what, failure.diagnostic().where.operation);
  std::fflush(stdout);
}

// Rank 1 raises the signal from another thread, so that it hits a random step.
void multiply_until(comm::Communicator& world, const overlap::Choice& choice, int signal) {
  const Given all = given({.m = 512, .n = 256, .k = 256, .ranks = world.size(), .chunks = 3});
  run::OverlappedGemm gemm(choice, all.problem, world);
  fill_rank(gemm, choice.type, all, world.rank());
  gemm.prepare();
  gemm.run();
  if (world.rank() == 1) {
    std::thread([signal] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::raise(signal == SIGSTOP ? SIGSTOP : SIGKILL);
    }).detach();
  }
  const auto end = Clock::now() + std::chrono::seconds(15);
  try {
    while (Clock::now() < end) gemm.run();
    fmt::print("rank {}: nothing happened\n", world.rank());
  } catch (const comm::RankFailed& error) {
    report(world.rank(), fmt::format("failed {}", error.rank()), error);
  } catch (const comm::TimeoutError& error) {
    const std::string who =
        error.missing().empty() ? "somebody" : std::to_string(error.missing().front());
    report(world.rank(), "missing " + who, error);
  }
}

}  // namespace
}  // namespace shiplap::tests

int main(int argc, char** argv) {
  const auto supported = shiplap::overlap::supported_choices();
  const std::size_t number = argc == 3 ? std::strtoul(argv[1], nullptr, 10) : supported.size();
  if (number >= supported.size()) {
    std::fputs("usage: overlap_victim NUMBER kill|stop\n", stderr);
    return 2;
  }
  const int signal = std::string(argv[2]) == "stop" ? SIGSTOP : SIGKILL;
  try {
    shiplap::comm::run_ranks(
        {.threads = 4, .timeout = {3}}, [&](shiplap::comm::Communicator& world) {
          shiplap::tests::multiply_until(world, supported[number].choice, signal);
        });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
