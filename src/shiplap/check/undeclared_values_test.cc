// Plans with `values undeclared`, as a recording of a training script: sizes, types, groups and
// order are known, contents are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {
namespace {

using testing::IsEmpty;

// Two steps of a data-parallel loop: the gradients are reduced while the host computes on.
const std::string kRecorded = R"(mesh dp=4
values undeclared
source step "train.py" in "train_step"
program all on all
  buffer g rows 8 row_bytes 4 f32
  buffer h rows 8 row_bytes 4 f32
  streams comm
  b: compute backward at step:40
    writes g
  r: @comm all_reduce g over dp after b at step:41
  w: compute other after r at step:42
    reads  g
    writes h
)";

TEST(UndeclaredValues, BufferContentsAreNotRequired) {
  expect_sound(kRecorded);
  const Report report = checked(kRecorded);
  EXPECT_FALSE(report.declares_values);
  EXPECT_THAT(report.advice, IsEmpty());
  EXPECT_THAT(report.assumed, IsEmpty());
  for (const Examined& each : report.examined) {
    EXPECT_NE(each.property, "declared values");
    EXPECT_TRUE(each.reached) << each.property;
  }
}

TEST(UndeclaredValues, AMissingWaitIsARace) {
  const Finding found =
      expect_finding(changed(kRecorded, "other after r", "other"), {"D730", 0, 2});
  EXPECT_EQ(found.diagnostic.where.file, "train.py");
  EXPECT_EQ(found.diagnostic.where.line, 42);
  EXPECT_EQ(found.diagnostic.where.function, "train_step");
  EXPECT_EQ(found.diagnostic.help, "wait for the operation of train.py:41 before this line");
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_EQ(found.notes[0].where.line, 41);
}

TEST(UndeclaredValues, AMissingCallIsNamedAtTheLineOfTheUser) {
  const std::string text =
      changed(kRecorded, "  r: @comm all_reduce g over dp after b at step:41\n",
              "  when dp != 3\n    r: @comm all_reduce g over dp after b at step:41\n  end\n");
  const Finding found = expect_finding(text, {"D701", 3});
  EXPECT_EQ(found.diagnostic.where.rank, 3);
  EXPECT_EQ(found.diagnostic.where.line, 41) << "the line that rank 3 does not reach";
}

TEST(UndeclaredValues, SizesAndTypesAreCompared) {
  const std::string sizes =
      changed(kRecorded, "all_reduce g over", "all_reduce g[0 +8-dp div 3] over");
  EXPECT_EQ(expect_finding(sizes, {"D704", 3, 1}).diagnostic.where.line, 41);
}

TEST(UndeclaredValues, OverlappingRegionsOfOneOperationAreReported) {
  expect_finding(changed(kRecorded, "all_reduce g over", "all_to_all g[0 +4] to g[2 +4] over"),
                 {"D731", 0, 1});
}

TEST(UndeclaredValues, SendsThatMeetDeadlock) {
  const std::string ring = R"(mesh pp=2
values undeclared
source main "train.py"
program all on all
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 1 row_bytes 4 f32
  send x to pp+1 wrap at main:7
  receive y from pp-1 wrap at main:8
)";
  const Finding found = expect_finding(ring, {"D721", 0, 0});
  EXPECT_EQ(found.diagnostic.where.file, "train.py");
  EXPECT_EQ(found.diagnostic.where.line, 7);
  EXPECT_EQ(found.diagnostic.where.column, 0);
}

}  // namespace
}  // namespace shiplap::check
