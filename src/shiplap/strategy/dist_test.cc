#include "shiplap/strategy/dist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::strategy {
namespace {

using engine::Task;
using workload::Activation;
using workload::Weight;
using workload::WeightGrad;

WeightGrad grad(IndexSet samples, int total) {
  return {.layer = 1,
          .layers = 2,
          .samples = std::move(samples),
          .total_samples = total,
          .provenance = {}};
}
Activation activation(int layer) {
  return {.layer = layer, .layers = 9, .samples = IndexSet(0), .provenance = {}};
}

template <class T>
using Results = std::map<int, T>;

std::string code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
  return "";
}

// ---------------------------------------------------------------- collectives

Task reduces(Dist& dist, int rank, WeightGrad mine, Results<WeightGrad>& out) {
  out[rank] = co_await dist.all_reduce(rank, mine);
}
Task gathers(Dist& dist, int rank, Weight mine, Results<Weight>& out) {
  out[rank] = co_await dist.all_gather(rank, mine);
}
Task scatters(Dist& dist, int rank, WeightGrad mine, Results<WeightGrad>& out) {
  out[rank] = co_await dist.reduce_scatter(rank, mine);
}

TEST(Dist, AllReduceGivesEveryoneTheSumWhenTheLastHasCome) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    Dist dist(ranks);
    Results<WeightGrad> out;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(out.empty());
      dist.scheduler().spawn(reduces(dist, rank, grad(IndexSet(rank), ranks), out));
      dist.scheduler().run();
    }
    ASSERT_EQ(dist.problem(), std::nullopt);
    ASSERT_EQ(static_cast<int>(out.size()), ranks);
    for (const auto& [rank, sum] : out) EXPECT_TRUE(sum.samples.covers(ranks));
  }
}

TEST(Dist, AllGatherGivesEveryoneAllShards) {
  Dist dist(4);
  Results<Weight> out;
  const Weight whole{.layer = 1, .layers = 2, .provenance = {}};
  for (int rank = 3; rank >= 0; --rank) {
    dist.scheduler().spawn(gathers(dist, rank, whole.shard(rank, 4), out));
  }
  dist.scheduler().run();
  ASSERT_EQ(out.size(), 4U);
  for (const auto& [rank, gathered] : out) {
    EXPECT_TRUE(gathered.is_complete());
    EXPECT_EQ(gathered.num_shards, 4);
  }
}

TEST(Dist, ReduceScatterGivesEachItsShardOfTheSum) {
  Dist dist(4);
  Results<WeightGrad> out;
  for (int rank = 0; rank < 4; ++rank) {
    dist.scheduler().spawn(scatters(dist, rank, grad(IndexSet(rank), 4), out));
  }
  dist.scheduler().run();
  ASSERT_EQ(out.size(), 4U);
  for (const auto& [rank, part] : out) {
    EXPECT_TRUE(part.samples.covers(4));
    EXPECT_EQ(part.shards, IndexSet(rank));
    EXPECT_EQ(part.num_shards, 4);
  }
}

Task two_collectives(Dist& dist, int rank, int& done) {
  const WeightGrad sum = co_await dist.all_reduce(rank, grad(IndexSet(rank), 2));
  EXPECT_TRUE(sum.samples.covers(2));
  const WeightGrad part = co_await dist.reduce_scatter(rank, grad(IndexSet(1 - rank), 2));
  EXPECT_EQ(part.shards, IndexSet(rank));
  ++done;
}

TEST(Dist, CollectivesFollowEachOther) {
  Dist dist(2);
  int done = 0;
  dist.scheduler().spawn(two_collectives(dist, 0, done));
  dist.scheduler().spawn(two_collectives(dist, 1, done));
  dist.scheduler().run();
  EXPECT_EQ(done, 2);
}

// Groups that were requested before do not matter.
TEST(Dist, MeetsAllRanksWhateverGroupsThereAre) {
  Dist dist(World{.mesh = {{.name = "dp", .size = 2}, {.name = "tp", .size = 2}}});
  dist.group("tp", "");
  Results<WeightGrad> out;
  for (int rank = 0; rank < 4; ++rank) {
    dist.scheduler().spawn(reduces(dist, rank, grad(IndexSet(rank), 4), out));
  }
  dist.scheduler().run();
  ASSERT_EQ(out.size(), 4U);
  EXPECT_TRUE(out[0].samples.covers(4));
}

TEST(Dist, SaysWhatIsWrongWithACollectiveAndWakesNobody) {
  const auto problem = [](IndexSet a, IndexSet b, int total_b) {
    Dist dist(2);
    Results<WeightGrad> out;
    dist.scheduler().spawn(reduces(dist, 0, grad(std::move(a), 2), out));
    dist.scheduler().spawn(reduces(dist, 1, grad(std::move(b), total_b), out));
    dist.scheduler().run();
    EXPECT_TRUE(out.empty());
    return dist.problem() ? *dist.problem() : Diagnostic{};
  };
  const Diagnostic twice = problem(IndexSet(0), IndexSet::range(0, 2), 2);
  EXPECT_EQ(twice.code, "D611");
  EXPECT_EQ(twice.what, "sample 0 is contributed by both rank 0 and rank 1");
  EXPECT_EQ(twice.where.rank, 0);
  EXPECT_EQ(twice.where.operation, "all_reduce(layer 1) over all ranks");
  EXPECT_EQ(problem(IndexSet(0), IndexSet(1), 3).code, "D610");
}

TEST(Dist, SaysWhoIsInAnotherCollective) {
  Dist dist(2);
  Results<WeightGrad> out;
  dist.scheduler().spawn(reduces(dist, 0, grad(IndexSet(0), 2), out));
  dist.scheduler().spawn(scatters(dist, 1, grad(IndexSet(1), 2), out));
  dist.scheduler().run();
  ASSERT_TRUE(dist.problem());
  EXPECT_EQ(dist.problem()->code, "D616");
  EXPECT_EQ(dist.problem()->where.rank, 1);
  EXPECT_NE(dist.problem()->what.find("rank 1 is in reduce_scatter"), std::string::npos);
  EXPECT_NE(dist.problem()->what.find("rank 0 in all_reduce"), std::string::npos);
}

TEST(Dist, HasOnlyTheRanksOfItsMesh) {
  Dist dist(2);
  const WeightGrad any = grad(IndexSet(0), 1);
  EXPECT_EQ(code_of([&] { (void)dist.all_reduce(2, any); }), "D621");
  EXPECT_EQ(code_of([&] { (void)dist.all_reduce(-1, any); }), "D621");
  EXPECT_EQ(code_of([&] { (void)dist.send(0, 2, any); }), "D621");
  EXPECT_EQ(code_of([&] { (void)dist.receive<WeightGrad>(-1, 0); }), "D621");
}

TEST(Dist, NeedsAMeshThatIsOne) {
  const auto made = [](std::vector<plan::Axis> mesh) {
    return code_of([&] { const Dist dist(World{.mesh = mesh}); });
  };
  EXPECT_EQ(code_of([] { const Dist dist(0); }), "D622");
  EXPECT_EQ(made({{.name = "dp", .size = -2}}), "D622");
  EXPECT_EQ(made({{.name = "dp", .size = 2}, {.name = "pp", .size = 0}}), "D622");
  EXPECT_EQ(made({{.name = "a", .size = 1 << 15}, {.name = "b", .size = 1 << 15}}), "D622");
  EXPECT_EQ(made({{.name = "dp", .size = 2}, {.name = "dp", .size = 2}}), "D622");
  EXPECT_EQ(made({{.name = "dp", .size = 3}, {.name = "tp", .size = 5}}), "");
}

// ---------------------------------------------------------------- groups

TEST(Group, RunsAlongTheAxesItNames) {
  Dist dist(World{
      .mesh = {{.name = "dp", .size = 2}, {.name = "pp", .size = 3}, {.name = "tp", .size = 4}}});
  // rank = (dp * 3 + pp) * 4 + tp
  const std::int32_t tp = dist.group("tp", "");
  const std::int32_t dp = dist.group("dp", "");
  const std::int32_t both = dist.group("dp tp", "");
  for (int rank = 0; rank < dist.size(); ++rank) {
    EXPECT_EQ(dist.group_position(tp, rank), rank % 4);
    EXPECT_EQ(dist.group_position(dp, rank), rank / 12);
    EXPECT_EQ(dist.group_position(both, rank), rank / 12 * 4 + rank % 4);
    EXPECT_EQ(dist.group_position(dist.group("", ""), rank), rank);
  }
  EXPECT_EQ(dist.group_size(tp), 4);
  EXPECT_EQ(dist.group_size(both), 8);
  EXPECT_EQ(dist.group_size(dist.group("", "")), 24);
  EXPECT_EQ(dist.group_axes(both).size(), 2U);
  EXPECT_EQ(dist.group_name(tp), "tp");
  EXPECT_EQ(dist.group_name(dist.group("", "")), "all ranks");
}

TEST(Group, IsTheSameHoweverItsAxesAreNamed) {
  Dist dist(World{.mesh = {{.name = "dp", .size = 2}, {.name = "tp", .size = 2}}});
  const std::int32_t all = dist.group("", "");
  EXPECT_EQ(dist.group("dp tp", ""), all);
  EXPECT_EQ(dist.group("tp dp", ""), all);
  EXPECT_EQ(dist.group(" dp  tp ", ""), all);
  EXPECT_EQ(dist.group("dp", ""), dist.group("dp dp", ""));
  EXPECT_EQ(dist.group_size(dist.group("dp dp", "")), 2);
  EXPECT_NE(dist.group("dp", ""), dist.group("tp", ""));
  EXPECT_NE(dist.group("", "net"), all);
  EXPECT_EQ(dist.group_channel(dist.group("", "net")), "net");
}

TEST(Group, NeedsAxesThatThereAre) {
  Dist dist(World{.mesh = {{.name = "dp", .size = 2}, {.name = "tp", .size = 2}}});
  try {
    dist.group("dq", "");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D621");
    EXPECT_EQ(error.diagnostics().front().what, "the mesh has no axis `dq`");
    EXPECT_NE(error.diagnostics().front().help.find("dp"), std::string::npos);
  }
}

// ---------------------------------------------------------------- messages

Task sends(Dist& dist, int from, int to, std::vector<Activation> values, int& sent) {
  for (const Activation& value : values) {
    (void)co_await dist.send(from, to, value);
    ++sent;
  }
}
Task receives(Dist& dist, int from, int to, int count, std::vector<int>& got) {
  for (int i = 0; i < count; ++i) {
    const Activation value = co_await dist.receive<Activation>(from, to);
    got.push_back(value.layer);
  }
}

TEST(Message, GoesWhenBothAreThere) {
  for (const bool sender_first : {true, false}) {
    Dist dist(2);
    int sent = 0;
    std::vector<int> got;
    const auto spawn_sender = [&] {
      dist.scheduler().spawn(sends(dist, 0, 1, {activation(3)}, sent));
    };
    const auto spawn_receiver = [&] { dist.scheduler().spawn(receives(dist, 0, 1, 1, got)); };
    sender_first ? spawn_sender() : spawn_receiver();
    dist.scheduler().run();
    EXPECT_EQ(sent, 0);
    EXPECT_TRUE(got.empty());
    sender_first ? spawn_receiver() : spawn_sender();
    dist.scheduler().run();
    EXPECT_EQ(sent, 1);
    EXPECT_EQ(got, std::vector{3});
  }
}

TEST(Message, ThatIsSmallEnoughIsSentWithoutWaiting) {
  const Bytes size = activation(0).memory();
  for (const bool sender_first : {true, false}) {
    Dist dist(World{.mesh = {{.name = "dp", .size = 2}}, .eager_limit = size});
    int sent = 0;
    std::vector<int> got;
    const auto spawn_receiver = [&] { dist.scheduler().spawn(receives(dist, 0, 1, 2, got)); };
    if (!sender_first) spawn_receiver();
    dist.scheduler().spawn(sends(dist, 0, 1, {activation(3), activation(4)}, sent));
    dist.scheduler().run();
    EXPECT_EQ(sent, 2);
    if (sender_first) spawn_receiver();
    dist.scheduler().run();
    EXPECT_EQ(got, (std::vector{3, 4}));
  }
}

TEST(Message, ThatIsOneByteTooLargeWaits) {
  const Bytes size = activation(0).memory();
  Dist dist(World{.mesh = {{.name = "dp", .size = 2}}, .eager_limit = size - Bytes{1}});
  int sent = 0;
  dist.scheduler().spawn(sends(dist, 0, 1, {activation(3)}, sent));
  dist.scheduler().run();
  EXPECT_EQ(sent, 0);
  EXPECT_FALSE(dist.scheduler().tasks()[0].done());
}

// FIFO between two ranks; messages of other ranks do not interfere.
TEST(Message, MeetsItsOwnReceive) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    Dist dist(3);
    int sent = 0;
    std::map<std::pair<int, int>, std::vector<int>> got;
    std::vector<std::function<void()>> spawns;
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from == to) continue;
        spawns.emplace_back([&, from, to] {
          dist.scheduler().spawn(
              sends(dist, from, to, {activation(from), activation(3 + to), activation(8)}, sent));
        });
        spawns.emplace_back([&, from, to] {
          dist.scheduler().spawn(receives(dist, from, to, 3, got[{from, to}]));
        });
      }
    }
    random.shuffle(spawns);
    for (const auto& spawn : spawns) spawn();
    dist.scheduler().run();
    for (const auto& [way, list] : got) {
      ASSERT_EQ(list.size(), 3U) << "seed " << seed;
      EXPECT_EQ(list[0], way.first);
      EXPECT_EQ(list[1], 3 + way.second);
      EXPECT_EQ(list[2], 8);
    }
  }
}

Task receives_weight(Dist& dist) { (void)co_await dist.receive<Weight>(0, 1); }

TEST(Message, OfAnotherKindThanExpectedIsRefused) {
  Dist dist(2);
  int sent = 0;
  dist.scheduler().spawn(sends(dist, 0, 1, {activation(3)}, sent));
  dist.scheduler().spawn(receives_weight(dist));
  dist.scheduler().run();
  ASSERT_EQ(dist.scheduler().first_failed(), 1U);
  EXPECT_EQ(code_of([&] { std::rethrow_exception(dist.scheduler().tasks()[1].failure()); }),
            "D616");
}

// Tags are set on PendingOp, as models do.
PendingOp op_of(trace::EventKind kind, int tag) {
  PendingOp op;
  op.kind = kind;
  op.rank = kind == trace::EventKind::send ? 0 : 1;
  op.peer = 1 - op.rank;
  op.tag = tag;
  op.in = activation(tag);
  return op;
}

TEST(Message, IsFoundByItsTagInAnyOrder) {
  Random random(11);
  for (int round = 0; round < 50; ++round) {
    Dist dist(2);
    std::vector<PendingOp> flights;
    for (int tag = 0; tag < 5; ++tag) {
      flights.push_back(op_of(trace::EventKind::send, tag));
      flights.push_back(op_of(trace::EventKind::recv, tag));
    }
    random.shuffle(flights);
    for (PendingOp& op : flights) dist.start(op);
    for (const PendingOp& op : flights) {
      ASSERT_TRUE(op.complete) << "round " << round;
      if (op.kind == trace::EventKind::send) continue;
      EXPECT_EQ(layer_of(op.out), op.tag);
    }
  }
}

// ---------------------------------------------------------------- Barrier

// Arrives `rank` yields late at each of three rounds.
Task passes(engine::Scheduler& scheduler, Barrier& barrier, int rank, std::vector<int>& rounds) {
  for (int round = 0; round < 3; ++round) {
    for (int turn = 0; turn < rank; ++turn) co_await scheduler.yield();
    co_await barrier.wait(rank);
    rounds.push_back(round);
  }
}

TEST(Barrier, LetsAllGoWhenTheLastHasComeAndCanBeUsedAgain) {
  engine::Scheduler scheduler;
  Barrier barrier(scheduler, 4);
  std::vector<int> rounds;
  for (int rank = 0; rank < 4; ++rank) {
    scheduler.spawn(passes(scheduler, barrier, rank, rounds));
  }
  scheduler.run();
  EXPECT_EQ(rounds, (std::vector{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_TRUE(barrier.waiting().empty());
}

TEST(Barrier, OfOneStopsNobody) {
  engine::Scheduler scheduler;
  Barrier barrier(scheduler, 1);
  std::vector<int> rounds;
  scheduler.spawn(passes(scheduler, barrier, 0, rounds));
  scheduler.run();
  EXPECT_EQ(rounds, (std::vector{0, 1, 2}));
}

TEST(Barrier, SaysWhoWaitsAndLetsThemGoWhenReset) {
  engine::Scheduler scheduler;
  Barrier barrier(scheduler, 3);
  std::vector<int> rounds;
  scheduler.spawn(passes(scheduler, barrier, 5, rounds));
  scheduler.spawn(passes(scheduler, barrier, 7, rounds));
  scheduler.run();
  EXPECT_TRUE(rounds.empty());
  EXPECT_EQ(barrier.waiting(), (std::vector<int>{5, 7}));
  barrier.reset();
  scheduler.run();
  EXPECT_EQ(rounds, (std::vector{0, 0}));
}

Task waits_late(engine::Scheduler& scheduler, Barrier& barrier, bool& late, bool& passed) {
  auto turn = barrier.wait(0);
  co_await scheduler.yield();
  late = true;
  co_await turn;
  passed = true;
}

// Creating the awaitable is not arriving.
TEST(Barrier, CountsThoseWhoWaitOnly) {
  engine::Scheduler scheduler;
  Barrier barrier(scheduler, 1);
  bool late = false;
  bool passed = false;
  scheduler.spawn(waits_late(scheduler, barrier, late, passed));
  EXPECT_TRUE(barrier.waiting().empty());
  scheduler.run();
  EXPECT_TRUE(late && passed);
  Barrier of_two(scheduler, 2);
  passed = false;
  scheduler.spawn(waits_late(scheduler, of_two, late, passed));
  scheduler.run();
  EXPECT_FALSE(passed);
  EXPECT_EQ(of_two.waiting(), std::vector{0});
}

}  // namespace
}  // namespace shiplap::strategy
