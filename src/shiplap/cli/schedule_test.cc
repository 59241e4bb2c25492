// A pipeline schedule as the input of `check`, `show`, `simulate` and `export`.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/cli/testing_internal.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;

// 1F1B, one stage per rank: forwards of the warm-up, then pairs, then the remaining backwards.
std::string one_f_one_b(int stages, int microbatches) {
  std::string csv;
  for (int stage = 0; stage < stages; ++stage) {
    const int warm_up = std::min(stages - 1 - stage, microbatches);
    int forward = 0;
    int backward = 0;
    for (; forward < warm_up; ++forward) csv += fmt::format("{}F{},", stage, forward);
    for (; forward < microbatches; ++forward) {
      csv += fmt::format("{0}F{1},{0}B{2},", stage, forward, backward++);
    }
    for (; backward < microbatches; ++backward) csv += fmt::format("{}B{},", stage, backward);
    csv.back() = '\n';
  }
  return csv;
}

double bubble(const std::string& csv, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> words{"simulate", "--schedule", "-", "--json"};
  words.insert(words.end(), flags.begin(), flags.end());
  const Outcome outcome = shiplap(words, {.input = csv});
  EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.err;
  return parse_json(outcome.out, "simulate").find("bubble")->as_number();
}

constexpr double kCommunication = 0.002;  // the messages of 1 MiB next to computations of 10 ms

TEST(Schedule, TheBubbleOf1f1bIsThatOfTheFormula) {
  for (const auto& [stages, microbatches] :
       std::vector<std::pair<int, int>>{{2, 2}, {2, 8}, {4, 4}, {4, 8}, {8, 32}, {3, 7}}) {
    const double expected = (stages - 1.0) / (microbatches + stages - 1);
    for (const char* costs : {"F=10", "F=10,B=10", "F=50,B=70"}) {
      EXPECT_NEAR(bubble(one_f_one_b(stages, microbatches), {"--costs", costs}), expected,
                  kCommunication)
          << stages << " stages, " << microbatches << " microbatches, " << costs;
    }
  }
}

TEST(Schedule, GpipeHasTheBubbleOf1f1b) {
  EXPECT_NEAR(bubble("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n"), 1.0 / 4,
              kCommunication);
}

TEST(Schedule, CostsThatAreNotGivenFollowFromTheOthers) {
  const auto detail = [](const char* costs) {
    return shiplap({"simulate", "--schedule", "-", "--costs", costs}, {.input = "0F0,0B0\n"}).out;
  };
  EXPECT_THAT(detail("F=5"), HasSubstr("F takes 5.00 ms, B 10.0 ms, I 5.00 ms, W 5.00 ms"));
  EXPECT_THAT(detail("W=2.5"), HasSubstr("F takes 10.0 ms, B 12.5 ms, I 10.0 ms, W 2.50 ms"));
  EXPECT_THAT(detail("B=7,F=3"), HasSubstr("F takes 3.00 ms, B 7.00 ms, I 3.00 ms, W 3.00 ms"));
}

TEST(Schedule, MalformedCostsAreRefused) {
  for (const char* costs : {"F", "F=", "F=x", "X=1", "F=1,F=2", "F=-1", "F=1e400", ",", "F=1,",
                            "F=.", "F=1.2.3", "F=99999999999"}) {
    const Outcome outcome =
        shiplap({"simulate", "--schedule", "-", "--costs", costs}, {.input = "0F0,0B0\n"});
    EXPECT_EQ(outcome.code, ExitCode::wrong_input) << costs;
    EXPECT_THAT(outcome.err, HasSubstr("error[D003]")) << costs;
  }
  EXPECT_THAT(shiplap({"simulate", "x.plan", "--costs", "F=1"}).err,
              HasSubstr("there is no schedule"));
}

TEST(Schedule, IsShownAndExported) {
  const std::string csv = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n";
  EXPECT_THAT(shiplap({"show", "--schedule", "-"}, {.input = csv}).out, HasSubstr("rank_1"));
  EXPECT_THAT(shiplap({"show", "--schedule", "-", "--rank", "1"}, {.input = csv}).out,
              HasSubstr("RECV_F[1,0]"));
  const Outcome exported = shiplap({"export", "--schedule", "-", "--costs", "F=3"}, {.input = csv});
  EXPECT_THAT(exported.out, testing::StartsWith("shiplap-plan 1\n"));
  EXPECT_THAT(exported.out, HasSubstr("F[0, 0]: compute forward work 0.003 seconds"));
  EXPECT_EQ(shiplap({"check", "-"}, {.input = exported.out}).code, ExitCode::yes);
  EXPECT_THAT(shiplap({"export", "--schedule", "-", "--json"}, {.input = csv}).out,
              testing::StartsWith("{"));
}

TEST(Schedule, APlanInItsPlaceIsOneError) {
  for (const char* verb : {"check", "show", "simulate", "export"}) {
    const Outcome plan =
        shiplap({verb, "--schedule", "-"}, {.input = "shiplap-plan 1\nmesh a=1\n"});
    EXPECT_EQ(plan.code, ExitCode::wrong_input) << verb;
    EXPECT_THAT(plan.err, HasSubstr("expected a pipeline schedule; this is a plan")) << verb;
    EXPECT_THAT(plan.err, testing::Not(HasSubstr("D626"))) << verb;
  }
  EXPECT_THAT(shiplap({"check", "--schedule", "-"}, {.input = "0F0,0B0,0B0\n"}).err,
              HasSubstr("D628"));
}

TEST(Schedule, IsTheWholeInput) {
  for (const char* verb : {"check", "show", "simulate", "export"}) {
    const Outcome both = shiplap({verb, "a.plan", "--schedule", "a.csv"});
    EXPECT_EQ(both.code, ExitCode::wrong_input) << verb;
    EXPECT_THAT(both.err, HasSubstr("a schedule already defines the whole plan")) << verb;
    EXPECT_THAT(shiplap({verb}).err, HasSubstr("--schedule schedule.csv")) << verb;
  }
}

}  // namespace
}  // namespace shiplap::cli
