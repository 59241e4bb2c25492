#include "shiplap/run/job_consistency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>

#include "shiplap/base/error.h"
#include "shiplap/comm/threads/threads.h"
#include "shiplap/plan/text.h"

namespace shiplap::run {
namespace {

using Settings = std::vector<JobSetting>;

// Returns the diagnostic, which must be the same on all ranks; "" without a mismatch.
std::string mismatch_text(int ranks, const std::function<Settings(int)>& settings) {
  std::mutex mutex;
  std::set<std::string> all;
  comm::run_on_threads({.ranks = ranks, .timeout = {20}}, [&](comm::Communicator& world) {
    std::string text;
    try {
      check_job_consistency(world, settings(world.rank()));
    } catch (const InputError& error) {
      const Diagnostic& said = error.diagnostics().front();
      EXPECT_EQ(said.code, "D644");
      text = said.what + "; " + said.why;
    }
    world.barrier();  // it can be used after that
    const std::lock_guard lock(mutex);
    all.insert(text);
  });
  EXPECT_EQ(all.size(), 1U);
  return *all.begin();
}

TEST(JobConsistency, IsWhatAllRanksHave) {
  EXPECT_EQ(
      mismatch_text(4, [](int) { return Settings{{"the seed", "1"}, {"the plan", "a\nb\n"}}; }),
      "");
  EXPECT_EQ(mismatch_text(1, [](int) { return Settings{}; }), "");
}

TEST(JobConsistency, NamesWhoIsNotLikeMost) {
  const auto seeds = [](const std::vector<std::string>& values) {
    return [values](int rank) { return Settings{{"the seed", values[rank]}}; };
  };
  EXPECT_EQ(mismatch_text(4, seeds({"1", "1", "2", "1"})),
            "rank 2 of this job differs from the others in the seed; "
            "rank 2 has `2`, where others have `1`");
  EXPECT_EQ(mismatch_text(4, seeds({"7", "1", "1", "1"})),
            "rank 0 of this job differs from the others in the seed; "
            "rank 0 has `7`, where others have `1`");
  EXPECT_EQ(mismatch_text(4, seeds({"1", "2", "1", "2"})),
            "ranks 1, 3 of this job differ from the others in the seed; "
            "rank 1 has `2`, where others have `1`");
}

TEST(JobConsistency, NamesTheLineOfAPlan) {
  const auto plan_of = [](int layers) {
    return plan::parse_text("shiplap-plan 1\nmesh dp=3\ntensor W[" + std::to_string(layers) +
                                "] Weight shard 1\nprogram all on all\n"
                                "  buffer w rows 1 row_bytes 4 f32\n",
                            "x.plan");
  };
  EXPECT_EQ(mismatch_text(
                3, [&](int rank) { return Settings{plan_setting(plan_of(rank == 2 ? 8 : 4))}; }),
            "rank 2 of this job differs from the others in the plan; rank 2 has line 3: "
            "`tensor W[8] Weight shard 1`, where others have `tensor W[4] Weight shard 1`");
}

TEST(JobConsistency, KnowsWhatIsMissingOrLonger) {
  EXPECT_EQ(
      mismatch_text(
          3, [](int rank) { return rank == 1 ? Settings{} : Settings{{"the trace", "yes"}}; }),
      "rank 1 of this job differs from the others in the trace; "
      "rank 1 has nothing, where others have `yes`");
  EXPECT_EQ(mismatch_text(
                3, [](int rank) { return Settings{{"the plan", rank == 0 ? "a\n" : "a\nb\n"}}; }),
            "rank 0 of this job differs from the others in the plan; "
            "rank 0 has line 2: nothing, where others have `b`");
  const std::string many = mismatch_text(9, [](int rank) {
    return Settings{{"a", std::to_string(rank)}, {"b", std::to_string(rank / 2)}};
  });
  EXPECT_THAT(many, testing::HasSubstr("ranks 1, 2, 3, 4, 5, 6 and 2 more of this job differ from "
                                       "the others in a (and in 1 more)"));
}

TEST(JobConsistency, FingerprintsPlansByWhatTheySay) {
  const auto fingerprint_of = [](const std::string& text) {
    return fingerprint(
        plan::parse_text("shiplap-plan 1\nmesh dp=1\nprogram all on all\n" + text, "x.plan"));
  };
  const std::string one = fingerprint_of("  buffer w rows 1 row_bytes 4 f32\n");
  EXPECT_EQ(one.size(), 16U);
  EXPECT_EQ(one, fingerprint_of("  # the weights\n  buffer w  rows 1 row_bytes 4 f32\n"));
  EXPECT_NE(one, fingerprint_of("  buffer w rows 2 row_bytes 4 f32\n"));
}

}  // namespace
}  // namespace shiplap::run
