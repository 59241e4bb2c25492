#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/report/postmortem.h"

namespace shiplap::report {
namespace {

using postmortem::CallSite;
using postmortem::Divergence;
using postmortem::FaultClass;
using postmortem::HangStatus;
using postmortem::History;
using postmortem::Position;
using postmortem::Postmortem;
using postmortem::Suspect;
using testing::HasSubstr;
using testing::Not;

std::string page_of(const Postmortem& found) {
  return to_html(postmortem_page(found, "shiplap postmortem '<a&b>'"));
}

std::size_t count_of(const std::string& html, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = html.find(part); at != std::string::npos; at = html.find(part, at + 1)) {
    ++count;
  }
  return count;
}

CallSite reduce_at(std::int32_t rank, std::int32_t line) {
  return {.rank = rank,
          .operation = "all_reduce",
          .group = "mesh_dp",
          .sequence = line,
          .arguments = "Float [64]",
          .frame = {.function = "step", .file = "/app/train.py", .line = line}};
}

// Rank 1 is stuck; ranks of its group of 8 wait for it, and the others for rank 0.
Postmortem stuck(std::int32_t world) {
  Postmortem found{.status = HangStatus::hung,
                   .proof = {"a pending call is older than its timeout"},
                   .world = world,
                   .dumps = world,
                   .calls = 10L * world};
  found.suspects.push_back({.ranks = {1},
                            .fault = FaultClass::cpu_stuck,
                            .confidence = 0.88,
                            .what = "rank 1 did not come to all_reduce of Float [64] (call 28 on "
                                    "mesh_dp) at train.py:28",
                            .evidence = {"it waits for nobody"},
                            .would_help = "its stack",
                            .at = reduce_at(1, 27),
                            .expected = reduce_at(0, 28),
                            .victims = world - 1});
  for (std::int32_t rank = 0; rank < world; ++rank) {
    Position position{.rank = rank, .state = Position::State::waits, .calls = 10};
    position.last = position.pending = reduce_at(rank, rank < 8 ? 28 : 40);
    position.waits_for = {rank < 8 ? 1 : 0};
    if (rank == 1) {
      position = {.rank = 1, .state = Position::State::free, .last = reduce_at(1, 27), .calls = 10};
    }
    found.positions.push_back(position);
  }
  return found;
}

// A chain: each rank waits for the next one, and the last one for nobody.
Postmortem chain(std::int32_t world) {
  Postmortem found = stuck(world);
  for (Position& position : found.positions) {
    position = {.rank = position.rank,
                .state = Position::State::waits,
                .last = reduce_at(position.rank, 5),
                .pending = reduce_at(position.rank, 5),
                .waits_for = {position.rank + 1}};
  }
  found.positions.back() = {.rank = world - 1, .state = Position::State::free};
  found.suspects.front().ranks = {world - 1};
  return found;
}

History history_of(std::int32_t rank, const std::vector<std::int32_t>& lines) {
  History history{.rank = rank, .role = rank == 1 ? "suspect" : "peer of rank 1"};
  for (const std::int32_t line : lines) {
    CallSite call = reduce_at(rank, line);
    call.group = "group of rank " + std::to_string(rank);
    history.calls.push_back({.call = call, .started = true, .complete = true});
  }
  return history;
}

TEST(PostmortemPage, TitleIsTheAnswerWithoutCallNumbers) {
  Postmortem found = stuck(8);
  EXPECT_THAT(page_of(found), HasSubstr("<h1>Rank 1 did not come to all_reduce at "
                                        "train.py:28</h1>"));
  found.status = HangStatus::undecided;
  EXPECT_THAT(page_of(found), HasSubstr("<h1>If this job hangs: rank 1 did not come"));
}

TEST(PostmortemPage, TitleKeepsWhatDiffers) {
  Postmortem found = stuck(8);
  Suspect& first = found.suspects.front();
  first.divergence = Divergence::size;
  EXPECT_THAT(page_of(found), HasSubstr("<h1>Rank 1 did not come to all_reduce of Float [64] at"));
  first.divergence = Divergence::group;
  EXPECT_THAT(page_of(found), HasSubstr("<h1>Rank 1 did not come to all_reduce on mesh_dp at"));
}

TEST(PostmortemPage, SaysWhereToLookAndWhy) {
  const std::string html = page_of(stuck(8));
  for (const char* part :
       {"train.py:27 in step", "train.py:28 in step", "/app/train.py:28", "it waits for nobody",
        "its stack", "88\u00A0% confidence", "7 ranks wait for it, directly or not",
        "a pending call is older than its timeout", "7 of 8", "8 of 8 ranks"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(PostmortemPage, DrawsACellForEveryRankUpTo1024) {
  for (const std::int32_t world : {1, 8, 256, 1024}) {
    const std::string html = page_of(world == 1 ? chain(1) : stuck(world));
    EXPECT_THAT(html, HasSubstr("A cell is a rank"));
    // The graph has a node for rank 1.
    const std::size_t titles = world == 1 ? 1 : static_cast<std::size_t>(world) + 1;
    EXPECT_EQ(count_of(html, "<title>rank "), titles) << world;
  }
}

TEST(PostmortemPage, FoldsMoreRanksAndSaysSo) {
  const std::string html = page_of(stuck(16'384));
  EXPECT_THAT(html, HasSubstr("A cell is 16 consecutive ranks"));
  EXPECT_THAT(html, HasSubstr("<title>ranks 0-15\n0 and 2-7: waits in all_reduce, train.py:28 in "
                              "step\n1: no call pending, main suspect, train.py:27 in "
                              "step\n8-15: waits in all_reduce, train.py:40 in step</title>"));
  EXPECT_EQ(count_of(html, "main suspect, "), 1U);
}

TEST(PostmortemPage, RanksThatWaitForTheSameShareANode) {
  const std::string html = page_of(stuck(64));
  EXPECT_EQ(count_of(html, "class=\"card\""), 3U);
  EXPECT_EQ(count_of(html, "class=\"wait\""), 2U);
  EXPECT_THAT(html, HasSubstr(">ranks 0 and 2-7<"));
  EXPECT_THAT(html, HasSubstr(">ranks 8-63<"));
}

TEST(PostmortemPage, AShortChainOfWaitsIsDrawnLinkByLink) {
  const std::string html = page_of(chain(6));
  EXPECT_EQ(count_of(html, "class=\"card\""), 6U);
  EXPECT_EQ(count_of(html, "class=\"wait\""), 5U);
  EXPECT_THAT(html, Not(HasSubstr("other places")));
}

TEST(PostmortemPage, ALongChainOfWaitsIsFoldedFarFromTheCulprit) {
  const std::string html = page_of(chain(1000));
  EXPECT_LE(count_of(html, "class=\"card\""), 24U);
  EXPECT_THAT(html, HasSubstr(">rank 999<"));
  EXPECT_THAT(html, HasSubstr(">rank 998<"));
  EXPECT_THAT(html, HasSubstr("other places"));
  EXPECT_THAT(html, HasSubstr(">ranks 0-976<"));
}

TEST(PostmortemPage, ACycleHasADashedArrow) {
  Postmortem found = chain(3);
  found.positions[2] = {
      .rank = 2, .state = Position::State::waits, .pending = reduce_at(2, 5), .waits_for = {0}};
  EXPECT_THAT(page_of(chain(3)), Not(HasSubstr("Dashed arrows")));
  const std::string html = page_of(found);
  EXPECT_THAT(html, HasSubstr("Dashed arrows"));
  EXPECT_EQ(count_of(html, "class=\"wait back\""), 1U);
}

TEST(PostmortemPage, RanksThatWaitForNoneAreLeftOutOfTheGraph) {
  Postmortem found = stuck(16);
  found.positions[12] = {.rank = 12, .state = Position::State::free};
  EXPECT_THAT(page_of(found), HasSubstr("Left out: 1 rank that no rank waits for"));
}

TEST(PostmortemPage, ARankWithoutADumpIsMarked) {
  Postmortem found = stuck(8);
  found.positions[1] = {.rank = 1, .state = Position::State::no_dump};
  found.positions[5] = {.rank = 5, .state = Position::State::no_dump};
  found.absent = {1, 5};
  found.dumps = 6;
  const std::string html = page_of(found);
  EXPECT_THAT(html, HasSubstr("no dump: 2 ranks"));
  EXPECT_THAT(html, HasSubstr("missing: ranks 1, 5"));
  EXPECT_THAT(html, HasSubstr("class=\"m culprit lost\""));
  EXPECT_THAT(html, HasSubstr("class=\"m absent lost\""));
}

// Lines 1 to 5 in both, but rank 1 lacks line 3.
TEST(PostmortemPage, ASkippedCallIsAGapBesideTheCallOfThePeer) {
  Postmortem found = stuck(8);
  found.histories = {history_of(1, {1, 2, 4, 5}), history_of(0, {1, 2, 3, 4, 5})};
  found.suspects.front().divergence = Divergence::skipped;
  found.suspects.front().expected = found.histories[1].calls[2].call;
  const std::string html = page_of(found);
  EXPECT_EQ(count_of(html, "all_reduce <span"), 9U);
  EXPECT_EQ(count_of(html, "not called"), 1U);
  EXPECT_EQ(count_of(html, "<td class=\"words gap\">"), 0U);
  found.suspects.front().divergence = Divergence::none;
  EXPECT_EQ(count_of(page_of(found), "<td class=\"words gap\">"), 1U);
}

TEST(PostmortemPage, CallsThatMeetShareARowEvenIfTheirLinesDiffer) {
  Postmortem found = stuck(8);
  found.histories = {history_of(1, {1, 2, 4}), history_of(0, {1, 2, 3})};
  for (History& history : found.histories) {
    for (std::size_t k = 0; k < history.calls.size(); ++k) {
      history.calls[k].call.group = "mesh_dp";
      history.calls[k].call.sequence = static_cast<std::int64_t>(k);
    }
  }
  const std::string html = page_of(found);
  EXPECT_THAT(html, Not(HasSubstr("<td class=\"words gap\">")));
  EXPECT_THAT(html, HasSubstr("<b>train.py:4</b>"));
  EXPECT_THAT(html, HasSubstr("<b>train.py:3</b>"));
  EXPECT_THAT(html, HasSubstr("Lines in red"));
}

TEST(PostmortemPage, RanksWithOtherProgramsHaveTablesOfTheirOwn) {
  Postmortem found = stuck(8);
  found.histories = {history_of(1, {1, 2, 3, 4}), history_of(0, {11, 12, 13, 14})};
  EXPECT_EQ(count_of(page_of(found), "<table class=\"calls\">"), 2U);
  found.histories.pop_back();
  EXPECT_EQ(count_of(page_of(found), "<table class=\"calls\">"), 1U);
}

TEST(PostmortemPage, CallsThatAreNotCompleteAreMarked) {
  Postmortem found = stuck(8);
  found.histories = {history_of(1, {1, 2, 3})};
  found.histories[0].calls[1] = {.call = reduce_at(1, 2), .started = true, .differs = true};
  found.histories[0].calls[2] = {.call = reduce_at(1, 3)};
  const std::string html = page_of(found);
  EXPECT_EQ(count_of(html, ">started<"), 1U);
  EXPECT_EQ(count_of(html, ">scheduled<"), 1U);
  EXPECT_EQ(count_of(html, ">differs<"), 1U);
}

TEST(PostmortemPage, OfAFinishedJobHasNoGraph) {
  Postmortem found = stuck(8);
  found.status = HangStatus::finished;
  found.suspects.clear();
  found.proof.clear();
  for (Position& position : found.positions) {
    position = {.rank = position.rank, .state = Position::State::free};
  }
  const std::string html = page_of(found);
  EXPECT_THAT(html, HasSubstr("<h1>No call is pending"));
  EXPECT_THAT(html, Not(HasSubstr("What waits for what")));
  EXPECT_THAT(html, Not(HasSubstr("Suspects")));
}

TEST(PostmortemPage, OfNothingIsAPage) {
  EXPECT_THAT(page_of(Postmortem{}), HasSubstr("0 of 0 ranks"));
}

TEST(PostmortemPage, EscapesEveryText) {
  Postmortem found = stuck(4);
  const std::string bad = "<x>";
  found.notes = {bad};
  found.proof = {bad};
  Suspect& suspect = found.suspects.front();
  for (std::string* text : {&suspect.what, &suspect.by_plan, &suspect.would_help,
                            &suspect.at.operation, &suspect.at.group, &suspect.at.frame.file}) {
    *text = bad;
  }
  suspect.evidence = {bad};
  for (Position& position : found.positions) {
    position.now = {.function = bad, .file = bad, .line = 1};
    position.pending.operation = position.pending.group = position.pending.arguments = bad;
    position.pending.frame.file = position.pending.frame.function = bad;
  }
  found.histories = {history_of(1, {1})};
  found.histories[0].role = found.histories[0].calls[0].call.operation = bad;
  found.histories[0].calls[0].call.frame.file = bad;
  EXPECT_THAT(page_of(found), Not(HasSubstr(bad)));
}

TEST(PostmortemPage, NeedsNoNetwork) {
  const std::string html = page_of(stuck(300));
  for (const char* way : {"http:", "https:", "url(", "@import", " src=", "<link", "fetch("}) {
    EXPECT_THAT(html, Not(HasSubstr(way)));
  }
}

TEST(PostmortemPage, GivesTheSameBytesForTheSameJob) {
  EXPECT_EQ(page_of(stuck(256)), page_of(stuck(256)));
}

TEST(PostmortemPage, Of1024RanksHasLessThan400Kilobytes) {
  EXPECT_LT(page_of(stuck(1024)).size(), 400'000U);
}

// Half the ranks wait for the other half.
TEST(PostmortemPage, Of16384RanksIsSmallAndQuick) {
  Postmortem found = stuck(16'384);
  std::vector<std::int32_t> half(8192);
  std::iota(half.begin(), half.end(), 0);
  for (std::int32_t rank = 8192; rank < 16'384; ++rank) found.positions[rank].waits_for = half;
  const std::clock_t start = std::clock();  // of this process: a busy machine does not matter
  const std::string html = page_of(found);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(html.size(), 400'000U);
  EXPECT_LT(seconds, 10);
}

}  // namespace
}  // namespace shiplap::report
