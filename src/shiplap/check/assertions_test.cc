// Plans that look sound because they state more than they compute.
#include <gtest/gtest.h>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

std::string first_code(const std::string& text) {
  const Report report = checked(text);
  return report.findings.empty() ? "sound" : report.findings.front().diagnostic.code;
}

TEST(Assertions, OfCellsThatShareARowAreHeldToTheMaskOfEach) {
  const std::string plan = R"(mesh cp=1
tensor O Other tok 2 sum key 2 mask key<=tok
program all on all
  buffer x rows 1 row_bytes 8 f32
  goal x = O
  compute other
    writes x = O sum key 0 +1
)";
  EXPECT_EQ(first_code(plan), "D741");
  const std::string rest = "  compute other\n    adds x = O sum key 1 +1\n";
  EXPECT_EQ(first_code(plan + rest), "sound");
  EXPECT_EQ(first_code(plan + rest + rest), "D742");
}

TEST(Assertions, OfLinearKernelsEndWithWhatTheyRead) {
  const auto plan = [](const std::string& kernel, const std::string& reads,
                       const std::string& writes) {
    return "mesh dp=1\ntensor G WeightGrad sum sample 2\ntensor H Hidden\nprogram all on all\n"
           "  buffer x rows 1 row_bytes 8 f32\n  buffer y rows 1 row_bytes 8 f32\n"
           "  given x = G sum sample 0 +1\n  compute " +
           kernel + "\n" + (reads.empty() ? "" : "    reads x = " + reads + "\n") +
           "    writes y = " + writes + "\n";
  };
  EXPECT_EQ(first_code(plan("cast", "G sum sample 0 +1", "G sum sample 0 +1")), "sound");
  EXPECT_EQ(first_code(plan("cast", "G sum sample 0 +1", "G")), "D755");
  EXPECT_EQ(first_code(plan("cast", "G sum sample 0 +1", "H")), "D740");
  EXPECT_EQ(first_code(plan("cast", "G sum sample 0 +1", "G sum sample 0 +1 scale 1/2")), "D745");
  EXPECT_EQ(first_code(plan("scale", "G sum sample 0 +1", "G sum sample 0 +1 scale 1/2")), "sound");
  EXPECT_EQ(first_code(plan("zero", "G sum sample 0 +1", "G sum none")), "sound");
  EXPECT_EQ(first_code(plan("zero", "G sum sample 0 +1", "G")), "D755");
}

TEST(Assertions, OfOneSumNameAContributionOnce) {
  const auto plan = [](const std::string& value) {
    return "mesh dp=1\ntensor G WeightGrad sum sample 3\nlist l = 0 0\nprogram all on all\n"
           "  buffer x rows 1 row_bytes 8 f32\n  compute other\n    writes x = " +
           value + "\n  compute cast\n    reads x = G\n    writes x = G\n";
  };
  EXPECT_EQ(first_code(plan("G sum sample 0 +1 | 1 +2")), "sound");
  EXPECT_EQ(first_code(plan("G sum sample 0 +2 | 1 +2")), "D742");
  EXPECT_EQ(first_code(plan("G sum sample from l[0 +2]")), "D742");
}

TEST(Assertions, OfRowsAreMadeOnce) {
  const std::string head =
      "mesh dp=1\ntensor Q Query tok 2\nlist l = 0 0\nprogram all on all\n"
      "  buffer x rows 2 row_bytes 8 f32\n  buffer y rows 3 row_bytes 8 f32\n";
  const std::string given = "  given x = Q\n";
  EXPECT_EQ(first_code(head + given + "  goal y[0 +2] = Q\n  copy x to y[0 +2]\n"), "sound");
  EXPECT_EQ(first_code(head + given + "  goal y[0 +1] = Q tok 1 +1\n  copy x to y[from l[0 +2]]\n"),
            "D731");
  EXPECT_EQ(first_code(head + given +
                       "  goal y[0 +1] = Q tok 1 +1\n  compute other\n"
                       "    writes y[0 +1] = Q tok 0 +1\n    writes y[0 +1] = Q tok 1 +1\n"),
            "D731");
  EXPECT_EQ(first_code(head + "  given x = Q\n  given x[1 +1] = Q tok 0 +1\n"
                              "  goal x[0 +1] = Q tok 0 +1\n  copy x to y[0 +2]\n"),
            "D731");
  EXPECT_EQ(
      first_code(head + "  given y[0 +2] = Q\n  goal y[1 +2] = Q\n  copy y[0 +2] to y[1 +2]\n"),
      "D731");
}

TEST(Assertions, OfACollectivesRegionsAreTheSameApartOrItsOwnPiece) {
  const auto plan = [](const std::string& piece) {
    return "mesh dp=2\ntensor Q Query tok 2\nprogram all on all\n"
           "  buffer x rows 2 row_bytes 8 f32\n  given x[" +
           piece + " +1] = Q tok dp +1\n  goal x = Q\n  all_gather x[" + piece +
           " +1] to x over dp\n";
  };
  EXPECT_EQ(first_code(plan("dp")), "sound");
  EXPECT_EQ(first_code(plan("1-dp")), "D731");
}

TEST(Assertions, OfAnExchangeHaveRowsOfOneWidthAndType) {
  const auto plan = [](const std::string& other) {
    return "mesh ep=2\ntable t\n  message 0 1 0 1 0\nprogram all on all\n"
           "  buffer x rows 1 row_bytes 8 f32\n  buffer y rows 1 row_bytes " +
           other + "\n  exchange x to y by t over ep\n";
  };
  EXPECT_EQ(first_code(plan("8 f32")), "sound");
  EXPECT_EQ(first_code(plan("4 f32")), "D704");
  EXPECT_EQ(first_code(plan("8 i32")), "D705");
}

}  // namespace
}  // namespace shiplap::check
