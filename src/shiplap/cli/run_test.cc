#include "shiplap/cli/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "shiplap/base/error.h"
#include "shiplap/cli/progress.h"
#include "shiplap/cli/testing_internal.h"

namespace shiplap::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct NoOptions {
  bool json = false;
};

// A command that does what `act` does.
Verb verb_that(ExitCode (*act)(const NoOptions&, Context&)) {
  return make_verb<NoOptions>(
      {.name = "act", .summary = "for tests", .examples = {{"shiplap act", "acts"}}},
      {.declare = [](Flags& flags,
                     NoOptions& options) { flags.toggle({.name = "--json"}, options.json); },
       .run = act});
}

Outcome run_act(ExitCode (*act)(const NoOptions&, Context&),
                const std::vector<std::string>& arguments = {"act"}) {
  return shiplap(arguments, {.verbs = {verb_that(act)}});
}

TEST(Run, AnInterruptionIsNoAnswer) {
  const auto act = [](const NoOptions&, Context&) -> ExitCode {
    throw Interrupted({.what = "expanding ranks", .unit = "ranks", .done = 41, .total = 100});
  };
  const Outcome outcome = run_act(act, {"act", "--json"});
  EXPECT_EQ(outcome.code, ExitCode::interrupted);
  EXPECT_EQ(outcome.err, "interrupted while expanding ranks, 41 % done: no result\n");
  EXPECT_THAT(outcome.out, HasSubstr("interrupted while expanding ranks"));
}

TEST(Run, HelpIsAnAnswer) {
  const std::string page = shiplap({}).out;
  EXPECT_THAT(page, HasSubstr("shiplap show step.plan"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--help"}, std::vector<std::string>{"-h"},
        std::vector<std::string>{"help"}, std::vector<std::string>{"--color=auto", "help"}}) {
    EXPECT_EQ(shiplap(words).out, page);
    EXPECT_EQ(shiplap(words).code, ExitCode::yes);
  }
}

TEST(Run, EveryCommandHasHelpThatLeadsWithExamples) {
  for (const Verb& verb : all_verbs()) {
    const std::string page = shiplap({verb.info.name, "--help"}).out;
    EXPECT_EQ(shiplap({"help", verb.info.name}).out, page);
    ASSERT_FALSE(verb.info.examples.empty()) << verb.info.name;
    EXPECT_LT(page.find(verb.info.examples[0].command), page.find("usage"));
    for (const FlagSpec& flag : verb.usage().flags) EXPECT_THAT(page, HasSubstr(flag.name));
  }
}

TEST(Run, HelpWinsOverWhatIsWrong) {
  EXPECT_EQ(shiplap({"show", "--nonsense", "--help"}).code, ExitCode::yes);
  EXPECT_EQ(shiplap({"show", "--", "--help"}).code, ExitCode::wrong_input);  // a file name
}

TEST(Run, HelpFitsTheWindow) {
  for (const int columns : {40, 60, 80, 100, 200}) {
    for (const Verb& verb : all_verbs()) {
      std::istringstream lines(shiplap({verb.info.name, "--help"}, {.columns = columns}).out);
      for (std::string line; std::getline(lines, line);) {
        const bool cannot_break = line.find("  shiplap") == 0 || line.find("  source") == 0;
        if (cannot_break) continue;
        EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
      }
    }
  }
}

TEST(Run, VersionIsOneLine) {
  const Outcome outcome = shiplap({"--version"});
  EXPECT_THAT(outcome.out, testing::MatchesRegex("shiplap [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_EQ(outcome.code, ExitCode::yes);
}

TEST(Run, AnUnknownCommandIsWrongInput) {
  const Outcome outcome = shiplap({"shwo"});
  EXPECT_EQ(outcome.code, ExitCode::wrong_input);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, StartsWith("error[D001]: unknown command `shwo`"));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean `show`?"));
}

TEST(Run, ErrorsAreAlsoJsonIfAsked) {
  const Outcome outcome = shiplap({"shwo", "--json"});
  const Json error = parse_json(outcome.out, "stdout");
  EXPECT_EQ(error.find("schema")->as_string(), "shiplap.error/1");
  EXPECT_EQ(error.find("diagnostics")->as_array()[0].find("code")->as_string(), "D001");
  EXPECT_THAT(outcome.err, StartsWith("error[D001]"));
}

TEST(Run, ExitCodesTellWhatHappened) {
  EXPECT_EQ(run_act([](const NoOptions&, Context&) { return ExitCode::no; }).code, ExitCode::no);
  const auto missing = [](const NoOptions&, Context&) -> ExitCode {
    throw MissingDependency(Diagnostic{.what = "there is no MPI"});
  };
  EXPECT_EQ(run_act(missing).code, ExitCode::missing_dependency);
  const auto wrong = [](const NoOptions&, Context&) -> ExitCode {
    throw InputError(Diagnostic{.what = "wrong"});
  };
  EXPECT_EQ(run_act(wrong).code, ExitCode::wrong_input);
}

TEST(Run, OurOwnBugsAreAdmitted) {
  const auto bug = [](const NoOptions&, Context&) -> ExitCode {
    ensure(false, "two is two");
    return ExitCode::yes;
  };
  const Outcome outcome = run_act(bug, {"act", "--json"});
  EXPECT_EQ(outcome.code, ExitCode::bug);
  EXPECT_THAT(outcome.err, HasSubstr("invariant violated: two is two"));
  EXPECT_THAT(outcome.err, HasSubstr("shiplap act --json"));
  EXPECT_THAT(parse_json(outcome.out, "stdout")
                  .find("diagnostics")
                  ->as_array()[0]
                  .find("what")
                  ->as_string(),
              HasSubstr("two is two"));
  // NOLINTNEXTLINE(bugprone-std-exception-baseclass): what must not escape either
  const auto thrown = [](const NoOptions&, Context&) -> ExitCode { throw 42; };
  EXPECT_EQ(run_act(thrown).code, ExitCode::bug);
  const auto foreign = [](const NoOptions&, Context&) -> ExitCode {
    throw std::runtime_error("foreign");
  };
  EXPECT_EQ(run_act(foreign).code, ExitCode::bug);
}

TEST(Run, OutputThatCannotBeWrittenIsAnError) {
  const auto full = [](const NoOptions&, Context& context) {
    context.out.stream << "half";
    context.out.stream.setstate(std::ios::badbit);
    return ExitCode::yes;
  };
  const Outcome outcome = run_act(full);
  EXPECT_EQ(outcome.code, ExitCode::wrong_input);
  EXPECT_THAT(outcome.err, StartsWith("error[D005]"));
}

TEST(Run, ColourIsTakenFromAnywhere) {
  const Setting terminal{.colour = Colour::on};
  EXPECT_THAT(shiplap({}, terminal).out, HasSubstr("\033["));
  EXPECT_THAT(shiplap({"--color", "never"}, terminal).out, testing::Not(HasSubstr("\033[")));
  EXPECT_THAT(shiplap({"help", "--colour=always"}).out, HasSubstr("\033["));
  EXPECT_EQ(shiplap({"help", "--color", "some"}).code, ExitCode::wrong_input);
  EXPECT_EQ(shiplap({"help", "--color"}).code, ExitCode::wrong_input);
}

}  // namespace
}  // namespace shiplap::cli
