#include "shiplap/strategy/import_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "shiplap/schedule/schedule.h"

namespace shiplap::strategy {
namespace {

using testing::HasSubstr;

constexpr const char* k1f1b =
    "0F0,0F1,,0B0,0F2,0B1,,0B2\r\n"
    ",1F0,1B0,1F1,1B1,1F2,1B2\r\n";

// A row for each stage of the pipeline; chunk c of stage s is stage c * stages + s.
std::string csv_of(const schedule::Pipeline& pipeline) {
  std::string csv;
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    for (const schedule::PipelineAction& action : schedule::interleaved(pipeline, stage)) {
      const bool forward = action.pass == schedule::Pass::forward;
      csv += std::to_string(action.chunk * pipeline.stages + stage) + (forward ? "F" : "B") +
             std::to_string(action.microbatch) + ",";
    }
    csv += "\n";
  }
  return csv;
}

// The operations of a rank, as they are described.
std::vector<std::string> operations(const plan::Plan& plan, int rank) {
  const plan::RankProgram program = plan::expand(plan, Rank(rank));
  std::vector<std::string> result;
  for (const plan::flat::Operation& op : program.operations) {
    result.push_back(program.describe(op));
  }
  return result;
}

Diagnostic thrown_diagnostic(const std::string& csv) {
  try {
    static_cast<void>(plan_of_schedule(csv, "s.csv"));
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

// The names of a rank's operations, in order: "F[0,0] SEND_F[0,0] ..".
std::string names(const plan::Plan& plan, int rank) {
  const plan::RankProgram program = plan::expand(plan, Rank(rank));
  std::string result;
  for (const plan::flat::Operation& op : program.operations) {
    const std::string text = program.describe(op);
    const std::size_t colon = text.find(": ");
    if (colon == text.npos) continue;
    result += (result.empty() ? "" : " ") + text.substr(0, colon);
  }
  return result;
}

// The line of the plan with the operation of this name.
std::string line_of(const plan::Plan& plan, const std::string& name) {
  const std::string text = plan::to_text(plan);
  const std::size_t at = text.find("\n  " + name + ": ");
  return at == text.npos ? "" : text.substr(at + 3, text.find('\n', at + 1) - at - 3);
}

constexpr std::string_view kShardedStage = R"(shiplap-plan 1
mesh pp=2
tensor W[2] Weight shard 1
tensor G[2] WeightGrad shard 1 sum sample 1
tensor A[3] Activation sample 1
tensor D[3] ActivationGrad sample 1
program rank_0 on pp=0
  buffer w rows 1 row_bytes 4194304 bf16
  buffer g rows 1 row_bytes 8388608 f32
  buffer x rows 1 row_bytes 1048576 bf16
  buffer y rows 1 row_bytes 1048576 bf16
  buffer dy rows 1 row_bytes 1048576 bf16
  buffer dx rows 1 row_bytes 1048576 bf16
  buffer u rows 1 row_bytes 4194304 bf16
  streams net
  keep w[0 +1] = W[0]
  given x[0 +1] = A[0]
  compute zero
    writes g[0 +1] = G[0] sum none
  allocate u[0 +1]
  copy w[0 +1] to u[0 +1]
  F[0, 0]: compute forward work 0.01 seconds
    reads  x[0 +1] = A[0] sample 0 +1
    reads  u[0 +1] = W[0]
    writes y[0 +1] = A[1] sample 0 +1
  SEND_F[0, 0]: @net send y[0 +1] to rank 1 after F[0, 0]
  RECV_B[0, 0]: @net receive dy[0 +1] from rank 1
  I[0, 0]: compute backward_input after RECV_B[0, 0] work 0.01 seconds
    reads  dy[0 +1] = D[1] sample 0 +1
    reads  u[0 +1] = W[0]
    writes dx[0 +1] = D[0] sample 0 +1
  W[0, 0]: compute backward_weight work 0.01 seconds
    reads  x[0 +1] = A[0] sample 0 +1
    reads  dy[0 +1] = D[1] sample 0 +1
    reads  u[0 +1] = W[0]
    adds   g[0 +1] = G[0] sum sample 0 +1
  compute reduce_gradient
    reads  g[0 +1] = G[0]
  free u[0 +1]
  compute update after RECV_B[0, 0]
    reads  g[0 +1] = G[0]
    reads  w[0 +1] = W[0]
    writes w[0 +1] = new W[0]
program rank_1 on pp=1
  buffer w rows 1 row_bytes 4194304 bf16
  buffer g rows 1 row_bytes 8388608 f32
  buffer x rows 1 row_bytes 1048576 bf16
  buffer y rows 1 row_bytes 1048576 bf16
  buffer dy rows 1 row_bytes 1048576 bf16
  buffer dx rows 1 row_bytes 1048576 bf16
  streams net
  keep w[0 +1] = W[1]
  compute zero
    writes g[0 +1] = G[1] sum none
  RECV_F[1, 0]: @net receive x[0 +1] from rank 0
  F[1, 0]: compute forward after RECV_F[1, 0] work 0.01 seconds
    reads  x[0 +1] = A[1] sample 0 +1
    reads  w[0 +1] = W[1]
    writes y[0 +1] = A[2] sample 0 +1
  compute loss
    reads  y[0 +1] = A[2] sample 0 +1
    writes dy[0 +1] = D[2] sample 0 +1
  B[1, 0]: compute backward work 0.02 seconds
    reads  x[0 +1] = A[1] sample 0 +1
    reads  dy[0 +1] = D[2] sample 0 +1
    reads  w[0 +1] = W[1]
    writes dx[0 +1] = D[1] sample 0 +1
    adds   g[0 +1] = G[1] sum sample 0 +1
  SEND_B[1, 0]: @net send dx[0 +1] to rank 0 after B[1, 0]
  compute update after SEND_B[1, 0]
    reads  g[0 +1] = G[1]
    reads  w[0 +1] = W[1]
    writes w[0 +1] = new W[1]
)";

TEST(PlanOfSchedule, IsAPlanOfTheseLines) {
  const plan::Plan plan =
      plan_of_schedule("0UNSHARD,0F0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n1F0,1B0\n", "t.csv");
  EXPECT_EQ(plan::to_text(plan), kShardedStage);
  EXPECT_EQ(plan::parse_text(kShardedStage, "again"), plan);
}

TEST(PlanOfSchedule, MessagesArePlacedWhereTorchPlacesThem) {
  const plan::Plan plan = plan_of_schedule(k1f1b, "s.csv");
  EXPECT_EQ(plan.mesh.ranks(), 2);
  // A receive is inserted when the sender has computed, not just before it is needed:
  // RECV_F[1,2].
  EXPECT_EQ(names(plan, 0),
            "F[0,0] SEND_F[0,0] F[0,1] SEND_F[0,1] RECV_B[0,0] B[0,0] F[0,2] SEND_F[0,2] "
            "RECV_B[0,1] B[0,1] RECV_B[0,2] B[0,2]");
  EXPECT_EQ(names(plan, 1),
            "RECV_F[1,0] F[1,0] RECV_F[1,1] B[1,0] SEND_B[1,0] F[1,1] RECV_F[1,2] B[1,1] "
            "SEND_B[1,1] F[1,2] B[1,2] SEND_B[1,2]");
  EXPECT_THAT(operations(plan, 1)[3], "compute loss");
}

TEST(PlanOfSchedule, ActionsOfStagesTakeTurns) {
  // They delay rank 1, so that the second activation is sent before it has computed the first.
  const auto csv = [](const std::string& first) {
    return "0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD\n" + first + "1F0,1B0,1F1,1B1,1RESHARD\n";
  };
  EXPECT_THAT(names(plan_of_schedule(csv("1UNSHARD,"), "s.csv"), 1),
              testing::StartsWith("RECV_F[1,0] F[1,0] RECV_F[1,1] B[1,0]"));
  const std::string more = "1UNSHARD,1RESHARD,1UNSHARD,1RESHARD,1UNSHARD,";
  EXPECT_THAT(names(plan_of_schedule(csv(more), "s.csv"), 1),
              testing::StartsWith("RECV_F[1,0] RECV_F[1,1] F[1,0] B[1,0]"));
}

TEST(PlanOfSchedule, OverlappedActionsSendTogether) {
  const plan::Plan plan =
      plan_of_schedule("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1,\n", "s.csv");
  EXPECT_EQ(names(plan, 1),
            "RECV_F[1,0] F[1,0] RECV_F[1,1] F[1,1] B[1,0] SEND_B[1,0] B[1,1] SEND_B[1,1]");
}

TEST(PlanOfSchedule, MessagesArePostedAndWaitedForWhereTheyAreNeeded) {
  const plan::Plan plan = plan_of_schedule("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "s.csv");
  EXPECT_EQ(line_of(plan, "SEND_F[0, 1]"),
            "SEND_F[0, 1]: @net send y[1 +1] to rank 1 after F[0, 1]");
  EXPECT_EQ(line_of(plan, "RECV_B[0, 0]"), "RECV_B[0, 0]: @net receive dy[0 +1] from rank 1");
  EXPECT_EQ(line_of(plan, "B[0, 0]"),
            "B[0, 0]: compute backward after RECV_B[0, 0] work 0.02 seconds");
  EXPECT_EQ(line_of(plan, "F[0, 0]"), "F[0, 0]: compute forward work 0.01 seconds");
  EXPECT_THAT(plan::to_text(plan), HasSubstr("compute update after RECV_B[0, 1]\n"));
}

TEST(PlanOfSchedule, ADeadlockGetsItsMessagesToo) {
  // 0B0 before 2B0: torch finds no order.
  const plan::Plan plan = plan_of_schedule("0F0,2F0,0B0,2B0\n1F0,3F0,3B0,1B0\n", "s.csv");
  EXPECT_EQ(names(plan, 0),
            "F[0,0] SEND_F[0,0] RECV_F[2,0] F[2,0] SEND_F[2,0] RECV_B[2,0] RECV_B[0,0] B[0,0] "
            "B[2,0] SEND_B[2,0]");
  EXPECT_THAT(names(plan, 1),
              testing::EndsWith("B[3,0] SEND_B[3,0] RECV_B[1,0] B[1,0] SEND_B[1,0]"));
  // They match by tag, because their order is wrong.
  EXPECT_EQ(line_of(plan, "RECV_B[0, 0]"), "RECV_B[0, 0]: @net receive dy[0 +1] from rank 1 tag 2");
  EXPECT_THAT(line_of(plan, "SEND_B[1, 0]"), HasSubstr(" to rank 0 tag 2 "));
}

TEST(PlanOfSchedule, AnInterleavedOneIsWhole) {
  const schedule::Pipeline pipeline{.stages = 4, .microbatches = 8, .chunks = 2};
  const plan::Plan plan = plan_of_schedule(csv_of(pipeline), "s.csv");
  EXPECT_EQ(plan.mesh.ranks(), 4);
  std::int64_t sends = 0;
  std::int64_t receives = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const std::string& operation : operations(plan, rank)) {
      sends += operation.ends_with(": send") ? 1 : 0;
      receives += operation.ends_with(": receive") ? 1 : 0;
    }
  }
  EXPECT_EQ(sends, 2 * 7 * 8);  // over 7 boundaries of 8 stages, to and fro
  EXPECT_EQ(receives, sends);
  EXPECT_EQ(plan::parse_text(plan::to_text(plan), "again"), plan);
}

TEST(PlanOfSchedule, StagesOfOneRankNeedNoMessage) {
  // A V: rank 0 has stages 0 and 3, rank 1 has 1 and 2.
  const plan::Plan plan = plan_of_schedule("0F0,,,3F0,3B0,,,0B0\n,1F0,2F0,,,2B0,1B0\n", "s.csv");
  const std::vector<std::string> rank = operations(plan, 1);
  EXPECT_EQ(std::ranges::count_if(rank, [](const auto& o) { return o.ends_with(": send"); }), 2);
  EXPECT_THAT(plan::to_text(plan), HasSubstr("reads  y[0 +1] = A[2] sample 0 +1"));
}

TEST(PlanOfSchedule, MessagesOfTheFileKeepTheirOrder) {
  const plan::Plan plan =
      plan_of_schedule("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n", "s.csv");
  EXPECT_THAT(
      operations(plan, 1),
      testing::ElementsAre("compute zero", "RECV_F[1,0]: receive", "F[1,0]: compute forward",
                           "compute loss", "I[1,0]: compute backward_input", "SEND_B[1,0]: send",
                           "W[1,0]: compute backward_weight", "compute update"));
  // The runtime does not distinguish them from inserted ones.
  EXPECT_EQ(line_of(plan, "RECV_B[0, 0]"), "RECV_B[0, 0]: @net receive dy[0 +1] from rank 1");
  EXPECT_EQ(line_of(plan, "B[0, 0]"),
            "B[0, 0]: compute backward after RECV_B[0, 0] work 0.02 seconds");
}

TEST(PlanOfSchedule, TheNextComputationWaitsForASend) {
  const plan::Plan plan = plan_of_schedule(
      "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n",
      "s.csv");
  EXPECT_EQ(line_of(plan, "B[0, 0]"),
            "B[0, 0]: compute backward after RECV_B[0, 0], SEND_F[0, 0] work 0.02 seconds");
  const Diagnostic early = thrown_diagnostic("0F0,0WAIT_SEND_F0,0SEND_F0\n1RECV_F0,1F0\n");
  EXPECT_EQ(early.code, "D626");
  EXPECT_EQ(early.what, "`0WAIT_SEND_F0` has no SEND_F before it");
  EXPECT_EQ(early.help, "put it after the SEND_F of the same stage and microbatch");
  EXPECT_EQ(thrown_diagnostic("0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_F0\n1RECV_F0,1F0\n").code,
            "D626");
  EXPECT_EQ(thrown_diagnostic("0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n").code, "D626");
}

TEST(PlanOfSchedule, TheHalvesOfABackwardComeInOrder) {
  EXPECT_EQ(thrown_diagnostic("0F0,0W0,0I0\n").what, "`0W0` has no I before it");
  EXPECT_EQ(thrown_diagnostic("0F0,0I0,0W0\n").code, "");
}

TEST(PlanOfSchedule, GatheredWeightsLiveFromUnshardToReshard) {
  const auto plan =
      plan_of_schedule("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n", "s.csv");
  EXPECT_THAT(operations(plan, 0),
              testing::ElementsAre("compute zero", "allocate", "copy", "F[0,0]: compute forward",
                                   "compute loss", "B[0,0]: compute backward", "free",
                                   "compute reduce_gradient", "compute update"));
  // Weights that are never resharded are freed at the end.
  EXPECT_THAT(operations(plan_of_schedule("0UNSHARD,0F0\n", "s.csv"), 0),
              testing::ElementsAre("allocate", "copy", "F[0,0]: compute forward", "free"));
}

TEST(PlanOfSchedule, StagesAreOnTheRanksWhereTorchHasThem) {
  EXPECT_NO_THROW((void)plan_of_schedule("0F0,2F0\n1F0,3F0\n", "s.csv"));
  EXPECT_NO_THROW((void)plan_of_schedule("0F0,3F0\n1F0,2F0\n", "s.csv"));
  const Diagnostic swapped = thrown_diagnostic("1F0\n0F0\n");
  EXPECT_EQ(swapped.code, "D626");
  EXPECT_EQ(swapped.what, "stage 1 is on rank 0, where torch has it on rank 1");
  EXPECT_EQ(thrown_diagnostic("0UNSHARD0\n").code, "D626");
  EXPECT_EQ(thrown_diagnostic("0F0,1UNSHARD\n1F0\n").code, "D626");
}

TEST(PlanOfSchedule, OverlappedActionsComeInOrder) {
  EXPECT_EQ(plan_of_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1", "s.csv"),
            plan_of_schedule("0F0,0F1,0B0,0B1", "s.csv"));
}

// An interleaved schedule of four ranks with two stages each and eight microbatches, in which
// `find` is replaced once.
std::string edited(const std::string& find, const std::string& replacement) {
  std::string csv = csv_of({.stages = 4, .microbatches = 8, .chunks = 2});
  csv.replace(csv.find(find), find.size(), replacement);
  return csv;
}

std::vector<std::string> thrown(const std::string& csv) {
  std::vector<std::string> result;
  try {
    static_cast<void>(plan_of_schedule(csv, "s.csv"));
  } catch (const InputError& error) {
    for (const Diagnostic& d : error.diagnostics()) result.push_back(d.code + " " + d.what);
  }
  return result;
}

TEST(PlanOfSchedule, AMissingActionIsNamedWithTheActionThatNeedsIt) {
  using testing::ElementsAre;
  const std::string csv = edited("6F1,", "");
  EXPECT_THAT(thrown(csv),
              ElementsAre("D628 rank 2 never computes `6F1`, which rank 3 needs for `7F1`"));
  const Diagnostic d = thrown_diagnostic(csv);
  EXPECT_EQ(d.where.line, 3);
  EXPECT_EQ(d.where.excerpt.substr(d.where.column - 1, d.where.length), "6F0");
  EXPECT_EQ(d.help, "add `6F1` to line 3, after `6F0`");
  EXPECT_THAT(thrown(edited("7F7,", "")),
              ElementsAre("D628 rank 3 never computes `7F7`, which it needs for `7B7`"));
  EXPECT_THAT(thrown("0F0,0F1,0B1\n"), ElementsAre("D628 rank 0 never computes `0B0`, so the "
                                                   "gradient of stage 0 lacks microbatch 0"));
  EXPECT_THAT(thrown("0F0,0F1,0I0,0I1,0W1\n"),
              ElementsAre("D628 rank 0 never computes `0W0`, so the gradient of stage 0 lacks "
                          "microbatch 0"));
  EXPECT_THAT(thrown("0F0,0F1,0I0,0W0\n"),
              ElementsAre("D628 rank 0 never computes `0I1`, so the gradient of stage 0 lacks "
                          "microbatch 1"));
}

// The file with the missing action added where the help says; the mark is at the action it names.
std::string followed(std::string csv, const Diagnostic& d) {
  const std::size_t begin = d.help.find('`') + 1;
  const std::string missing = d.help.substr(begin, d.help.find('`', begin) - begin);
  std::size_t at = 0;
  for (int line = 1; line < d.where.line; ++line) at = csv.find('\n', at) + 1;
  at += static_cast<std::size_t>(d.where.column) - 1;
  if (d.help.find(", before ") != d.help.npos) return csv.insert(at, missing + ",");
  return csv.insert(at + static_cast<std::size_t>(d.where.length), "," + missing);
}

TEST(PlanOfSchedule, AMissingActionIsAddedWhereItCanRun) {
  struct Row {
    std::string csv, help;
  };
  const std::string first = "0F0,0SEND_F0,0RECV_B0,0B0\n";
  for (const auto& [csv, help] : std::vector<Row>{
           {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", "add `1B1` to line 2, after `1F1`"},
           {"0F0,0B0\n1F0,1I0\n", "add `1W0` to line 2, after `1I0`"},
           {"0B0\n", "add `0F0` to line 1, before `0B0`"},
           {first + "1RECV_F0,1F0,1B0\n", "add `1SEND_B0` to line 2, after `1B0`"},
           {first + "1F0,1B0,1SEND_B0\n", "add `1RECV_F0` to line 2, before `1F0`"},
           {first + "1RECV_F0,1B0,1SEND_B0\n", "add `1F0` to line 2, after `1RECV_F0`"},
           {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
            "add `0RECV_B0` to line 1, before `0B0`"},
           {"0F0,0F1,0SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1\n",
            "add `0SEND_F1` to line 1, after `0SEND_F0`"},
           {"0F0,0F1,0I0,0W0,0I1\n", "add `0W1` to line 1, after `0I1`"},
           {"0F0,0F1,0B1\n", "add `0B0` to line 1, before `0B1`"}}) {
    const Diagnostic d = thrown_diagnostic(csv);
    EXPECT_EQ(d.code, "D628") << csv;
    EXPECT_EQ(d.help, help) << csv;
    const std::string marked = d.where.excerpt.substr(d.where.column - 1, d.where.length);
    EXPECT_THAT(d.help, testing::EndsWith("`" + marked + "`")) << csv;
    EXPECT_THAT(thrown(followed(csv, d)), testing::IsEmpty()) << csv;
  }
}

TEST(PlanOfSchedule, ItsHelpCanBeFollowed) {
  for (const std::string& csv :
       {std::string("0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"),
        csv_of({.stages = 4, .microbatches = 8, .chunks = 2}),
        std::string("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                    "1RECV_F0,1F0,1RECV_F1,1I0,1SEND_B0,1F1,1W0,1I1,1SEND_B1,1W1\n")}) {
    for (std::size_t at = 0; at < csv.size();) {
      const std::size_t end = csv.find_first_of(",\n", at);
      const std::string cell = csv.substr(at, end - at);
      std::string without = csv;
      without.erase(at, end - at);  // leaves an idle slot
      at = end + 1;
      if (cell.empty() || cell.find('I') != cell.npos) continue;  // a W without its I is D626
      const Diagnostic d = thrown_diagnostic(without);
      ASSERT_EQ(d.code, "D628") << without;
      EXPECT_THAT(d.help, HasSubstr("add `" + cell + "` to line ")) << without;
      EXPECT_THAT(thrown(followed(without, d)), testing::IsEmpty()) << d.help << "\n" << without;
    }
  }
}

TEST(PlanOfSchedule, MissingActionsOfOneStageAreOneError) {
  const std::vector<std::string> all = thrown("0F0,0F1,0F2,0F3,0F4,0F5,0F6\n1F0\n");
  ASSERT_EQ(all.size(), 1U);
  const Diagnostic d = thrown_diagnostic("0F0,0F1,0F2,0F3,0F4,0F5,0F6\n1F0\n");
  EXPECT_EQ(d.what, "rank 1 never computes `1F1`");
  EXPECT_EQ(d.why, "also missing: `1F2`, `1F3`, `1F4`, `1F5` and 1 more");
  EXPECT_THAT(thrown("0F0,0F3\n1F0,1F3\n"),
              testing::ElementsAre("D628 no rank computes microbatch 1"));
}

TEST(PlanOfSchedule, ARepeatedActionMayStandForAMissingOne) {
  using testing::ElementsAre;
  const std::string csv = edited("5B0,", "5B1,");
  EXPECT_THAT(thrown(csv), ElementsAre("D628 `5B1` on rank 1 occurs twice; `5B0` is missing"));
  const Diagnostic d = thrown_diagnostic(csv);
  EXPECT_EQ(d.where.line, 2);
  EXPECT_EQ(d.where.column, static_cast<int>(d.where.excerpt.find("5B1")) + 1);  // the first
  EXPECT_EQ(d.help, "did you mean `5B0`?");
  // The second is wrong if the missing one is higher.
  const Diagnostic later = thrown_diagnostic(edited("5B4,", "5B3,"));
  EXPECT_EQ(later.what, "`5B3` on rank 1 occurs twice; `5B4` is missing");
  EXPECT_EQ(later.where.column, static_cast<int>(later.where.excerpt.rfind("5B3")) + 1);

  EXPECT_THAT(thrown("0F0,0B0,0B0\n"), ElementsAre("D628 `0B0` on rank 0 occurs twice"));
  EXPECT_THAT(thrown("0F0,0B0,0B0,0B0\n"), ElementsAre("D628 `0B0` on rank 0 occurs 3 times"));
  EXPECT_THAT(thrown("0F0,0B0,0I0,0W0\n"), ElementsAre("D628 `0I0` on rank 0 repeats `0B0`"));
}

TEST(PlanOfSchedule, AMicrobatchOfOneCellIsATypo) {
  EXPECT_THAT(thrown(edited("5F1,", "5F11,")),
              testing::ElementsAre("D628 `5F11` on rank 1 is of a microbatch that other stages do "
                                   "not compute; `5F1` is missing"));
}

TEST(PlanOfSchedule, MessagesOfTheFileAreComplete) {
  EXPECT_THAT(thrown("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              testing::ElementsAre(
                  "D628 rank 0 never sends `0SEND_F0`, which rank 1 needs for `1RECV_F0`"));
  EXPECT_THAT(
      thrown("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
      testing::ElementsAre("D628 rank 1 never receives `1RECV_F0`, which it needs for `1F0`"));
}

TEST(PlanOfSchedule, AFileWithWaitsWaitsForEverySend) {
  const std::string waits =
      "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
  EXPECT_THAT(thrown(waits), testing::IsEmpty());
  std::string without = waits;
  without.erase(without.find(",1WAIT_SEND_B0"), 14);
  EXPECT_THAT(thrown(without), testing::ElementsAre("D628 rank 1 never executes `1WAIT_SEND_B0`"));
  EXPECT_EQ(thrown_diagnostic(without).help, "add `1WAIT_SEND_B0` to line 2, after `1SEND_B0`");
}

TEST(PlanOfSchedule, MessagesOfABatchStartTogether) {
  const plan::Plan plan = plan_of_schedule(
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)BATCH,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)BATCH,1F1,1B1,1SEND_B1\n",
      "s.csv");
  EXPECT_EQ(line_of(plan, "BATCH[0]"), "BATCH[0]: @net batch after F[0, 1]");
  EXPECT_EQ(line_of(plan, "B[0, 0]"), "B[0, 0]: compute backward after BATCH[0] work 0.02 seconds");
  const std::string text = plan::to_text(plan);
  EXPECT_THAT(text,
              HasSubstr("    send y[1 +1] to rank 1\n    receive dy[0 +1] from rank 1\n  end"));
  EXPECT_EQ(thrown_diagnostic("(0F0;0F1)BATCH,0B0,0B1\n").what,
            "`0F0` in a BATCH is not a message");
}

TEST(PlanOfSchedule, ABackwardComesAfterItsForward) {
  const std::string csv = "0F0,0B1,0F1,0B0\n";
  EXPECT_THAT(thrown(csv), testing::ElementsAre("D629 `0B1` on rank 0 comes before `0F1`"));
  EXPECT_EQ(thrown_diagnostic(csv).where.column, 5);
}

TEST(PlanOfSchedule, AStageOnTwoRanksIsReportedAtTheOddCell) {
  const std::string csv = edited("1F0,", "1F0,2F0,");
  EXPECT_THAT(thrown(csv),
              testing::ElementsAre("D626 stage 2 is computed on rank 1 and on rank 2"));
  const Diagnostic d = thrown_diagnostic(csv);
  EXPECT_EQ(d.where.line, 2);
  EXPECT_EQ(d.where.column, 5);
  EXPECT_EQ(d.why, "rank 1 computes it once, rank 2 16 times");
  EXPECT_EQ(d.help, "a stage is on one rank: move `2F0` to line 3, or correct its stage");
}

TEST(PlanOfSchedule, HugeNumbersAreRefusedInNoTime) {
  EXPECT_THAT(thrown("0F0,0F999999\n"), testing::ElementsAre("D628 no rank computes microbatch 1"));
  EXPECT_EQ(thrown_diagnostic("999999F999999,0F0\n").code, "D626");
}

TEST(PlanOfSchedule, AnOperationIsAtItsCell) {
  const plan::Plan plan = plan_of_schedule("0F0,,0B0\n1F0,1B0\n", "s.csv");
  std::vector<std::pair<int, int>> origins;  // column and length
  for (const plan::Statement& statement : plan.programs[plan::ProgramId(0)].body) {
    const auto* const operation = std::get_if<plan::Operation>(&statement.node);
    if (operation == nullptr || operation->name.name.empty()) continue;
    origins.emplace_back(operation->origin.column, operation->origin.length);
  }
  // F and its send, the receive for B and B.
  EXPECT_THAT(origins, testing::ElementsAre(std::pair(1, 3), std::pair(1, 3), std::pair(6, 3),
                                            std::pair(6, 3)));
}

TEST(PlanOfSchedule, WithoutABackwardThereIsNothingToUpdate) {
  const plan::Plan plan = plan_of_schedule("0F0,0F1\n1F0,1F1\n", "s.csv");
  EXPECT_THAT(operations(plan, 1), testing::Not(testing::Contains("compute update")));
  EXPECT_EQ(plan::expand(plan, Rank(1)).goal.size(), 1U);
}

TEST(PlanOfSchedule, ARowWithoutActionsIsASpareRank) {
  EXPECT_EQ(plan_of_schedule("0F0,0B0\n,,\n1F0,1B0\n\n", "s.csv").spares.size(), 1U);
}

TEST(PlanOfSchedule, LinesAreThoseOfTheFile) {
  const plan::Plan plan = plan_of_schedule(k1f1b, "s.csv");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const plan::Statement& statement : plan.programs[rank].body) {
      const auto* const operation = std::get_if<plan::Operation>(&statement.node);
      if (operation != nullptr) {
        EXPECT_EQ(operation->origin.line, static_cast<int>(rank) + 1);
      }
    }
  }
}

TEST(PlanOfSchedule, WhatCannotBeReadIsShown) {
  const Diagnostic d = thrown_diagnostic("0F0,0B0\n1F0, 1X0,1B0\n");
  EXPECT_EQ(d.code, "D626");
  EXPECT_EQ(d.where.file, "s.csv");
  EXPECT_EQ(d.where.line, 2);
  EXPECT_EQ(d.where.column, 6);
  EXPECT_EQ(d.where.length, 3);
  EXPECT_EQ(d.where.excerpt, "1F0, 1X0,1B0");
  EXPECT_EQ(d.what, "`1X0` is not an action");
  EXPECT_THAT(thrown_diagnostic("0F0,0BW0").help, HasSubstr("older files"));
}

TEST(PlanOfSchedule, MalformedFilesAreRefused) {
  for (const char* csv : {"",
                          "\n\n",
                          ",,",
                          "0F",
                          "F0",
                          "0F0x",
                          "0F0 0B0",
                          "-1F0",
                          "0F0.5",
                          "9999999F0",
                          "0F9999999",
                          "0OVERLAP_F_B0",
                          "(0F0",
                          "(0F0;0X0)OVERLAP_F_B",
                          "0SEND_F0",
                          "0UNSHARD",
                          "\xff\xfe",
                          "0F0,0B0\n0F1,0B1\n",                 // one stage on two ranks
                          "0F0,0B0\n2F0,2B0\n",                 // no stage 1
                          "0F0,1SEND_F0\n1F0\n",                // not its stage
                          "0F0,1F0,1SEND_F0",                   // to nobody
                          "0F0,0RECV_F0\n1F0\n",                // from nobody
                          "0F0,0SEND_F0,1RECV_F0,1F0\n2F0\n"})  // within a rank
  {
    EXPECT_EQ(thrown_diagnostic(csv).code, "D626") << csv;
  }
}

TEST(PlanOfSchedule, AllMistakesAreToldUpToALimit) {
  try {
    static_cast<void>(plan_of_schedule("0F0,a,b\nc\n", "s.csv"));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().size(), 3U);
  }
  try {
    static_cast<void>(plan_of_schedule(std::string(2000, ';') + ",a" + std::string(100, ',') +
                                           "b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b",
                                       "s.csv"));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().size(), 20U);
  }
}

}  // namespace
}  // namespace shiplap::strategy
