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
  return {
      .layer = 1, .layers = 2, .samples = std::move(samples), .total_samples = total, .trail = {}};
}
Activation activation(int layer) {
  return {.layer = layer, .layers = 9, .samples = IndexSet(0), .trail = {}};
}

template <class T>
using Results = std::map<int, std::pair<T, Seconds>>;

std::string code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
  return "";
}

// ---------------------------------------------------------------- collectives

Task reduces(Dist& dist, int rank, WeightGrad mine, Seconds time, Results<WeightGrad>& out) {
  out[rank] = co_await dist.all_reduce(rank, mine, time);
}
Task gathers(Dist& dist, int rank, Weight mine, Seconds time, Results<Weight>& out) {
  out[rank] = co_await dist.all_gather(rank, mine, time);
}
Task scatters(Dist& dist, int rank, WeightGrad mine, Seconds time, Results<WeightGrad>& out) {
  out[rank] = co_await dist.reduce_scatter(rank, mine, time);
}

TEST(Dist, AllReduceGivesEveryoneTheSumWhenTheLastHasCome) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    Dist dist(ranks);
    Results<WeightGrad> out;
    for (int rank = 0; rank < ranks; ++rank) {
      dist.simulation().spawn(reduces(dist, rank, grad(IndexSet(rank), ranks), {1.0 + rank}, out));
    }
    dist.simulation().run();
    ASSERT_EQ(dist.problem(), std::nullopt);
    ASSERT_EQ(static_cast<int>(out.size()), ranks);
    const Seconds took =
        dist.predictor().get_collective_time("all_reduce", grad(IndexSet(0), ranks));
    for (const auto& [rank, result] : out) {
      EXPECT_TRUE(result.first.samples.covers(ranks));
      EXPECT_DOUBLE_EQ(result.second.value, ranks + took.value) << ranks << " ranks";
    }
  }
}

TEST(Dist, AllGatherGivesEveryoneAllShards) {
  Dist dist(4);
  Results<Weight> out;
  const Weight whole{.layer = 1, .layers = 2, .trail = {}};
  for (int rank = 3; rank >= 0; --rank) {
    dist.simulation().spawn(gathers(dist, rank, whole.shard(rank, 4), {0.5 * rank}, out));
  }
  dist.simulation().run();
  const Seconds took = dist.predictor().get_collective_time("all_gather", whole.shard(0, 4));
  ASSERT_EQ(out.size(), 4U);
  for (const auto& [rank, result] : out) {
    EXPECT_TRUE(result.first.is_complete());
    EXPECT_EQ(result.first.num_shards, 4);
    EXPECT_DOUBLE_EQ(result.second.value, 1.5 + took.value);
  }
}

TEST(Dist, ReduceScatterGivesEachItsShardOfTheSum) {
  Dist dist(4);
  Results<WeightGrad> out;
  for (int rank = 0; rank < 4; ++rank) {
    dist.simulation().spawn(scatters(dist, rank, grad(IndexSet(rank), 4), {}, out));
  }
  dist.simulation().run();
  const Seconds took = dist.predictor().get_collective_time("reduce_scatter", grad(IndexSet(0), 4));
  ASSERT_EQ(out.size(), 4U);
  for (const auto& [rank, result] : out) {
    EXPECT_TRUE(result.first.samples.covers(4));
    EXPECT_EQ(result.first.shards, IndexSet(rank));
    EXPECT_EQ(result.first.num_shards, 4);
    EXPECT_DOUBLE_EQ(result.second.value, took.value);
  }
}

Task two_collectives(Dist& dist, int rank, Seconds& end) {
  const auto [sum, first] = co_await dist.all_reduce(rank, grad(IndexSet(rank), 2), {});
  const auto [part, second] =
      co_await dist.reduce_scatter(rank, grad(IndexSet(1 - rank), 2), first);
  EXPECT_GT(second, first);
  EXPECT_EQ(part.shards, IndexSet(rank));
  end = second;
}

TEST(Dist, CollectivesFollowEachOther) {
  Dist dist(2);
  std::vector<Seconds> ends(2);
  dist.simulation().spawn(two_collectives(dist, 0, ends[0]));
  dist.simulation().spawn(two_collectives(dist, 1, ends[1]));
  dist.simulation().run();
  EXPECT_GT(ends[0].value, 0);
  EXPECT_EQ(ends[0], ends[1]);
}

// Groups of other kinds that were asked for before do not matter.
TEST(Dist, MeetsAllRanksWhateverGroupsThereAre) {
  Dist dist(World{.mesh = {{.name = "dp", .size = 2}, {.name = "tp", .size = 2}}});
  dist.group("tp", "");
  Results<WeightGrad> out;
  for (int rank = 0; rank < 4; ++rank) {
    dist.simulation().spawn(reduces(dist, rank, grad(IndexSet(rank), 4), {}, out));
  }
  dist.simulation().run();
  ASSERT_EQ(out.size(), 4U);
  EXPECT_TRUE(out[0].first.samples.covers(4));
}

TEST(Dist, SaysWhatIsWrongWithACollectiveAndWakesNobody) {
  const auto problem = [](IndexSet a, IndexSet b, int total_b) {
    Dist dist(2);
    Results<WeightGrad> out;
    dist.simulation().spawn(reduces(dist, 0, grad(std::move(a), 2), {}, out));
    dist.simulation().spawn(reduces(dist, 1, grad(std::move(b), total_b), {}, out));
    dist.simulation().run();
    EXPECT_TRUE(out.empty());
    return dist.problem() ? *dist.problem() : Diagnostic{};
  };
  const Diagnostic twice = problem(IndexSet(0), IndexSet::range(0, 2), 2);
  EXPECT_EQ(twice.code, "D611");
  EXPECT_EQ(twice.what, "sample 0 is in what rank 0 and rank 1 bring");
  EXPECT_EQ(twice.where.rank, 0);
  EXPECT_EQ(twice.where.operation, "all_reduce(layer 1) over all ranks");
  EXPECT_EQ(problem(IndexSet(0), IndexSet(1), 3).code, "D610");
}

TEST(Dist, SaysWhoIsInAnotherCollective) {
  Dist dist(2);
  Results<WeightGrad> out;
  dist.simulation().spawn(reduces(dist, 0, grad(IndexSet(0), 2), {}, out));
  dist.simulation().spawn(scatters(dist, 1, grad(IndexSet(1), 2), {}, out));
  dist.simulation().run();
  ASSERT_TRUE(dist.problem());
  EXPECT_EQ(dist.problem()->code, "D616");
  EXPECT_EQ(dist.problem()->where.rank, 1);
  EXPECT_NE(dist.problem()->what.find("rank 1 is in reduce_scatter"), std::string::npos);
  EXPECT_NE(dist.problem()->what.find("rank 0 in all_reduce"), std::string::npos);
}

TEST(Dist, HasOnlyTheRanksOfItsMesh) {
  Dist dist(2);
  const WeightGrad any = grad(IndexSet(0), 1);
  EXPECT_EQ(code_of([&] { (void)dist.all_reduce(2, any, {}); }), "D621");
  EXPECT_EQ(code_of([&] { (void)dist.all_reduce(-1, any, {}); }), "D621");
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

Task sends(Dist& dist, int from, int to, std::vector<Activation> values, Seconds time,
           std::vector<Seconds>& ends) {
  for (const Activation& value : values) {
    time = (co_await dist.send(from, to, value, time)).second;
    ends.push_back(time);
  }
}
Task receives(Dist& dist, int from, int to, int count, Seconds time,
              std::vector<std::pair<int, Seconds>>& got) {
  for (int i = 0; i < count; ++i) {
    const auto [value, end] = co_await dist.receive<Activation>(from, to, time);
    got.emplace_back(value.layer, end);
    time = end;
  }
}

TEST(Message, GoesWhenBothAreThere) {
  for (const auto& [send_at, receive_at] : {std::pair(1.0, 5.0), std::pair(5.0, 1.0)}) {
    for (const bool sender_first : {true, false}) {
      Dist dist(2);
      std::vector<Seconds> ends;
      std::vector<std::pair<int, Seconds>> got;
      const auto spawn_sender = [&, at = send_at] {
        dist.simulation().spawn(sends(dist, 0, 1, {activation(3)}, {at}, ends));
      };
      if (sender_first) spawn_sender();
      dist.simulation().spawn(receives(dist, 0, 1, 1, {receive_at}, got));
      if (!sender_first) spawn_sender();
      dist.simulation().run();
      const Seconds took = dist.predictor().get_send_recv_time(activation(3));
      ASSERT_EQ(got.size(), 1U);
      ASSERT_EQ(ends.size(), 1U);
      EXPECT_EQ(got[0].first, 3);
      EXPECT_DOUBLE_EQ(got[0].second.value, 5 + took.value);
      EXPECT_DOUBLE_EQ(ends[0].value, 5 + took.value);
    }
  }
}

TEST(Message, ThatIsSmallEnoughIsSentWithoutWaiting) {
  const Bytes size = activation(0).memory();
  for (const bool sender_first : {true, false}) {
    Dist dist(World{.mesh = {{.name = "dp", .size = 2}}, .eager_up_to = size});
    std::vector<Seconds> ends;
    std::vector<std::pair<int, Seconds>> got;
    const auto spawn_sender = [&] {
      dist.simulation().spawn(sends(dist, 0, 1, {activation(3), activation(4)}, {1}, ends));
    };
    if (sender_first) spawn_sender();
    dist.simulation().spawn(receives(dist, 0, 1, 2, {5}, got));
    if (!sender_first) spawn_sender();
    dist.simulation().run();
    const double took = dist.predictor().get_send_recv_time(activation(3)).value;
    EXPECT_EQ(ends, (std::vector<Seconds>{{1}, {1}}));
    ASSERT_EQ(got.size(), 2U);
    EXPECT_EQ(got[0].first, 3);
    EXPECT_DOUBLE_EQ(got[0].second.value, 5 + took);
    EXPECT_EQ(got[1].first, 4);
    EXPECT_DOUBLE_EQ(got[1].second.value, 5 + took + took);
  }
}

TEST(Message, ThatIsOneByteTooLargeWaits) {
  const Bytes size = activation(0).memory();
  Dist dist(World{.mesh = {{.name = "dp", .size = 2}}, .eager_up_to = size - Bytes{1}});
  std::vector<Seconds> ends;
  dist.simulation().spawn(sends(dist, 0, 1, {activation(3)}, {1}, ends));
  dist.simulation().run();
  EXPECT_TRUE(ends.empty());
  EXPECT_FALSE(dist.simulation().tasks()[0].done());
}

// Between two ranks in order; of other ranks nothing gets in between.
TEST(Message, MeetsItsOwnReceive) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    Dist dist(3);
    std::vector<Seconds> ends;
    std::map<std::pair<int, int>, std::vector<std::pair<int, Seconds>>> got;
    std::vector<std::function<void()>> spawns;
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from == to) continue;
        spawns.emplace_back([&, from, to] {
          dist.simulation().spawn(sends(
              dist, from, to, {activation(from), activation(3 + to), activation(8)}, {}, ends));
        });
        spawns.emplace_back([&, from, to] {
          dist.simulation().spawn(receives(dist, from, to, 3, {}, got[{from, to}]));
        });
      }
    }
    random.shuffle(spawns);
    for (const auto& spawn : spawns) spawn();
    dist.simulation().run();
    for (const auto& [way, list] : got) {
      ASSERT_EQ(list.size(), 3U) << "seed " << seed;
      EXPECT_EQ(list[0].first, way.first);
      EXPECT_EQ(list[1].first, 3 + way.second);
      EXPECT_EQ(list[2].first, 8);
    }
  }
}

Task receives_weight(Dist& dist) { (void)co_await dist.receive<Weight>(0, 1); }

TEST(Message, OfAnotherKindThanExpectedIsRefused) {
  Dist dist(2);
  std::vector<Seconds> ends;
  dist.simulation().spawn(sends(dist, 0, 1, {activation(3)}, {}, ends));
  dist.simulation().spawn(receives_weight(dist));
  dist.simulation().run();
  ASSERT_EQ(dist.simulation().failed(), 1U);
  EXPECT_EQ(code_of([&] { std::rethrow_exception(dist.simulation().tasks()[1].failure()); }),
            "D616");
}

// Tags are for those who hold Flights themselves, as models do.
struct Post final : Sender {
  std::vector<std::pair<int, double>> landed_tags;
  void landed(Flight& flight) override {
    if (flight.kind == trace::Kind::recv) {
      landed_tags.emplace_back(flight.tag, flight.end.value);
      EXPECT_EQ(layer_of(flight.out), flight.tag);
    }
  }
};

Flight flight_of(trace::Kind kind, int tag, Sender& sender) {
  Flight flight;
  flight.kind = kind;
  flight.rank = kind == trace::Kind::send ? 0 : 1;
  flight.peer = 1 - flight.rank;
  flight.tag = tag;
  flight.in = activation(tag);
  flight.sender = &sender;
  return flight;
}

TEST(Message, IsFoundByItsTagInAnyOrder) {
  Random random(11);
  for (int round = 0; round < 50; ++round) {
    Dist dist(2);
    Post post;
    std::vector<Flight> flights;
    for (int tag = 0; tag < 5; ++tag) {
      flights.push_back(flight_of(trace::Kind::send, tag, post));
      flights.push_back(flight_of(trace::Kind::recv, tag, post));
    }
    random.shuffle(flights);
    double time = 0;
    for (Flight& flight : flights) dist.start(flight, {time += 1});
    ASSERT_EQ(post.landed_tags.size(), 5U) << "round " << round;
    for (const Flight& flight : flights) EXPECT_TRUE(flight.complete);
  }
}

// ---------------------------------------------------------------- Barrier

Task passes(engine::Simulation& simulation, Barrier& barrier, int rank,
            std::vector<double>& times) {
  for (int round = 0; round < 3; ++round) {
    co_await simulation.pause({static_cast<double>(rank + 1)});
    co_await barrier.wait(rank);
    times.push_back(simulation.now().value);
  }
}

TEST(Barrier, LetsAllGoWhenTheLastHasComeAndCanBeUsedAgain) {
  engine::Simulation simulation;
  Barrier barrier(simulation, 4);
  std::vector<double> times;
  for (int rank = 0; rank < 4; ++rank) {
    simulation.spawn(passes(simulation, barrier, rank, times));
  }
  simulation.run();
  EXPECT_EQ(times, (std::vector<double>{4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12}));
  EXPECT_TRUE(barrier.waiting().empty());
}

TEST(Barrier, OfOneStopsNobody) {
  engine::Simulation simulation;
  Barrier barrier(simulation, 1);
  std::vector<double> times;
  simulation.spawn(passes(simulation, barrier, 0, times));
  simulation.run();
  EXPECT_EQ(times, (std::vector<double>{1, 2, 3}));
}

TEST(Barrier, SaysWhoWaitsAndLetsThemGoWhenReset) {
  engine::Simulation simulation;
  Barrier barrier(simulation, 3);
  std::vector<double> times;
  simulation.spawn(passes(simulation, barrier, 5, times));
  simulation.spawn(passes(simulation, barrier, 7, times));
  simulation.run();
  EXPECT_TRUE(times.empty());
  EXPECT_EQ(barrier.waiting(), (std::vector<int>{5, 7}));
  barrier.reset();
  simulation.run();
  EXPECT_EQ(times, (std::vector<double>{8, 8}));
}

Task waits_late(engine::Simulation& simulation, Barrier& barrier, double delay, double& passed) {
  auto turn = barrier.wait(0);
  co_await simulation.pause({delay});
  co_await turn;
  passed = simulation.now().value;
}

// To make the awaitable is not to arrive.
TEST(Barrier, CountsThoseWhoWaitOnly) {
  engine::Simulation simulation;
  Barrier barrier(simulation, 2);
  std::vector<double> passed(2);
  simulation.spawn(waits_late(simulation, barrier, 1, passed[0]));
  simulation.spawn(waits_late(simulation, barrier, 6, passed[1]));
  simulation.run();
  EXPECT_EQ(passed, (std::vector<double>{6, 6}));
}

}  // namespace
}  // namespace shiplap::strategy
