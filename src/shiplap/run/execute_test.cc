#include "shiplap/run/execute.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const auto kCountX = [](Executor& executor, int rank) { count_up(executor, rank, "x"); };

// ---- each action, against numbers worked out by hand

TEST(Execute, CopiesRowsListedRowsAndAdds) {
  const Numbers y = after_step(R"(mesh dp=1
list order = 2 0
program all on all
  buffer x rows 3 row_bytes 4 f32
  buffer y rows 3 row_bytes 4 f32
  copy x[0 +1] to y[2 +1]
  copy x[from order[0 +2]] to y[0 +2]
  copy x[1 +2] to y[1 +2] add)",
                               "y", kCountX);
  EXPECT_THAT(y[0], ElementsAre(2, 0 + 1, 0 + 2));
}

TEST(Execute, SendsAndReceivesBothWays) {
  const Numbers y = after_step(R"(mesh dp=2
program all on all
  buffer x rows 2 row_bytes 4 f32
  buffer y rows 2 row_bytes 4 f32
  send x to rank 1-dp tag -7
  receive y from rank 1-dp tag -7)",
                               "y", kCountX);
  EXPECT_THAT(y, ElementsAre(ElementsAre(10, 11), ElementsAre(0, 1)));
}

TEST(Execute, ReceivesInOrderOfTheirTagAndAddsWhereAsked) {
  const Numbers y = after_step(R"(mesh dp=2
program all on all
  buffer x rows 2 row_bytes 4 f32
  buffer y rows 2 row_bytes 4 f32
  when dp=0
    send x[0 +1] to dp+1 tag 9000000000
    send x[1 +1] to dp+1 tag 9000000000
    send x[1 +1] to dp+1 tag 5 channel other
  end
  when dp=1
    receive y[1 +1] from dp-1 tag 5 channel other
    receive y[0 +1] from dp-1 tag 9000000000
    receive y[1 +1] from dp-1 add tag 9000000000
  end)",
                               "y", kCountX);
  EXPECT_THAT(y[1], ElementsAre(0, 2));
}

TEST(Execute, AsynchronousMessagesMayCross) {
  // Far above what any transport sends at once: both must be under way at the same time.
  const std::int64_t numbers = 50'000;
  const Numbers y = after_step(fmt::format(R"(mesh dp=2
program all on all
  buffer x rows 1 row_bytes {0} f32
  buffer y rows 1 row_bytes {0} f32
  s: send x to rank 1-dp async
  r: receive y from rank 1-dp async
  copy y to x after s, r)",
                                           4 * numbers),
                               "x", kCountX);
  EXPECT_EQ(y[0].back(), 10 + numbers - 1);
  EXPECT_EQ(y[1].back(), numbers - 1);
}

TEST(Execute, ABatchIsUnderWayTogether) {
  const std::int64_t numbers = 50'000;
  const Numbers y = after_step(fmt::format(R"(mesh dp=3
program all on all
  buffer x rows 1 row_bytes {0} f32
  buffer y rows 1 row_bytes {0} f32
  buffer z rows 1 row_bytes 4 f32
  batch
    send x to dp+1 wrap
    all_reduce z over dp
    receive y from dp-1 wrap
    barrier over dp/second
  end
  batch
  end)",
                                           4 * numbers),
                               "y", kCountX);
  EXPECT_EQ(y[0].back(), 20 + numbers - 1);
}

Numbers collective(const std::string& line, const std::string& from, const std::string& to) {
  return after_step("mesh dp=2\nlist cut = 0 1 4\nprogram all on all\n  buffer x rows " + from +
                        " row_bytes 4 f32\n  buffer y rows " + to + " row_bytes 4 f32\n  " + line,
                    "y", kCountX);
}

TEST(Execute, AllReduceSumsScalesAndKnowsMaxAndMin) {
  EXPECT_THAT(collective("all_reduce x to y over dp scale 1/2", "2", "2"), Each(ElementsAre(5, 6)));
  EXPECT_THAT(collective("all_reduce x to y over dp operator max", "2", "2"),
              Each(ElementsAre(10, 11)));
  EXPECT_THAT(collective("all_reduce x to y over dp operator min", "2", "2"),
              Each(ElementsAre(0, 1)));
  EXPECT_THAT(collective("all_reduce x over dp; copy x to y", "2", "2"), Each(ElementsAre(10, 12)));
}

TEST(Execute, AllGatherInAllItsWays) {
  EXPECT_THAT(collective("all_gather x to y over dp", "2", "4"), Each(ElementsAre(0, 1, 10, 11)));
  EXPECT_THAT(collective("copy x[2*dp +2] to y[2*dp +2]; all_gather y over dp", "4", "4"),
              Each(ElementsAre(0, 1, 12, 13)));
  EXPECT_THAT(
      collective("copy x[0 +2] to y[2*dp +2]; all_gather y[2*dp +2] to y over dp", "4", "4"),
      Each(ElementsAre(0, 1, 10, 11)));
  EXPECT_THAT(collective("all_gather x[0 +1+2*dp] to y over dp split cut", "3", "4"),
              Each(ElementsAre(0, 10, 11, 12)));
}

TEST(Execute, AllGatherFollowsTheOrderOfItsGroup) {
  EXPECT_THAT(collective("all_gather x to y over ranks{1, 0}", "2", "4"),
              Each(ElementsAre(10, 11, 0, 1)));
}

TEST(Execute, ReduceScatterInAllItsWays) {
  EXPECT_THAT(collective("reduce_scatter x to y over dp scale 1/2", "4", "2"),
              ElementsAre(ElementsAre(5, 6), ElementsAre(7, 8)));
  EXPECT_THAT(collective("reduce_scatter x over dp; copy x[2*dp +2] to y", "4", "2"),
              ElementsAre(ElementsAre(10, 12), ElementsAre(14, 16)));
  EXPECT_THAT(collective("reduce_scatter x to y[0 +1+2*dp] over dp split cut", "4", "3"),
              ElementsAre(ElementsAre(10, 0, 0), ElementsAre(12, 14, 16)));
}

TEST(Execute, AllToAllBroadcastReduceAndBarrier) {
  EXPECT_THAT(collective("all_to_all x to y over dp", "2", "2"),
              ElementsAre(ElementsAre(0, 10), ElementsAre(1, 11)));
  EXPECT_THAT(collective("all_to_all x over dp; copy x to y", "2", "2"),
              ElementsAre(ElementsAre(0, 10), ElementsAre(1, 11)));
  EXPECT_THAT(collective("broadcast x to y over dp root 1", "2", "2"), Each(ElementsAre(10, 11)));
  EXPECT_THAT(collective("reduce x to y over dp root 1; barrier over dp", "2", "2"),
              ElementsAre(ElementsAre(0, 0), ElementsAre(10, 12)));
}

TEST(Execute, GroupsOfAMeshAndGroupsOfOneWorkSideBySide) {
  const Numbers y = after_step(R"(mesh dp=2 tp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 1 row_bytes 4 f32
  streams net
  a: @net all_reduce x to y over tp async
  b: all_reduce x over dp after a
  all_reduce y over dp/other after a
  when rank=0
    all_reduce y over ranks{0}
  end)",
                               "y", kCountX);
  EXPECT_THAT(y, Each(ElementsAre(60)));
}

// A sum over ranks, and which rows of it a rank has then.
struct NarrowSum {
  std::string call;
  std::array<std::vector<std::size_t>, 4> rows;
};

template <class T, class Round>
void expect_rounded_once(const char* type, float large, const Round& round) {
  const std::vector<std::size_t> all{0, 1, 2, 3, 4};
  for (const NarrowSum& sum :
       {NarrowSum{"reduce_scatter x[0 +4] over dp scale 1/4", {{{0}, {1}, {2}, {3}}}},
        NarrowSum{"reduce_scatter x over dp split cut scale 1/4", {{{0}, {1, 2, 3}, {}, {4}}}},
        NarrowSum{"all_reduce x over dp scale 1/4", {{all, all, all, all}}},
        NarrowSum{"reduce x over dp scale 1/4 root 3", {{{}, {}, {}, all}}}}) {
    SCOPED_TRACE(fmt::format("{} of {}", sum.call, type));
    const plan::Plan plan =
        plan::parse_text(fmt::format("shiplap-plan 1\nmesh dp=4\nlist cut = 0 1 4 4 5\n"
                                     "program all on all\n  buffer x rows 5 row_bytes 2 {}\n  {}",
                                     type, sum.call),
                         "test");
    on_ranks(plan, [&](comm::Communicator& world) {
      const KernelTable kernels;
      Executor executor(plan, world, kernels);
      const std::span<std::byte> bytes = executor.rows("x");
      const std::span numbers(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
      for (T& one : numbers) one = round(world.rank() == 0 ? large : 1.0F);
      executor.step();
      for (const std::size_t row : sum.rows[world.rank()]) {
        EXPECT_EQ(kernels::to_float(numbers[row]), kernels::to_float(round((large + 3) / 4)));
      }
    });
  }
}

TEST(Execute, SumsOfNarrowNumbersAreRoundedOnce) {
  // large + 1 is no number of the type, (large + 3) / 4 is nearly one
  expect_rounded_once<kernels::Bf16>("bf16", 256, [](float x) { return kernels::to_bf16(x); });
  expect_rounded_once<kernels::F16>("f16", 2048, [](float x) { return kernels::to_f16(x); });
}

TEST(Execute, TurnsUnevenPieces) {
  const auto y = after_step(R"(mesh dp=3
list cut = 0 2 2 3
program all on all
  buffer x rows 3 row_bytes 4 f32
  buffer y rows 3*(cut[dp+1]-cut[dp]) row_bytes 4 f32
  all_to_all x to y over dp split cut)",
                            "y", kCountX);
  EXPECT_THAT(y, ElementsAre(ElementsAre(0, 1, 10, 11, 20, 21), testing::IsEmpty(),
                             ElementsAre(2, 12, 22)));
}

TEST(Execute, ExchangesRowsThereAndBackAndAddsInOrder) {
  const std::string head = R"(mesh dp=2
table there
  message 0 0 0 1 1
  message 0 1 1 2 0
  message 1 1 0 1 2
program all on all
  buffer x rows 3 row_bytes 4 f32
  buffer y rows 3 row_bytes 4 f32
)";
  EXPECT_THAT(after_step(head + "  exchange x to y by there over dp", "y", kCountX),
              ElementsAre(ElementsAre(0, 0, 0), ElementsAre(1, 2, 10)));
  EXPECT_THAT(after_step(head + "  exchange x to y by there reversed over dp", "y", kCountX),
              ElementsAre(ElementsAre(1, 10, 11), ElementsAre(12, 0, 0)));
  EXPECT_THAT(
      after_step(head + "  exchange x to x by there over dp add; copy x to y", "y", kCountX),
      ElementsAre(ElementsAre(0, 1 + 0, 2), ElementsAre(10 + 1, 11 + 2, 12 + 10)));
}

// ---- streams

TEST(Execute, StreamsAreOrderedByAfterAlone) {
  // Main waits for the other stream, which waits for main. Once with threads, once without.
  std::mutex mutex;
  std::vector<std::string> order;
  KernelTable kernels;
  for (const std::string name : {"one", "two", "three"}) {
    kernels.bind(name, [&, name](const KernelCall& call) {
      const std::lock_guard lock(mutex);
      order.push_back(name + std::to_string(call.stream));
    });
  }
  after_step(R"(mesh dp=1
program all on all
  buffer x rows 1 row_bytes 4 f32
  streams side
  a: compute one
  b: @side compute two after a
  compute three after b)",
             "x", kCountX, kernels);
  EXPECT_THAT(order, ElementsAre("one0", "two1", "three0", "one0", "two1", "three0"));
}

TEST(Execute, MemoryLivesOnBetweenSteps) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=2
tensor W Weight
program all on all
  buffer w rows 1 row_bytes 4 f32
  keep w = W
  compute more
    reads w = W
    writes w = new W)",
                                           "test");
  KernelTable kernels;
  kernels.bind_given([](const GivenCall& call) {
    if (call.step == 0) call.access.as<float>()[0] = 5;
  });
  kernels.bind("more", [](const KernelCall& call) { call.accesses[1].as<float>()[0] += 1; });
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels);
    for (int k = 0; k < 3; ++k) executor.step();
    EXPECT_THAT(floats(executor.rows("w")), ElementsAre(8));
    EXPECT_THAT(floats(executor.goals().at(0).bytes), ElementsAre(8));
  });
}

TEST(Execute, OneStepHasAShortForm) {
  const plan::Plan plan = plan::parse_text(
      "shiplap-plan 1\nmesh dp=2\nprogram all on rank=0\n  buffer x rows 1 row_bytes 4 f32\n"
      "spare on rank=1",
      "test");
  on_ranks(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    EXPECT_GE(execute(plan, Rank(world.rank()), world, kernels).duration.value, 0);
  });
}

TEST(Execute, PoisonShowsWhoUsesDeadRows) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=1
program all on all
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 3 row_bytes 4 f32
  allocate x
  copy x to y[0 +1]
  copy y[2 +1] to x
  copy x to y[1 +1]
  free x
  copy x to y[2 +1])",
                                           "test");
  on_ranks(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    Executor executor(plan, world, kernels, {.poison = true});
    executor.step();
    const std::span<float> y = floats(executor.rows("y"));
    EXPECT_TRUE(std::isnan(y[0]));   // allocated, never written
    EXPECT_FALSE(std::isnan(y[1]));  // alive
    EXPECT_TRUE(std::isnan(y[2]));   // freed
  });
}

// ---- refusals

TEST(Execute, AnUnknownKernelIsRefusedOnAllRanksBeforeAnythingRuns) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=3
program all on all
  buffer x rows 1 row_bytes 4 f32
  compute known
  when dp=1
    odd: compute forwrad
  end)",
                                           "test");
  KernelTable kernels;
  kernels.bind("known", [](const KernelCall&) { ADD_FAILURE() << "something ran"; });
  kernels.bind("forward", [](const KernelCall&) {});
  const auto said = failures(plan, [&](comm::Communicator& world) {
    try {
      Executor(plan, world, kernels).step();
    } catch (const InputError&) {
      world.barrier();  // it can still be used
      throw;
    }
  });
  for (const std::string& one : said) {
    EXPECT_THAT(one, StartsWith("D640"));
    EXPECT_THAT(one, HasSubstr("rank 1"));
    EXPECT_THAT(one, HasSubstr("odd: compute forwrad"));
    EXPECT_THAT(one, HasSubstr("known kernels: forward, known"));
    EXPECT_THAT(one, HasSubstr("did you mean `forward`?"));
  }
}

std::string rejected(const std::string& lines) {
  const plan::Plan plan = plan::parse_text(
      "shiplap-plan 1\nmesh dp=2\nlist cut = 0 1 2\ntable t\n  message 0 1 0 3 0\n"
      "program all on all\n  buffer x rows 4 row_bytes 4 f32\n  buffer h rows 2 row_bytes 2 i16\n"
      "  buffer i rows 2 row_bytes 4 i32\n  buffer y rows 2 row_bytes 4 f32\n  " +
          lines,
      "test");
  const auto said = failures(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    Executor(plan, world, kernels).step();
  });
  EXPECT_EQ(said[0].substr(0, 4), said[1].substr(0, 4)) << lines;
  return said[0].substr(0, 5) + (said[0].find("not supported by run") == std::string::npos
                                     ? said[0]
                                     : std::string("not supported by run"));
}

TEST(Execute, RefusesWhatItCannotDo) {
  for (const std::string line :
       {"all_reduce h over dp", "all_reduce x to i over dp",
        "all_reduce x over dp operator product", "all_reduce i over dp scale 1/2", "copy x to y",
        "copy h to h add", "receive h from rank 1-dp add", "all_gather y to x over dp split cut",
        "all_gather x[1 +2] to x over dp", "all_to_all y to x over dp split cut",
        "all_reduce x[0 +2] to x[1 +2] over dp", "exchange y to x by t over dp",
        "all_gather x[0 +3] over dp", "broadcast x to y over dp", "exchange x to h by t over dp"}) {
    EXPECT_EQ(rejected(line), "D641:not supported by run") << line;
  }
}

TEST(Execute, RefusesAPlanForOtherRanks) {
  const plan::Plan plan = plan::parse_text("shiplap-plan 1\nmesh dp=3\nprogram all on all", "test");
  comm::run_ranks({.threads = 2}, [&](comm::Communicator& world) {
    const KernelTable kernels;
    EXPECT_THROW(Executor(plan, world, kernels), InputError);
  });
}

TEST(Execute, RefusesMoreTagsThanATransportHas) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  when dp=0
    repeat k 525000
      send x to dp+1 tag -k-1 async
    end
  end)",
                                           "test");
  const auto said = failures(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    Executor(plan, world, kernels).step();
  });
  EXPECT_THAT(said, Each(StartsWith("D642")));
}

// ---- failures

TEST(Execute, AKernelThatThrowsEndsAllRanks) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=3
program all on all
  buffer x rows 1 row_bytes 4 f32
  streams net, side
  a: @side compute work label may fail
  b: @net all_reduce x over dp after a
  r: receive x from dp-1 wrap tag 3 async
  compute work after b, r)",
                                           "test");
  KernelTable kernels;
  kernels.bind("work", [](const KernelCall& call) {
    if (call.rank().value == 1) throw std::runtime_error("the kernel is tired");
  });
  const auto said = failures(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels);
    executor.step();
  });
  EXPECT_EQ(said[1], "the kernel is tired");
  for (const std::size_t other : {0U, 2U}) {
    EXPECT_THAT(said[other], StartsWith("D302"));
    EXPECT_THAT(said[other], HasSubstr("tired"));
  }
}

TEST(Execute, AMissingCollectiveEndsInADiagnosticThatNamesTheOperation) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  when dp=0
    g[3]: all_reduce x over dp
  end
  when dp=1
    h: receive x from dp-1 async
  end)",
                                           "test");
  const auto said = failures(plan,
                             [&](comm::Communicator& world) {
                               const KernelTable kernels;
                               Executor executor(plan, world, kernels);
                               executor.step();
                             },
                             {0.3});
  EXPECT_THAT(said[0], testing::AnyOf(StartsWith("D301"), StartsWith("D302")));
  EXPECT_THAT(said[0], HasSubstr("g[3]: all_reduce"));
  EXPECT_THAT(said[1], HasSubstr("h: receive"));
}

TEST(Execute, AMessageOfAnotherLengthIsAMismatch) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=2
program all on all
  buffer x rows 2 row_bytes 4 f32
  when dp=0
    send x[0 +1] to dp+1
  end
  when dp=1
    r: receive x from dp-1
  end
  barrier over dp)",
                                           "test");
  const auto said = failures(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    Executor executor(plan, world, kernels);
    executor.step();
  });
  EXPECT_THAT(said[1], StartsWith("D303"));
  EXPECT_THAT(said[1], HasSubstr("r: receive"));
  EXPECT_THAT(said[0], StartsWith("D302"));
}

}  // namespace
}  // namespace shiplap::run
