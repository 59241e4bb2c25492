#include "abort_checks.h"

#include <memory>
#include <stdexcept>
#include <string>

#include "reference.h"
#include "shiplap/base/units.h"

namespace shiplap::comm {
namespace {

constexpr Seconds kTimeout{20};
constexpr int kThrower = 1;

const char* const kAborts = "abort/a_rank_aborts";
const char* const kThrows = "abort/a_rank_throws";

int aborting_rank(int ranks) { return ranks - 1; }

void expect_failed(CheckContext& ctx, Communicator& comm, int rank, const std::string& what,
                   const std::function<void()>& call) {
  const auto error = ctx.expect_throws<RankFailed>(call, what);
  if (error) {
    ctx.expect_equal(error->rank(), rank, what + ": the failed rank");
    ctx.expect_equal(error->diagnostic().code, std::string("D302"), what + ": code");
  }
  ctx.expect(!comm.alive(), what + ": dead");
  ctx.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, what + ": the next call");
}

// `ctx.comm` and `other` have all ranks, `rest` all except the one that aborts.
void check_abort(CheckContext& ctx, Communicator& other, Communicator& rest) {
  Communicator& comm = ctx.comm;
  const int aborting = aborting_rank(comm.size());
  comm.barrier();
  if (comm.rank() == aborting) {
    comm.abort("planted abort");
    ctx.expect(!comm.alive(), "the communicator is dead after abort()");
    ctx.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, "the next call");
    return;
  }
  expect_failed(ctx, comm, aborting, "barrier", [&] { comm.barrier(); });
  const std::span<float> room = ctx.leaked_buffer<float>(1);
  expect_failed(ctx, other, aborting, "receive", [&] { other.receive(room, other.rank()); });
  try_all_reduce<float>(ctx, rest, 1, 10, ReduceOp::sum);
  rest.barrier();
  ctx.expect(rest.alive(), "a group without it is alive");
}

// Prints and counts the failures of this rank. Returns true if there are none.
bool report(const CheckContext& ctx, const char* name, AbortResults& results) {
  print_failures(ctx.comm.world_rank(ctx.comm.rank()), name, ctx.failures());
  if (ctx.failures().empty()) return true;
  ++results.failures;
  return false;
}

void run_abort(Communicator& world, Communicator& rest, int number, AbortResults& results) {
  const std::unique_ptr<Communicator> doomed = world.channel("doomed");
  const std::unique_ptr<Communicator> other = world.channel("other");
  CheckContext ctx(*doomed, 1);
  run_caught({.name = kAborts, .run = [&](CheckContext& one) { check_abort(one, *other, rest); }},
             ctx);
  std::int64_t failed = report(ctx, kAborts, results) ? 0 : 1;
  if (world.rank() == aborting_rank(world.size())) return;
  rest.all_reduce(std::span(&failed, 1));
  if (world.rank() == 0) print_result(failed == 0, number, kAborts);
}

void run_throw(Communicator& rest, int number, AbortResults& results) {
  rest.barrier();
  if (rest.rank() == kThrower) {
    results.threw = true;
    throw std::runtime_error(kPlanted);
  }
  CheckContext ctx(rest, 1);
  const auto wait = [&](CheckContext& one) {
    expect_failed(one, rest, kThrower, "barrier", [&] { rest.barrier(); });
  };
  run_caught({.name = kThrows, .run = wait}, ctx);
  const bool passed = report(ctx, kThrows, results);
  if (rest.rank() == 0) print_result(passed, number, kThrows);
}

}  // namespace

std::vector<Check> abort_checks() {
  return {{.name = kAborts, .min_ranks = 3}, {.name = kThrows, .min_ranks = 2}};
}

bool is_expected_culprit(int rank, int ranks) {
  return rank == kThrower || rank == aborting_rank(ranks);
}

void run_abort_checks(Communicator& world, const Selection& selection, int number,
                      AbortResults& results) {
  const std::vector<Check> checks = abort_checks();
  const bool aborts = selection.wants(checks[0], world.size());
  const bool throws = selection.wants(checks[1], world.size());
  const bool is_aborting = aborts && world.rank() == aborting_rank(world.size());
  world.set_timeout(kTimeout);
  const std::unique_ptr<Communicator> rest = world.split(is_aborting ? 1 : 0, world.rank(), "rest");
  if (aborts) run_abort(world, *rest, ++number, results);
  if (throws && !is_aborting) run_throw(*rest, ++number, results);
}

}  // namespace shiplap::comm
