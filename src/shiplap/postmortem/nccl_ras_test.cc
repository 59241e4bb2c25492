// Reports of NCCL's RAS, written down state by state: who is suspected, and of what.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/postmortem/postmortem.h"

namespace shiplap::postmortem {
namespace {

using dump::RasCommunicator;
using dump::RasMember;
using dump::RasProcess;
using dump::RasReport;
using dump::RasState;
using RasKind = dump::RasState::Kind;
using RankList = std::vector<std::int32_t>;

// Rank r of the job is process 100 + r.
RasProcess process(std::int32_t rank) {
  return {.node = rank < 4 ? "10.0.0.1" : "10.0.0.2",
          .pid = 100 + rank,
          .gpu = std::to_string(rank % 4)};
}

RasState state(RasKind kind, std::string what, std::int64_t operations, std::int64_t count,
               std::vector<RasMember> members = {}) {
  return {.kind = kind,
          .what = std::move(what),
          .operations = operations,
          .count = count,
          .members = std::move(members)};
}
RasState counts(std::string what, std::int64_t operations, std::int64_t count,
                std::vector<RasMember> members = {}) {
  return state(RasKind::operations, std::move(what), operations, count, std::move(members));
}

// A communicator of 8 ranks, which are those of the job.
RasReport report_of(std::vector<RasState> states) {
  RasCommunicator communicator{
      .name = "#0-0", .hash = "27a0", .size = 8, .states = std::move(states), .members = {}};
  for (const RasState& each : communicator.states) {
    for (const RasMember& member : each.members) communicator.members.push_back(member);
  }
  RasReport report{.file = "ras.txt", .version = "2.26.2", .gpus = 8};
  report.groups.push_back({.communicators = 1, .size = 8, .status = "RUNNING", .errors = "OK"});
  report.communicators.push_back(std::move(communicator));
  return report;
}

Postmortem ask(std::vector<RasReport> reports) {
  dump::JobDump job;
  job.ras = std::move(reports);
  return diagnose(job, {});
}

bool has_evidence(const Suspect& suspect, const std::string& text) {
  return std::ranges::any_of(suspect.evidence,
                             [&](const std::string& line) { return line.find(text) != line.npos; });
}

TEST(NcclRasAlone, ARankThatIsBehindIsSuspected) {
  const Postmortem found = ask(
      {report_of({counts("AllReduce", 6650, 7), counts("AllReduce", 6649, 1, {{2, process(2)}})})});
  ASSERT_EQ(found.suspects.size(), 1U);
  const Suspect& suspect = found.suspects[0];
  EXPECT_EQ(suspect.ranks, RankList{2});
  EXPECT_EQ(suspect.fault, FaultClass::cpu_stuck);
  EXPECT_EQ(suspect.victims, 7);
  EXPECT_EQ(suspect.what,
            "rank 2 is behind: 6,649 AllReduce operations launched, where 7 others have 6,650");
  EXPECT_TRUE(has_evidence(suspect, "rank 2 is process 102 on node 10.0.0.1 (GPU 2)"));
  EXPECT_EQ(suspect.would_help, "its stack: py-spy dump --pid 102 on node 10.0.0.1");
  EXPECT_EQ(found.status, HangStatus::undecided);  // counts differ in running jobs, too
  EXPECT_EQ(found.world, 8);
}

TEST(NcclRasAlone, TheRankThatIsFurthestBehindComesFirst) {
  const Postmortem found =
      ask({report_of({counts("", 50, 5), counts("", 49, 2, {{0, process(0)}, {1, process(1)}}),
                      counts("", 47, 1, {{5, process(5)}})})});
  ASSERT_EQ(found.suspects.size(), 2U);
  EXPECT_EQ(found.suspects[0].ranks, RankList{5});
  EXPECT_EQ(found.suspects[1].ranks, (RankList{0, 1}));
  EXPECT_LT(found.suspects[1].confidence, found.suspects[0].confidence);
}

// RAS lists ranks 1 and 2, which are ahead, and those that are late are all others.
TEST(NcclRasAlone, RanksThatAreAheadAreHardlySuspect) {
  const Postmortem found =
      ask({report_of({counts("AllGather", 640, 6),
                      counts("AllGather", 641, 2, {{1, process(1)}, {2, process(2)}})})});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].divergence, Divergence::extra);
  EXPECT_LT(found.suspects[0].confidence, 0.5);
}

TEST(NcclRasAlone, OtherOperationsProveAnotherProgram) {
  const Postmortem found =
      ask({report_of({counts("AllGather", 10, 7), counts("AllGather", 11, 1, {{3, process(3)}}),
                      counts("AllReduce", 80, 7), counts("AllReduce", 79, 1, {{3, process(3)}})})});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].ranks, RankList{3});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::divergence);
  EXPECT_EQ(found.suspects[0].divergence, Divergence::operation);
  EXPECT_EQ(found.status, HangStatus::hung);
}

// In a pair either may be wrong.
TEST(NcclRasAlone, OtherOperationsInAPairAreOfBoth) {
  RasReport report = report_of({});
  report.groups[0].size = 2;
  report.communicators[0].size = 2;
  report.communicators[0].states = {
      counts("AllGather", 10, 1, {{0, process(0)}}), counts("AllGather", 9, 1, {{1, process(1)}}),
      counts("AllReduce", 5, 1, {{1, process(1)}}), counts("AllReduce", 4, 1, {{0, process(0)}})};
  report.gpus = 2;
  const Postmortem found = ask({report});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].ranks, (RankList{0, 1}));
  EXPECT_EQ(found.suspects[0].divergence, Divergence::operation);
  EXPECT_LT(found.suspects[0].confidence, 0.7);
  EXPECT_EQ(found.status, HangStatus::hung);
}

// Fewer of both kinds is late, not another program.
TEST(NcclRasAlone, FewerOfEveryKindIsLate) {
  const Postmortem found =
      ask({report_of({counts("AllGather", 11, 7), counts("AllGather", 10, 1, {{3, process(3)}}),
                      counts("AllReduce", 80, 7), counts("AllReduce", 79, 1, {{3, process(3)}})})});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].fault, FaultClass::cpu_stuck);
}

TEST(NcclRasAlone, RanksThatAreNotListedAreNotGuessed) {
  const Postmortem found = ask({report_of({counts("", 50, 4), counts("", 49, 4)})});
  EXPECT_TRUE(found.suspects.empty());
  EXPECT_EQ(found.status, HangStatus::undecided);
  EXPECT_NE(found.notes.at(1).find("4 ranks of communicator #0-0"), std::string::npos);
}

// All but one state are listed, so the ranks of that one are known.
TEST(NcclRasAlone, RanksThatAreNotListedAreTheRest) {
  const Postmortem found =
      ask({report_of({counts("", 50, 3, {{0, process(0)}, {1, process(1)}, {2, process(2)}}),
                      counts("", 49, 3, {{3, process(3)}, {4, process(4)}, {5, process(5)}}),
                      counts("", 48, 2)})});
  ASSERT_EQ(found.suspects.size(), 2U);
  EXPECT_EQ(found.suspects[0].ranks, (RankList{6, 7}));
}

TEST(NcclRasAlone, EqualCountsSayThatNothingDiffers) {
  const Postmortem found = ask({report_of({})});
  EXPECT_TRUE(found.suspects.empty());
  EXPECT_EQ(found.status, HangStatus::undecided);
  EXPECT_NE(found.proof.at(0).find("NCCL sees no difference"), std::string::npos);
}

TEST(NcclRasAlone, WhatCannotBeReadIsNotNoDifference) {
  RasReport report = report_of({});
  report.groups[0].errors = "MISMATCH";
  EXPECT_EQ(ask({report}).proof.at(0),
            "NCCL reports MISMATCH, but no line that is known says of which ranks");
  report.truncated = true;
  EXPECT_EQ(ask({report}).proof.at(0),
            "the text of ncclras ends early, and what is missing may differ");
}

TEST(NcclRasAlone, DeadProcessesOfANodeAreOneSuspect) {
  RasReport report =
      report_of({state(RasKind::missing, "", 0, 2, {{6, process(6)}, {7, process(7)}})});
  report.dead = {process(6), process(7)};
  report.dead_count = 2;
  const Postmortem found = ask({report});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].fault, FaultClass::absent);
  EXPECT_EQ(found.suspects[0].ranks, (RankList{6, 7}));
  EXPECT_EQ(found.suspects[0].what, "ranks 6 and 7 are dead, on node 10.0.0.2");
  EXPECT_EQ(found.status, HangStatus::hung);
}

TEST(NcclRasAlone, ASilentProcessIsNoProof) {
  RasReport report = report_of({state(RasKind::missing, "", 0, 1, {{5, {}}})});  // before 2.26
  report.silent = {process(5)};
  report.silent_count = 1;
  const Postmortem found = ask({report});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].what, "rank 5 does not answer NCCL's RAS");
  EXPECT_TRUE(has_evidence(found.suspects[0], "process 105 on node 10.0.0.2 (GPU 1)"));
  EXPECT_EQ(found.status, HangStatus::undecided);
}

TEST(NcclRasAlone, StatusesFollowAnOrder) {
  const Postmortem late =
      ask({report_of({state(RasKind::status, "FINALIZE", 0, 7),
                      state(RasKind::status, "RUNNING", 0, 1, {{4, process(4)}})})});
  ASSERT_EQ(late.suspects.size(), 1U);
  EXPECT_EQ(late.suspects[0].fault, FaultClass::cpu_stuck);
  const Postmortem left =
      ask({report_of({state(RasKind::status, "RUNNING", 0, 7),
                      state(RasKind::status, "NOCOMM", 0, 1, {{4, process(4)}})})});
  ASSERT_EQ(left.suspects.size(), 1U);
  EXPECT_EQ(left.suspects[0].fault, FaultClass::divergence);
  EXPECT_EQ(left.suspects[0].what, "rank 4 has status NOCOMM, where 7 others have RUNNING");
  const Postmortem not_yet =
      ask({report_of({state(RasKind::status, "INIT", 0, 7),
                      state(RasKind::status, "NOCOMM", 0, 1, {{4, process(4)}})})});
  EXPECT_EQ(not_yet.suspects.at(0).fault, FaultClass::cpu_stuck);
}

TEST(NcclRasAlone, TheFirstErrorIsNotTheRemoteOne) {
  const Postmortem found = ask({report_of(
      {state(RasKind::error, "Remote process error", 0, 2, {{0, process(0)}, {1, process(1)}}),
       state(RasKind::error, "Unhandled CUDA error", 0, 1, {{6, process(6)}})})});
  ASSERT_EQ(found.suspects.size(), 2U);
  EXPECT_EQ(found.suspects[0].ranks, RankList{6});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::device_stuck);
  EXPECT_EQ(found.status, HangStatus::hung);
}

std::vector<RasState> behind(std::int64_t by) {
  return {counts("", 50, 7), counts("", 50 - by, 1, {{2, process(2)}})};
}

TEST(NcclRasAlone, EqualCountsInTwoTextsAreAProof) {
  const Postmortem still = ask({report_of(behind(1)), report_of(behind(1))});
  EXPECT_EQ(still.status, HangStatus::hung);
  EXPECT_EQ(still.proof.at(0),
            "what NCCL says of communicator #0-0 (27a0) of 8 ranks is the same in two texts");
  const Postmortem moves = ask({report_of(behind(2)), report_of(behind(1))});
  EXPECT_EQ(moves.status, HangStatus::undecided);
  EXPECT_LT(moves.suspects.at(0).confidence, still.suspects.at(0).confidence / 2);
}

// What a text that ends early lacks is neither a change nor the same.
TEST(NcclRasAlone, ATextThatEndsEarlyIsNotCompared) {
  RasReport before = report_of({});
  before.truncated = true;
  const Postmortem lacks = ask({before, report_of(behind(1))});
  EXPECT_EQ(lacks.status, HangStatus::undecided);
  EXPECT_EQ(lacks.suspects.at(0).confidence, ask({report_of(behind(1))}).suspects.at(0).confidence);
  EXPECT_EQ(lacks.notes.at(1), "ras.txt, the text before, ends early, so the two are not compared");
  before.communicators = report_of(behind(1)).communicators;
  EXPECT_EQ(ask({before, report_of(behind(1))}).status, HangStatus::undecided);
  RasReport last = report_of({});
  last.truncated = true;
  EXPECT_FALSE(has_evidence(ask({report_of(behind(1)), report_of(behind(1))}).suspects.at(0),
                            "change from text to text"));
  last.communicators = report_of(behind(2)).communicators;
  EXPECT_FALSE(
      has_evidence(ask({report_of(behind(1)), last}).suspects.at(0), "change from text to text"));
}

// Two texts that were taken for one.
TEST(NcclRasAlone, ARankHasOneCountOfAKind) {
  const Postmortem found =
      ask({report_of({counts("AllReduce", 50, 7), counts("AllReduce", 49, 1, {{2, process(2)}}),
                      counts("AllGather", 9, 8), counts("AllReduce", 70, 1, {{2, process(2)}}),
                      counts("AllReduce", 69, 7)})});
  EXPECT_TRUE(found.suspects.empty());
  EXPECT_EQ(found.status, HangStatus::undecided);
  EXPECT_EQ(found.notes.at(1),
            "the counts of AllReduce operations on communicator #0-0 (27a0) of 8 ranks contradict "
            "one another, and are left out");
}

// JSON lists all ranks, a text only a few.
TEST(NcclRasAlone, ATextAndJsonAreCompared) {
  RasReport json = report_of(behind(1));
  for (std::int32_t rank : {0, 1, 3, 4, 5, 6, 7}) {
    json.communicators[0].states[0].members.push_back({rank, process(rank)});
  }
  json.communicators[0].launched = 399;
  EXPECT_EQ(ask({report_of(behind(1)), json}).status, HangStatus::hung);
}

// A communicator of two of the ranks, which RAS lists as ranks 0 and 1 of it.
RasCommunicator pair_of(std::vector<RasState> states) {
  RasCommunicator communicator{
      .name = "#1-0", .hash = "5b11", .size = 2, .states = std::move(states), .members = {}};
  for (const RasState& each : communicator.states) {
    for (const RasMember& member : each.members) communicator.members.push_back(member);
  }
  return communicator;
}

TEST(NcclRasAlone, ProcessesAreTheSameRanksOnAllCommunicators) {
  RasReport report = report_of({counts("", 50, 7), counts("", 49, 1, {{6, process(6)}})});
  report.communicators.push_back(
      pair_of({counts("", 9, 1, {{0, process(5)}}), counts("", 8, 1, {{1, process(6)}})}));
  const Postmortem found = ask({report});
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].ranks, RankList{6});
  EXPECT_TRUE(has_evidence(found.suspects[0], "the same on communicator #1-0"));
}

// Rank 6 is behind rank 5 on a pair, and rank 6 is ahead of rank 7 on another pair.
TEST(NcclRasAlone, AVictimElsewhereIsLessSuspect) {
  RasReport report = report_of({});
  report.communicators = {
      pair_of({counts("", 9, 1, {{0, process(5)}}), counts("", 8, 1, {{1, process(6)}})}),
      pair_of({counts("", 4, 1, {{0, process(6)}}), counts("", 3, 1, {{1, process(7)}})})};
  report.communicators[1].name = "#1-1";
  report.communicators[1].hash = "5b12";
  const Postmortem found = ask({report});
  ASSERT_EQ(found.suspects.size(), 2U);
  EXPECT_TRUE(found.suspects[0].ranks.empty());  // no communicator has all ranks
  EXPECT_EQ(found.suspects[0].what,
            "rank 1 of communicator #1-1 (5b12) of 2 ranks is behind: 3 operations launched, where "
            "the other one has 4");
  EXPECT_TRUE(has_evidence(found.suspects[1], "may wait there"));
}

TEST(NcclRasAlone, CommunicatorsThatDisagreeHaveNoRanksOfTheJob) {
  RasReport report = report_of(behind(1));
  report.communicators.push_back(report.communicators[0]);
  report.communicators[1].hash = "27a1";
  report.communicators[1].members = {{3, process(2)}};
  const Postmortem found = ask({report});
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_TRUE(found.suspects[0].ranks.empty());
}

// ------------------------------------------------------------------ beside dumps

// Rank 2 of 4 wrote no dump, and the others wait for it in an all_reduce.
Postmortem ask_with_dumps(RasReport report, std::int32_t world = 4) {
  dump::JobDump job;
  job.world = world;
  dump::Group group{.name = "0", .description = "default_pg", .ranks = {}};
  for (std::int32_t rank = 0; rank < world; ++rank) group.ranks.push_back(rank);
  job.groups.push_back(group);
  job.signatures.push_back({.operation = "all_reduce"});
  for (std::int32_t rank = 0; rank < world; ++rank) {
    if (rank == 2) continue;
    job.ranks.push_back({.rank = rank,
                         .library = "nccl",
                         .calls = {{.sequence = 0,
                                    .created_ns = 1000,
                                    .group = dump::GroupId(0),
                                    .signature = dump::SignatureId(0),
                                    .state = dump::CallState::started}},
                         .groups = {dump::GroupId(0)}});
  }
  report.gpus = 4;
  for (RasCommunicator& communicator : report.communicators) communicator.size = 4;
  job.ras.push_back(std::move(report));
  return diagnose(job, {});
}

TEST(NcclRasBesideDumps, ADeadProcessConfirmsAnAbsentRank) {
  RasReport report = report_of({state(RasKind::missing, "", 0, 1, {{2, process(2)}})});
  report.dead = {process(2)};
  report.dead_count = 1;
  const Postmortem found = ask_with_dumps(report);
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].ranks, RankList{2});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::absent);
  EXPECT_GT(found.suspects[0].confidence, 0.95);
  EXPECT_TRUE(has_evidence(found.suspects[0],
                           "NCCL's RAS: rank 2 is dead, on node 10.0.0.1; rank 2 is process 102 on "
                           "node 10.0.0.1 (GPU 2)"));
  EXPECT_EQ(found.status, HangStatus::hung);
}

TEST(NcclRasBesideDumps, ARankThatIsAliveAndBehindIsNotAbsent) {
  const Postmortem found = ask_with_dumps(
      report_of({counts("AllReduce", 1, 3), counts("AllReduce", 0, 1, {{2, process(2)}})}));
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].fault, FaultClass::cpu_stuck);
  EXPECT_EQ(found.suspects[0].would_help, "its stack: py-spy dump --pid 102 on node 10.0.0.1");
  EXPECT_EQ(found.status, HangStatus::undecided);
}

TEST(NcclRasBesideDumps, RanksOfSmallerCommunicatorsAreNotThoseOfTheJob) {
  RasReport report = report_of({counts("", 1, 3), counts("", 0, 1, {{2, process(2)}})});
  report.groups[0].size = 4;
  const Postmortem found = ask_with_dumps(report, 6);
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].fault, FaultClass::absent);
  EXPECT_FALSE(has_evidence(found.suspects[0], "RAS"));
  EXPECT_NE(found.notes.back().find("no communicator"), std::string::npos);
}

// The dumps come first; what RAS says of other ranks is only a note.
TEST(NcclRasBesideDumps, AnotherRankThatIsBehindIsANote) {
  const Postmortem found = ask_with_dumps(
      report_of({counts("AllReduce", 1, 3), counts("AllReduce", 0, 1, {{1, process(1)}})}));
  ASSERT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].ranks, RankList{2});
  EXPECT_TRUE(found.notes.back().starts_with("NCCL's RAS: rank 1 is behind"));
}

TEST(NcclRasBesideDumps, TheProcessOfASuspectIsAPlaceToLook) {
  RasReport report = report_of({});
  report.communicators[0].members = {{2, process(2)}};
  const Postmortem found = ask_with_dumps(report);
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_TRUE(has_evidence(found.suspects[0], "process 102 on node 10.0.0.1 (GPU 2)"));
}

TEST(NcclRasBesideDumps, AllThatAnswerIsEvidence) {
  RasReport report = report_of({});
  report.communicators.clear();  // a text has only those in which ranks differ
  report.groups[0].size = 4;
  const Postmortem found = ask_with_dumps(report);
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].fault, FaultClass::absent);
  EXPECT_TRUE(has_evidence(found.suspects[0], "reaches all processes"));
}

}  // namespace
}  // namespace shiplap::postmortem
