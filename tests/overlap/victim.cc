// One overlap on four ranks, again and again; after a while rank 1 kills itself or stops, wherever
// it is. For death_test.py.
//
//   overlap_victim NUMBER kill|stop      NUMBER counts the rows of `shiplap overlap --list` from 0
//
// Each rank that lives prints what it learned: `rank R: failed F | WHERE` or `rank R: missing M |
// WHERE`.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "product.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::tests {
namespace {

using Clock = std::chrono::steady_clock;

void report(int rank, const std::string& what, const comm::Failure& failure) {
  fmt::print("rank {}: {} | {}\n", rank, what, failure.diagnostic().where.operation);
  std::fflush(stdout);
}

// Rank 1 meets its fate beside its work, so that nobody knows in which step.
void multiply_until(comm::Communicator& world, const overlap::Choice& choice, int signal) {
  const Given all =
      given({.rows = 512, .columns = 256, .depth = 256, .ranks = world.size(), .chunks = 3});
  run::OverlappedProduct product(choice, all.problem, world);
  fill_rank(product, choice.type, all, world.rank());
  product.prepare();
  product.run();
  if (world.rank() == 1) {
    std::thread([signal] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::raise(signal == SIGSTOP ? SIGSTOP : SIGKILL);
    }).detach();
  }
  const auto end = Clock::now() + std::chrono::seconds(15);
  try {
    while (Clock::now() < end) product.run();
    fmt::print("rank {}: nothing happened\n", world.rank());
  } catch (const comm::RankFailed& error) {
    report(world.rank(), fmt::format("failed {}", error.rank()), error);
  } catch (const comm::DeadlinePassed& error) {
    const std::string who =
        error.missing().empty() ? "somebody" : std::to_string(error.missing().front());
    report(world.rank(), "missing " + who, error);
  }
}

}  // namespace
}  // namespace shiplap::tests

int main(int argc, char** argv) {
  const auto legal = shiplap::overlap::legal_choices();
  const std::size_t number = argc == 3 ? std::strtoul(argv[1], nullptr, 10) : legal.size();
  if (number >= legal.size()) {
    std::fputs("usage: overlap_victim NUMBER kill|stop\n", stderr);
    return 2;
  }
  const int signal = std::string(argv[2]) == "stop" ? SIGSTOP : SIGKILL;
  try {
    shiplap::comm::run_ranks({.threads = 4, .timeout = {3}},
                             [&](shiplap::comm::Communicator& world) {
                               shiplap::tests::multiply_until(world, legal[number].choice, signal);
                             });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
