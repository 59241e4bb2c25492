// The oracle on plans with obvious answers.
#include "oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "shiplap/plan/text.h"
#include "small_plans.h"

namespace shiplap::oracle {
namespace {

// The verdict as text; "" is sound.
std::string verdict_text(const Verdict& verdict) {
  std::string all;
  if (!verdict.matched) all += "unmatched ";
  if (verdict.deadlock_eager) all += "eager ";
  if (verdict.deadlock_rendezvous) all += "rendezvous ";
  if (verdict.race) all += "race ";
  if (verdict.unordered) all += "unordered ";
  if (verdict.values_wrong) all += "values ";
  return all;
}

std::string judged(const std::string& text) {
  return verdict_text(judge(plan::parse_text("shiplap-plan 1\n" + text, "test.plan")));
}

// Two ranks with a row x that is given, a row y and a stream net.
const std::string kHead =
    "mesh tp=2\ntensor X[2] Activation\ntensor G WeightGrad sum k 2\nprogram all on all\n"
    "  buffer x rows 1 row_bytes 8 bf16\n  buffer y rows 1 row_bytes 8 bf16\n"
    "  buffer g rows 1 row_bytes 8 bf16\n  streams net, aux\n"
    "  given x = X[0]\n  given g = G sum k tp +1\n";

std::string two(const std::string& body) { return judged(kHead + body); }
// What rank 0 does, then what rank 1 does.
std::string two(const std::string& zero, const std::string& one) {
  return two("when tp=0\n" + zero + "\nend\nwhen tp=1\n" + one + "\nend\n");
}

TEST(Oracle, NothingIsSound) { EXPECT_EQ(two(""), ""); }

// ---- messages

TEST(Oracle, AMessageArrives) {
  EXPECT_EQ(two("send x to rank 1", "receive y from rank 0; goal y = X[0]"), "");
}

TEST(Oracle, HeadToHeadSendsNeedABuffer) {
  EXPECT_EQ(two("send x to tp+1 wrap; receive y from tp+1 wrap"), "rendezvous ");
}

TEST(Oracle, HeadToHeadReceivesWaitForEver) {
  EXPECT_EQ(two("receive y from tp+1 wrap; send x to tp+1 wrap"), "eager rendezvous ");
}

TEST(Oracle, ABatchOfBothIsSound) {
  EXPECT_EQ(two("batch; send x to tp+1 wrap; receive y from tp+1 wrap; end; goal y = X[0]"), "");
}

TEST(Oracle, AnAsynchronousSendIsSound) {
  EXPECT_EQ(two("send x to tp+1 wrap async; receive y from tp+1 wrap"), "");
}

TEST(Oracle, TwoStreamsAreSound) {
  EXPECT_EQ(two("@net send x to tp+1 wrap; receive y from tp+1 wrap"), "");
}

TEST(Oracle, ARingOfThreeSendsNeedsABuffer) {
  const std::string head =
      "mesh tp=3\ntensor X Activation\nprogram all on all\n"
      "buffer x rows 1 row_bytes 8 bf16\nbuffer y rows 1 row_bytes 8 bf16\ngiven x = X\n";
  EXPECT_EQ(judged(head + "send x to tp+1 wrap; receive y from tp-1 wrap; goal y = X\n"),
            "rendezvous ");
  EXPECT_EQ(judged(head + "when tp=0; receive y from tp-1 wrap; send x to tp+1 wrap; end\n"
                          "when tp>0; send x to tp+1 wrap; receive y from tp-1 wrap; end\n"),
            "");
}

TEST(Oracle, MessagesWithoutAnEndDoNotMatch) {
  EXPECT_EQ(two("send x to rank 1", "barrier over ranks{1}"), "unmatched rendezvous ");
  EXPECT_EQ(two("receive y from rank 1", "barrier over ranks{1}"), "unmatched eager rendezvous ");
  EXPECT_EQ(two("send x to rank 1 tag 1", "receive y from rank 0"), "unmatched eager rendezvous ");
}

TEST(Oracle, TagsMayComeInAnotherOrder) {
  EXPECT_EQ(two("send x to rank 1 tag 1; send x to rank 1 tag 2",
                "receive y from rank 0 tag 2; receive y from rank 0 tag 1"),
            "rendezvous ");
}

TEST(Oracle, TypesOfAMessageAgree) {
  EXPECT_EQ(judged("mesh tp=2\nprogram a on rank=0\nbuffer x rows 1 row_bytes 8 bf16\n"
                   "send x to rank 1\nprogram b on rank=1\nbuffer x rows 1 row_bytes 8 f32\n"
                   "receive x from rank 0\n"),
            "unmatched ");
}

// ---- collectives

TEST(Oracle, CollectivesMeet) {
  EXPECT_EQ(two("all_reduce g over tp; compute use; reads g = G"), "");
  EXPECT_EQ(two("all_reduce g over tp", "barrier over tp"), "unmatched ");
  EXPECT_EQ(two("all_reduce g over tp", "all_reduce g over tp operator max"), "unmatched ");
  EXPECT_EQ(two("all_reduce g over tp", "all_reduce g over tp scale 1/2"), "unmatched ");
  EXPECT_EQ(two("broadcast x over tp", "broadcast x over tp root 1"), "unmatched ");
  EXPECT_EQ(two("barrier over tp; barrier over tp", "barrier over tp"),
            "unmatched eager rendezvous ");
}

TEST(Oracle, GroupsThatShareTwoRanksCanBlockEachOther) {
  EXPECT_EQ(two("barrier over tp; barrier over tp/b", "barrier over tp/b; barrier over tp"),
            "eager rendezvous ");
  EXPECT_EQ(two("barrier over tp; barrier over ranks{0, 1}/b",
                "barrier over tp; "
                "barrier over ranks{0, 1}/b"),
            "");
  EXPECT_EQ(two("@net barrier over tp; barrier over tp/b", "barrier over tp/b; barrier over tp"),
            "");
}

TEST(Oracle, GroupsThatShareOneRankCanNot) {
  const std::string head = "mesh tp=3\nprogram all on all\n";
  EXPECT_EQ(judged(head + "when tp<2; barrier over ranks{0, 1}; end\n"
                          "when tp>0; barrier over ranks{1, 2}; end\n"),
            "");
  EXPECT_EQ(judged(head + "when tp=0; barrier over ranks{0, 1}; barrier over ranks{0, 2}; end\n"
                          "when tp=1; barrier over ranks{1, 2}; barrier over ranks{0, 1}; end\n"
                          "when tp=2; barrier over ranks{0, 2}; barrier over ranks{1, 2}; end\n"),
            "eager rendezvous ");
}

TEST(Oracle, TheOrderOfRanksTellsGroupsApart) {
  EXPECT_EQ(two("barrier over ranks{0, 1}", "barrier over ranks{1, 0}"),
            "unmatched eager rendezvous ");
}

TEST(Oracle, GatheringPutsPiecesInOrder) {
  const std::string head =
      "mesh tp=2\ntensor X Activation tok 2\nprogram all on all\n"
      "buffer x rows 1 row_bytes 8 bf16\nbuffer y rows 2 row_bytes 8 bf16\n"
      "given x = X tok tp +1\n";
  EXPECT_EQ(judged(head + "all_gather x to y over tp; goal y = X\n"), "");
  EXPECT_EQ(judged(head + "all_gather x to y over tp{1, 0}; goal y = X\n"), "values ");
  EXPECT_EQ(judged(head + "all_gather x to y over tp{1, 0}; goal y = X tok 1 +1 | 0 +1\n"), "");
  EXPECT_EQ(judged(head + "copy x to y[tp +1]; all_gather y over tp; goal y = X\n"), "");
}

TEST(Oracle, ReduceScatterLeavesTheOwnPiece) {
  const std::string head =
      "mesh tp=2\ntensor Y Activation tok 2 sum k 2\nprogram all on all\n"
      "buffer x rows 1 row_bytes 8 bf16\nbuffer y rows 2 row_bytes 8 bf16\n"
      "given y = Y sum k tp +1\n";
  EXPECT_EQ(judged(head + "reduce_scatter y to x over tp; goal x = Y tok tp +1\n"), "");
  EXPECT_EQ(judged(head + "reduce_scatter y over tp; goal y[tp +1] = Y tok tp +1\n"), "");
  EXPECT_EQ(judged(head + "reduce_scatter y to x over tp; goal x = Y tok 1-tp +1\n"), "values ");
  EXPECT_EQ(judged(head + "all_to_all y over tp\n"), "");
}

// ---- races and keys

TEST(Oracle, AReadMustWait) {
  EXPECT_EQ(two("@net receive y from rank 1; compute use; reads y = X[0]", "send x to rank 0"),
            "race ");
  EXPECT_EQ(
      two("r: @net receive y from rank 1; compute use after r; reads y = X[0]", "send x to rank 0"),
      "");
}

TEST(Oracle, ASendReadsUntilItIsComplete) {
  EXPECT_EQ(two("send x to rank 1 async; compute make; writes x = X[1]", "receive y from rank 0"),
            "race ");
  EXPECT_EQ(two("s: send x to rank 1 async; compute make after s; writes x = X[1]",
                "receive y from rank 0; goal y = X[0]"),
            "");
}

TEST(Oracle, MembersOfABatchRunTogether) {
  EXPECT_EQ(two("batch; send x to tp+1 wrap; receive x from tp+1 wrap; end"), "race ");
}

TEST(Oracle, FreeIsAWrite) {
  EXPECT_EQ(two("@net send x to rank 1; free x", "receive y from rank 0"), "race ");
}

TEST(Oracle, WaitingForAnotherIsNotWaiting) {
  EXPECT_EQ(two("r: @net receive y from rank 1; s: send x to rank 1; "
                "compute use after s; reads y = X[0]",
                "send x to rank 0; receive y from rank 0"),
            "race ");
}

TEST(Oracle, OneKeyOnTwoStreamsIsUnordered) {
  EXPECT_EQ(two("@net send x to rank 1; send x to rank 1",
                "receive y from rank 0; receive y from rank 0"),
            "unordered ");
  EXPECT_EQ(two("s: @net send x to rank 1; send x to rank 1 after s",
                "receive y from rank 0; receive y from rank 0"),
            "");
  EXPECT_EQ(two("batch; send x to rank 1; send x to rank 1; end",
                "receive y from rank 0; receive y from rank 0"),
            "");
}

// ---- values

TEST(Oracle, AReductionTwiceCountsTwice) {
  EXPECT_EQ(two("all_reduce g over tp; all_reduce g over tp"), "values ");
  EXPECT_EQ(two("all_reduce x over tp"), "values ");
}

TEST(Oracle, APartialSumIsNotRead) {
  EXPECT_EQ(two("compute use; reads g = G sum k tp +1"), "values ");
  EXPECT_EQ(two("compute cast; reads g = G sum k tp +1; writes y = G sum k tp +1"), "");
  EXPECT_EQ(two("compute other; reads g = G sum k tp +1"), "");
}

TEST(Oracle, ZeroCanBeAddedTo) {
  EXPECT_EQ(two("compute zero; writes y = G sum none; copy g to y add; goal y = G sum k tp +1"),
            "");
  EXPECT_EQ(two("copy g to y add"), "values ");
  EXPECT_EQ(two("compute make; adds g = G sum k 1-tp +1; goal g = G"), "");
  EXPECT_EQ(two("compute make; adds g = G sum k tp +1"), "values ");
}

TEST(Oracle, ScalesAreFollowed) {
  EXPECT_EQ(two("all_reduce g over tp scale 1/2; goal g = G scale 1/2"), "");
  EXPECT_EQ(two("all_reduce g over tp scale 1/2; goal g = G"), "values ");
}

TEST(Oracle, OtherOperatorsLeaveTheUnknown) {
  EXPECT_EQ(two("all_reduce g over tp operator max"), "");
  EXPECT_EQ(two("all_reduce g over tp operator max; goal g = G"), "values ");
}

TEST(Oracle, RowsLiveFromAllocateToFree) {
  EXPECT_EQ(two("allocate y; copy x to y; free y"), "");
  EXPECT_EQ(two("copy x to y; allocate y; free y"), "values ");
  EXPECT_EQ(two("allocate y; free y; copy x to y"), "values ");
  EXPECT_EQ(two("allocate y; allocate y"), "values ");
  EXPECT_EQ(two("allocate y; free y; allocate y; free y"), "");
  EXPECT_EQ(two("allocate y; free y; free y"), "values ");
  EXPECT_EQ(two("allocate y; compute use; reads y = X[0]"), "values ");
}

TEST(Oracle, AMaskClipsSums) {
  const std::string head =
      "mesh tp=1\nlist doc = 0 0 1 1\ntensor O Out tok 4 sum key 4 mask key<=tok and "
      "doc[key]=doc[tok]\nprogram all on all\nbuffer o rows 4 row_bytes 8 bf16\n"
      "compute make; writes o = O sum key 0 +2\n";
  EXPECT_EQ(judged(head + "goal o[0 +2] = O tok 0 +2; goal o[2 +2] = O tok 2 +2 sum none\n"), "");
  EXPECT_EQ(judged(head + "compute make; adds o[2 +2] = O tok 2 +2 sum key 1 +3; goal o = O\n"),
            "");
  EXPECT_EQ(judged(head + "compute make; adds o[1 +1] = O tok 1 +1 sum key 1 +1\n"), "values ");
}

TEST(Oracle, KernelsHaveLaws) {
  const std::string head =
      "mesh tp=1\ntensor A[3] Activation tok 2\ntensor W[2] Weight\ntensor V[2] Weight ff 2\n"
      "program all on all\nbuffer a rows 2 row_bytes 8 bf16\nbuffer w rows 1 row_bytes 8 bf16\n"
      "buffer v rows 1 row_bytes 8 bf16\ngiven a[0 +1] = A[0] tok 0 +1; given w = W[0]\n"
      "given v = V[0] ff 0 +1\n";
  const std::string reads = "compute forward; reads a[0 +1] = A[0] tok 0 +1; ";
  EXPECT_EQ(judged(head + reads + "reads w = W[0]; writes a[1 +1] = A[1] tok 0 +1\n"), "");
  EXPECT_EQ(judged(head + reads + "reads w = W[0]; writes a[1 +1] = A[1] tok 1 +1\n"), "values ");
  EXPECT_EQ(judged(head + reads + "reads w = W[0]; writes a[1 +1] = A[2] tok 0 +1\n"), "values ");
  EXPECT_EQ(judged(head + reads + "writes a[1 +1] = A[1] tok 0 +1\n"), "values ");
  EXPECT_EQ(judged(head + reads + "reads v = V[0] ff 0 +1; writes a[1 +1] = A[1] tok 0 +1\n"),
            "values ");
}

TEST(Oracle, AnUpdateTakesTheDueScale) {
  const std::string head =
      "mesh tp=1\ntensor W Weight\ntensor G WeightGrad sum k 2 scale 1/2\nprogram all on all\n"
      "buffer w rows 1 row_bytes 8 bf16\nbuffer g rows 1 row_bytes 8 bf16\nkeep w = W\n";
  const std::string rest = "reads w = W; writes w = new W\n";
  EXPECT_EQ(judged(head + "given g = G scale 1/2; compute update; reads g = G scale 1/2; " + rest),
            "");
  EXPECT_EQ(judged(head + "given g = G; compute update; reads g = G; " + rest), "values ");
  EXPECT_EQ(judged(head + "given g = G scale 1/2\n"), "values ");
}

TEST(Oracle, AnExchangeFollowsItsTable) {
  const std::string rest =
      "tensor X Activation tok 2\nprogram all on all\nbuffer x rows 2 row_bytes 8 bf16\n"
      "buffer y rows 2 row_bytes 8 bf16\ngiven x[0 +1] = X tok tp +1\n"
      "exchange x to y by t over tp\n";
  const std::string goal = "goal y[1 +1] = X tok 1-tp +1\n";
  EXPECT_EQ(judged("mesh tp=2\ntable t\nmessage 0 1 0 1 1\nmessage 1 0 0 1 1\n" + rest + goal), "");
  EXPECT_EQ(judged("mesh tp=2\ntable t\nsend 0 1 0 1\nreceive 1 0 0 2\n" + rest), "unmatched ");
  EXPECT_EQ(judged("mesh tp=2\ntable t\nmessage 0 1 0 1 1\nmessage 1 1 0 1 1\n" + rest), "race ");
  EXPECT_EQ(judged("mesh tp=2\ntable t\nmessage 0 1 0 2 1\n" + rest), "unmatched ");
}

// ---- plans of others

void expect_as_known(const std::filesystem::path& folder, const std::string& unsound) {
  std::size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".plan") continue;
    ++seen;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const plan::Plan plan = plan::parse_text(text.str(), entry.path().string());
    EXPECT_EQ(verdict_text(judge(plan)), entry.path().stem() == unsound ? "rendezvous " : "")
        << entry.path();
  }
  EXPECT_GE(seen, 10U);
}

TEST(Oracle, HandWrittenPlansAreAsKnown) {
  const std::filesystem::path folder = "../shared/plans";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "there is no " << folder;
  expect_as_known(folder, "j_172668");
}

TEST(Oracle, ExamplesAreAsKnown) { expect_as_known("examples/plans", "pytorch_172668"); }

// ---- the two ways to answer

// Delaying one event indefinitely shows whether some order has the property.
TEST(Oracle, ExploringAndHoldingBackAgree) {
  std::size_t plans = 0;
  std::size_t sound = 0;
  const auto compare = [&](const std::string& text) {
    const plan::Plan plan = plan::parse_text(text, "small.plan");
    const Verdict slow = judge(plan);
    Verdict fast = judge(plan, {.operations = 0});
    if (!slow.explored) return;
    fast.explored = true;
    EXPECT_EQ(verdict_text(slow), verdict_text(fast)) << text;
    ++plans;
    sound += verdict_text(slow).empty() ? 1 : 0;
  };
  for (Family family : families()) {
    family.longest = family.symmetry == Family::Symmetry::equal ? 3 : 1;
    for_each_plan(family, compare);
  }
  for (std::uint64_t seed = 1; seed <= 200; ++seed) compare(random_small(seed));
  std::cout << plans << " plans, " << sound << " sound\n";
  EXPECT_GT(plans, 1000U);
}

TEST(RandomSmall, IsTheSameForTheSameSeed) {
  EXPECT_EQ(random_small(7), random_small(7));
  EXPECT_NE(random_small(7), random_small(8));
}

TEST(RandomSmall, IsSoundBeforeItIsChanged) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const std::string text = random_sound(seed);
    const std::string verdict = verdict_text(judge(plan::parse_text(text, "small.plan")));
    EXPECT_TRUE(verdict.empty() || verdict == "rendezvous ") << verdict << "\n" << text;
  }
}

TEST(RandomSmall, IsOftenSoundAndFailsInEveryWay) {
  std::map<std::string, int> counts;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const std::string verdict =
        verdict_text(judge(plan::parse_text(random_small(seed), "small.plan")));
    if (verdict.empty()) ++counts["sound"];
    std::istringstream all(verdict);
    for (std::string word; all >> word;) ++counts[word];
  }
  EXPECT_GT(counts["sound"], 150);
  for (const char* what : {"unmatched", "eager", "rendezvous", "race", "unordered", "values"}) {
    EXPECT_GT(counts[what], 3) << what;
  }
}

}  // namespace
}  // namespace shiplap::oracle
