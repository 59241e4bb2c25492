#include "shiplap/check/fix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "shiplap/check/data_flow_internal.h"
#include "shiplap/check/rewrite_internal.h"
#include "shiplap/check/testing_internal.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::check {
namespace {

using testing::HasSubstr;
using testing::Not;

plan::Plan museum(const std::string& name) {
  const std::string path = "museum/" + name + ".plan";
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return plan::parse_text(text, path);
}

plan::Plan parsed(const std::string& text) {
  return plan::parse_text("shiplap-plan 1\n" + text, "test.plan");
}

std::optional<Fix> fixed(const plan::Plan& plan, const Options& options = {}) {
  return fix(plan, check(plan, options), options);
}

// What is written is what was proved.
void expect_fixed(const plan::Plan& plan, const plan::Plan& expected, const std::string& what,
                  const Options& options = {}) {
  const Report before = check(plan, options);
  EXPECT_FALSE(before.sound());
  const std::optional<Fix> result = fix(plan, before, options);
  ASSERT_TRUE(result) << listing(before);
  EXPECT_EQ(plan::to_text(result->plan), plan::to_text(expected));
  EXPECT_EQ(result->what, what);
  const plan::Plan again = plan::parse_text(plan::to_text(result->plan), "again.plan");
  EXPECT_EQ(again, result->plan);
  EXPECT_TRUE(check(again, options).sound());
}

// Both send x and receive into x: receiving first would send back what just came.
constexpr const char* kSwap = R"(mesh pp=2
program zero on pp=0
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  a: send x to pp+1
  b: receive IN from pp+1
  copy IN to y
program one on pp=1
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  c: send x to pp-1
  d: receive IN from pp-1
  copy IN to y
)";

plan::Plan swap_into(const std::string& buffer) {
  std::string text = kSwap;
  for (auto at = text.find("IN"); at != std::string::npos; at = text.find("IN")) {
    text.replace(at, 2, buffer);
  }
  return parsed(text);
}

TEST(Fix, DoesNotChangeWhatIsComputed) {
  EXPECT_FALSE(fixed(swap_into("x")));
  plan::Plan apart = parsed(R"(mesh pp=2
program zero on pp=0
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  a: send x to pp+1
  b: receive y from pp+1
program one on pp=1
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  c: send x to pp-1
  d: receive y from pp-1
)");
  const std::optional<Fix> fix = fixed(apart);
  ASSERT_TRUE(fix);
  EXPECT_TRUE(same_data_flow(apart, fix->plan));
  EXPECT_FALSE(same_data_flow(apart, swap_into("x")));
}

TEST(DataFlow, KnowsOrdersThatMatterFromThoseThatDoNot) {
  const auto plan = [](const std::string& lines) {
    return parsed(
        "mesh dp=1\nlist l = 1 0\nprogram all on all\n"
        "  buffer x rows 2 row_bytes 8 f32\n  buffer y rows 2 row_bytes 8 f32\n" +
        lines);
  };
  const std::string a = "  copy x[0 +1] to y[0 +1]\n";
  const std::string b = "  copy x[1 +1] to y[1 +1]\n";
  const std::string back = "  copy y[from l[0 +2]] to x\n";
  EXPECT_TRUE(same_data_flow(plan(a + b), plan(b + a)));
  EXPECT_TRUE(same_data_flow(plan(a + b + back), plan(b + a + back)));
  EXPECT_FALSE(same_data_flow(plan(a + b + back), plan(a + back + b)));
  EXPECT_FALSE(same_data_flow(plan(a), plan(b)));
  const std::string added = "  copy x[0 +1] to y[1 +1] add\n";
  EXPECT_FALSE(same_data_flow(plan(b + added), plan(added + b)));
}

TEST(Fix, OneOfTwoThatSendFirstReceivesFirst) {
  expect_fixed(museum("pytorch-172668"), museum("pytorch-172668.fixed"),
               "`receive_f0: receive` (line 18) before `send_f1: send` (line 17), on rank 0");
}

TEST(Fix, ASendThatWasKeptBackLeavesFirst) {
  expect_fixed(museum("torchtitan-775"), museum("torchtitan-775.fixed"),
               "`fs: send` (line 32) before `br: receive` (line 31)");
}

TEST(Fix, MessagesThatCrossAreSentInTheOtherOrder) {
  expect_fixed(museum("megatron-1450"), museum("megatron-1450.fixed"),
               "`send` (line 27) and `send` (line 29) swapped");
}

// The three cycles have one cause: a line that all ranks share.
TEST(Fix, OneExchangeCanOpenSeveralCycles) {
  const std::string before = plan::to_text(museum("megatron-5100"));
  const std::string first = "    send_next: send y to pp+1\n";
  const std::string second = "    recv_next: receive dy from pp+1\n";
  expect_fixed(museum("megatron-5100"),
               plan::parse_text(changed(before, first + second, second + first), "expected.plan"),
               "`recv_next: receive` (line 30) before `send_next: send` (line 29)");
}

std::string two_ranks(int first, const std::string& names) {
  std::string text;
  for (int k = 0; k < 2; ++k) {
    const std::string peer = k == 0 ? "pp+1" : "pp-1";
    text += "program " + std::string(1, names[k]) + " on pp=" + std::to_string(first + k) +
            "\n  buffer x rows 1 row_bytes 8 f32\n  buffer y rows 1 row_bytes 8 f32\n"
            "  given x = A[0]\n  goal y = A[0]\n  s: send x to " +
            peer + "\n  r: receive y from " + peer + "\n";
  }
  return text;
}

TEST(Fix, EveryCycleIsOpenedInTurn) {
  const std::string text =
      "mesh pp=4\ntensor A[1] Activation\n" + two_ranks(0, "ab") + two_ranks(2, "cd");
  const std::optional<Fix> result = fixed(parsed(text));
  ASSERT_TRUE(result);
  EXPECT_THAT(result->what, HasSubstr("; "));
  EXPECT_THAT(result->what, Not(HasSubstr("unrolled")));
  EXPECT_TRUE(check(result->plan, {}).sound());
  int changed_programs = 0;
  const plan::Plan before = parsed(text);
  for (std::size_t k = 0; k < before.programs.size(); ++k) {
    changed_programs += before.programs[k] == result->plan.programs[k] ? 0 : 1;
  }
  EXPECT_EQ(changed_programs, 2);
}

constexpr std::string_view kRing = R"(mesh cp=3
tensor A[3] Activation
program ring on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = A[cp]
  goal y = A[(cp-1) mod 3]
  send x to cp+1 wrap
  receive y from cp-1 wrap
)";

// If all ranks receive first, they wait as well.
TEST(Fix, ARingSendsAndReceivesAtOnce) {
  const std::string expected = changed(kRing, "  send x to cp+1 wrap\n  receive y from cp-1 wrap\n",
                                       "  batch\n    send x to cp+1 wrap\n"
                                       "    receive y from cp-1 wrap\n  end\n");
  expect_fixed(parsed(std::string(kRing)), parsed(expected),
               "`send` (line 9) and `receive` (line 10) in one batch");
}

TEST(Fix, OperationsWithAfterStayAfter) {
  std::string text = changed(kRing, "  send x", "  s: @net send x");
  text = changed(text, "  receive y from cp-1 wrap", "  receive y from cp-1 wrap after s");
  text = changed(text, "  given x", "  streams net\n  given x");
  const std::optional<Fix> result = fixed(parsed(text));
  EXPECT_FALSE(result) << (result ? result->what : "");
}

// A member of a batch has no label, and none is thrown away.
constexpr std::string_view kLabelled = R"(mesh cp=2
tensor A[2] Activation
program ring on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = A[cp]
  goal x = A[1-cp]
  goal y = A[1-cp]
  send x to cp+1 wrap
  receive y from cp-1 wrap label into y
  copy y to x
)";

TEST(Fix, OneRankOfAProgramReceivesFirst) {
  const std::optional<Fix> result = fixed(parsed(std::string(kLabelled)));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->what, "`receive` (line 11) before `send` (line 10) where cp=0");
  const std::string text = plan::to_text(result->plan);
  EXPECT_THAT(text, HasSubstr("  when cp=0\n    receive y from cp-1 wrap label into y\n  end\n"
                              "  send x to cp+1 wrap\n"
                              "  when cp!=0\n    receive y from cp-1 wrap label into y\n  end\n"));
  EXPECT_EQ(plan::parse_text(text, "again.plan"), result->plan);
}

// Until the computation is done the receive cannot be posted, in a batch or before the send; and
// after it, all would receive first.
constexpr std::string_view kBusy = R"(mesh cp=3
tensor A[3] Activation
tensor B[2] Activation
program ring on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  buffer z rows 1 row_bytes 8 f32
  given x = A[cp]
  given y = B[0]
  goal x = B[1]
  goal y = A[(cp-1) mod 3]
  send x to cp+1 wrap
  compute other
    reads  y = B[0]
    writes z = B[1]
  receive y from cp-1 wrap
  copy z to x
)";

TEST(Fix, ASendIsAsyncUntilItsRowsAreNeeded) {
  std::string expected =
      changed(kBusy, "  send x to cp+1 wrap", "  sent: send x to cp+1 wrap async");
  expected = changed(expected, "copy z to x", "copy z to x after sent");
  expect_fixed(parsed(std::string(kBusy)), parsed(expected),
               "`send` (line 13) async, `copy` (line 18) after it", {.rules = Rules::mpi});
}

constexpr std::string_view kSteadyState = R"(mesh pp=2
program all on all
  buffer y rows 12 row_bytes 8 f32
  buffer d rows 12 row_bytes 8 f32
  when pp=0
    send y[0 +1] to pp+1
  end
  repeat i 11
    when pp=0
      send y[i+1 +1] to pp+1
    end
    when pp=1
      receive y[i +1] from pp-1
    end
    when pp=1
      send d[i +1] to pp-1
    end
    when pp=0
      receive d[i +1] from pp+1
    end
  end
  when pp=1
    receive y[11 +1] from pp-1
  end
)";

// No two operations are in one block, and there are more iterations than rounds of the search.
TEST(Fix, ASendInALoopIsAsyncIfItsRowsAreNotWrittenAgain) {
  const std::string expected =
      changed(kSteadyState, "send y[i+1 +1] to pp+1", "send y[i+1 +1] to pp+1 async");
  expect_fixed(parsed(std::string(kSteadyState)), parsed(expected), "`send` (line 11) async",
               {.rules = Rules::mpi});
}

// There `async` would hang.
TEST(Fix, OnNcclMessagesThatCrossAreOneBatch) {
  std::string expected = changed(kBusy, "  send x to cp+1 wrap\n", "");
  expected = changed(expected, "  receive y from cp-1 wrap\n",
                     "  batch\n    receive y from cp-1 wrap\n    send x to cp+1 wrap\n  end\n");
  for (const Rules rules : {Rules::any, Rules::nccl}) {
    expect_fixed(parsed(std::string(kBusy)), parsed(expected),
                 "`send` (line 13) after `receive` (line 17); `receive` (line 17) and `send` (line "
                 "13) in one batch",
                 {.rules = rules});
  }
}

constexpr std::string_view kCalls = R"(mesh dp=3
tensor G[2] WeightGrad sum sample 3
program most on dp=0..1
  buffer g rows 2 row_bytes 8 f32
  buffer h rows 4 row_bytes 8 f32
  given g = G[0] sum sample dp +1
  given h = G[1] sum sample dp +1
  goal g = G[0]
  goal h = G[1]
  a: all_reduce g over dp
  b: all_reduce h over dp
program odd on dp=2
  buffer g rows 2 row_bytes 8 f32
  buffer h rows 4 row_bytes 8 f32
  given g = G[0] sum sample dp +1
  given h = G[1] sum sample dp +1
  goal g = G[0]
  goal h = G[1]
  a: all_reduce g over dp
  b: all_reduce h over dp
)";

TEST(Fix, CallsInAnotherOrderAreExchanged) {
  expect_sound(kCalls);
  const std::string wrong =
      changed(kCalls, "  a: all_reduce g over dp\n  b: all_reduce h over dp\n",
              "  b: all_reduce h over dp\n  a: all_reduce g over dp\n");
  ASSERT_EQ(checked(wrong).findings.front().diagnostic.code, "D708");
  expect_fixed(parsed(wrong), parsed(std::string(kCalls)),
               "`b: all_reduce` (line 20) and `a: all_reduce` (line 21) swapped, on rank 2");
}

// In the text both are one line, in a loop.
TEST(Fix, WhatIsOneLineIsUnrolled) {
  const std::string text = R"(mesh dp=3
tensor G[2] WeightGrad sum sample 3
program all on all
  buffer g rows 6 row_bytes 8 f32
  given g[0 +2] = G[0] sum sample dp +1
  given g[2 +4] = G[1] sum sample dp +1
  goal g[0 +2] = G[0]
  goal g[2 +4] = G[1]
  repeat k 2
    let first = (k+dp div 2) mod 2
    all_reduce g[2*first +2+2*first] over dp
  end
)";
  const plan::Plan plan = parsed(text);
  ASSERT_EQ(check(plan, {}).findings.front().diagnostic.code, "D708");
  const std::optional<Fix> result = fixed(plan);
  ASSERT_TRUE(result);
  EXPECT_THAT(result->what, HasSubstr("swapped, on rank 2; the plan is unrolled"));
  const plan::Plan before = plan::unrolled(plan);
  EXPECT_EQ(result->plan.programs[0], before.programs[0]);
  EXPECT_EQ(result->plan.programs[1], before.programs[1]);
  EXPECT_NE(result->plan.programs[2], before.programs[2]);
}

TEST(Fix, ASoundPlanHasNone) { EXPECT_FALSE(fixed(parsed(std::string(kCalls)))); }

TEST(Fix, WhatIsNoMatterOfOrderHasNone) {
  EXPECT_FALSE(fixed(museum("verl-6176")));
  EXPECT_FALSE(fixed(museum("transformerengine-732")));
}

// Each needs what the other has not yet received.
TEST(Fix, ACycleOfValuesHasNone) {
  const plan::Plan plan = parsed(R"(mesh pp=2
tensor A[2] Activation
program both on all
  buffer x rows 1 row_bytes 8 f32
  goal x = A[0]
  receive x from rank 1-pp
  send x to rank 1-pp
)");
  ASSERT_EQ(check(plan, {}).findings.front().diagnostic.code, "D720");
  EXPECT_FALSE(fixed(plan));
}

TEST(Rewrite, AsyncSendsGetANameForWhoeverWritesTheirRows) {
  const plan::Plan plan = parsed(R"(mesh pp=2
program one on all
  buffer x rows 1 row_bytes 8 f32
  sent: barrier over pp
  send x to rank 1-pp
  receive x from rank 1-pp
)");
  const StatementPath send{.program = 0, .indices = {1}};
  const std::string text = plan::to_text(with_async(plan, send, {{.program = 0, .indices = {2}}}));
  EXPECT_THAT(text, HasSubstr("  sent2: send x to rank 1-pp async\n"
                              "  receive x from rank 1-pp after sent2\n"));
}

TEST(Rewrite, NothingMovesAcrossALet) {
  const plan::Plan plan = parsed(R"(mesh pp=2
program one on all
  buffer x rows 2 row_bytes 8 f32
  send x[0 +1] to rank 1-pp
  let k = 1
  receive x[k +1] from rank 1-pp
)");
  const OperationPair two{.first = {.program = 0, .indices = {0}},
                          .second = {.program = 0, .indices = {2}}};
  EXPECT_FALSE(second_before_first(plan, two));
  EXPECT_FALSE(first_after_second(plan, two));
  EXPECT_FALSE(batched(plan, two));
}

// An operation that waited for one of the two waits for both.
TEST(Rewrite, ABatchHasOneNameForBoth) {
  const plan::Plan plan = parsed(R"(mesh pp=2
program one on all
  buffer x rows 2 row_bytes 8 f32
  s: send x[0 +1] to rank 1-pp
  r: receive x[1 +1] from rank 1-pp
  barrier over pp after r
)");
  const OperationPair two{.first = {.program = 0, .indices = {0}},
                          .second = {.program = 0, .indices = {1}}};
  const auto result = batched(plan, two);
  ASSERT_TRUE(result);
  EXPECT_THAT(plan::to_text(*result),
              HasSubstr("  s: batch\n    send x[0 +1] to rank 1-pp\n    receive x[1 +1] from "
                        "rank 1-pp\n  end\n  barrier over pp after s\n"));
}

}  // namespace
}  // namespace shiplap::check
