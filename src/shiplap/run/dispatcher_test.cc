#include "shiplap/run/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::run {
namespace {

using comm::Communicator;
using dispatch::QkvDispatch;

QkvDispatch any_dispatch(int ranks, std::uint64_t seed, std::uint32_t tokens = 60) {
  return dispatch::create_qkv_dispatch({.world_size = ranks,
                                        .total_seq_len = tokens,
                                        .num_seqs = 3,
                                        .max_cp_degree = 3,
                                        .seed = seed});
}

// What each rank threw, by rank.
std::vector<std::string> failures(int ranks, const std::function<void(Communicator&)>& work) {
  std::vector<std::string> said(ranks);
  const auto act = [&](Communicator& world) {
    std::string& own = said[world.rank()];
    try {
      work(world);
    } catch (const comm::Failure& error) {
      own = error.diagnostic().code + ": " + error.what();
      throw;
    } catch (const MetadataMismatch& error) {
      own = error.diagnostic().code + ": " + error.what();
      throw;
    } catch (const InputError& error) {
      own = error.diagnostics()[0].code + ": " + error.what();
      throw;
    } catch (const std::exception& error) {
      own = error.what();
      throw;
    }
  };
  try {
    comm::run_ranks({.threads = ranks, .timeout = {10}}, act);
  } catch (const std::exception&) {
    return said;
  }
  return said;
}

struct Step {
  explicit Step(const DispatchPlan& plan, std::int64_t row_bytes)
      : q(plan.q_forward.send_tokens() * static_cast<std::size_t>(row_bytes)),
        there(plan.q_forward.receive_tokens() * static_cast<std::size_t>(row_bytes)) {}
  std::vector<std::byte> q;
  std::vector<std::byte> there;
};

// ---- metadata that differs

TEST(Dispatcher, NamesTheRankAndTheFieldThatDiffer) {
  const auto said = failures(4, [](Communicator& world) {
    // Rank 2 drew other destinations for the same lengths.
    QkvDispatch dispatch = any_dispatch(4, 1);
    if (world.rank() == 2) dispatch.q.reverse = any_dispatch(4, 2).q.reverse;
    Dispatcher dispatcher(world);
    (void)dispatcher.plan(dispatch);
  });
  for (const std::string& one : said) {
    EXPECT_THAT(one, testing::StartsWith("D420"));
    EXPECT_THAT(one, testing::HasSubstr("rank 2 in q_reverse"));
    EXPECT_THAT(one, testing::Not(testing::HasSubstr("rank 1")));
  }
}

TEST(Dispatcher, RefusesUnsoundTablesOnAllRanks) {
  const auto said = failures(3, [](Communicator& world) {
    QkvDispatch dispatch = any_dispatch(3, 1);
    dispatch.kv.reverse = any_dispatch(3, 2).kv.reverse;
    Dispatcher dispatcher(world);
    (void)dispatcher.plan(dispatch);
  });
  EXPECT_THAT(said, testing::Each(testing::StartsWith("D40")));
}

TEST(Dispatcher, RefusesADispatchForOtherRanks) {
  const auto said = failures(2, [](Communicator& world) {
    Dispatcher dispatcher(world);
    (void)dispatcher.plan(any_dispatch(3, 1));
  });
  EXPECT_THAT(said, testing::Each(testing::StartsWith("D400")));
}

// ---- memory

// Counts allocations, and throws bad_alloc on request.
class Counting : public std::pmr::memory_resource {
 public:
  bool fails = false;
  int given = 0;
  std::size_t bytes = 0;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    if (fails) throw std::bad_alloc();
    ++given;
    bytes += size;
    return std::pmr::new_delete_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t alignment) override {
    bytes -= size;
    std::pmr::new_delete_resource()->deallocate(memory, size, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
};

TEST(Dispatcher, EndsEverywhereWhenOneRankHasNoMemory) {
  const auto said = failures(4, [](Communicator& world) {
    Counting memory;
    Dispatcher dispatcher(world, {.memory = &memory, .pack_below = 1 << 20});
    const auto plan = dispatcher.plan(any_dispatch(4, 1));
    Step step(*plan, 64);
    memory.fails = world.rank() == 1;
    dispatcher.exchange(plan->q_forward, step.q, step.there, 64);
  });
  EXPECT_THAT(said[1], testing::StartsWith("D421"));
  for (const std::size_t other : {0U, 2U, 3U}) {
    EXPECT_THAT(said[other], testing::StartsWith("D302"));
    EXPECT_THAT(said[other], testing::HasSubstr("memory"));
  }
}

// 64 steps with changing lengths: once the largest hint is reserved, no step takes anything.
TEST(Dispatcher, AllocatesNothingBeyondTheLargestHint) {
  constexpr int kRanks = 3;
  constexpr int kSteps = 64;
  constexpr std::int64_t kRow = 48;
  std::atomic<int> checked = 0;
  comm::run_ranks({.threads = kRanks}, [&](Communicator& world) {
    Counting memory;
    std::vector<QkvDispatch> dispatches;
    WorkspaceSize most;
    for (int step = 0; step < kSteps; ++step) {
      dispatches.push_back(any_dispatch(kRanks, static_cast<std::uint64_t>(step),
                                        static_cast<std::uint32_t>(20 + 7 * (step % 13))));
      for (const dispatch::MetadataPair* pair : {&dispatches.back().q, &dispatches.back().kv}) {
        most =
            elementwise_max(most, workspace_size(pair->forward, world.rank(), {.row_bytes = kRow}));
        most =
            elementwise_max(most, workspace_size(pair->reverse, world.rank(), {.row_bytes = kRow}));
      }
    }
    Dispatcher dispatcher(world, {.memory = &memory, .pack_below = 256});
    dispatcher.reserve(most);
    const int given = memory.given;
    const std::size_t bytes = memory.bytes;
    // The parts are described by two spans each, the room is rounded up to lines of the cache.
    EXPECT_LE(bytes, static_cast<std::size_t>(most.total().count) + 64 * most.parts + 1152);
    for (const QkvDispatch& dispatch : dispatches) {
      const auto plan = dispatcher.plan(dispatch);
      Step step(*plan, kRow);
      dispatcher.exchange(plan->q_forward, step.q, step.there, kRow);
      std::vector<float> in(plan->kv_reverse.send_tokens() * std::size_t{12});
      std::vector<float> out(plan->kv_reverse.receive_tokens() * std::size_t{12});
      dispatcher.exchange_sum<float>(plan->kv_reverse, in, out, 12);
      EXPECT_EQ(memory.given, given);
      EXPECT_EQ(memory.bytes, bytes);
    }
    ++checked;
  });
  EXPECT_EQ(checked, kRanks);
}

// ---- ranks that end in the middle

class EndingIn : public testing::TestWithParam<Dispatcher::Stage> {};

TEST_P(EndingIn, AStageIsToldToAllOthers) {
  const auto begin = std::chrono::steady_clock::now();
  const auto said = failures(4, [](Communicator& world) {
    int steps = 0;
    Dispatcher dispatcher(world, {.pack_below = 1 << 20, .on_stage = [&](Dispatcher::Stage stage) {
                                    if (world.rank() == 1 && steps == 2 && stage == GetParam()) {
                                      throw std::runtime_error("a planted end");
                                    }
                                  }});
    const auto plan = dispatcher.plan(any_dispatch(4, 1));
    Step step(*plan, 64);
    for (; steps < 5; ++steps) {
      dispatcher.exchange(plan->q_forward, step.q, step.there, 64);
    }
  });
  EXPECT_EQ(said[1], "a planted end");
  for (const std::size_t other : {0U, 2U, 3U}) {
    EXPECT_THAT(said[other], testing::StartsWith("D302"));
    EXPECT_THAT(said[other], testing::HasSubstr("a planted end"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

INSTANTIATE_TEST_SUITE_P(Stages, EndingIn,
                         testing::Values(Dispatcher::Stage::pack, Dispatcher::Stage::exchange,
                                         Dispatcher::Stage::unpack));

// ---- what does not fit

TEST(Dispatcher, RefusesBuffersOfAnotherSize) {
  const auto said = failures(2, [](Communicator& world) {
    Dispatcher dispatcher(world);
    const auto plan = dispatcher.plan(any_dispatch(2, 1));
    Step step(*plan, 64);
    step.there.pop_back();
    dispatcher.exchange(plan->q_forward, step.q, step.there, 64);
  });
  EXPECT_THAT(said, testing::Each(testing::StartsWith("D400")));
}

TEST(Dispatcher, DoesNotPlaceWhatIsToBeSummed) {
  const auto said = failures(2, [](Communicator& world) {
    Dispatcher dispatcher(world);
    const auto plan = dispatcher.plan(any_dispatch(2, 1));
    const std::vector<std::byte> in(plan->kv_reverse.send_tokens());
    std::vector<std::byte> out(plan->kv_reverse.receive_tokens());
    dispatcher.exchange(plan->kv_reverse, in, out, 1);
  });
  EXPECT_THAT(said, testing::Each(testing::StartsWith("D412")));
}

TEST(ExchangePlan, RefusesATableThatOverwrites) {
  dispatch::Metadata::Builder builder({.world_size = 1});
  const dispatch::Copy copy{.rank = 0, .offset = 0};
  builder.add_row(2, {&copy, 1});
  builder.add_row(2, {&copy, 1});
  builder.end_rank();
  try {
    const ExchangePlan plan(builder.take(), 0);
    FAIL() << "was accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics()[0].code, "D405");
  }
}

TEST(ExchangePlan, PutsNeighboursTogether) {
  // Three rows that stay together travel as one piece.
  dispatch::Metadata::Builder builder({.world_size = 1});
  for (const std::uint32_t offset : {5U, 7U, 10U}) {
    const dispatch::Copy copy{.rank = 0, .offset = offset};
    builder.add_row(offset == 5 ? 2 : 3, {&copy, 1});
  }
  builder.end_rank();
  const ExchangePlan plan(builder.take(), 0);
  ASSERT_EQ(plan.sends_to(0).size(), 1U);
  EXPECT_EQ(plan.sends_to(0)[0].length, 8U);
  EXPECT_EQ(plan.receives_from(0)[0].begin, 5U);
  EXPECT_EQ(plan.receive_tokens(), 13U);
}

TEST(WorkspaceSize, NeedNoCommunicator) {
  const QkvDispatch dispatch = any_dispatch(4, 1);
  const WorkspaceSize placed =
      workspace_size(dispatch.q.forward, 0, {.row_bytes = 64, .pack_below = 0});
  EXPECT_EQ(placed.total().count, 0);
  const WorkspaceSize packed =
      workspace_size(dispatch.q.forward, 0, {.row_bytes = 64, .pack_below = 1 << 20});
  EXPECT_GT(packed.total().count, 0);
  const WorkspaceSize summed =
      workspace_size(dispatch.kv.reverse, 0, {.row_bytes = 64, .pack_below = 0});
  EXPECT_EQ(summed.receive.count,
            64 * static_cast<std::int64_t>(ExchangePlan(dispatch.kv.reverse, 0).arriving_tokens()));
}

}  // namespace
}  // namespace shiplap::run
