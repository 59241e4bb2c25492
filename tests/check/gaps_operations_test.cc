// What a computation or a call may state: found untested by mutations of operation_checker.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gaps.h"

namespace shiplap::check {
namespace {

using testing::HasSubstr;

std::string computed(const std::string& computation) {
  return R"(mesh dp=1
tensor A[3] Activation sample 4 hidden 4
tensor W Weight
tensor S[1] Weight
tensor V[1] Weight shard 2
tensor D[1] WeightGrad shard 2 scale 1/2
tensor G Grad tok 2 sum sample 4 key 3
tensor F Grad sum sample 4
tensor H Hidden tok 2
tensor K Hidden sample 4
program all on all
  buffer a rows 4 row_bytes 8 f32
  buffer b rows 4 row_bytes 8 f32
  buffer c rows 4 row_bytes 8 f32
  buffer w rows 1 row_bytes 8 f32
  compute other
    writes a = A[0]
    writes w = W
  compute )" +
         computation + "  compute other\n    reads w = W\n";
}

TEST(Contracts, ThatAComputationBreaksAreReportedOnce) {
  EXPECT_EQ(check_summary(computed(R"(norm
    reads a[0 +1] = A[0] sample 0 +1
    reads b[0 +1] = F sum sample 0 +1
    writes c = A[1]
)"))
                .substr(0, 10),
            "D740@0:1/1");
  EXPECT_EQ(check_summary(computed(R"(norm
    reads a[0 +1] = A[0] sample 0 +1
    writes b = A[1]
    writes c = A[2]
)")),
            "D755@0:1");
  EXPECT_EQ(check_summary(computed(R"(scale
    reads a[0 +1] = A[0] sample 0 +1
    reads w = W
    writes b = A[1]
    writes c[0 +1] = A[2] sample 1 +1
)")),
            "D752@0:1");
}

TEST(Contracts, AreHeldAgainstEveryPairOfOperands) {
  for (const std::string wrong :
       {"reads a[0 +1] = A[0] sample 0 +1\n    writes b = A[1]\n",
        "reads w = W\n    reads a[0 +1] = A[0] sample 0 +1\n    writes b = A[1]\n",
        "writes b = A[1]\n    reads w = W\n    reads a[0 +1] = A[0] sample 0 +1\n",
        "reads a[0 +1] = A[0] sample 0 +1\n    writes b[0 +1] = A[1] sample 0 +1\n"
        "    writes c = A[2]\n",
        "reads a[0 +1] = A[0] sample 0 +1\n    writes w = W\n",
        "reads a = A[0] sample 0 +4 hidden 1 +3\n    writes w = W\n"}) {
    const std::string code = check_summary(computed("norm\n    " + wrong)).substr(0, 8);
    EXPECT_EQ(code, "D755@0:1") << wrong;
  }
}

TEST(Contracts, OfDimensionsTakeAZeroForNothing) {
  EXPECT_EQ(check_summary(computed(R"(zero
    reads a[0 +1] = A[0] sample 0 +1
    writes b[0 +1] = F sum none
)")),
            "");
  EXPECT_EQ(check_summary(computed(R"(norm
    reads a[0 +1] = A[0] sample 0 +1
    adds b[0 +1] = F sum sample 1 +1
)"))
                .substr(0, 8),
            "D755@0:1");
}

TEST(Contracts, OfLayersHoldWhereThereAreSeveral) {
  const auto forward = [](const std::string& weight) {
    return check_summary(
        computed("other\n    writes a = A[1]\n    writes w = " + weight +
                 "\n  compute forward\n    reads a = A[1]\n    reads w = " + weight +
                 "\n    writes b = A[2]\n  compute other\n    writes w = W\n"));
  };
  EXPECT_EQ(forward("W"), "");
  EXPECT_EQ(forward("S[0]"), "D752@0:2");
}

TEST(Linear, KernelsTakeWhatIsWholeOrNoSum) {
  const auto linear = [](const std::string& kernel, const std::string& given,
                         const std::string& reads, const std::string& writes) {
    return check_summary(computed("other\n    writes b[0 +2] = " + given + "\n  compute " + kernel +
                                  "\n    reads b[0 +2] = " + reads +
                                  "\n    writes c[0 +2] = " + writes + "\n"));
  };
  EXPECT_EQ(linear("cast", "G", "G", "H"), "");
  EXPECT_EQ(linear("cast", "H", "H", "H"), "");
  EXPECT_EQ(linear("cast", "K sample 0 +2", "K sample 0 +2", "F sum sample 0 +2"), "");
  EXPECT_EQ(linear("cast", "H", "H", "G scale 1/2"), "D755@0:2");
  EXPECT_EQ(linear("cast", "G sum none", "G sum none", "G sum sample 0 +0 key 0 +0 scale 1/2"), "");
  EXPECT_EQ(linear("cast", "G", "G", "G scale 1/2"), "D745@0:2");
  EXPECT_EQ(linear("cast", "G sum sample 0 +1", "G sum sample 0 +1", "H"), "D740@0:2");
  EXPECT_EQ(linear("cast", "G sum sample 0 +1", "G sum sample 0 +1", "G sum key 0 +1"), "D755@0:2");
  EXPECT_EQ(linear("cast", "G sum key 0 +1", "G sum key 0 +1", "G sum sample 0 +1"), "D755@0:2");
  EXPECT_EQ(linear("cast", "G tok 0 +1", "G tok 0 +1", "G tok 0 +2"), "D755@0:2");
  EXPECT_EQ(linear("cast", "G tok 0 +1 sum key 0 +1", "G tok 0 +1 sum key 0 +1", "G"), "D755@0:2");
}

TEST(Sums, ThatAMaskLeavesAreComplete) {
  const auto read = [](const std::string& tensor, const std::string& value) {
    return check_summary("mesh dp=1\ntensor O Output tok 2 sum key 2" + tensor + R"(
tensor H Hidden tok 2
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  compute other
    writes x = O tok )" + value +
                         "\n  compute norm\n    reads x = O tok " + value +
                         "\n    writes y = H tok " + value.substr(0, 4) + "\n");
  };
  EXPECT_EQ(read(" mask key<=tok", "0 +1 sum key 0 +1"), "");
  EXPECT_EQ(read(" mask key<=tok", "0 +1 sum key 0 +2"), "");
  EXPECT_EQ(read(" mask key<=tok", "1 +1 sum key 0 +2"), "");
  EXPECT_EQ(read(" mask key<=tok", "1 +1 sum key 0 +1"), "D740@0:1");
  EXPECT_EQ(read(" mask key<=tok", "0 +1 sum none"), "D740@0:1");
  EXPECT_EQ(read("", "0 +1 sum key 0 +1"), "D740@0:1");
  EXPECT_EQ(read("", "0 +1 sum key 0 +2"), "");
  EXPECT_EQ(read("", "0 +1 sum none"), "D740@0:1");
}

TEST(Updates, ThatHaveTheirScaleObeyTheLawOfDimensions) {
  const auto update = [](const std::string& grad, const std::string& made) {
    return check_summary(computed(
        "other\n    writes b[0 +1] = V[0] shard 0 +1\n    writes c[0 +1] = D[0] " + grad +
        "\n  compute update\n    reads b[0 +1] = V[0] shard 0 +1\n" + "    reads c[0 +1] = D[0] " +
        grad + "\n    writes b[0 +1] = new V[0] " + made + "\n"));
  };
  EXPECT_EQ(update("shard 0 +1 scale 1/2", "shard 0 +1"), "");
  EXPECT_EQ(update("shard 0 +1 scale 1/2", "shard 1 +1"), "D755@0:2");
  EXPECT_EQ(update("shard 0 +1", "shard 1 +1"), "D745@0:2");
}

// ---- once

TEST(Once, RowsAreWrittenByAComputation) {
  const auto writes = [](const std::string& lines) {
    return check_summary(R"(mesh dp=1
tensor Q Query tok 4
tensor G Grad tok 4 sum sample 2
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 4 row_bytes 8 f32
  given y = G sum none
  given x = Q
  goal x[3 +1] = Q tok 3 +1
  compute other
)" + lines);
  };
  EXPECT_EQ(writes("    writes x[0 +1] = Q tok 0 +1\n    writes x[1 +1] = Q tok 1 +1\n"), "");
  EXPECT_EQ(writes("    writes x[1 +1] = Q tok 1 +1\n    writes x[0 +1] = Q tok 0 +1\n"), "");
  EXPECT_EQ(writes("    writes x[0 +3] = Q tok 0 +3\n    writes x[1 +0] = Q tok 0 +0\n"), "");
  EXPECT_EQ(writes("    writes x[0 +2] = Q tok 0 +2\n    writes x[1 +1] = Q tok 1 +1\n"),
            "D731@0:0");
  EXPECT_EQ(writes("    writes x[1 +1] = Q tok 1 +1\n    writes x[0 +2] = Q tok 0 +2\n"),
            "D731@0:0");
  EXPECT_EQ(writes("    writes x[0 +1] = Q tok 0 +1\n    writes y[0 +1] = G tok 0 +1\n"), "");
  EXPECT_EQ(writes("    writes x[0 +1] = Q tok 0 +1\n    reads x[0 +1] = Q tok 0 +1\n"), "");
  EXPECT_EQ(writes("    adds y = G sum sample 0 +1\n    adds y = G sum sample 1 +1\n"), "");
  EXPECT_EQ(writes("    adds y = G sum sample 0 +1\n    writes y = G\n"), "D731@0:0");
  EXPECT_EQ(writes("    writes y = G\n    adds y = G sum sample 1 +1\n"), "D731@0:0/1+D742");
  EXPECT_EQ(writes("    reads x = Q\n    writes y[0 +1] = G tok 0 +1\n    writes y = G\n"),
            "D731@0:0");
}

TEST(Once, ContributionsAreNamedByAValue) {
  const auto value = [](const std::string& tensor, const std::string& sum) {
    const std::string head = "mesh dp=1\ntensor V Grad " + tensor + R"(
tensor Q Query
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer q rows 1 row_bytes 8 f32
  given q = Q
  goal q = Q
)";
    const std::string codes =
        check_summary(head + "  compute other\n    writes x = V " + sum + "\n");
    if (codes.empty()) return codes;
    for (const std::string fact : {"given", "goal"}) {
      EXPECT_EQ(
          check_summary(head + "  " + fact + " x = V " + sum + "\n  compute other\n").substr(0, 7),
          "D742@0:");
    }
    return codes;
  };
  const std::string one = "tok 2 sum sample 4";
  EXPECT_EQ(value(one, "sum sample 0 +1 | 2 +1 | 1 +1"), "");
  EXPECT_EQ(value(one, "sum sample 0 +1 | 2 +1 | 0 +1"), "D742@0:0");
  EXPECT_EQ(value(one, "sum sample 0 +1 | 2 +1 | 2 +1"), "D742@0:0");
  EXPECT_EQ(value(one, "sum sample 0 +2 | 1 +2"), "D742@0:0");
  EXPECT_EQ(value(one, "tok 0 +1 | 0 +1 sum sample 0 +1"), "");
  EXPECT_EQ(value(one, "tok 0 +1 | 0 +1 sum sample 0 +1 | 0 +1"), "D742@0:0");
  const std::string two = "tok 2 sum sample 4 key 4";
  EXPECT_EQ(value(two, "sum sample 0 +1 | 1 +1 key 0 +1 | 1 +1"), "");
  EXPECT_EQ(value(two, "sum sample 0 +1 | 1 +1 key 1 +1 | 1 +1"), "D742@0:0");
  EXPECT_EQ(value(two, "sum sample 0 +1 | 1 +1 | 0 +1 key 1 +1 | 2 +1"), "D742@0:0");
}

TEST(Once, AValueThatNamesAContributionTwiceIsAskedNothingElse) {
  EXPECT_EQ(check_summary(computed(R"(norm
    reads a[0 +1] = A[0] sample 0 +1
    writes b = A[1]
    writes c[0 +1] = F sum sample 0 +1 | 0 +1
)")),
            "D742@0:1");
}

TEST(Once, RowsAreGiven) {
  const auto given = [](const std::string& lines) {
    return check_summary(
        "mesh dp=2\ntensor Q Query tok 4\nprogram first on dp=0\n  compute other\n"
        "program second on dp=1\n  buffer x rows 4 row_bytes 8 f32\n"
        "  buffer y rows 4 row_bytes 8 f32\n" +
        lines +
        "  compute other\n    writes x[3 +1] = Q tok 3 +1\n  compute other\n"
        "    reads x[3 +1] = Q tok 3 +1\n");
  };
  EXPECT_EQ(given("  given x[1 +1] = Q tok 1 +1\n  given x[0 +1] = Q tok 0 +1\n"), "");
  EXPECT_EQ(given("  given x = Q\n  given x[1 +0] = Q tok 0 +0\n"), "");
  EXPECT_EQ(given("  given x[0 +2] = Q tok 0 +2\n  given y[1 +2] = Q tok 0 +2\n"), "");
  EXPECT_EQ(given("  given x[0 +1] = Q tok 0 +1\n  given x[2 +1] = Q tok 2 +1\n"
                  "  given x[0 +1] = Q tok 0 +1\n"),
            "D731@1:-1");
  EXPECT_EQ(given("  given x = Q\n  given x[0 +2] = Q tok 0 +2\n  given x[1 +2] = Q tok 1 +2\n"),
            "D731@1:-1");
}

// ---- regions of one operation

std::string moved(const std::string& operation, const std::string& lists = "") {
  return "mesh dp=2\n" + lists + R"(tensor Q Query tok 8
program all on all
  buffer q rows 1 row_bytes 8 f32
  buffer x rows 8 row_bytes 8 f32
  buffer y rows 8 row_bytes 8 f32
  given q = Q tok 0 +1
  given x = Q
  given y = Q
  goal q = Q tok 0 +1
  )" + operation +
         "\n";
}

TEST(Regions, OfACallAreAsLongAsItNeeds) {
  for (const std::string good :
       {"all_gather x[0 +2] to y[0 +4] over dp", "all_gather x[0 +1] to y[0 +2] over dp",
        "all_gather x[0 +2] over dp", "all_to_all x[0 +2] to y[0 +2] over dp",
        "reduce_scatter x[0 +2] to y[0 +1] over dp operator max",
        "reduce_scatter x[0 +2] over dp operator max"}) {
    EXPECT_EQ(check_summary(moved(good)), "") << good;
  }
  for (const std::string bad :
       {"all_gather x[0 +2] to y[0 +2] over dp", "all_gather x[0 +2] to x[2 +2] over dp",
        "all_gather x[0 +1] over dp", "all_to_all x[0 +3] to y[0 +3] over dp",
        "reduce_scatter x[0 +2] to y[0 +2] over dp operator max",
        "reduce_scatter x[0 +2] to x[2 +2] over dp operator max",
        "all_to_all x[0 +2] to y[0 +4] over dp", "copy x[0 +1] to y[0 +2]"}) {
    EXPECT_EQ(check_summary(moved(bad)), "D704@0:0/1") << bad;
  }
  EXPECT_THAT(first(moved("copy x[0 +0] to y[0 +1]")).diagnostic.help, HasSubstr("make it 0 rows"));
  EXPECT_THAT(first(moved("all_to_all x[0 +3] to y[0 +3] over dp")).diagnostic.help,
              HasSubstr("into whole pieces"));
}

TEST(Regions, OfOneOperationAreTheSameOrApartOrOnePieceOfTheOther) {
  for (const std::string good :
       {"all_reduce x[0 +2] over dp operator max",
        "all_reduce x[0 +2] to x[2 +2] over dp operator max",
        "all_reduce x[2 +2] to x[0 +2] over dp operator max", "copy x[0 +2] to x[2 +2]",
        "copy x[2 +2] to x[0 +2]", "copy x[0 +2] to y[1 +2]",
        "broadcast x[1 +1] to x[1 +1] over dp",
        "reduce_scatter x[0 +2] to x[dp +1] over dp operator max",
        "reduce_scatter x[2 +2] to x[2+dp +1] over dp operator max",
        "all_gather x[2+dp +1] to x[2 +2] over dp", "all_gather x[4 +1] to x[2 +2] over dp"}) {
    EXPECT_EQ(check_summary(moved(good)), "") << good;
  }
  for (const std::string bad :
       {"all_reduce x[0 +2] to x[1 +2] over dp operator max",
        "all_reduce x[1 +2] to x[0 +2] over dp operator max", "copy x[0 +2] to x[1 +2]",
        "copy x[0 +2] to x[0 +2]", "broadcast x[0 +2] to x[1 +2] over dp",
        "all_to_all x[0 +2] to x[1 +2] over dp", "all_gather x[3-dp +1] to x[2 +2] over dp",
        "reduce_scatter x[0 +2] to x[1-dp +1] over dp operator max"}) {
    EXPECT_EQ(check_summary(moved(bad)).substr(0, 10), "D731@0:0/1") << bad;
  }
}

// Rows are copied one after another: what was overwritten is not what is read next.
TEST(Regions, OfACopyByListsAreApart) {
  const std::string lists = "list turn = 1 0\nlist far = 5 6\nlist twice = 3 3\n";
  for (const std::string good :
       {"copy x[0 +2] to x[from far[0 +2]]", "copy x[from far[0 +2]] to x[from turn[0 +2]]",
        "copy x[from turn[0 +2]] to x[2 +2]", "copy x[0 +2] to y[from turn[0 +2]]",
        "copy x[from twice[0 +2]] to x[0 +2]", "copy x[from turn[0 +0]] to x[from turn[0 +0]]"}) {
    EXPECT_EQ(check_summary(moved(good, lists)), "") << good;
  }
  for (const std::string bad :
       {"copy x[0 +2] to x[from turn[0 +2]]", "copy x[from turn[0 +2]] to x[1 +2]",
        "copy x[from turn[0 +2]] to x[from turn[0 +2]]", "copy x[0 +2] to y[from twice[0 +2]]",
        "copy x[5 +2] to x[from far[0 +2]]"}) {
    EXPECT_EQ(check_summary(moved(bad, lists)).substr(0, 10), "D731@0:0/1") << bad;
  }
}

// ---- along axes of symmetry

std::int64_t programs(const std::string& text) {
  const Report report = checked(text);
  return report.findings.empty() ? report.programs : -1;
}

std::string alike(const std::string& given, const std::string& computation) {
  return R"(mesh dp=4
tensor A[2] Activation tok 8
tensor G Grad sum sample 8 key 2
tensor F Grad sum tok 8
program all on all
  buffer a rows 8 row_bytes 8 f32
  buffer b rows 8 row_bytes 8 f32
  buffer c rows 8 row_bytes 8 f32
)" + given +
         "  compute " + computation;
}

TEST(Symmetry, HoldsForComputationsThatMoveEvenly) {
  const std::string part = "  given a[0 +1] = A[0] tok dp +1\n";
  EXPECT_EQ(programs(alike("  given a = A[0]\n",
                           "norm\n    reads a = A[0]\n    writes b[0 +1] = A[1] tok dp +1\n")),
            1);
  EXPECT_EQ(programs(alike(part,
                           "norm\n    reads a[0 +1] = A[0] tok dp +1\n"
                           "    writes b[0 +1] = A[1] tok dp +1\n")),
            1);
  EXPECT_EQ(programs(alike(part,
                           "zero\n    reads a[0 +1] = A[0] tok dp +1\n"
                           "    writes b[0 +1] = F sum none\n")),
            1);
  const std::string sums =
      "  given a[0 +1] = G sum sample 2*dp +1\n  given b[0 +1] = G sum sample 1+2*dp +1\n";
  EXPECT_EQ(programs(alike(sums,
                           "add\n    reads a[0 +1] = G sum sample 2*dp +1\n"
                           "    reads b[0 +1] = G sum sample 1+2*dp +1\n"
                           "    writes c[0 +1] = G sum sample 2*dp +2\n")),
            1);
}

TEST(Symmetry, DoesNotHoldForComputationsThatMoveApart) {
  const std::string given = "  given a[0 +2] = A[0] tok dp +1 | 7-dp +1\n";
  const std::string reads = "norm\n    reads a[0 +2] = A[0] tok dp +1 | 7-dp +1\n";
  EXPECT_EQ(programs(alike(given, reads + "    writes b[0 +2] = A[1] tok dp +1 | 7-dp +1\n")), 4);
  EXPECT_EQ(check_summary(alike(given, reads + "    writes b[0 +2] = A[1] tok 0 +1 | 7-dp +1\n")),
            "D755@1:0/2");
  EXPECT_EQ(check_summary(alike(given, reads + "    writes b[0 +2] = A[1] tok dp +1 | 7 +1\n")),
            "D755@1:0/2");
}

}  // namespace
}  // namespace shiplap::check
