// Overwritten values and lifetimes of memory: found untested by mutations of value_tracker.cc.
#include <gtest/gtest.h>

#include <string>

#include "gaps.h"

namespace shiplap::check {
namespace {

// ---- overwritten values

TEST(Overwriting, OfALaterRowIsNamed) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
tensor Q Query tok 2
tensor K Key
program all on all
  buffer x rows 3 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x[1 +2] = Q
  given y = K
  copy y to x[2 +1]
  compute other
    reads x[1 +2] = Q
)"),
            "D735@0:0");
}

TEST(Overwriting, CountsUpToTheReader) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
tensor Q Query
tensor K Key
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = K
  given y = K
  compute other
    reads x = Q
  compute other
    writes x = Q
  copy y to x
)"),
            "D744@0:0");
}

TEST(Overwriting, IsClosedByTheReaderAlone) {
  EXPECT_EQ(check_summary(R"(mesh dp=2
tensor Q Query
tensor K Key
program first on dp=0
  compute other
  compute other
program second on dp=1
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = Q
  given y = K
  copy y to x
  compute other
    reads x = Q
)"),
            "D735@1:0");
}

// Joined pieces are one piece.
TEST(Overwriting, OfWhatWasGatheredOrSummedIsNamed) {
  const auto plan = [](const std::string& head, const std::string& operation) {
    return head + R"(
tensor K Key tok 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  buffer z rows 2 row_bytes 8 f32
  given z = K
)" + operation +
           R"(
  copy z to y
  compute other
    reads y = V
)";
  };
  EXPECT_EQ(check_summary(plan("mesh dp=2\ntensor V Query tok 2",
                               "  given x[0 +1] = V tok dp +1\n  all_gather x[0 +1] to y over dp")),
            "D735@1:1/1");
  EXPECT_EQ(check_summary(plan("mesh dp=2\ntensor V Query tok 2",
                               "  given x = V tok dp +1 | dp +1\n  all_to_all x to y over dp")),
            "D735@1:1/1");
  EXPECT_EQ(check_summary(plan("mesh dp=1\ntensor V Grad tok 2 sum sample 2",
                               "  given y[0 +1] = V tok 0 +1 sum sample 0 +1\n"
                               "  given y[1 +1] = V tok 1 +1 sum sample 0 +1\n"
                               "  given x = V sum sample 1 +1\n  copy x to y add")),
            "D735@0:1");
}

// ---- memory

std::string freed(const std::string& before, const std::string& use) {
  return R"(mesh dp=2
tensor G Grad sum sample 4
table swap
  message 0 1 0 1 0
  message 1 0 0 1 0
program all on all
  buffer x rows 1 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given x = G sum sample 2*dp +1
  given y = G sum sample 2*dp+1 +1
)" + before +
         "  " + use + "\n";
}

TEST(Memory, ThatWasFreedIsNotUsedByAnything) {
  for (const std::string use :
       {"copy x to y", "copy y to x", "copy y to x add", "all_reduce x over dp",
        "all_reduce y to x over dp", "broadcast x over dp", "all_to_all x over dp{dp}",
        "exchange x to y by swap over dp", "exchange y to x by swap over dp",
        "exchange y to x by swap over dp add", "compute other\n    writes x = G",
        "compute other\n    adds x = G", "compute other\n    reads x = G", "free x",
        "compute other\n  compute other\n    reads x = G"}) {
    const std::string code = check_summary(freed("  free x\n", use)).substr(0, 6);
    EXPECT_EQ(code, "D733@0") << use;
    EXPECT_NE(check_summary(freed("", use)).substr(0, 4), "D733") << use;
  }
}

std::string passed_on(const std::string& first, const std::string& second) {
  return R"(mesh pp=2
tensor G Grad sum sample 4
program first on pp=0
  buffer x rows 1 row_bytes 8 f32
  given x = G sum sample 0 +1
)" + first +
         R"(
program second on pp=1
  buffer x rows 1 row_bytes 8 f32
  given x = G sum sample 1 +1
)" + second;
}

TEST(Memory, ThatWasFreedIsNeitherSentNorReceivedInto) {
  EXPECT_EQ(check_summary(passed_on("  free x\n  send x to pp+1\n", "  receive x from pp-1\n")),
            "D733@0:1 D760@-1:-1");
  EXPECT_EQ(check_summary(passed_on("  send x to pp+1\n", "  free x\n  receive x from pp-1\n")),
            "D733@1:1 D760@-1:-1");
  EXPECT_EQ(check_summary(passed_on("  send x to pp+1\n", "  free x\n  receive x from pp-1 add\n")),
            "D733@1:1 D760@-1:-1");
}

// The operation that freed it is one of another rank, which has that many operations.
TEST(Memory, ThatWasFreedElsewhereHasNoWriterHere) {
  const std::string free = "  compute other\n  compute other\n  compute other\n  free x\n";
  EXPECT_EQ(check_summary(passed_on(free + "  send x to pp+1\n", "  receive x from pp-1 add\n")),
            "D733@0:4/1 D760@-1:-1");
  EXPECT_EQ(check_summary(passed_on("  all_reduce x over pp\n", free + "  all_reduce x over pp\n")),
            "D733@1:4/2 D760@-1:-1");
}

// ---- leaks

std::string allocated(const std::string& body) {
  return R"(mesh dp=2
tensor Q Query tok 4
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  given y = Q tok 0 +1
)" + body +
         "  compute other\n    reads y = Q tok 0 +1\n";
}

TEST(Memory, ThatIsNotFreedIsNamedWithItsLastUse) {
  const Finding finding =
      first(allocated("  a: allocate x\n  copy y to x[2 +1]\n  c: copy x[2 +1] to y\n"
                      "  free x[0 +2]\n  free x[3 +1]\n"));
  EXPECT_EQ(finding.diagnostic.code, "D734");
  EXPECT_EQ(finding.place, (OperationId{0, 0}));
  EXPECT_EQ(finding.diagnostic.what, "memory leak: x[2 +1] is not freed by the end of the step");
  EXPECT_EQ(finding.diagnostic.help, "free it after `c: copy`, its last use");
  const std::vector<OperationId> witness{{0, 0}, {0, 2}, {1, 0}};
  EXPECT_EQ(finding.witness, witness);
}

TEST(Memory, ThatIsNotFreedIsFoundInAnyPartOfWhatWasAllocated) {
  const auto said = [](const std::string& body) {
    const Report report = checked(allocated(body));
    return report.sound() ? "" : report.findings.front().diagnostic.what.substr(13, 7);
  };
  EXPECT_EQ(said("  allocate x\n  free x\n"), "");
  EXPECT_EQ(said("  allocate x\n  free x[0 +2]\n  free x[2 +2]\n"), "");
  EXPECT_EQ(said("  allocate x[0 +2]\n  allocate x[2 +2]\n  free x\n"), "");
  EXPECT_EQ(said("  allocate x\n  free x[0 +3]\n"), "x[3 +1]");
  EXPECT_EQ(said("  allocate x\n  free x[1 +3]\n"), "x[0 +1]");
  EXPECT_EQ(said("  allocate x\n  free x[0 +1]\n"), "x[1 +3]");
  EXPECT_EQ(said("  allocate x[0 +2]\n  allocate x[2 +2]\n  free x[0 +1]\n"), "x[1 +1]");
  EXPECT_EQ(said("  allocate x[0 +1]\n  allocate x[3 +1]\n  free x[0 +1]\n"), "x[3 +1]");
  EXPECT_EQ(said("  allocate x\n  free x\n  allocate x[1 +1]\n"), "x[1 +1]");
}

TEST(Memory, ThatIsGivenIsThereAtTheEndAsWell) {
  expect_sound(allocated("  given x = Q\n  free x\n  allocate x\n"));
}

// Values are reported first, and rows used after they were freed are not a leak.
TEST(Memory, ThatIsNotFreedIsTheLeastOfWhatIsWrong) {
  EXPECT_EQ(check_summary(allocated("  goal y = Q tok 1 +1\n  allocate x\n")), "D744@0:-1/3+D734");
  EXPECT_EQ(check_summary(allocated("  allocate x\n  free x\n  copy y to x[0 +1]\n")),
            "D733@0:2/1");
}

TEST(Memory, OfNoRowsIsAlwaysThere) {
  expect_sound(R"(mesh dp=1
tensor Q Query tok 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  given x = Q
  goal x = Q
  free x[1 +0]
  allocate x[1 +0]
  compute other
    reads x[1 +0] = Q tok 0 +0
    writes x[0 +0] = Q tok 0 +0
  copy x[0 +0] to x[1 +0]
)");
}

}  // namespace
}  // namespace shiplap::check
