#include "shiplap/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "shiplap/cli/testing_internal.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;

std::string saved(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / ("shiplap_completion." + name);
  std::ofstream(path) << text;
  return path.string();
}

// NOLINTBEGIN(bugprone-command-processor): shells are what is tested here.
std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  pclose(pipe);
  return text;
}

bool installed(const std::string& shell) {
  return std::system(("command -v " + shell + " > /dev/null").c_str()) == 0;
}

bool accepts(const std::string& shell, const std::string& file) {
  return std::system((shell + " -n " + file).c_str()) == 0;
}
// NOLINTEND(bugprone-command-processor)

TEST(Completion, ScriptsAreGoodSyntax) {
  const std::vector<Verb> verbs = all_verbs();
  const std::vector<std::pair<std::string, std::string>> scripts = {
      {"bash", bash_completion(verbs)},
      {"zsh", zsh_completion(verbs)},
      {"fish", fish_completion(verbs)}};
  for (const auto& [shell, script] : scripts) {
    EXPECT_EQ(shiplap({"completion", shell}).out, script);
    if (!installed(shell)) continue;
    EXPECT_TRUE(accepts(shell, saved(shell, script))) << shell;
  }
}

TEST(Completion, KnowsEveryCommandAndFlag) {
  const std::vector<Verb> verbs = all_verbs();
  for (const std::string& script : {bash_completion(verbs), zsh_completion(verbs)}) {
    for (const Verb& verb : verbs) {
      EXPECT_THAT(script, HasSubstr(verb.info.name));
      for (const FlagSpec& flag : verb.usage().flags) EXPECT_THAT(script, HasSubstr(flag.name));
    }
  }
}

// The completions of bash with the cursor at the end of the last word.
std::string completed(const std::string& words) {
  const std::string script = saved("bash", bash_completion(all_verbs()));
  const std::string program = "source " + script + "; COMP_WORDS=(" + words +
                              "); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _shiplap; "
                              "echo ${COMPREPLY[*]}";
  return output_of("bash -c '" + program + "'");
}

TEST(Completion, WorksInBash) {
  if (!installed("bash")) GTEST_SKIP() << "there is no bash";
  EXPECT_EQ(completed("shiplap ex"), "export explain\n");
  EXPECT_EQ(completed("shiplap show --r"), "--ranks --rank\n");
  EXPECT_EQ(completed("shiplap export a.plan --to j"), "json\n");
  EXPECT_EQ(completed("shiplap show a.plan --color = al"), "always\n");
  EXPECT_EQ(completed("shiplap show examples/plans/zero"), "examples/plans/zero_bubble.plan\n");
  EXPECT_EQ(completed("shiplap explain D00"), "D001 D002 D003 D004 D005 D006 D007 D008 D009\n");
  EXPECT_EQ(completed("shiplap help sh"), "show\n");
  EXPECT_EQ(completed("shiplap completion z"), "zsh\n");
  EXPECT_EQ(completed("shiplap simulate --strategy ddp"), "ddp ddp_overlap\n");
  EXPECT_EQ(completed("shiplap check --strategy 1"), "1f1b\n");
  EXPECT_EQ(completed("shiplap simulate --hardware h"), "h100_80g_nvl8 h200\n");
  EXPECT_EQ(completed("shiplap overlap --hardware data/hardware/h2"), "data/hardware/h200.json\n");
  EXPECT_EQ(completed("shiplap overlap --method p"), "pipeline\n");
  EXPECT_EQ(completed("shiplap dispatch va"), "validate\n");
  EXPECT_EQ(completed("shiplap dispatch validate data/hardware/h2"), "data/hardware/h200.json\n");
  EXPECT_EQ(completed("shiplap hardware mi"), "mi300x\n");
}

}  // namespace
}  // namespace shiplap::cli
