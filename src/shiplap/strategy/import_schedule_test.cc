#include "shiplap/strategy/import_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
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
    for (const schedule::Turn& turn : schedule::interleaved(pipeline, stage)) {
      const bool forward = turn.direction == schedule::Direction::forward;
      csv += std::to_string(turn.chunk * pipeline.stages + stage) + (forward ? "F" : "B") +
             std::to_string(turn.microbatch) + ",";
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

Diagnostic refusal(const std::string& csv) {
  try {
    static_cast<void>(plan_of_schedule(csv, "s.csv"));
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

TEST(PlanOfSchedule, OneForwardOneBackwardGetsItsMessages) {
  const plan::Plan plan = plan_of_schedule(k1f1b, "s.csv");
  EXPECT_EQ(plan.mesh.ranks(), 2);
  EXPECT_THAT(
      operations(plan, 0),
      testing::ElementsAre("compute zero", "F[0,0]: compute forward", "SEND_F[0,0]: send",
                           "F[0,1]: compute forward", "SEND_F[0,1]: send", "RECV_B[0,0]: receive",
                           "B[0,0]: compute backward", "F[0,2]: compute forward",
                           "SEND_F[0,2]: send", "RECV_B[0,1]: receive", "B[0,1]: compute backward",
                           "RECV_B[0,2]: receive", "B[0,2]: compute backward", "compute update"));
  EXPECT_THAT(operations(plan, 1)[3], "compute loss");
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
  for (const plan::Statement& statement : plan.programs[1].body) {
    const auto* const operation = std::get_if<plan::Operation>(&statement.node);
    if (operation != nullptr) {
      EXPECT_FALSE(operation->async);
    }
  }
}

TEST(PlanOfSchedule, GatheredWeightsLiveFromUnshardToReshard) {
  const auto plan =
      plan_of_schedule("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n", "s.csv");
  EXPECT_THAT(
      operations(plan, 0),
      testing::ElementsAre("compute zero", "allocate", "compute unshard", "F[0,0]: compute forward",
                           "compute loss", "B[0,0]: compute backward", "free",
                           "compute reduce_gradient", "compute update"));
  // What is never dropped is dropped at the end.
  EXPECT_THAT(
      operations(plan_of_schedule("0UNSHARD,0F0\n", "s.csv"), 0),
      testing::ElementsAre("allocate", "compute unshard", "F[0,0]: compute forward", "free"));
}

TEST(PlanOfSchedule, StagesAreOnTheRanksWhereTorchHasThem) {
  EXPECT_NO_THROW((void)plan_of_schedule("0F0,2F0\n1F0,3F0\n", "s.csv"));
  EXPECT_NO_THROW((void)plan_of_schedule("0F0,3F0\n1F0,2F0\n", "s.csv"));
  const Diagnostic swapped = refusal("1F0\n0F0\n");
  EXPECT_EQ(swapped.code, "D626");
  EXPECT_EQ(swapped.what, "stage 1 is on rank 0, where torch has it on rank 1");
  EXPECT_EQ(refusal("0UNSHARD0\n").code, "D626");
  EXPECT_EQ(refusal("0F0,1UNSHARD\n1F0\n").code, "D626");
}

TEST(PlanOfSchedule, OverlappedActionsComeInOrder) {
  EXPECT_EQ(plan_of_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1", "s.csv"),
            plan_of_schedule("0F0,0F1,0B0,0B1", "s.csv"));
}

TEST(PlanOfSchedule, ARepeatedActionIsKept) {
  const plan::Plan plan = plan_of_schedule("0F0,0B0,0B0\n", "s.csv");
  const std::vector<std::string> rank = operations(plan, 0);
  EXPECT_EQ(std::ranges::count_if(rank, [](const auto& o) { return o.ends_with(" backward"); }), 2);
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
  const Diagnostic d = refusal("0F0,0B0\n1F0, 1X0,1B0\n");
  EXPECT_EQ(d.code, "D626");
  EXPECT_EQ(d.where.file, "s.csv");
  EXPECT_EQ(d.where.line, 2);
  EXPECT_EQ(d.where.column, 6);
  EXPECT_EQ(d.where.length, 3);
  EXPECT_EQ(d.where.excerpt, "1F0, 1X0,1B0");
  EXPECT_EQ(d.what, "`1X0` is no action");
  EXPECT_THAT(refusal("0F0,0BW0").help, HasSubstr("older files"));
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
    EXPECT_EQ(refusal(csv).code, "D626") << csv;
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
