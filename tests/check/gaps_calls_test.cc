// Which rank is reported if calls and messages mismatch: found untested by mutations of
// diagnose_calls.cc and diagnose_messages.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gaps.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- calls

// Rank 2 of three differs from the other two in `operation`.
std::string odd_calls(const std::string& most, const std::string& odd) {
  const std::string buffers = R"(
  buffer x rows 6 row_bytes 8 f32
  buffer z rows 1 row_bytes 8 f32
)";
  return "mesh dp=3\nprogram most on dp=0..1" + buffers + most + "program odd on dp=2" + buffers +
         odd + "  compute other\n";
}

std::string lines(const std::vector<std::string>& calls) {
  std::string text;
  for (const std::string& call : calls) text += "  " + call + " over dp\n";
  return text;
}

TEST(Calls, OnAGroupOfTheirOwnAreTheStrayOnes) {
  const std::string head = "mesh dp=2\nprogram first on dp=0\n  buffer x rows 1 row_bytes 8 f32\n";
  const std::string second = "program second on dp=1\n  buffer x rows 1 row_bytes 8 f32\n";
  const std::string both = "  all_reduce x over dp\n  all_reduce x over dp\n";
  const std::string stray = "  all_reduce x over dp\n  all_reduce x over dp/side\n";
  EXPECT_EQ(check_summary(head + both + second + stray), "D709@1:1");
  EXPECT_EQ(check_summary(head + stray + second + both), "D709@0:1");
}

TEST(Calls, OweOneGroupOneCall) {
  const std::string call = "  all_reduce z over dp";
  EXPECT_EQ(check_summary(odd_calls(call + "\n", call + "/one\n" + call + "/two\n")),
            "D709@2:0/1+D702");
  EXPECT_EQ(check_summary(odd_calls(call + "\n" + call + "\n", call + "/one\n")),
            "D701@2:-1/2+D701+D702");
}

TEST(Calls, OnGroupsThatShareNoRankAreTwoCauses) {
  EXPECT_EQ(check_summary(R"(mesh dp=2 tp=2
program most on tp=0
  buffer x rows 1 row_bytes 8 f32
  all_reduce x over tp
program odd on tp=1
  compute other
)"),
            "D701@1:-1 D701@3:-1");
}

TEST(Calls, OfTheFirstRankAreComparedToo) {
  const std::string plan = R"(mesh dp=3
program odd on dp=0
  buffer x rows 1 row_bytes 8 f32
  all_reduce x over dp
  all_reduce x over dp
program most on dp=1..2
  buffer x rows 1 row_bytes 8 f32
  all_reduce x over dp
)";
  const Finding finding = first(plan);
  EXPECT_EQ(check_summary(plan), "D702@0:1");
  EXPECT_EQ(finding.diagnostic.where.operation, "all_reduce");
  EXPECT_EQ(finding.diagnostic.where.rank, 0);
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 1}));
}

TEST(Calls, ThatAreMissingAreToldApartByTheirRows) {
  for (const std::string call :
       {"all_reduce x[N +1]", "all_reduce x[N +1] to z", "all_reduce z to x[N +1]"}) {
    const auto with = [&](const std::string& row) { return changed(call, "N", row); };
    const Finding finding =
        first(odd_calls(lines({with("0"), with("2"), with("4")}), lines({with("0"), with("4")})));
    EXPECT_EQ(finding.diagnostic.code, "D701");
    EXPECT_EQ(finding.place, (OperationId{2, 1})) << call;
    EXPECT_THAT(finding.witness, ElementsAre(OperationId{0, 1})) << call;
    EXPECT_THAT(finding.diagnostic.what, HasSubstr("call 1 on")) << call;
  }
}

TEST(Calls, ThatAreMissingAreToldApartByTheirNames) {
  const std::string call = ": all_reduce z";
  const std::string last = lines({"a" + call, "c" + call});
  EXPECT_EQ(check_summary(odd_calls(lines({"a" + call, "b" + call, "c" + call}), last)),
            "D701@2:1");
  EXPECT_EQ(check_summary(odd_calls(lines({"a[0]" + call, "a[1]" + call, "a[2]" + call}),
                                    lines({"a[0]" + call, "a[2]" + call}))),
            "D701@2:1");
  // A call without a name matches any name.
  EXPECT_EQ(check_summary(odd_calls(lines({"a" + call, "b" + call, "c" + call}),
                                    lines({"all_reduce z", "all_reduce z"}))),
            "D701@2:-1");
}

TEST(Calls, WithoutANameAreThoseThatFit) {
  EXPECT_EQ(check_summary(odd_calls(lines({"a: all_reduce z", "b: all_reduce x[0 +2]"}),
                                    lines({"all_reduce x[0 +2]"}))),
            "D701@2:0");
  EXPECT_EQ(check_summary(odd_calls(lines({"all_reduce z", "all_reduce x[0 +2]"}),
                                    lines({"b: all_reduce x[0 +2]"}))),
            "D701@2:0");
}

TEST(Calls, ThatAreNotAsManyAreNotExchanged) {
  EXPECT_EQ(
      check_summary(odd_calls(lines({"all_reduce z", "all_reduce x[0 +2]"}),
                              lines({"all_reduce x[0 +2]", "all_reduce x[0 +3]", "all_reduce z"}))),
      "D704@2:0/2+D704+D702");
}

TEST(Calls, ThatDifferInTheirNameAloneAreNotTold) {
  const std::string call = ": all_reduce z";
  EXPECT_EQ(check_summary(odd_calls(lines({"a" + call, "b" + call, "c" + call}),
                                    lines({"a" + call, "y" + call}))),
            "D701@2:-1");
  const Finding differs = first(odd_calls(lines({"a" + call, "b: all_reduce x[0 +1]"}),
                                          lines({"y" + call, "b: all_reduce x[0 +2]"})));
  EXPECT_EQ(differs.place, (OperationId{2, 1}));
  EXPECT_EQ(differs.diagnostic.code, "D704");
  EXPECT_THAT(differs.diagnostic.why, HasSubstr("; call 1 on"));
  EXPECT_THAT(differs.witness, ElementsAre(OperationId{0, 1}, OperationId{2, 1}));
  const Finding extra = first(odd_calls(lines({"a" + call}), lines({"y" + call, "b" + call})));
  EXPECT_EQ(extra.place, (OperationId{2, 1}));
  EXPECT_EQ(extra.diagnostic.code, "D702");
  EXPECT_EQ(extra.diagnostic.why, "it is call 1 of this rank on the group");
}

TEST(Calls, ThatAreMissingAreNumbered) {
  const std::vector<std::string> all{"all_reduce x[0 +1]", "all_reduce x[0 +2]",
                                     "all_reduce x[0 +3]", "all_reduce x[0 +4]"};
  const Finding finding = first(odd_calls(lines(all), lines({all.front(), all.back()})));
  EXPECT_EQ(finding.place, (OperationId{2, 1}));
  EXPECT_THAT(finding.diagnostic.what, HasSubstr("does not make call 1 on dp {0, 1 and 2}"));
  ASSERT_EQ(finding.notes.size(), 1U);
  EXPECT_EQ(finding.notes.front().severity, Severity::note);
  EXPECT_THAT(finding.notes.front().what, HasSubstr("does not make call 2 on dp {0, 1 and 2}"));
}

TEST(Calls, InAnotherOrderNameTheirGroupAsMostDo) {
  const Finding finding = first(
      odd_calls(lines({"all_reduce z", "all_reduce x"}), lines({"all_reduce x", "all_reduce z"})));
  EXPECT_EQ(finding.diagnostic.code, "D708");
  EXPECT_EQ(finding.place, (OperationId{2, 0}));
  EXPECT_EQ(finding.folded, 0);
  EXPECT_THAT(finding.witness, ElementsAre(OperationId{2, 0}, OperationId{2, 1}));
  EXPECT_THAT(finding.diagnostic.why,
              HasSubstr("calls on dp {0, 1 and 2} are matched by number: this is call 0"));
}

// Only rank 0 makes this call. The others may call on a group that does not include it.
TEST(Calls, ThatOthersMakeWithoutARankAreOnTheGroupOfAllButThatRank) {
  const auto plan = [](const std::string& mine, const std::string& theirs) {
    std::string text = "mesh dp=4\nprogram all on all\n  buffer x rows 1 row_bytes 8 f32\n";
    text += "  when dp=0\n    all_reduce x over ranks{" + mine + "}\n  end\n";
    for (const char rank : theirs) {
      if (rank < '0' || rank > '3') continue;
      text += std::string("  when dp=") + rank + "\n    all_reduce x over ranks{" + theirs +
              "}\n  end\n";
    }
    return text + "  compute other\n";
  };
  EXPECT_EQ(check_summary(plan("0, 1, 2, 3", "1, 2, 3")), "D709@0:0");
  EXPECT_EQ(check_summary(plan("0, 1, 2", "1, 2")), "D709@0:0");
  EXPECT_EQ(check_summary(plan("0, 1, 2", "3, 1")), "D702@0:0");
  EXPECT_EQ(check_summary(plan("0, 1, 2", "1, 3")), "D702@0:0");
  EXPECT_EQ(check_summary(plan("0, 1, 2", "0, 1")), "D702@0:0");
  EXPECT_EQ(check_summary(plan("0, 1, 2", "1, 0")), "D702@0:0");
  EXPECT_EQ(check_summary(plan("0, 1, 2, 3", "1, 2")), "D702@0:0");
  EXPECT_THAT(first(plan("0, 1, 2", "1, 2")).witness,
              ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
}

TEST(Calls, OfManyGroupsAreLookedAtInTheFirst64) {
  std::string calls;
  for (int k = 0; k < 66; ++k) {
    calls += "  all_reduce z over dp/c" + std::to_string(k) + "\n";
  }
  EXPECT_EQ(check_summary(odd_calls(calls + calls, "")), "D701@2:-1/129+D701+D701+D701+D701");
}

// ---- messages

// Ends that differ only in the tag are paired before ends that differ in the peer.
TEST(Messages, OfTheSameEndsArePairedFirst) {
  EXPECT_EQ(check_summary(R"(mesh pp=3
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  receive x from pp+2
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp+1 tag 2
program third on pp=2
  buffer x rows 1 row_bytes 8 f32
  send x to pp-1 tag 1
)"),
            "D715@2:0 D711@0:0");
}

TEST(Messages, OfOneKeyThatDoNotFitAreOneCause) {
  EXPECT_EQ(check_summary(R"(mesh pp=2
program first on pp=0
  buffer x rows 3 row_bytes 8 f32
  send x[0 +1] to pp+1
  send x[0 +1] to pp+1
  send x[0 +1] to pp+1
program second on pp=1
  buffer x rows 3 row_bytes 8 f32
  receive x[0 +2] from pp-1
  receive x[0 +1] from pp-1
  receive x[0 +3] from pp-1
)"),
            "D716@0:0/1");
}

// The first send that mismatches its receive is the extra one.
TEST(Messages, TooManyOfBeginWhereTheSizesDiffer) {
  const auto plan = [](const std::vector<int>& sends, const std::vector<int>& receives) {
    std::string text = "mesh pp=2\nprogram first on pp=0\n  buffer x rows 5 row_bytes 8 f32\n";
    for (const int rows : sends) text += "  send x[0 +" + std::to_string(rows) + "] to pp+1\n";
    text += "program second on pp=1\n  buffer x rows 5 row_bytes 8 f32\n";
    for (const int rows : receives) {
      text += "  receive x[0 +" + std::to_string(rows) + "] from pp-1\n";
    }
    return text;
  };
  EXPECT_EQ(check_summary(plan({2, 1}, {1})), "D712@0:0");
  EXPECT_EQ(check_summary(plan({1, 2}, {1})), "D712@0:1");
  EXPECT_EQ(check_summary(plan({1, 2, 3, 4}, {1, 3, 4})), "D712@0:1");
  EXPECT_EQ(check_summary(plan({1, 3, 4}, {1, 2, 3, 4})), "D711@1:1");
  EXPECT_EQ(check_summary(plan({1}, {2, 1})), "D711@1:0");
  EXPECT_THAT(first(plan({1, 1}, {2, 1})).witness,
              ElementsAre(OperationId{0, 0}, OperationId{1, 0}));
}

TEST(Messages, OfOtherTagsAndPeersHaveBothEndsAsWitnesses) {
  const auto plan = [](const std::string& send, const std::string& receive) {
    return R"(mesh pp=3
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  compute other
  send x to )" +
           send + R"(
program rest on pp=1..2
  buffer x rows 1 row_bytes 8 f32
  when pp=1
    receive x from )" +
           receive + "\n  end\n  compute other\n";
  };
  for (const std::string send : {"pp+1 tag 1", "pp+1 channel side", "pp+2"}) {
    EXPECT_THAT(first(plan(send, "pp-1")).witness,
                ElementsAre(OperationId{0, 1}, OperationId{1, 0}))
        << send;
  }
}

}  // namespace
}  // namespace shiplap::check
