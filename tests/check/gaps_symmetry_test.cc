// Representatives: found untested by mutations of symmetry.cc and the code that uses it. For a
// sound plan the number of representatives is tested; an unsound one must be found.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

// The number of representatives; -1 if there is a finding.
std::int64_t programs(const std::string& text) {
  const Report report = checked(text);
  return report.findings.empty() ? report.programs : -1;
}

// The rank of the first finding, which is the same without symmetry.
std::int32_t wrong_rank(const std::string& text) {
  const auto rank = [&](bool symmetry) {
    const Report report = checked(text, {.symmetry = symmetry});
    return report.findings.empty() ? -1 : report.findings.front().place.rank;
  };
  EXPECT_EQ(rank(true), rank(false)) << text;
  return rank(true);
}

// ---- affine expressions

std::string moved_by(const std::string& begin, const std::string& expected) {
  return R"(mesh dp=4
list even = 0 1 2 3
tensor Q Query tok 24
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok )" +
         begin + " +1\n  goal x = Q tok " + expected + " +1\n  compute other\n";
}

TEST(Evenly, MovesWhatIsASumOrAMultipleOfAPosition) {
  const std::vector<std::pair<std::string, std::string>> same{
      {"dp", "rank"},           {"3-dp", "3-rank"},     {"3+-dp", "3-dp"}, {"2*dp", "dp+rank"},
      {"dp*2+1", "1+2*dp"},     {"5", "7-2"},           {"dp-dp", "0"},    {"dp*(2+1)", "3*dp"},
      {"(2*3 div 4)*dp", "dp"}, {"7 mod 4+dp", "dp+3"},
  };
  for (const auto& [begin, expected] : same) {
    EXPECT_EQ(programs(moved_by(begin, expected)), 1) << begin;
  }
}

// All of them are 0, 1 and 3 on ranks 0, 1 and 3, which are expanded, but not 2 on rank 2.
TEST(Evenly, DoesNotMoveWhatIsBentBetweenTheRanksThatAreLookedAt) {
  const std::vector<std::string> bent{
      "dp+dp*(dp-1)*(dp-3)",
      "dp-dp div 2+dp div 3",
      "dp+3*(dp-dp mod 2)-2*(dp-dp mod 3)",
      "dp+(dp mod 3) div 2",
      "dp+(dp mod 3)*(dp mod 3-1)",
      "even[dp]+(dp mod 3) div 2",
      "-(0-dp)+(rank mod 3) div 2",
  };
  for (const std::string& begin : bent) EXPECT_EQ(wrong_rank(moved_by(begin, "dp")), 2) << begin;
}

TEST(Evenly, MovesTheProductOfTwoPositionsOnNeitherAxis) {
  for (const std::string product : {"a*b", "b*a", "a*(b+0)", "(rank div 2)*b"}) {
    const std::string plan = R"(mesh a=2 b=2
tensor Q Query tok 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok )" + product +
                             R"( +1
  goal x = Q tok 0 +1
  compute other
)";
    EXPECT_EQ(wrong_rank(plan), 3) << product;
  }
}

TEST(Evenly, MovesAlongEveryAxisThatARankOrAliasHas) {
  for (const std::string begin : {"rank", "ab", "3*a+b", "12-ba-rank"}) {
    const std::string plan = R"(mesh a=2 b=3
alias ab = a b
alias ba = b a
tensor Q Query tok 24
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok )" + begin +
                             " +1\n  goal x = Q tok 0+" + begin + " +1\n  compute other\n";
    EXPECT_EQ(programs(plan), 1) << begin;
  }
}

// Names of a block are dropped at its end: the next name gets their index.
TEST(Evenly, IsKnownOfNamesToTheEndOfTheirBlock) {
  const std::string head = R"(mesh dp=4
tensor Q Query tok 4
program all on all
  buffer x rows 4 row_bytes 8 f32
  given x = Q
)";
  const std::string block = R"(    let k = dp
    compute other
      reads x = Q
  end
  let j = 1
  compute other
    reads x[j +1] = Q tok j +1
)";
  EXPECT_EQ(programs(head + "  when 1=1\n" + block), 1);
  EXPECT_EQ(programs(head + "  repeat i 1\n" + block), 1);
  EXPECT_EQ(programs(head + "  let before = 0\n  repeat i 1+before\n" + block), 1);
}

TEST(Evenly, MovesWhatHasAName) {
  const auto named = [](const std::string& number) {
    return R"(mesh dp=4
tensor Q Query tok 4
program all on all
  buffer x rows 1 row_bytes 8 f32
  let k = )" +
           number + R"(
  given x = Q tok k +1
  goal x = Q tok dp +1
  compute other
)";
  };
  EXPECT_EQ(programs(named("dp")), 1);
  EXPECT_EQ(wrong_rank(named("dp+(dp mod 3) div 2")), 2);
}

// On rank 2, which is not expanded, the list has a 1.
TEST(Evenly, IsAskedOfWhatIsSentReceivedAndGathered) {
  const auto plan = [](const std::string& send, const std::string& receive) {
    return R"(mesh pp=3 dp=4
list odd = 0 0 1 0
tensor Q Query tok 2
program first on pp=0
  buffer x rows 2 row_bytes 8 f32
  given x = Q
  send )" + send +
           R"(
program second on pp=1
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 8 row_bytes 8 f32
  goal x[0 +1] = Q tok 0 +1
  receive )" +
           receive + R"(
program third on pp=2
  compute other
)";
  };
  const std::string sent = "x[0 +1] to pp+1 tag 0";
  const std::string received = "x[0 +1] from pp-1 tag 0";
  EXPECT_EQ(programs(plan(sent, received)), 3);
  for (const std::string odd : {"x[odd[dp] +1] to pp+1 tag 0", "x[0 +1+odd[dp]] to pp+1 tag 0",
                                "x[0 +1] to pp+1 tag odd[dp]", "x[0 +1] to pp+1+odd[dp] tag 0",
                                "x[0 +1] to rank rank+4*(1+odd[dp]) tag 0"}) {
    EXPECT_NE(wrong_rank(plan(odd, received)), -1) << odd;
  }
  for (const std::string odd :
       {"x[odd[dp] +1] from pp-1 tag 0", "x[0 +1+odd[dp]] from pp-1 tag 0",
        "x[0 +1] from pp-1 tag odd[dp]", "x[0 +1] from pp-1+2*odd[dp] tag 0",
        "x[0 +1] from rank rank-4*(1-2*odd[dp]) tag 0"}) {
    EXPECT_NE(wrong_rank(plan(sent, odd)), -1) << odd;
  }
  const std::vector<std::string> calls{"all_gather x[odd[dp] +1] to y[0 +4] over dp",
                                       "broadcast x[odd[dp] +1] to y[2 +1] over dp root 2"};
  for (const std::string& call : calls) {
    const std::string rest = received + "\n  compute other\n    writes x = Q\n  " + call +
                             "\n  compute other\n    reads y[2 +1] = Q tok 0 +1\n";
    EXPECT_NE(wrong_rank(plan(sent, rest)), -1) << call;
  }
}

TEST(Evenly, IsAskedOfWhatStandsInABlock) {
  for (const std::string block :
       {"repeat i 1", "when 1=1", "repeat i 1\n  when 1=1\n  repeat j 1"}) {
    std::string ends;
    for (std::size_t at = 0; at != std::string::npos; at = block.find('\n', at + 1))
      ends += "  end\n";
    const std::string plan = R"(mesh dp=4
list odd = 0 0 1 0
tensor Q[2] Query
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q[0]
  )" + block + R"(
  compute other
    reads x = Q[odd[dp]]
)" + ends;
    EXPECT_EQ(wrong_rank(plan), 2) << plan;
  }
}

// ---- which axes remain

// In place, pieces of a region differ along `a`; that axis has fewer positions.
TEST(Axes, WithTheFewestPositionsAreToldApartFirst) {
  const auto gathered = [](const std::string& mesh) {
    return programs("mesh " + mesh + R"(
tensor Q Query a 2 b 3
program all on all
  buffer x rows 2 row_bytes 8 f32
  given x[a +1] = Q a a +1 b b +1
  goal x = Q b b +1
  all_gather x over a
)");
  };
  EXPECT_EQ(gathered("a=2 b=3"), 2);
  EXPECT_EQ(gathered("b=3 a=2"), 2);
  EXPECT_EQ(gathered("b=3 c=1 a=2"), 2);
}

TEST(Axes, AreToldApartWhereAProgramOrASpareNamesThem) {
  const std::string body = R"(
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok b +1
  goal x = Q tok b +1
  all_reduce x over (a) operator max
  compute other
    writes x = Q tok b +1
)";
  const std::string head = "mesh a=2 b=3\ntensor Q Query tok 3\nprogram p on ";
  EXPECT_EQ(programs(head + "all" + body), 1);
  EXPECT_EQ(programs(head + "a=0..1" + body), 2);
  EXPECT_EQ(programs(head + "b=0..2" + body), 3);
  EXPECT_EQ(programs(head + "a=0|1 b=0..2" + body), 6);
  EXPECT_EQ(programs(head + "rank=0..5" + body), 6);
}

TEST(Axes, OfSparesAreToldApart) {
  const std::string plan = R"(mesh a=2 b=3
tensor Q Query tok 3
program p on a=0 b=0..2
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok b +1
  goal x = Q tok b +1
  compute other
)";
  EXPECT_EQ(programs(plan + "spare on a=1\n"), 6);
  const std::string all = R"(mesh a=2 b=3
tensor Q Query
spare on a=1 b=0..2
program p on a=0
  buffer x rows 1 row_bytes 8 f32
  given x = Q
  goal x = Q
  compute other
)";
  EXPECT_EQ(programs(all), 6);
}

// A send to the rank itself is a send along the axis.
TEST(Axes, ThatPeersGoAlongAreToldApart) {
  const std::string plan = R"(mesh a=3 b=4
program all on all
  buffer x rows 2 row_bytes 8 f32
  batch
    send x[0 +1] to a+0
    receive x[1 +1] from a+0
  end
)";
  EXPECT_EQ(programs(plan), 3);
}

// In place, a piece is at the position of its rank, not in the first row.
TEST(Axes, AlongWhichPiecesLieAreToldApart) {
  EXPECT_EQ(wrong_rank(R"(mesh dp=3
tensor G Grad tok 3 sum sample 3
program all on all
  buffer x rows 3 row_bytes 8 f32
  given x = G sum sample dp +1
  goal x[0 +1] = G tok dp +1
  reduce_scatter x over dp
)"),
            1);
}

// At position 2 of `a` the group along `b` is in another order.
TEST(Axes, ThatTheOrderOfAGroupDependsOnAreToldApart) {
  EXPECT_EQ(wrong_rank(R"(mesh a=4 b=2
list odd = 0 0 1 0
tensor G Grad tok 2 sum sample 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = G sum sample b +1
  goal y = G tok b +1
  reduce_scatter x to y over b{odd[a], 1-odd[a]}
)"),
            4);
}

TEST(Axes, AreToldApartByPeersAlongThem) {
  const auto passed = [](const std::string& to, const std::string& from) {
    return programs(R"(mesh pp=2 a=2 b=2
tensor Q Query tok 8
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok rank +1
  send x to )" + to +
                    R"(
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  goal x = Q tok rank-4 +1
  receive x from )" +
                    from + "\n");
  };
  EXPECT_EQ(passed("pp+1", "pp-1"), 2);
  EXPECT_EQ(passed("rank rank+4", "rank rank-4"), 2);
  EXPECT_EQ(passed("rank 4+2*a+b", "pp-1"), 2);
}

// Rank 4 is sent to four times.
TEST(Axes, OfOnePeerForAllAreToldApart) {
  EXPECT_EQ(wrong_rank(R"(mesh pp=2 dp=4
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  send x to rank 4
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  receive x from pp-1
)"),
            1);
}

// ---- groups

// The group lists rank 1 first: that is where the first piece goes.
TEST(Groups, InAnOrderOfTheirOwnTellTheirRanksApart) {
  for (const std::string group : {"dp{1, 0}", "ranks{1, 0}", "(dp){1, 0}"}) {
    const std::string head = R"(mesh dp=2
tensor G Grad tok 2 sum sample 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = G sum sample dp +1
  goal y = G tok )";
    const std::string tail = " +1\n  reduce_scatter x to y over " + group + "\n";
    EXPECT_EQ(wrong_rank(head + "dp" + tail), 0) << group;
    EXPECT_EQ(programs(head + "1-dp" + tail), 2) << group;
  }
}

TEST(Groups, LeaveAloneWhatMovesAlongOtherAxes) {
  const auto plan = [](const std::string& group, const std::string& goal) {
    return R"(mesh a=2 b=3
tensor G Grad tok 6 sum sample 6
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = G tok b +1 sum sample 3*a +3
  goal x = G tok )" +
           goal + " +1\n  all_reduce x over " + group + "\n";
  };
  EXPECT_EQ(programs(plan("a", "b")), 1);
  EXPECT_EQ(wrong_rank(plan("a", "0")), 1);
  EXPECT_NE(wrong_rank(plan("b", "b")), -1);
}

TEST(Groups, AlongTwoAxesHaveTheRanksOfBoth) {
  const auto plan = [](const std::string& begin) {
    return R"(mesh a=2 b=3 c=2
tensor G Grad tok 2 sum sample 6
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = G tok c +1 sum sample )" +
           begin + " +1\n  goal x = G tok c +1\n  all_reduce x over (a, b)\n";
  };
  EXPECT_EQ(programs(plan("3*a+b")), 1);
  EXPECT_EQ(programs(plan("a+2*b")), 1);
  EXPECT_EQ(wrong_rank(plan("2*a+b")), 4);
}

TEST(Groups, AlongTwoAxesDealTheirPiecesOut) {
  const auto plan = [](const std::string& mesh, const std::string& goal) {
    return "mesh " + mesh + R"(
tensor G Grad tok 6 sum sample 6
program all on all
  buffer x rows 6 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = G sum sample rank +1
  goal y = G tok )" +
           goal + " +1\n  reduce_scatter x to y over (a, b)\n";
  };
  EXPECT_EQ(programs(plan("a=2 b=3", "3*a+b")), 1);
  EXPECT_EQ(programs(plan("a=3 b=2", "rank")), 1);
  EXPECT_EQ(wrong_rank(plan("a=2 b=3", "b")), 3);
  EXPECT_EQ(wrong_rank(plan("a=2 b=3", "a+2*b")), 1);
  EXPECT_EQ(wrong_rank(plan("a=2 b=3", "3*a")), 1);
}

TEST(Groups, DealOutAlongOneAxisWhatMovesAlongAnother) {
  const auto plan = [](const std::string& call, const std::string& goal) {
    return R"(mesh a=2 b=3
tensor G Grad col 3 tok 6 sum sample 3
program all on all
  buffer x rows 6 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x = G col a +1 sum sample b +1
  goal y = G )" +
           goal + "\n  " + call + "\n";
  };
  const std::string call = "reduce_scatter x to y over b";
  EXPECT_EQ(programs(plan(call, "col a +1 tok 2*b +2")), 1);
  EXPECT_EQ(wrong_rank(plan(call, "col a +1 tok 0 +2")), 1);
  EXPECT_EQ(wrong_rank(plan(call, "col 0 +1 tok 2*b +2")), 3);
  EXPECT_EQ(wrong_rank(plan(call, "col b +1 tok 2*b +2")), 1);
}

TEST(Groups, OfTwoRanksDealOutTheirPieces) {
  const std::string head = R"(mesh dp=2
tensor G Grad tok 2 sum sample 2
tensor Q Query head 2 tok 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  buffer z rows 1 row_bytes 8 f32
)";
  EXPECT_EQ(programs(head + R"(  given x = Q tok dp +1 head 0 +2
  goal y = Q head dp +1 tok 0 +2
  all_to_all x to y over dp
)"),
            1);
  EXPECT_EQ(programs(head + R"(  given x = G sum sample dp +1
  goal z = G tok dp +1
  reduce_scatter x to z over dp
)"),
            1);
}

TEST(Masks, AreFollowedRankByRankWhereSomethingMoves) {
  const auto plan = [](const std::string& begin, const std::string& goal) {
    return R"(mesh cp=4
tensor O Output tok 4 sum key 4 mask key<=tok
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = O tok )" +
           begin + " +1\n  goal x = O tok " + goal + " +1\n  compute other\n";
  };
  EXPECT_EQ(programs(plan("1", "1")), 1);
  EXPECT_EQ(programs(plan("cp", "cp")), 4);
  EXPECT_EQ(wrong_rank(plan("cp", "0")), 1);
}

TEST(Groups, TurnWhatTheirMembersHave) {
  const auto plan = [](const std::string& given, const std::string& goal) {
    return R"(mesh a=2 b=3
tensor Q Query head 3 tok 3 col 2
program all on all
  buffer x rows 3 row_bytes 8 f32
  buffer y rows 3 row_bytes 8 f32
  given x = Q )" +
           given + "\n  goal y = Q " + goal + "\n  all_to_all x to y over b\n";
  };
  const std::string given = "tok b +1 col a +1 head 0 +3";
  EXPECT_EQ(programs(plan(given, "head b +1 col a +1 tok 0 +3")), 1);
  EXPECT_EQ(wrong_rank(plan(given, "head 0 +1 col a +1 tok 0 +3")), 1);
  EXPECT_EQ(wrong_rank(plan(given, "head b +1 col 0 +1 tok 0 +3")), 3);
}

TEST(Groups, GatherWhatTheirMembersHave) {
  const auto plan = [](const std::string& begin, const std::string& goal) {
    return R"(mesh a=2 b=3
tensor Q Query col 2 tok 6
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 6 row_bytes 8 f32
  given x = Q col a +1 tok )" +
           begin + "\n  goal y = Q " + goal + "\n  all_gather x to y over b\n";
  };
  EXPECT_EQ(programs(plan("2*b +2", "col a +1")), 1);
  EXPECT_EQ(programs(plan("4-2*b +2", "col a +1 tok 4 +2 | 2 +2 | 0 +2")), 1);
  EXPECT_EQ(wrong_rank(plan("2*b +2", "col 0 +1")), 3);
  EXPECT_EQ(wrong_rank(plan("b +2", "col a +1")), 0);
}

TEST(Groups, GetWhatTheirRootHas) {
  const auto plan = [](const std::string& root, const std::string& goal) {
    return R"(mesh a=2 b=3
tensor Q Query col 2 tok 3
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q col a +1 tok b +1
  goal x = Q )" +
           goal + "\n  broadcast x over b root " + root + "\n";
  };
  for (const std::string root : {"0", "1", "2"}) {
    EXPECT_EQ(programs(plan(root, "col a +1 tok " + root + " +1")), 1) << root;
    EXPECT_NE(wrong_rank(plan(root, "col a +1 tok b +1")), -1) << root;
    EXPECT_EQ(wrong_rank(plan(root, "col 0 +1 tok " + root + " +1")), 3) << root;
  }
}

TEST(Groups, ReduceToTheirRoot) {
  const auto plan = [](const std::string& goal) {
    return R"(mesh dp=3
tensor G Grad sum sample 3
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = G sum sample dp +1
  reduce x over dp root 1
  compute other
    reads x = G sum sample )" +
           goal + "\n";
  };
  EXPECT_EQ(wrong_rank(plan("0 +3")), 2);
  EXPECT_EQ(wrong_rank(plan("dp +1")), 2);  // gloo uses the rows of the others
}

}  // namespace
}  // namespace shiplap::check
