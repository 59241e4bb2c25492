#include "shiplap/cli/output_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/cli/testing_internal.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string temporary(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("shiplap_output." + name)).string();
}

std::string content_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

const std::vector<std::vector<std::string>> kCommands = {
    {"simulate", "--strategy", "ddp", "--ranks", "2"},
    {"run", "--strategy", "ddp", "--ranks", "2", "--steps", "1"},
    {"dispatch", "--ranks", "2", "--tokens", "64"}};

Outcome shiplap_with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return shiplap(words);
}

TEST(OutputFiles, AreAnnounced) {
  for (const std::vector<std::string>& command : kCommands) {
    const std::string plan = temporary(command[0] + ".plan");
    const std::string page = temporary(command[0] + ".html");
    const Outcome outcome = shiplap_with(command, {"--plan", plan, "--report", page});
    EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("wrote " + plan + "\n"));
    EXPECT_THAT(outcome.err, HasSubstr("wrote " + page + "\n"));
    EXPECT_THAT(content_of(plan), StartsWith("shiplap-plan 1"));
  }
}

TEST(OutputFiles, MustNotBeTheInputOrEachOther) {
  const std::string csv = temporary("same.csv");
  const std::string text = "0F0,0B0\n";
  std::ofstream(csv) << text;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"simulate", "--schedule", csv, "--plan", csv},
        std::vector<std::string>{"check", "--schedule", csv, "-o", csv},
        std::vector<std::string>{"export", "--schedule", csv, "-o", csv}}) {
    const Outcome outcome = shiplap(words);
    EXPECT_EQ(outcome.code, ExitCode::wrong_input);
    EXPECT_THAT(outcome.err, HasSubstr("would overwrite the input"));
    EXPECT_EQ(content_of(csv), text);
  }
  for (const std::vector<std::string>& command : kCommands) {
    const std::string one = temporary(command[0] + ".one");
    const Outcome outcome = shiplap_with(command, {"--plan", one, "--report", one});
    EXPECT_EQ(outcome.code, ExitCode::wrong_input);
    EXPECT_THAT(outcome.err, HasSubstr("--plan and --report write the same file"));
  }
}

TEST(OutputFiles, ADashIsStandardOutputAndTheAnswerGoesToStandardError) {
  for (const std::vector<std::string>& command : kCommands) {
    const Outcome plain = shiplap_with(command, {});
    const Outcome outcome = shiplap_with(command, {"--plan", "-"});
    EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.err;
    EXPECT_THAT(outcome.out, StartsWith("shiplap-plan 1"));
    EXPECT_THAT(outcome.err, HasSubstr(plain.out.substr(0, plain.out.find('\n'))));
    EXPECT_THAT(outcome.err, Not(HasSubstr("wrote")));
    EXPECT_EQ(shiplap({"show", "-"}, {.input = outcome.out}).code, ExitCode::yes);
  }
  EXPECT_FALSE(std::filesystem::exists("-"));
}

TEST(OutputFiles, StandardOutputHasOneOfThem) {
  for (const std::vector<std::string>& command : kCommands) {
    const Outcome json = shiplap_with(command, {"--plan", "-", "--json"});
    EXPECT_EQ(json.code, ExitCode::wrong_input);
    EXPECT_THAT(json.err, HasSubstr("`--plan -` and `--json` both write to standard output"));
    const Outcome two = shiplap_with(command, {"--plan", "-", "--report", "-"});
    EXPECT_THAT(two.err, HasSubstr("`--report -` and `--plan -` both write to standard output"));
  }
}

TEST(OutputFiles, ATraceIsJsonIfItsNameSaysSo) {
  for (const std::string command : {"simulate", "run"}) {
    const std::string file = temporary(command + ".json");
    ASSERT_EQ(shiplap({command, "--strategy", "ddp", "--ranks", "2", "--trace", file}).code,
              ExitCode::yes);
    EXPECT_EQ(parse_json(content_of(file), file).find("schema")->as_string(), "shiplap.trace/1");
    const std::string other = temporary(command + ".pftrace");
    ASSERT_EQ(shiplap({command, "--strategy", "ddp", "--ranks", "2", "--trace", other}).code,
              ExitCode::yes);
    EXPECT_THAT(content_of(other), Not(StartsWith("{")));
  }
}

}  // namespace
}  // namespace shiplap::cli
