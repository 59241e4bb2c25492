#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "shiplap/cli/testing_internal.h"
#include "shiplap/report/plan.h"
#include "shiplap/report/text.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A pipeline of two, its third rank spare.
constexpr const char* kPlan = R"(shiplap-plan 1
mesh pp=3
tensor A[2] Activation sample 4
program first on pp=0
  buffer x rows 4 row_bytes 1024 bf16
  given x = A[0]
  s: send x[1 +2] to pp+1 tag 7
program second on pp=1
  buffer y rows 2 row_bytes 1024 bf16
  goal y = A[0] sample 1 +2
  receive y from pp-1 tag 7
spare on pp=2
)";

Outcome show(std::vector<std::string> arguments, const std::string& text = kPlan,
             int columns = 100) {
  arguments.insert(arguments.begin(), {"show", "-"});
  return shiplap(arguments, {.input = text, .columns = columns});
}

std::vector<std::string> example_plans() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("examples/plans")) {
    if (entry.path().extension() == ".plan") files.push_back(entry.path().string());
  }
  return files;
}

TEST(Show, TheAnswerComesFirst) {
  EXPECT_THAT(show({}).out, StartsWith("standard input: 3 ranks on pp=3, 2 programs, 1 spare, 1 "
                                       "operation a rank\n"));
}

TEST(Show, ARankByNumberAndByPositionIsTheSame) {
  const Outcome by_number = show({"--rank", "1"});
  EXPECT_THAT(by_number.out, HasSubstr("from 0"));
  EXPECT_EQ(show({"--rank", "pp=1"}).out, by_number.out);
  EXPECT_EQ(show({"--program", "second"}).out, by_number.out);
}

TEST(Show, ASpareDoesNothing) {
  EXPECT_THAT(show({"--rank", "2"}).out, HasSubstr("spare"));
  const Json json = parse_json(show({"--rank", "2", "--json"}).out, "stdout");
  EXPECT_TRUE(json.find("program")->is_null());
  EXPECT_TRUE(json.find("operations")->as_array().empty());
}

TEST(Show, WrongRanksAndProgramsAreRefused) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--rank", "3"}, std::vector<std::string>{"--rank", "-1"},
        std::vector<std::string>{"--rank", "x"}, std::vector<std::string>{"--rank", "pp=3"},
        std::vector<std::string>{"--rank", "pp="}, std::vector<std::string>{"--rank", "tp=0"},
        std::vector<std::string>{"--program", "third"},
        std::vector<std::string>{"--program", "first", "--rank", "0"}}) {
    const Outcome outcome = show(words);
    EXPECT_EQ(outcome.code, ExitCode::wrong_input) << words[1];
    EXPECT_THAT(outcome.err, StartsWith("error[D003]"));
  }
}

TEST(Show, JsonOfARankHasItsNumbers) {
  const Json json = parse_json(show({"--rank", "0", "--json"}).out, "stdout");
  EXPECT_EQ(json.find("schema")->as_string(), "shiplap.show_rank/1");
  const Json& op = json.find("operations")->as_array()[0];
  EXPECT_EQ(op.find("action")->as_string(), "send");
  EXPECT_EQ(op.find("peer")->as_integer(), 1);
  EXPECT_EQ(op.find("tag")->as_integer(), 7);
  EXPECT_EQ(op.find("stream")->as_string(), "main");
  EXPECT_EQ(to_text(*op.find("from"), Layout::compact), R"({"buffer":"x","begin":1,"count":2})");
  EXPECT_EQ(to_text(*json.find("given")->as_array()[0].find("value"), Layout::compact),
            R"({"tensor":"A","instance":0,"new":false,"zero":false,"scale":[1,1],)"
            R"("runs":[{"dimension":"sample","begin":0,"count":4,"stride":1}]})");
}

TEST(Show, JsonOfAPlanCountsBytes) {
  const Json json = parse_json(show({"--json"}).out, "stdout");
  EXPECT_EQ(json.find("schema")->as_string(), "shiplap.show/1");
  EXPECT_EQ(json.find("spares")->as_integer(), 1);
  const Json& traffic = json.find("traffic")->as_array()[0];
  EXPECT_EQ(traffic.find("kind")->as_string(), "send");
  EXPECT_EQ(traffic.find("sent_bytes")->as_integer(), 2048);
}

TEST(Show, AnErrorInTheExpansionNamesItsLine) {
  std::string text = kPlan;
  text.replace(text.find("x[1 +2]"), 7, "x[3 +2]");
  const Outcome outcome = show({"--rank", "0"}, text);
  EXPECT_EQ(outcome.code, ExitCode::wrong_input);
  EXPECT_THAT(outcome.err, HasSubstr("standard input:7"));
  EXPECT_THAT(outcome.err, HasSubstr("send x[3 +2] to pp+1 tag 7"));
}

TEST(Show, EveryExampleFitsTheWindow) {
  for (const std::string& file : example_plans()) {
    for (const int columns : {60, 100}) {
      for (const std::vector<std::string>& more :
           {std::vector<std::string>{}, std::vector<std::string>{"--rank", "1"}}) {
        std::vector<std::string> words = {"show", file};
        words.insert(words.end(), more.begin(), more.end());
        const Outcome outcome = shiplap(words, {.columns = columns});
        EXPECT_EQ(outcome.code, ExitCode::yes) << file << outcome.err;
        std::istringstream lines(outcome.out);
        for (std::string line; std::getline(lines, line);) {
          EXPECT_LE(report::display_width(line), static_cast<std::size_t>(columns))
              << file << ": " << line;
        }
      }
    }
  }
}

TEST(Show, TheJsonFormShowsTheSame) {
  for (const std::string& file : example_plans()) {
    const std::string json = shiplap({"export", file}).out;
    EXPECT_EQ(json.substr(0, 1), "{") << file;
    const std::string text = shiplap({"export", "-"}, {.input = json}).out;
    EXPECT_EQ(shiplap({"export", file, "--to", "plan"}).out, text) << file;
    EXPECT_EQ(shiplap({"show", "-", "--limit", "0"}, {.input = json}).out,
              shiplap({"show", "-", "--limit", "0"}, {.input = text}).out);
  }
}

TEST(Export, RefusesContradictions) {
  EXPECT_EQ(shiplap({"export", "-", "--json", "--to", "plan"}, {.input = kPlan}).code,
            ExitCode::wrong_input);
}

TEST(Explain, FindsWhatPeoplePaste) {
  const std::string page = shiplap({"explain", "D004"}).out;
  EXPECT_EQ(shiplap({"explain", "d004"}).out, page);
  EXPECT_EQ(shiplap({"explain", "error[D004]:"}).out, page);
  EXPECT_EQ(shiplap({"explain", "D9999"}).code, ExitCode::wrong_input);
  EXPECT_THAT(shiplap({"explain", "D004"}, {.colour = Colour::on}).out,
              StartsWith("\033[1mD004: a file cannot be read\033[0m\n"));
}

}  // namespace
}  // namespace shiplap::cli
