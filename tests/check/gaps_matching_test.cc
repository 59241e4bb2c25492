// Loading and matching: found untested by mutations of load.cc, matching.cc and mismatches.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;

std::string verdict(const std::string& text, const Options& options = {}) {
  try {
    return checked(text, options).sound() ? "sound" : "broken";
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
}

std::int64_t examined(const std::string& text, const std::string& property) {
  for (const Examined& one : checked(text).examined) {
    if (one.property == property) return one.objects;
  }
  return -1;
}

// ---- limits

std::string with_tensor(const std::string& tensor) {
  return "mesh dp=1\ntensor V Query " + tensor + R"(
tensor Q Query
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q
  goal x = Q
  compute other
)";
}

TEST(Limits, OfDimensionsAreTwoToThePowerOf31) {
  for (const std::string before : {"tok ", "a 1 tok ", "a 1 sum tok "}) {
    EXPECT_EQ(verdict(with_tensor(before + "2147483646")), "sound") << before;
    EXPECT_EQ(verdict(with_tensor(before + "2147483647")), "D632") << before;
  }
}

TEST(Limits, OfDimensionsAreLessUnderAMask) {
  EXPECT_EQ(verdict(with_tensor("tok 2 sum key 1048576 mask key<=tok")), "sound");
  EXPECT_EQ(verdict(with_tensor("tok 2 sum key 1048577 mask key<=tok")), "D632");
  EXPECT_EQ(verdict(with_tensor("tok 16777217 sum key 2 mask key<=tok")), "D632");
}

TEST(Limits, OfRowsAreTwoToThePowerOf31) {
  const auto plan = [](const std::string& rows) {
    return "mesh dp=1\nprogram all on all\n  buffer x rows " + rows +
           " row_bytes 8 f32\n  compute other\n";
  };
  EXPECT_EQ(verdict(plan("2147483646")), "sound");
  EXPECT_EQ(verdict(plan("2147483647")), "D632");
}

TEST(Limits, OfOperationsCountThoseOfAllRanks) {
  const std::string plan = R"(mesh dp=3
program all on all
  compute other
  compute other
)";
  EXPECT_EQ(verdict(plan, {.symmetry = false, .operations = 6}), "sound");
  EXPECT_EQ(verdict(plan, {.symmetry = false, .operations = 5}), "D632");
  EXPECT_EQ(verdict(plan, {.operations = 2}), "sound");
  EXPECT_EQ(verdict(plan, {.operations = 1}), "D632");
}

// Outputs that no contract derives are assumed; a computation without outputs assumes nothing.
TEST(Report, CountsWhatIsAssumed) {
  const Report report = checked(R"(mesh dp=1
tensor A Activation sample 2
tensor G Grad sum sample 2
program all on all
  buffer a rows 2 row_bytes 8 f32
  buffer x rows 1 row_bytes 8 f32
  goal x = G
  compute zero
    writes x = G sum none
  compute read_batch
    writes a = A
  compute other
  compute other
    writes x = G
  compute backprop
    reads a = A
    writes x = G
)");
  EXPECT_THAT(report.assumed, testing::ElementsAre(Assumed{"other", 1}, Assumed{"read_batch", 1}));
  EXPECT_EQ(report.operations, 5);
}

// ---- groups

TEST(Groups, SpelledInTwoWaysAreOne) {
  const std::string plan = R"(mesh dp=2
tensor G Grad tok 2 sum sample 1
program all on all
  buffer x rows 2 row_bytes 8 f32
  goal x = G sum none
  compute other
    writes x = G sum none
  all_reduce x[0 +1] over dp
  all_reduce x over ranks{0, 1}
  barrier over dp{0, 1}
  all_reduce x[1 +1] over dp
)";
  expect_sound(plan);
  EXPECT_EQ(examined(plan, "collective calls"), 4);
}

TEST(Groups, OfTwoRanksAreComparedCallByCall) {
  const auto plan = [](const std::string& first, const std::string& second) {
    return "mesh dp=2\nprogram first on dp=0\n  buffer x rows 2 row_bytes 8 f32\n" + first +
           "program second on dp=1\n  buffer x rows 2 row_bytes 8 f32\n" + second;
  };
  const std::string one = "  all_reduce x[0 +1] over dp\n";
  const std::string two = "  all_reduce x over dp\n";
  expect_finding(plan(one, two), {.code = "D704", .rank = 1, .operation = 0});
  expect_finding(plan(one + one, two + one), {.code = "D704", .rank = 1, .operation = 0});
  expect_finding(plan(one + one, one + two), {.code = "D704", .rank = 1, .operation = 1});
}

TEST(Broadcasts, AreAsLargeAsWhatTheRootGivesAndTheOthersGet) {
  const auto plan = [](const std::string& root, const std::string& other) {
    return "mesh dp=2\nprogram first on dp=0\n  buffer x rows 4 row_bytes 8 f32\n  broadcast " +
           root +
           " over dp\nprogram second on dp=1\n  buffer x rows 4 row_bytes 8 f32\n  broadcast " +
           other + " over dp\n";
  };
  expect_finding(plan("x[0 +1]", "x[0 +2] to x[2 +1]"),
                 {.code = "D704", .rank = 1, .operation = 0, .what = "2 rows of 8 bytes go to 1"});
  expect_finding(plan("x[0 +1] to x[2 +2]", "x[0 +1]"),
                 {.code = "D704", .rank = 0, .operation = 0, .what = "1 rows of 8 bytes go to 2"});
}

TEST(Types, OfBothRegionsOfACallAreCompared) {
  const auto plan = [](const std::string& call) {
    return R"(mesh dp=3
program most on dp=0..1
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  all_reduce x to y over dp
program odd on dp=2
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  buffer z rows 1 row_bytes 8 bf16
  all_reduce )" +
           call + " over dp\n";
  };
  const Expected expected{
      .code = "D705", .rank = 2, .operation = 0, .what = "of rank 2 has a different"};
  expect_finding(plan("x to z"), expected);
  expect_finding(plan("z to y"), expected);
}

// ---- messages

TEST(Messages, AreCountedAtTheirLongerSide) {
  const auto plan = [](int sends, int receives) {
    std::string text = "mesh pp=2\nprogram first on pp=0\n  buffer x rows 1 row_bytes 8 f32\n";
    for (int k = 0; k < sends; ++k) text += "  send x to pp+1\n";
    text += "  compute other\nprogram second on pp=1\n  buffer x rows 1 row_bytes 8 f32\n";
    for (int k = 0; k < receives; ++k) text += "  receive x from pp-1\n";
    return text + "  compute other\n";
  };
  EXPECT_EQ(examined(plan(2, 2), "messages"), 2);
  EXPECT_EQ(examined(plan(3, 1), "messages"), 3);
  EXPECT_EQ(examined(plan(1, 3), "messages"), 3);
}

TEST(Messages, DifferInEitherEndInTheirChannelAndTag) {
  const std::string plan = R"(mesh pp=3
tensor Q Query tok 9
program first on pp=0
  buffer x rows 9 row_bytes 8 f32
  given x = Q
  send x[0 +1] to pp+1
  send x[1 +1] to pp+2
  send x[2 +1] to pp+1 tag 1
  send x[3 +1] to pp+1 channel side
  send x[4 +1] to pp+2 channel side
  send x[5 +1] to pp+1
program second on pp=1
  buffer x rows 9 row_bytes 8 f32
  goal x[0 +5] = Q tok 3 +1 | 2 +1 | 0 +1 | 5 +1 | 1 +1
  receive x[0 +1] from pp-1 channel side
  receive x[1 +1] from pp-1 tag 1
  receive x[2 +1] from pp-1
  receive x[3 +1] from pp-1
  receive x[4 +1] from pp+1
program third on pp=2
  buffer x rows 9 row_bytes 8 f32
  goal x[0 +2] = Q tok 4 +1 | 1 +1
  receive x[0 +1] from pp-2 channel side
  receive x[1 +1] from pp-2
  send x[1 +1] to pp-1
)";
  expect_sound(plan, {.rules = Rules::mpi, .sends = Sends::eager});
  EXPECT_EQ(examined(plan, "messages"), 7);
}

// ---- tables

std::string exchanged(const std::string& rows, const std::string& goal) {
  return "mesh ep=3\ntensor Q Query tok 12\ntable routes\n" + rows + R"(program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 6 row_bytes 8 f32
  given x = Q tok 4*ep +4
)" + goal +
         "  exchange x to y by routes over ep\n";
}

// From rank 0 to rank 1 go one row, two and one; between others, other numbers.
constexpr const char* kRoutes = R"(  send 0 1 0 1
  send 0 1 2 2
  send 0 1 1 1
  send 0 2 3 1
  send 1 2 0 3
  send 1 2 3 1
  receive 1 0 0 1
  receive 1 0 4 2
  receive 1 0 1 1
  receive 2 0 5 1
  receive 2 1 2 3
  receive 2 1 1 1
)";

TEST(Tables, HaveSeveralMessagesBetweenTwoRanks) {
  expect_sound(exchanged(kRoutes, R"(  when ep=1
    goal y[0 +2] = Q tok 0 +2
    goal y[4 +2] = Q tok 2 +2
  end
  when ep=2
    goal y[1 +5] = Q tok 7 +1 | 4 +3 | 3 +1
  end
)"));
  const std::string routes(kRoutes);
  for (const std::string line : {"receive 1 0 0 1", "receive 1 0 4 2", "receive 1 0 1 1"}) {
    expect_finding(exchanged(changed(routes, line, "receive 1 0 2 4"), ""),
                   {.code = "D717", .rank = 0, .operation = 0});
  }
  const Finding finding = expect_finding(exchanged(changed(routes, "  receive 1 0 1 1\n", ""), ""),
                                         {.code = "D717", .rank = 0, .operation = 0});
  EXPECT_EQ(finding.folded, 0);
  expect_finding(exchanged(changed(routes, "  send 1 2 3 1\n", ""), ""),
                 {.code = "D717", .rank = 2, .operation = 0});
}

TEST(Tables, AreToldOnceForEachRankAndDirection) {
  const Finding finding = expect_finding(exchanged(R"(  send 0 1 0 1
  send 0 1 2 2
  send 0 2 0 1
  send 1 2 0 1
)",
                                                   ""),
                                         {.code = "D717", .rank = 0, .operation = 0});
  EXPECT_EQ(finding.folded, 1);
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}));
}

TEST(Tables, StayInsideTheRegionsToTheLastRow) {
  expect_sound(
      exchanged("  message 0 1 0 4 2\n", "  when ep=1\n    goal y[2 +4] = Q tok 0 +4\n  end\n"));
  expect_finding(exchanged("  message 0 1 1 4 2\n", ""),
                 {.code = "D718", .rank = 0, .operation = 0});
  expect_finding(exchanged("  message 0 1 0 4 3\n", ""),
                 {.code = "D718", .rank = 1, .operation = 0});
}

TEST(Tables, OfAnExchangeThatARankLeavesOutAreNotLookedAt) {
  expect_finding(R"(mesh ep=3
table routes
  send 0 2 0 1
program most on ep=0..1
  buffer x rows 1 row_bytes 8 f32
  exchange x to x by routes over ep
program odd on ep=2
  buffer x rows 1 row_bytes 8 f32
  compute other
)",
                 {.code = "D701", .rank = 2, .operation = -1});
}

}  // namespace
}  // namespace shiplap::check
