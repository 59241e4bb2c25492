#include "finale.h"

#include <memory>
#include <stdexcept>
#include <string>

#include "laws.h"
#include "shiplap/base/units.h"

namespace shiplap::comm {
namespace {

constexpr Seconds kTimeout{20};
constexpr int kThrower = 1;

const char* const kLeaves = "finale/a_rank_leaves";
const char* const kThrows = "finale/a_rank_throws";

int leaver_of(int ranks) { return ranks - 1; }

void expect_failed(Trial& trial, Communicator& comm, int rank, const std::string& what,
                   const std::function<void()>& call) {
  const auto error = trial.expect_throws<RankFailed>(call, what);
  if (error) {
    trial.expect_equal(error->rank(), rank, what + ": who failed");
    trial.expect_equal(error->diagnostic().code, std::string("D302"), what + ": code");
  }
  trial.expect(!comm.alive(), what + ": dead then");
  trial.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, what + ": the next call");
}

// `trial.comm` and another channel have all ranks, `rest` all but the one that leaves.
void leave(Trial& trial, Communicator& other, Communicator& rest) {
  Communicator& comm = trial.comm;
  const int leaver = leaver_of(comm.size());
  comm.barrier();
  if (comm.rank() == leaver) {
    comm.leave("planted leave");
    trial.expect(!comm.alive(), "who leaves a communicator finds it dead");
    trial.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, "the next call");
    return;
  }
  expect_failed(trial, comm, leaver, "barrier", [&] { comm.barrier(); });
  const std::span<float> room = trial.keep<float>(1);
  expect_failed(trial, other, leaver, "receive", [&] { other.receive(room, other.rank()); });
  try_all_reduce<float>(trial, rest, 1, 10, ReduceOp::sum);
  rest.barrier();
  trial.expect(rest.alive(), "a group without it lives on");
}

// Prints and counts what this rank found; returns whether that is nothing.
bool settle(const Trial& trial, const char* name, Finale& finale) {
  print_failures(trial.comm.world_rank(trial.comm.rank()), name, trial.failures());
  if (trial.failures().empty()) return true;
  ++finale.failures;
  return false;
}

void run_leave(Communicator& world, Communicator& rest, int number, Finale& finale) {
  const std::unique_ptr<Communicator> doomed = world.channel("doomed");
  const std::unique_ptr<Communicator> other = world.channel("other");
  Trial trial(*doomed, 1);
  run_caught({.name = kLeaves, .run = [&](Trial& one) { leave(one, *other, rest); }}, trial);
  std::int64_t failed = settle(trial, kLeaves, finale) ? 0 : 1;
  if (world.rank() == leaver_of(world.size())) return;
  rest.all_reduce(std::span(&failed, 1));
  if (world.rank() == 0) print_verdict(failed == 0, number, kLeaves);
}

void run_throw(Communicator& rest, int number, Finale& finale) {
  rest.barrier();
  if (rest.rank() == kThrower) {
    finale.threw = true;
    throw std::runtime_error(kPlanted);
  }
  Trial trial(rest, 1);
  const auto wait = [&](Trial& one) {
    expect_failed(one, rest, kThrower, "barrier", [&] { rest.barrier(); });
  };
  run_caught({.name = kThrows, .run = wait}, trial);
  const bool passed = settle(trial, kThrows, finale);
  if (rest.rank() == 0) print_verdict(passed, number, kThrows);
}

}  // namespace

std::vector<Check> finale_checks() {
  return {{.name = kLeaves, .least_ranks = 3}, {.name = kThrows, .least_ranks = 2}};
}

bool is_to_blame(int rank, int ranks) { return rank == kThrower || rank == leaver_of(ranks); }

void run_finale(Communicator& world, const Selection& selection, int number, Finale& finale) {
  const std::vector<Check> checks = finale_checks();
  const bool leaves = selection.wants(checks[0], world.size());
  const bool throws = selection.wants(checks[1], world.size());
  const bool goes = leaves && world.rank() == leaver_of(world.size());
  world.set_timeout(kTimeout);
  const std::unique_ptr<Communicator> rest = world.split(goes ? 1 : 0, world.rank(), "rest");
  if (leaves) run_leave(world, *rest, ++number, finale);
  if (throws && !goes) run_throw(*rest, ++number, finale);
}

}  // namespace shiplap::comm
