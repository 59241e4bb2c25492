// Dumps of a step that failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "shiplap/base/json.h"
#include "shiplap/comm/failure.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

TEST(FlightRecord, OfAStepThatIsDoneHasItsOwnNumbers) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=2
program all on all
  buffer x rows 2 row_bytes 4 f32
  all_reduce x over dp)",
                                           "test");
  on_ranks(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    Executor executor(plan, world, kernels);
    for (int number = 1; number <= 2; ++number) {
      executor.step();
      const Json dump = parse_json(executor.flight_record(), "dump");
      const Json& entry = dump.find("entries")->as_array().front();
      EXPECT_EQ(entry.find("collective_seq_id")->as_number(), number);
      EXPECT_EQ(entry.find("state")->as_string(), "completed");
    }
  });
}

// Rank 1 leaves out the second all_reduce of the second step.
TEST(FlightRecord, HasTheCallsOfAStepThatFailed) {
  const plan::Plan plan = plan::parse_text(R"(shiplap-plan 1
mesh dp=2
program all on all
  buffer x rows 2 row_bytes 4 f32
  buffer y rows 2 row_bytes 8 bf16
  all_reduce x over dp
  when dp=0
    send x[0 +1] to dp+1
  end
  when dp=1
    receive x[0 +1] from dp-1
  end
  compute maybe
  all_gather x to y over dp)",
                                           "test");
  std::array<std::string, 2> dumps;
  const auto run = [&](comm::Communicator& world) {
    KernelTable kernels;
    kernels.bind("maybe", [](const KernelCall& call) {
      if (call.rank() == Rank(1) && call.step == 1) throw std::runtime_error("out of memory");
    });
    Executor executor(plan, world, kernels);
    executor.step();
    try {
      executor.step();
    } catch (const std::exception&) {
      dumps[world.rank()] = executor.flight_record();
      throw;
    }
  };
  EXPECT_ANY_THROW(on_ranks(plan, run));
  for (const int rank : {0, 1}) {
    const Json dump = parse_json(dumps[rank], "dump");
    const Json::Array& entries = dump.find("entries")->as_array();
    ASSERT_EQ(entries.size(), rank == 0 ? 3U : 2U) << dumps[rank];
    const auto text = [&](std::size_t k, const char* key) {
      return entries[k].find(key)->as_string();
    };
    const auto number = [&](std::size_t k, const char* key) {
      return entries[k].find(key)->as_number();
    };
    EXPECT_EQ(text(0, "profiling_name"), "shiplap:all_reduce");
    EXPECT_EQ(text(0, "state"), "completed");
    EXPECT_EQ(number(0, "collective_seq_id"), 3) << "two calls in step 0";
    EXPECT_EQ(text(1, "profiling_name"), rank == 0 ? "shiplap:send 0->1" : "shiplap:recv 1<-0");
    EXPECT_EQ(number(1, "p2p_seq_id"), 2);
    if (rank == 1) continue;
    EXPECT_EQ(text(2, "profiling_name"), "shiplap:_all_gather_base");
    EXPECT_EQ(text(2, "state"), "started");
    EXPECT_EQ(number(2, "collective_seq_id"), 4);
    EXPECT_EQ(to_text(*entries[2].find("input_sizes")), to_text(parse_json("[[2]]", "")));
    EXPECT_EQ(entries[2].find("output_dtypes")->as_array().front().as_string(), "BFloat16");
    EXPECT_EQ(entries[2].find("frames")->as_array().front().find("line")->as_number(), 14);
  }
}

}  // namespace
}  // namespace shiplap::run
