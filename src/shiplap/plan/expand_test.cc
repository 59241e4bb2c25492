#include "shiplap/plan/expand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "shiplap/plan/testing_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

using testing::ElementsAre;

Rank rank(int r) { return Rank(std::int32_t{r}); }

// A mesh of 2 x 3 with one program of these statements.
Plan plan_of(const std::string& body) {
  return parse_text(
      "shiplap-plan 1\nmesh dp=2 tp=3\nalias all_of = tp dp\nlist cuts = 0 2 2 7 9\n"
      "list far = 9223372036854775807 -9223372036854775808\nlist rows = 5 0 5 8\n"
      "tensor A[3] Activation tok 8 head 2\ntensor G WeightGrad shard 4 sum sample 8 use 2 scale "
      "1/8\n"
      "tensor W[2] Weight shard 4\ntable t\nmessage 0 1 0 1 0\n"
      "program p on all\nbuffer x rows 8 row_bytes 16 bf16\nbuffer y rows tp row_bytes 4 f32\n"
      "streams net\n" +
          body,
      "test.plan");
}

struct Expanded {
  Plan plan;
  RankProgram program;
};
// The plan must outlive the program, so they are kept together.
std::unique_ptr<Expanded> expanded(const std::string& body, int r = 0, ExpandLimits limits = {}) {
  auto result = std::make_unique<Expanded>();
  result->plan = plan_of(body);
  result->program = expand(result->plan, rank(r), limits);
  return result;
}

std::vector<std::string> listing(const std::string& body, int r = 0) {
  const auto e = expanded(body, r);
  std::vector<std::string> lines;
  for (const auto& operation : e->program.operations)
    lines.push_back(e->program.describe(operation));
  return lines;
}

Diagnostic error_of(const std::string& body, int r = 0, ExpandLimits limits = {}) {
  return diagnostic_of([&] { (void)expanded(body, r, limits); });
}

TEST(Expand, AnUnnamedOperationIsDescribedWithItsLoops) {
  EXPECT_THAT(listing("repeat i 2\nwhen i=1\nrepeat j 2\ncompute k\nend\nend\nend\ncompute k"),
              ElementsAre("compute k [i=1,j=0]", "compute k [i=1,j=1]", "compute k"));
}

TEST(Expand, WritesLoopsOut) {
  EXPECT_THAT(listing("repeat i 2\nrepeat j i+1\na[i,j]: compute k\nend\nend"),
              ElementsAre("a[0,0]: compute k", "a[1,0]: compute k", "a[1,1]: compute k"));
  EXPECT_THAT(listing("repeat i 0\ncompute k\nend"), ElementsAre());
}

TEST(Expand, KeepsWhatAConditionAdmits) {
  const std::string body = "when tp=1 and dp=0\ncompute k\nend\nwhen tp!=1\ncompute m\nend";
  EXPECT_THAT(listing(body, 1), ElementsAre("compute k"));
  EXPECT_THAT(listing(body, 2), ElementsAre("compute m"));
  EXPECT_THAT(listing(body, 4), ElementsAre());
}

TEST(Expand, ANameHoldsToTheEndOfItsBlock) {
  EXPECT_THAT(
      listing("let n = 5\nrepeat i 2\nlet m = n+i\na[m]: compute k\nend\nwhen 1=1\nlet m = 9\n"
              "b[m]: compute k\nend\nlet m = n*2\nc[m]: compute k"),
      ElementsAre("a[5]: compute k", "a[6]: compute k", "b[9]: compute k", "c[10]: compute k"));
}

TEST(Expand, PutsPositionsIntoExpressions) {
  const std::string body = "a[dp,tp,all_of,rank,cuts[tp]]: compute k";
  EXPECT_THAT(listing(body, 0), ElementsAre("a[0,0,0,0,0]: compute k"));
  EXPECT_THAT(listing(body, 5), ElementsAre("a[1,2,5,5,2]: compute k"));
  EXPECT_THAT(listing(body, 3), ElementsAre("a[1,0,1,3,0]: compute k"));
}

TEST(Expand, AfterBecomesTheIndexOfAnOperation) {
  const auto e = expanded("repeat i 3\na[i]: compute k\nend\ncompute m after a[2], a[0]\n");
  EXPECT_THAT(e->program.after(e->program.operations[3]), ElementsAre(2, 0));
  EXPECT_TRUE(e->program.absent.empty());
}

TEST(Expand, AnIndexThatDoesNotOccurIsNoDependencyAndIsNoted) {
  const auto e = expanded("repeat i 2\na[i]: compute k after a[i-1]\nend");
  EXPECT_THAT(e->program.after(e->program.operations[0]), ElementsAre());
  EXPECT_THAT(e->program.after(e->program.operations[1]), ElementsAre(0));
  ASSERT_EQ(e->program.absent.size(), 1U);
  EXPECT_EQ(e->program.absent[0].operation, 0);
  EXPECT_EQ(e->program.absent[0].reference->name, "a");
  EXPECT_EQ(e->program.numbers.at(e->program.absent[0].indices.first), -1);
}

TEST(Expand, AfterNamesNothingThatComesLater) {
  const Diagnostic d = error_of("repeat i 2\na[i]: compute k after a[i+1]\nend", 4);
  EXPECT_EQ(d.code, "D205");
  EXPECT_EQ(d.where.rank, 4);
  EXPECT_EQ(d.where.operation, "a[0]: compute k");
  EXPECT_EQ(error_of("a: compute k after a").code, "D205");
}

TEST(Expand, ANameIsGivenOnce) {
  const Diagnostic d = error_of("repeat i 2\na: compute k\nend");
  EXPECT_EQ(d.code, "D204");
  EXPECT_EQ(d.where.rank, 0);
  EXPECT_EQ(error_of("a[0]: compute k\na[tp]: compute k").code, "D204");
  EXPECT_EQ(listing("a[0]: compute k\na[tp]: compute k", 1).size(), 2U);
}

TEST(Expand, ThousandsOfNamesAreToldApart) {
  const auto e = expanded(
      "repeat i 100\nrepeat j 100\na[i,j-50]: compute k after a[i-1,j-50], b[j]\n"
      "end\nend\nb: compute k");
  for (int i = 1; i < 100; ++i) {
    for (int j = 0; j < 100; ++j) {
      const auto& operation = e->program.operations[100 * i + j];
      ASSERT_THAT(e->program.after(operation), ElementsAre(100 * (i - 1) + j));
    }
  }
}

TEST(Expand, MembersOfABatchKnowTheirBatch) {
  const auto e = expanded(
      "compute k\nb: @net batch async\nrepeat i 2\nsend x to tp+1 tag i\nend\n"
      "barrier over tp\nend\ncompute m after b");
  const auto& ops = e->program.operations;
  ASSERT_EQ(ops.size(), 6U);
  std::vector<std::int32_t> batches;
  std::vector<std::int32_t> streams;
  for (const auto& op : ops) {
    batches.push_back(op.batch);
    streams.push_back(op.stream.value);
  }
  EXPECT_THAT(batches, ElementsAre(-1, -1, 1, 1, 1, -1));
  EXPECT_THAT(streams, ElementsAre(0, 1, -1, -1, -1, 0));
  EXPECT_THAT(e->program.after(ops[5]), ElementsAre(1));
  EXPECT_EQ(ops[3].tag, 1);
}

TEST(Expand, AMemberOfABatchHasNoStreamEvenIfAPlannerGaveItOne) {
  Plan plan = plan_of("");
  plan.programs[0].body.push_back({Operation{
      .action = Batch{
          {{Operation{.action = Send{.from = {.buffer = BufferId(0)}, .peer = {.where = 1}}}}}}}});
  const RankProgram program = expand(plan, rank(0));
  ASSERT_EQ(program.operations.size(), 2U);
  EXPECT_EQ(program.operations[0].stream.value, 0);
  EXPECT_FALSE(program.operations[1].stream.exists());
}

// ---- regions

flat::Region region_of(const std::string& text, int r = 0) {
  return expanded("allocate " + text, r)->program.operations.at(0).from;
}

TEST(Expand, RegionsBecomeRows) {
  EXPECT_EQ(region_of("x").count, 8);
  EXPECT_EQ(region_of("x[2*tp +3]", 2).begin, 4);
  EXPECT_EQ(region_of("x[2*tp +3]", 2).count, 3);
  EXPECT_EQ(region_of("x[2 of cuts]").begin, 2);
  EXPECT_EQ(region_of("x[2 of cuts]").count, 5);
  EXPECT_EQ(region_of("x[1 of cuts]").count, 0);
  EXPECT_EQ(region_of("x[8 +0]").count, 0);
  EXPECT_EQ(region_of("x[0 +8]").count, 8);
  EXPECT_EQ(region_of("y", 0).count, 0);
  EXPECT_EQ(region_of("y", 2).count, 2);
}

TEST(Expand, RowsOutsideABufferAreRefused) {
  for (const char* text : {"x[0 +9]", "x[1 +8]", "x[9 +0]", "x[-1 +1]", "x[4 +-1]", "x[8 +1]",
                           "x[3 of cuts]", "x[9223372036854775807 +9223372036854775807]"}) {
    EXPECT_EQ(error_of(std::string("free ") + text).code, "D201") << text;
  }
  for (const char* text : {"x[4 of cuts]", "x[-1 of cuts]", "x[0 of far]"}) {
    EXPECT_EQ(error_of(std::string("free ") + text).code, "D203") << text;
  }
}

TEST(Expand, RowsFromAListKeepTheirOrder) {
  const auto e = expanded("copy x[from rows[0 +3]] to x[0 +3]");
  EXPECT_EQ(e->program.operations[0].from.count, 3);
  EXPECT_THAT(e->program.listed_rows, ElementsAre(5, 0, 5));
  EXPECT_EQ(error_of("copy x[from rows[1 +3]] to x[0 +3]").code, "D201");
  EXPECT_EQ(error_of("copy x[from rows[2 +3]] to x[0 +3]").code, "D203");
  EXPECT_EQ(error_of("copy x[from rows[0 +-1]] to x[0 +3]").code, "D203");
}

// ---- peers and groups

int peer_of(const std::string& text, int r) {
  return expanded("send x to " + text, r)->program.operations.at(0).peer.value;
}

TEST(Expand, APeerIsARank) {
  EXPECT_EQ(peer_of("tp+1", 0), 1);
  EXPECT_EQ(peer_of("tp-1", 5), 4);
  EXPECT_EQ(peer_of("dp+1", 2), 5);
  EXPECT_EQ(peer_of("tp+1 wrap", 5), 3);
  EXPECT_EQ(peer_of("tp-(1+tp) wrap", 4), 5);
  EXPECT_EQ(peer_of("tp-7 wrap", 3), 5);
  EXPECT_EQ(peer_of("rank 5-rank", 1), 4);
  // all_of counts tp before dp: its positions 0 1 2 .. are ranks 0 3 1 4 2 5.
  EXPECT_EQ(peer_of("all_of+1", 0), 3);
  EXPECT_EQ(peer_of("all_of+1", 3), 1);
  EXPECT_EQ(peer_of("all_of+1 wrap", 5), 0);
}

TEST(Expand, APeerThatIsNotThereIsRefused) {
  EXPECT_EQ(error_of("send x to tp+1", 2).code, "D202");
  EXPECT_EQ(error_of("send x to tp-1", 3).code, "D202");
  EXPECT_EQ(error_of("send x to rank 6").code, "D202");
  EXPECT_EQ(error_of("send x to rank -1").code, "D202");
  EXPECT_EQ(error_of("send x to all_of+1", 5).code, "D202");
  EXPECT_EQ(error_of("send x to tp+9223372036854775807 wrap", 1).code, "D203");
  const auto empty = plan_of("");
  EXPECT_EQ(diagnostic_of([&] { (void)expand(empty, rank(6)); }).code, "D202");
  EXPECT_EQ(diagnostic_of([&] { (void)expand(empty, rank(-1)); }).code, "D202");
}

std::vector<int> group_of(const std::string& text, int r) {
  const auto e = expanded("barrier over " + text, r);
  const auto& group = e->program.groups.at(e->program.operations.at(0).group.index());
  std::vector<int> ranks;
  for (std::int64_t k = 0; k < group.ranks.size(); ++k) ranks.push_back(group.ranks[k].value);
  return ranks;
}

TEST(Expand, AGroupIsARowOfRanks) {
  EXPECT_THAT(group_of("tp", 4), ElementsAre(3, 4, 5));
  EXPECT_THAT(group_of("dp", 4), ElementsAre(1, 4));
  EXPECT_THAT(group_of("(tp, dp)", 4), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(group_of("all_of", 4), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(group_of("tp{2, tp}", 4), ElementsAre(5, 4));
  EXPECT_THAT(group_of("ranks{5, 0, rank}", 3), ElementsAre(5, 0, 3));
}

TEST(Expand, AGroupThatCannotBeIsRefused) {
  EXPECT_EQ(error_of("barrier over tp{0, 1}", 2).code, "D206");
  EXPECT_EQ(error_of("barrier over tp{0, 3}").code, "D206");
  EXPECT_EQ(error_of("barrier over tp{-1, 0}").code, "D206");
  EXPECT_EQ(error_of("barrier over ranks{0, 1, 0}").code, "D206");
  EXPECT_EQ(error_of("barrier over ranks{0, 6}").code, "D206");
  EXPECT_EQ(error_of("broadcast x over tp root 3").code, "D206");
  EXPECT_EQ(error_of("broadcast x over tp root -1").code, "D206");
}

TEST(Expand, EqualGroupsAreOneAndChannelsTellThemApart) {
  const auto e = expanded(
      "barrier over (dp, tp)\nbarrier over all_of\nbarrier over ranks{0, 1, 2, 3, 4, 5}\n"
      "barrier over all_of/side\nbarrier over tp\nbarrier over ranks{1, 0}\nbarrier over ranks{0, "
      "1}");
  std::vector<int> groups;
  for (const auto& op : e->program.operations) groups.push_back(op.group.value);
  EXPECT_THAT(groups, ElementsAre(0, 0, 0, 1, 2, 3, 4));
}

// ---- values

std::vector<std::vector<std::int64_t>> runs_of(const std::string& text, int r = 0) {
  const auto e = expanded("given " + text, r);
  std::vector<std::vector<std::int64_t>> runs;
  for (const auto& run : e->program.runs_of(e->program.given.at(0).value)) {
    runs.push_back({run.dimension.value, run.begin, run.count, run.stride});
  }
  return runs;
}
using Run4 = std::vector<std::int64_t>;

TEST(Expand, EveryDimensionHasItsRuns) {
  EXPECT_THAT(runs_of("x = A[0]"), ElementsAre(Run4{0, 0, 8, 1}, Run4{1, 0, 2, 1}));
  EXPECT_THAT(runs_of("x = A[0] head 1 +1"), ElementsAre(Run4{1, 1, 1, 1}, Run4{0, 0, 8, 1}));
  EXPECT_THAT(runs_of("x[0 +4] = A[2] tok 4*dp +1 | 1 +3 by 2", 3),
              ElementsAre(Run4{0, 4, 1, 1}, Run4{0, 1, 3, 2}, Run4{1, 0, 2, 1}));
  EXPECT_THAT(runs_of("x[0 +4] = G sum use 1 +1"),
              ElementsAre(Run4{0, 0, 4, 1}, Run4{2, 1, 1, 1}, Run4{1, 0, 8, 1}));
  EXPECT_THAT(runs_of("x[0 +4] = G sum none"), ElementsAre(Run4{0, 0, 4, 1}));
  EXPECT_THAT(runs_of("x[0 +2] = A[0] tok from rows[0 +2] head 0 +1"),
              ElementsAre(Run4{0, 5, 1, 1}, Run4{0, 0, 1, 1}, Run4{1, 0, 1, 1}));
}

TEST(Expand, NeighboursInAListMakeOneRun) {
  const Plan plan = parse_text(
      "shiplap-plan 1\nmesh a=1\nlist l = 2 3 4 0 1\ntensor T X d 5\n"
      "program p on all\nbuffer x rows 5 row_bytes 2 bf16\n"
      "given x = T d from l[0 +5]\n",
      "");
  const RankProgram program = expand(plan, rank(0));
  ASSERT_EQ(program.runs.size(), 2U);
  EXPECT_EQ(program.runs[0].count, 3);
  EXPECT_EQ(program.runs[1].begin, 0);
}

TEST(Expand, CoordinatesOutsideADimensionAreRefused) {
  for (const char* text :
       {"A[0] tok 0 +9", "A[0] tok -1 +1", "A[0] tok 0 +-1", "A[0] tok 0 +3 by 4",
        "A[0] tok 0 +2 by 0", "A[0] tok 0 +-9223372036854775808",
        "A[0] tok 0 +9223372036854775807 by 9223372036854775807", "A[3]", "A[-1]",
        "A[0] tok from rows[0 +4]", "G sum sample 8 +1"}) {
    EXPECT_EQ(error_of(std::string("given x[0 +4] = ") + text).code, "D209") << text;
  }
}

TEST(Expand, CellsMustFitTheRows) {
  EXPECT_EQ(runs_of("x[0 +4] = A[0]").size(), 2U);               // 16 cells, 4 to a row
  EXPECT_EQ(runs_of("x = A[0] tok 0 +2 head 0 +1").size(), 2U);  // 2 cells of 4 rows each
  EXPECT_EQ(runs_of("x[0 +0] = A[0] tok 0 +0").size(), 2U);
  EXPECT_EQ(error_of("given x[0 +5] = A[0]").code, "D210");
  EXPECT_EQ(error_of("given x[0 +0] = A[0]").code, "D210");
  EXPECT_EQ(error_of("given x = A[0] tok 0 +0").code, "D210");
}

TEST(Expand, KeepIsGivenOldAndGoalNew) {
  const auto e = expanded("keep x[0 +4] = W[1]\ngoal x[4 +4] = W[0]\ngiven x[4 +4] = new W[0]");
  ASSERT_EQ(e->program.given.size(), 2U);
  ASSERT_EQ(e->program.goal.size(), 2U);
  EXPECT_FALSE(e->program.given[0].value.is_new);
  EXPECT_TRUE(e->program.goal[0].value.is_new);
  EXPECT_EQ(e->program.goal[0].value.instance, 1);
  EXPECT_FALSE(e->program.goal[1].value.is_new);
  EXPECT_TRUE(e->program.given[1].value.is_new);
}

TEST(Expand, AccessesAndWorkArePlainNumbers) {
  const auto e = expanded(
      "compute k work gemm 1e3*tp flop 7 bytes bf16\nreads x = A[tp]\n"
      "adds x[0 +4] = G sum sample tp +1 scale 1/8\ncompute m work 0.5 seconds times 3",
      2);
  const auto& ops = e->program.operations;
  EXPECT_EQ(ops[0].work.flop, 2000);
  EXPECT_EQ(ops[0].work.bytes, 7);
  EXPECT_EQ(ops[1].work.seconds, 1.5);
  const auto accesses = e->program.accesses_of(ops[0]);
  ASSERT_EQ(accesses.size(), 2U);
  EXPECT_EQ(accesses[0].value.instance, 2);
  EXPECT_EQ(accesses[1].kind, Access::Kind::adds);
  EXPECT_EQ(accesses[1].value.scale, Ratio(1, 8));
  EXPECT_EQ(e->program.bytes_of(accesses[1].region), 64);
  EXPECT_TRUE(e->program.accesses_of(ops[1]).empty());
}

TEST(Expand, ABufferMustHaveAPossibleShape) {
  const auto code = [](const std::string& shape) {
    const Plan plan =
        parse_text("shiplap-plan 1\nmesh a=1\nprogram p on all\nbuffer x " + shape, "");
    return diagnostic_of([&] { (void)expand(plan, rank(0)); }).code;
  };
  EXPECT_EQ(code("rows -1 row_bytes 2 bf16"), "D208");
  EXPECT_EQ(code("rows 1 row_bytes 0 bf16"), "D208");
  EXPECT_EQ(code("rows 1 row_bytes 3 bf16"), "D208");
  EXPECT_EQ(code("rows 9223372036854775807 row_bytes 2 bf16"), "D208");
  EXPECT_EQ(code("rows 1 div 0 row_bytes 2 bf16"), "D203");
  EXPECT_EQ(error_of("repeat i -1\nend").code, "D208");
}

TEST(Expand, StopsWhereAPlanWouldNotEnd) {
  const ExpandLimits limits{.operations = 100, .iterations = 1000};
  EXPECT_EQ(error_of("repeat i 101\ncompute k\nend", 0, limits).code, "D207");
  EXPECT_EQ(error_of("repeat i 9e18\nend", 0, limits).code, "D207");
  EXPECT_EQ(error_of("repeat i 100\nrepeat j 100\nend\nend", 0, limits).code, "D207");
  EXPECT_EQ(expanded("repeat i 100\ncompute k\nend", 0, limits)->program.operations.size(), 100U);
}

// Statements without operations take time, too.
TEST(Expand, CountsTheStatementsOfLoops) {
  const auto iterations = [](const std::string& body) {
    return expanded(body)->program.iterations;
  };
  EXPECT_EQ(iterations("compute k\nlet i = 1\nwhen i=1\nend"), 0);
  EXPECT_EQ(iterations("repeat i 5\nend"), 5);
  EXPECT_EQ(iterations("repeat i 5\ncompute k\nend"), 5);
  EXPECT_EQ(iterations("repeat i 5\nlet j = i\nwhen j=2\nlet k = 1\nend\nend"), 5 + 5 + 5 + 1);
  EXPECT_EQ(iterations("repeat i 5\nrepeat j i\nend\nend"), 5 + 5 + 0 + 1 + 2 + 3 + 4);
  const ExpandLimits limits{.iterations = 1000};
  EXPECT_EQ(error_of("repeat i 600\nlet j = i\nend", 0, limits).code, "D207");
  EXPECT_EQ(error_of("repeat i 600\nrepeat j 0\nend\nend", 0, limits).code, "D207");
}

TEST(Expand, StopsBeforeWhatOperationsHoldFillsTheMemory) {
  const ExpandLimits limits{.entries = 1000};
  for (const char* body :
       {"given x = A[0]", "copy x[from rows[0 +3]] to x[0 +3]", "a[i]: compute k",
        "compute k\nreads x = A[0]", "goal x[0 +2] = A[0] tok from rows[0 +2]"}) {
    const std::string text = std::string("repeat i 2000\n") + body + "\nend";
    EXPECT_EQ(error_of(text, 0, limits).code, "D207") << body;
    EXPECT_FALSE(expanded(text)->program.groups.size() > 0) << body;
  }
}

TEST(Expand, SaysWhichStatementOfWhichRankWentWrong) {
  const Diagnostic d = error_of(
      "repeat i 3\nb[i]: compute k\nend\nc: compute gemm\nreads x[tp*9 +1] = A[0] tok 0 +1 head 0 "
      "+1",
      2);
  EXPECT_EQ(d.code, "D201");
  EXPECT_EQ(d.where.rank, 2);
  EXPECT_GT(d.where.line, 15);
  EXPECT_EQ(d.where.operation, "c: compute gemm");
}

TEST(Expand, JoinedComputationsOfOneKernelContinueACall) {
  const auto e = expanded(
      "compute k joined\ncompute k joined\n@net compute k joined\ncompute k joined\n"
      "compute other joined\ncompute other\ncompute other joined\ncopy x[0 +1] to x[1 +1]\n"
      "compute other joined\n@net compute k joined");
  std::vector<bool> continues;
  for (const flat::Operation& op : e->program.operations) continues.push_back(op.continues_call);
  EXPECT_THAT(continues,
              ElementsAre(false, true, false, true, false, false, false, false, false, true));
}

// A plan that was built or changed may have them.
TEST(Expand, RefusesFlagsThatTheTextRefuses) {
  const Plan sound = plan_of("compute k\ncopy x[0 +1] to x[1 +1]");
  const auto code = [&](std::size_t statement, bool Operation::* flag) {
    Plan plan = sound;
    std::get<Operation>(plan.programs[0].body[statement].node).*flag = true;
    const Diagnostic d = diagnostic_of([&] { (void)expand(plan, rank(0)); });
    return d.code + " in " + d.where.operation;
  };
  EXPECT_EQ(code(0, &Operation::async), "D111 in compute k");
  EXPECT_EQ(code(1, &Operation::joined), "D111 in copy");
}

TEST(Expand, ASpareRankDoesNothing) {
  const Plan plan =
      parse_text("shiplap-plan 1\nmesh a=2\nprogram p on a=0\ncompute k\nspare on a=1\n", "");
  EXPECT_EQ(expand(plan, rank(0)).operations.size(), 1U);
  const RankProgram spare = expand(plan, rank(1));
  EXPECT_TRUE(spare.operations.empty());
  EXPECT_FALSE(spare.program.exists());
  EXPECT_EQ(spare.rank, rank(1));
}

}  // namespace
}  // namespace shiplap::plan
