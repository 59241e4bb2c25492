#include "shiplap/run/same_job.h"

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

using Facts = std::vector<JobFact>;

// What each of `ranks` is told, which must be the same on all; "" if nothing is wrong.
std::string told(int ranks, const std::function<Facts(int)>& facts) {
  std::mutex mutex;
  std::set<std::string> all;
  comm::run_on_threads({.ranks = ranks, .timeout = {20}}, [&](comm::Communicator& world) {
    std::string text;
    try {
      require_same_job(world, facts(world.rank()));
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

TEST(SameJob, IsWhatAllRanksHave) {
  EXPECT_EQ(told(4, [](int) { return Facts{{"the seed", "1"}, {"the plan", "a\nb\n"}}; }), "");
  EXPECT_EQ(told(1, [](int) { return Facts{}; }), "");
}

TEST(SameJob, NamesWhoIsNotLikeMost) {
  const auto seeds = [](const std::vector<std::string>& values) {
    return [values](int rank) { return Facts{{"the seed", values[rank]}}; };
  };
  EXPECT_EQ(told(4, seeds({"1", "1", "2", "1"})),
            "rank 2 of this job differs from the others in the seed; "
            "rank 2 has `2`, where others have `1`");
  EXPECT_EQ(told(4, seeds({"7", "1", "1", "1"})),
            "rank 0 of this job differs from the others in the seed; "
            "rank 0 has `7`, where others have `1`");
  EXPECT_EQ(told(4, seeds({"1", "2", "1", "2"})),
            "ranks 1, 3 of this job differ from the others in the seed; "
            "rank 1 has `2`, where others have `1`");
}

TEST(SameJob, NamesTheLineOfAPlan) {
  const auto plan_of = [](int layers) {
    return plan::parse_text("shiplap-plan 1\nmesh dp=3\ntensor W[" + std::to_string(layers) +
                                "] Weight shard 1\nprogram all on all\n"
                                "  buffer w rows 1 row_bytes 4 f32\n",
                            "x.plan");
  };
  EXPECT_EQ(told(3, [&](int rank) { return Facts{plan_fact(plan_of(rank == 2 ? 8 : 4))}; }),
            "rank 2 of this job differs from the others in the plan; rank 2 has line 3: "
            "`tensor W[8] Weight shard 1`, where others have `tensor W[4] Weight shard 1`");
}

TEST(SameJob, KnowsWhatIsMissingOrLonger) {
  EXPECT_EQ(told(3, [](int rank) { return rank == 1 ? Facts{} : Facts{{"the trace", "yes"}}; }),
            "rank 1 of this job differs from the others in the trace; "
            "rank 1 has nothing, where others have `yes`");
  EXPECT_EQ(told(3, [](int rank) { return Facts{{"the plan", rank == 0 ? "a\n" : "a\nb\n"}}; }),
            "rank 0 of this job differs from the others in the plan; "
            "rank 0 has line 2: nothing, where others have `b`");
  const std::string many = told(9, [](int rank) {
    return Facts{{"a", std::to_string(rank)}, {"b", std::to_string(rank / 2)}};
  });
  EXPECT_THAT(many, testing::HasSubstr("ranks 1, 2, 3, 4, 5, 6 and 2 more of this job differ from "
                                       "the others in a (and in 1 more)"));
}

TEST(SameJob, FingerprintsPlansByWhatTheySay) {
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
