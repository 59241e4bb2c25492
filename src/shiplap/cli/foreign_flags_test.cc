#include "shiplap/cli/foreign_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/cli/testing_internal.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string mesh(const std::vector<std::string>& words) { return mesh_of_flags(words); }

TEST(ForeignFlags, GiveOneMeshWithTensorParallelLast) {
  EXPECT_EQ(mesh({"--tp", "8", "--pp=4", "--ranks", "512"}), "pp=4,tp=8");
  EXPECT_EQ(mesh({"--tensor-model-parallel-size", "2", "--dp", "3"}), "dp=3,pp=1,tp=2");
  EXPECT_EQ(mesh({"--tp"}), "");
  EXPECT_EQ(mesh({"--tp", "--pp", "x"}), "");
}

TEST(ForeignFlags, GiveAllAxesOfHybridButNotOfOtherStrategies) {
  EXPECT_EQ(mesh({"--tp", "8"}), "dp=1,pp=1,tp=8");
  EXPECT_EQ(mesh({"--pp", "4", "--gpus", "64"}), "pp=4,tp=1");
  EXPECT_EQ(mesh({"--strategy", "hybrid", "--dp=4"}), "dp=4,pp=1,tp=1");
  EXPECT_EQ(mesh({"--dp", "4"}), "dp=4");
  EXPECT_EQ(mesh({"--strategy", "tensor_parallel", "--tp", "8"}), "tp=8");
  EXPECT_EQ(mesh({"--strategy=pipeline_fsdp", "--pp", "4"}), "pp=4");
}

TEST(ForeignFlags, GiveAMeshThatRuns) {
  EXPECT_THAT(shiplap({"simulate", "--tp", "8"}).err, HasSubstr("`--mesh dp=1,pp=1,tp=8`"));
  EXPECT_EQ(shiplap({"simulate", "--strategy", "hybrid", "--mesh", "dp=1,pp=1,tp=8"}).code,
            ExitCode::yes);
}

TEST(ForeignFlags, AreReportedOnceWithTheMesh) {
  const Outcome outcome = shiplap({"simulate", "--tp", "8", "--pp", "4", "--ranks", "512"});
  EXPECT_EQ(outcome.code, ExitCode::wrong_input);
  EXPECT_THAT(outcome.err, HasSubstr("`simulate` has no flag `--tp`"));
  EXPECT_THAT(outcome.err, HasSubstr("`--mesh pp=4,tp=8`"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("no flag `--pp`")));
}

TEST(ForeignFlags, OfSizesNameOurs) {
  EXPECT_THAT(shiplap({"simulate", "--num-layers", "8"}).err,
              HasSubstr("here it is called `--layers`"));
  // A command without that flag does not name it.
  EXPECT_THAT(shiplap({"show", "--num-layers", "8"}).err, Not(HasSubstr("--layers")));
  EXPECT_THAT(shiplap({"show", "--tp", "8"}).err, Not(HasSubstr("--mesh")));
}

TEST(OldFlagNames, WorkWithANoteOnStandardError) {
  const std::vector<std::string> common = {"simulate", "--strategy", "ddp", "--ranks", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return shiplap(more);
  };
  const Outcome old = with({"--batches", "2", "--block=64"});
  const Outcome now = with({"--global-batch", "2", "--seq-length", "64"});
  EXPECT_EQ(old.code, ExitCode::yes);
  EXPECT_EQ(old.out, now.out);
  EXPECT_EQ(old.err,
            "note: `--batches` is now called `--global-batch`\n"
            "note: `--block` is now called `--seq-length`\n" +
                now.err);
}

TEST(OldFlagNames, LeaveJsonIntact) {
  const Outcome outcome =
      shiplap({"check", "--strategy", "ddp", "--ranks", "2", "--batches", "4", "--json"});
  EXPECT_EQ(outcome.code, ExitCode::yes);
  EXPECT_EQ(parse_json(outcome.out, "stdout").find("schema")->as_string(), "shiplap.check/1");
  EXPECT_THAT(outcome.err, HasSubstr("note: `--batches`"));
}

TEST(OldFlagNames, ContradictNewOnes) {
  EXPECT_THAT(
      shiplap({"simulate", "--strategy", "ddp", "--batches", "4", "--global-batch", "8"}).err,
      HasSubstr("is given twice"));
}

}  // namespace
}  // namespace shiplap::cli
