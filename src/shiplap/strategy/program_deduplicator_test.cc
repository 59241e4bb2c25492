#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "shiplap/plan/expand.h"
#include "shiplap/strategy/program_deduplicator_internal.h"

namespace shiplap::strategy {
namespace {

plan::Program sends_to(std::int64_t peer) {
  plan::Program program;
  program.buffers.push_back({.name = "x", .rows = 1, .row_bytes = 4});
  plan::Operation send;
  send.action = plan::Send{.from = {.buffer = plan::BufferId(0)}, .peer = {.where = peer}};
  program.body.push_back({send});
  return program;
}

// The next rank is the next on the inner axis, except at its end. None of the added ranks is there.
TEST(ProgramDeduplicator, DoesNotShiftPeersOfOthersOffTheAxis) {
  plan::Mesh mesh;
  mesh.axes = {{.name = "node", .size = 16}, {.name = "gpu", .size = 8}};
  std::vector<std::int32_t> ranks(126);
  std::iota(ranks.begin(), ranks.end(), 1);
  std::vector<std::int32_t> added;
  for (const std::int32_t rank : ranks) {
    if (rank % 8 != 0 && rank % 8 != 7) added.push_back(rank);
  }
  ProgramDeduplicator deduplicator(mesh);
  for (const std::int32_t rank : added) deduplicator.add(rank, sends_to(rank + 1));
  ASSERT_TRUE(deduplicator.extrapolate(added, ranks));
  plan::Plan plan;
  plan.mesh = mesh;
  deduplicator.finish(plan);
  ASSERT_EQ(plan.programs.size(), 1U);
  for (const std::int32_t rank : ranks) {
    const plan::RankProgram program = plan::expand(plan, Rank(rank), plan::ProgramId(0));
    EXPECT_EQ(program.operations.front().peer, Rank(rank + 1));
  }
}

// On the outer axis no rank is at the end, so it is a shift.
TEST(ProgramDeduplicator, ShiftsPeersOfAllRanksAlongAnAxis) {
  plan::Mesh mesh;
  mesh.axes = {{.name = "node", .size = 16}, {.name = "gpu", .size = 8}};
  std::vector<std::int32_t> ranks(120);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::int32_t> added{0, 1, 8, 50, 119};
  ProgramDeduplicator deduplicator(mesh);
  for (const std::int32_t rank : added) deduplicator.add(rank, sends_to(rank + 8));
  ASSERT_TRUE(deduplicator.extrapolate(added, ranks));
  plan::Plan plan;
  plan.mesh = mesh;
  deduplicator.finish(plan);
  const auto& send = std::get<plan::Operation>(plan.programs[plan::ProgramId(0)].body.front().node);
  EXPECT_EQ(std::get<plan::Send>(send.action).peer.axis, plan::AxisId(0));
}

}  // namespace
}  // namespace shiplap::strategy
