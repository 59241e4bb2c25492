#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "shiplap/cli/testing_internal.h"
#include "shiplap/report/overlap.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kProduct{
    "overlap", "--op", "ag",       "--m",           "32",       "--n", "16", "--k", "16",
    "--tp",    "2",    "--method", "ring_exchange", "--chunks", "2"};

std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ShowOverlap, StaysShortForManySteps) {
  std::vector<std::string> words = kProduct;
  words[4] = "4096";
  words.back() = "64";
  const Outcome outcome = shiplap(with(words, {"--hardware", "h100_80g_nvl8"}));
  EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.err;
  EXPECT_LT(std::ranges::count(outcome.out, '\n'), 40);
  EXPECT_THAT(outcome.out, HasSubstr(" more"));
}

TEST(ShowOverlap, TellsTheSameAsJson) {
  const Outcome text = shiplap(with(kProduct, {"--hardware", "h100_80g_nvl8"}));
  const Outcome outcome = shiplap(with(kProduct, {"--hardware", "h100_80g_nvl8", "--json"}));
  const Json json = parse_json(outcome.out, "output");
  const Json& predicted = *json.find("predicted");
  const Seconds overlapped{predicted.find("overlapped_s")->as_number()};
  EXPECT_THAT(text.out, HasSubstr(to_string(overlapped)));
  // Two sends, two receives, its own rows and two chunks.
  EXPECT_EQ(json.find("steps")->as_array().size(), 7U);
}

// Times are not compared: test machines are busy.
TEST(ShowOverlap, RunsOnThreads) {
  const Outcome outcome = shiplap(with(kProduct, {"--run", "--rounds", "2", "--json"}));
  EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.err;
  const Json json = parse_json(outcome.out, "output");
  const Json& measured = *json.find("measured");
  EXPECT_EQ(measured.find("backend")->as_string(), "threads");
  EXPECT_GT(measured.find("overlapped_s")->as_number(), 0);
  EXPECT_LE(measured.find("max_difference")->as_number(), measured.find("tolerance")->as_number());
  const Json& parts = *json.find("calibrated");
  EXPECT_NEAR(parts.find("gemm_s")->as_number() / measured.find("gemm_s")->as_number(), 1, 1e-9);
  EXPECT_EQ(json.find("predicted"), nullptr);
}

TEST(ShowOverlap, PrintsMeasuredBesidePredicted) {
  const Outcome outcome =
      shiplap(with(kProduct, {"--run", "--rounds", "1", "--hardware", "h100_80g_nvl8"}));
  EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.err;
  for (const char* const title : {"h100_80g_nvl8", "from G and C", "measured", "min", "max"}) {
    EXPECT_THAT(outcome.out, HasSubstr(title));
  }
}

TEST(ShowOverlap, SaysWhatIsInTheNoise) {
  const overlap::Times times{
      .gemm = {1}, .communication = {0.1}, .serial = {1.1}, .overlapped = {1.02}};
  EXPECT_EQ(report::hidden_text(times), "80 %");
  EXPECT_EQ(report::hidden_text(times, {0.05}), "80 %");
  EXPECT_EQ(report::hidden_text(times, {0.2}), "in the noise");
}

}  // namespace
}  // namespace shiplap::cli
