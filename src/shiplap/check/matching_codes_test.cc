// Each code about calls or messages that do not match: the smallest plan that has it, and a sound
// plan next to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Ranks 0 and 1 run the first program, rank 2 the second, in which the mistakes are made.
constexpr std::string_view kGather = R"(mesh dp=3
program most on dp=0..1
  buffer x rows 3 row_bytes 8 f32
  a: all_gather x over dp
program odd on dp=2
  buffer x rows 3 row_bytes 8 f32
  a: all_gather x over dp
)";

constexpr std::string_view kReduce = R"(mesh dp=3
tensor G Grad sum sample 3
program most on dp=0..1
  buffer x rows 1 row_bytes 8 f32
  given x = G sum sample dp +1
  goal x = G
  r: all_reduce x over dp
program odd on dp=2
  buffer x rows 1 row_bytes 8 f32
  given x = G sum sample dp +1
  goal x = G
  r: all_reduce x over dp
)";

constexpr std::string_view kTwoCalls = R"(mesh dp=3
program most on dp=0..1
  buffer x rows 3 row_bytes 8 f32
  a: all_gather x over dp
  b: broadcast x over dp
program odd on dp=2
  buffer x rows 3 row_bytes 8 f32
  a: all_gather x over dp
  b: broadcast x over dp
)";

TEST(Calls, AMemberThatLacksTheLastOneIsNamed) {
  expect_finding({kTwoCalls, "b: broadcast x over dp", ""},
                 {"D701", 2, -1, "rank 2 does not make call 1 on dp {0, 1 and 2}: `b: broadcast`"});
}

TEST(Calls, AMemberThatLacksTheFirstOneIsNamedAtTheNext) {
  expect_finding({kTwoCalls, "a: all_gather x over dp", ""},
                 {"D701", 2, 0, "rank 2 does not make call 0"});
}

TEST(Calls, AMemberThatNeverCallsIsNamed) {
  expect_finding({kGather, "a: all_gather x over dp", "compute other"},
                 {"D701", 2, -1, "rank 2 does not make call 0"});
}

TEST(Calls, OneTooManyIsNamed) {
  expect_finding(
      {kGather, "a: all_gather x over dp", "a: all_gather x over dp\nbarrier over dp"},
      {"D702", 2, 1, "makes a call that no other rank of dp {0, 1 and 2} makes: `barrier`"});
}

TEST(Calls, OfAnotherKindAreNamed) {
  expect_finding({kGather, "all_gather", "broadcast"},
                 {"D703", 2, 0, "`a: broadcast` of rank 2 has a different collective than"});
}

TEST(Calls, OfAnotherSizeAreNamed) {
  const Finding finding = expect_finding({kGather, "rows 3", "rows 6"},
                                         {"D704", 2, 0, "of rank 2 has a different size than"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("against"));
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}, OperationId{2, 0}));
  expect_finding({kGather, "row_bytes 8", "row_bytes 16"},
                 {"D704", 2, 0, "of rank 2 has a different size than"});
}

TEST(Calls, WhoseOwnRegionsDoNotFitAreNamed) {
  constexpr std::string_view kApart = R"(mesh dp=2
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  all_gather x to y over dp
)";
  expect_finding({kApart, "rows 2", "rows 3"},
                 {"D704", 0, 0, "1 rows of 8 bytes go to 3 rows of 8 bytes"});
  expect_finding({kApart, "rows 2 row_bytes 8", "rows 2 row_bytes 4"},
                 {"D704", 0, 0, "1 rows of 8 bytes go to 2 rows of 4 bytes"});
}

TEST(Calls, ThatCannotBeCutIntoPiecesAreNamed) {
  constexpr std::string_view kTurn = R"(mesh dp=2
list cut = 0 1 3
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 4 row_bytes 8 f32
  all_to_all x to y over dp
)";
  expect_finding({kTurn, "x rows 4 row_bytes 8 f32\n  buffer y rows 4",
                  "x rows 3 row_bytes 8 f32\n  buffer y rows 3"},
                 {"D704", 0, 0, "3 rows of 8 bytes"});
  constexpr std::string_view kCut = R"(mesh dp=2
list cut = 0 1 4
program all on all
  buffer x rows 4 row_bytes 8 f32
  all_gather x over dp split cut
)";
  expect_finding({kCut, "0 1 4", "0 1 3 4"}, {"D704", 0, 0, "does not cut 4 rows"});
}

TEST(Copies, WhoseRegionsDoNotFitAreNamed) {
  constexpr std::string_view kCopy = R"(mesh dp=1
program all on all
  buffer x rows 2 row_bytes 8 f32
  copy x[0 +1] to x[1 +1]
)";
  expect_finding({kCopy, "x[1 +1]", "x"}, {"D704", 0, 0, "1 rows of 8 bytes go to 2 rows"});
}

TEST(Calls, OfAnotherElementTypeAreNamed) {
  const Finding finding =
      expect_finding({kGather, "f32", "i32"}, {"D705", 2, 0, "a different element type"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("i32 against f32"));
}

TEST(Calls, WithAnotherOperatorOrScaleAreNamed) {
  expect_finding({kReduce, "over dp", "over dp operator max"},
                 {"D706", 2, 0, "a different operator or scale"});
  const Finding finding = expect_finding({kReduce, "over dp", "over dp scale 1/3"},
                                         {"D706", 2, 0, "a different operator or scale"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("sum at scale 1/3 against sum at scale 1"));
}

TEST(Calls, WithAnotherRootAreNamed) {
  const Finding finding =
      expect_finding({kTwoCalls, "broadcast x over dp", "broadcast x over dp root 2"},
                     {"D707", 2, 1, "a different root"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("root 2 against root 0"));
}

TEST(Calls, InAnotherOrderAreNamedAtTheFirst) {
  const Finding finding =
      expect_finding({kTwoCalls, "a: all_gather x over dp\n  b: broadcast x over dp",
                      "b: broadcast x over dp\n  a: all_gather x over dp"},
                     {"D708", 2, 0, "calls `b: broadcast` before `a: all_gather`"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{2, 0}, OperationId{2, 1}));
}

TEST(Groups, AlongAnotherAxisAreNamed) {
  constexpr std::string_view kAxes = R"(mesh dp=3 tp=2
program most on rank=0..4
  buffer x rows 6 row_bytes 8 f32
  all_gather x over dp
program odd on rank=5
  buffer x rows 6 row_bytes 8 f32
  all_gather x over dp
)";
  const Finding finding = expect_finding(
      {kAxes, "over dp", "over tp"},
      {"D709", 5, 0, "over tp {4 and 5}, where the others call over dp {1, 3 and 5}"});
  EXPECT_EQ(finding.diagnostic.why, "its group is missing rank 1 and 3 and has extra rank 4");
}

TEST(Groups, ThatLeaveARankOutAreNamed) {
  const Finding finding = expect_finding({kGather, "over dp", "over dp{0, 2}"},
                                         {"D709", 2, 0, "where the others call over"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("is missing rank 1"));
}

// All others leave out the one that calls with them.
TEST(Groups, ThatARankIsLeftOutOfAreNamed) {
  constexpr std::string_view kBarrier = R"(mesh dp=3
program most on dp=0..1
  barrier over dp{0, 1}
program odd on dp=2
  compute other
)";
  const Finding finding = expect_finding({kBarrier, "compute other", "barrier over dp"},
                                         {"D709", 2, 0, "where the others call over"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("has extra rank 2"));
}

TEST(Groups, InAnotherOrderAreNamed) {
  const Finding finding = expect_finding({kGather, "over dp", "over dp{0, 2, 1}"},
                                         {"D709", 2, 0, "where the others call over"});
  EXPECT_THAT(finding.diagnostic.why, HasSubstr("the same ranks in a different order"));
}

TEST(Groups, OnAnotherChannelAreNamed) {
  const Finding finding = expect_finding({kGather, "over dp", "over dp/side"},
                                         {"D709", 2, 0, "where the others call over"});
  EXPECT_EQ(finding.diagnostic.why, "the channels differ");
}

TEST(Pieces, OfAnotherListAreNamed) {
  constexpr std::string_view kCut = R"(mesh dp=3
list even = 0 1 2 3
list same = 0 1 2 3
list uneven = 0 2 2 3
program most on dp=0..1
  buffer x rows 3 row_bytes 8 f32
  all_gather x over dp split even
program odd on dp=2
  buffer x rows 3 row_bytes 8 f32
  all_gather x over dp split same
)";
  expect_finding({kCut, "split same", "split uneven"}, {"D710", 2, 0, "different pieces"});
}

constexpr std::string_view kTables = R"(mesh ep=3
table t
  message 0 1 0 1 0
table u
  message 0 1 0 1 1
program most on ep=0..1
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  exchange x to y by t over ep
program odd on ep=2
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  exchange x to y by t over ep
)";

TEST(Tables, ThatAreOthersOrReversedAreNamed) {
  expect_finding({kTables, "by t", "by u"}, {"D710", 2, 0, "a different table"});
  expect_finding({kTables, "by t", "by t reversed"}, {"D710", 2, 0, "a different table"});
}

TEST(Tables, WhoseEndsDisagreeAreNamedAtTheSender) {
  constexpr std::string_view kEnds = R"(mesh ep=2
table t
  send 0 1 0 2
  receive 1 0 0 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  exchange x to y by t over ep
)";
  expect_finding({kEnds, "receive 1 0 0 2", "receive 1 0 0 1"},
                 {"D717", 0, 0, "by table `t` rank 0 sends 2 rows to rank 1, which receives 1"});
  expect_finding({kEnds, "  receive 1 0 0 2\n", ""},
                 {"D717", 0, 0, "rank 0 sends 2 rows to rank 1, which receives 0"});
  expect_finding({kEnds, "  send 0 1 0 2\n", ""},
                 {"D717", 1, 0, "rank 1 receives 2 rows from rank 0, which sends 0"});
  // Reversed, the receiver sends.
  const std::string reversed = changed(kEnds, "by t", "by t reversed");
  expect_finding({reversed, "receive 1 0 0 2", "receive 1 0 0 1"},
                 {"D717", 1, 0, "rank 1 sends 1 rows to rank 0, which receives 2"});
}

TEST(Tables, ThatLeaveTheirGroupAreNamed) {
  constexpr std::string_view kGroups = R"(mesh dp=2 ep=2
table t
  message 0 1 0 1 0
  message 2 3 0 1 0
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  exchange x to y by t over ep
)";
  expect_finding(
      {kGroups, "message 2 3", "message 2 1"},
      {"D718", 1, 0, "rank 1 receives something from rank 2, which is not in the group"});
}

TEST(Tables, ThatLeaveTheirRegionAreNamed) {
  expect_finding({kTables, "message 0 1 0 1 0", "message 0 1 0 1 2"},
                 {"D718", 1, 0, "a message of table `t` leaves y of rank 1"});
  expect_finding({kTables, "message 0 1 0 1 0", "message 0 1 1 2 0"},
                 {"D718", 0, 0, "a message of table `t` leaves x of rank 0"});
}

constexpr std::string_view kSend = R"(mesh pp=3
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  s: send x to rank 1
program second on pp=1
  buffer x rows 2 row_bytes 8 f32
  r: receive x from rank 0
program third on pp=2
  compute other
)";

TEST(Messages, WithoutASendAreReportedAtTheReceive) {
  expect_finding({kSend, "s: send x to rank 1", "compute other"},
                 {"D711", 1, 0, "`r: receive` of rank 1 waits for a send of rank 0"});
}

TEST(Messages, WithoutAReceiveAreReportedAtTheSend) {
  expect_finding({kSend, "r: receive x from rank 0", "compute other"},
                 {"D712", 0, 0, "`s: send` of rank 0 is never received"});
}

TEST(Messages, TooManyOfAreNamedAtTheFirstThatDoesNotFit) {
  constexpr std::string_view kThree = R"(mesh pp=2
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
  a: send x[0 +1] to pp+1
  b: send x[0 +2] to pp+1
  c: send x[0 +3] to pp+1
program second on pp=1
  buffer x rows 3 row_bytes 8 f32
  a: receive x[0 +1] from pp-1
  b: receive x[0 +2] from pp-1
  c: receive x[0 +3] from pp-1
)";
  expect_finding({kThree, "b: receive x[0 +2] from pp-1", ""},
                 {"D712", 0, 1, "`b: send` of rank 0 is never received"});
  expect_finding({kThree, "b: send x[0 +2] to pp+1", ""},
                 {"D711", 1, 1, "`b: receive` of rank 1 waits"});
}

TEST(Messages, ToTheWrongPeerAreNamedAtTheSend) {
  const Finding finding = expect_finding(
      {kSend, "to rank 1", "to rank 2"},
      {"D713", 0, 0, "`s: send` of rank 0 goes to rank 2, but it is rank 1 that waits for it"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
}

TEST(Messages, FromTheWrongPeerAreNamedAtTheReceive) {
  expect_finding({kSend, "from rank 0", "from rank 2"},
                 {"D713", 1, 0, "`r: receive` of rank 1 waits for rank 2, but it is rank 0"});
}

TEST(Messages, InAnotherOrderAreFoundBySize) {
  constexpr std::string_view kTwo = R"(mesh pp=2
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
  a: send x[0 +1] to pp+1
  b: send x[1 +2] to pp+1
program second on pp=1
  buffer x rows 3 row_bytes 8 f32
  a: receive x[0 +1] from pp-1
  b: receive x[1 +2] from pp-1
)";
  const Finding finding =
      expect_finding({kTwo, "a: receive x[0 +1] from pp-1\n  b: receive x[1 +2] from pp-1",
                      "b: receive x[1 +2] from pp-1\n  a: receive x[0 +1] from pp-1"},
                     {"D714", 0, 0, "rank 0 sends `a: send` before `b: send`"});
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 0}, OperationId{0, 1}));
}

TEST(Messages, InAnotherOrderAreFoundByContent) {
  constexpr std::string_view kTwo = R"(mesh pp=2
tensor A Activation sample 2
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  given x = A
  a: send x[0 +1] to pp+1
  b: send x[1 +1] to pp+1
program second on pp=1
  buffer x rows 2 row_bytes 8 f32
  goal x = A
  a: receive x[0 +1] from pp-1
  b: receive x[1 +1] from pp-1
)";
  expect_finding({kTwo, "a: receive x[0 +1] from pp-1\n  b: receive x[1 +1] from pp-1",
                  "b: receive x[1 +1] from pp-1\n  a: receive x[0 +1] from pp-1"},
                 {"D714", 0, 0, "in a different order than rank 1 receives them"});
}

TEST(Messages, WithAnotherTagOrChannelAreNamedAtTheSend) {
  expect_finding({kSend, "to rank 1", "to rank 1 tag 4"},
                 {"D715", 0, 0, "`s: send` of rank 0 has tag 4, "});
  expect_finding({kSend, "from rank 0", "from rank 0 channel side"},
                 {"D715", 0, 0, "channel side"});
}

TEST(Messages, OfAnotherTypeAreReportedOncePerPairOfLines) {
  const Report report = checked(R"(mesh pp=4
program senders on pp=0|2
  buffer x rows 1 row_bytes 8 f32
  send x to pp+1
program receivers on pp=1|3
  buffer x rows 1 row_bytes 8 i32
  receive x from pp-1
)");
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].diagnostic.code, "D716");
  EXPECT_THAT(report.findings[0].diagnostic.why,
              testing::HasSubstr("; and 1 more pair of ranks, by the same two lines"));
}

TEST(Messages, OfAnotherSizeOrTypeAreNamedAtTheSend) {
  expect_finding({kSend, "receive x ", "receive x[0 +1] "},
                 {"D716", 0, 0, "sends 2 rows of 8 bytes, `r: receive` of rank 1 receives 1 rows"});
  expect_finding({kSend, "row_bytes 8", "row_bytes 4"},
                 {"D716", 0, 0, "receives 2 rows of 4 bytes"});
  expect_finding({kSend, "f32", "i32"}, {"D716", 0, 0, "receives i32"});
}

}  // namespace
}  // namespace shiplap::check
