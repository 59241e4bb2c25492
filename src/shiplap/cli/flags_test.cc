#include "shiplap/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/base/error.h"

namespace shiplap::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Options {
  std::string file;
  std::vector<std::string> more;
  bool json = false;
  std::optional<std::string> output;
  std::optional<std::string> form;
  std::optional<std::int64_t> limit;
  std::optional<std::string> from;
};

Options parse(const std::vector<std::string>& words) {
  Options options;
  Flags flags("show");
  flags.argument({.name = "FILE", .help = "a plan", .example = "a.plan"}, options.file);
  flags.arguments({.name = "MORE", .help = "more", .example = "b.plan", .required = false},
                  options.more);
  flags.toggle({.name = "--json"}, options.json);
  flags.text({.name = "--output", .letter = "-o", .value = "OUT", .example = "x"}, options.output);
  flags.text({.name = "--to",
              .value = "FORM",
              .example = "json",
              .values = Values::listed,
              .choices = {"plan", "json"}},
             options.form);
  flags.count({.name = "--limit", .value = "N", .example = "3"}, options.limit);
  flags.text(
      {.name = "--from", .value = "FRAMEWORK", .example = "megatron", .before_foreign_flags = true},
      options.from);
  flags.parse(words);
  return options;
}

std::vector<Diagnostic> problems(const std::vector<std::string>& words) {
  try {
    (void)parse(words);
  } catch (const InputError& error) {
    return error.diagnostics();
  }
  return {};
}

Diagnostic problem(const std::vector<std::string>& words) {
  const auto found = problems(words);
  return found.size() == 1 ? found[0] : Diagnostic{.code = std::to_string(found.size())};
}

TEST(Flags, AreAcceptedInAnyOrderAndSpelling) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"f", "--limit", "3", "--json", "-o", "x"},
        std::vector<std::string>{"--json", "-ox", "f", "--limit=3"},
        std::vector<std::string>{"--output=x", "--limit", "3", "--json", "--", "f"}}) {
    const Options options = parse(words);
    EXPECT_EQ(options.file, "f");
    EXPECT_EQ(options.limit, 3);
    EXPECT_TRUE(options.json);
    EXPECT_EQ(options.output, "x");
  }
}

TEST(Flags, ThatAreNotGivenLeaveTheirTargetAlone) {
  const Options options = parse({"f"});
  EXPECT_FALSE(options.json);
  EXPECT_FALSE(options.limit.has_value());
  EXPECT_TRUE(options.more.empty());
}

TEST(Flags, EndAtTwoDashes) {
  const Options options = parse({"--", "--json", "-x"});
  EXPECT_EQ(options.file, "--json");
  EXPECT_THAT(options.more, ElementsAre("-x"));
}

TEST(Flags, OfAnotherProgramAreAnArgumentInQuotes) {
  EXPECT_EQ(parse({"--from", "megatron", "--tp 8 --pp=4", "--json"}).file, "--tp 8 --pp=4");
  EXPECT_EQ(parse({"--from", "megatron", "--limit", "3", "--tp=8\n--pp 4"}).file, "--tp=8\n--pp 4");
  EXPECT_EQ(parse({"--from=megatron", "--sequence-parallel"}).file, "--sequence-parallel");
  EXPECT_EQ(parse({"--from", "megatron", "--sequence-parallel"}).file, "--sequence-parallel");
  const Diagnostic unquoted = problem({"--from", "megatron", "--sequence-parallel", "--tp", "8"});
  EXPECT_EQ(unquoted.code, "D002");
  EXPECT_THAT(unquoted.help, HasSubstr("quote the flags"));
}

TEST(Flags, OneDashIsAnArgument) { EXPECT_EQ(parse({"-"}).file, "-"); }

TEST(Flags, AValueMayBeginWithOneDash) { EXPECT_EQ(parse({"f", "-o", "-"}).output, "-"); }

TEST(Flags, UnknownOnesGetASuggestion) {
  for (const char* typed : {"--Limit", "--limt", "-limit", "--limit_"}) {
    const Diagnostic found = problem({"f", typed});
    EXPECT_EQ(found.code, "D002") << typed;
    EXPECT_EQ(found.where.flag, typed);
    EXPECT_EQ(found.help, "did you mean `--limit`?");
    EXPECT_THAT(found.why, HasSubstr("--json"));
  }
}

TEST(Flags, NothingNearListsThem) {
  EXPECT_THAT(problem({"f", "--frobnicate=3"}).help, HasSubstr("there are: --json"));
}

TEST(Flags, TheValueOfAnUnknownFlagIsNoSecondProblem) {
  EXPECT_EQ(problem({"--Limits", "3", "f", "g"}).code, "D002");
}

TEST(Flags, AMissingValueIsReported) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"f", "--limit"}, std::vector<std::string>{"f", "--limit="},
        std::vector<std::string>{"f", "--limit", "--json"}}) {
    const Diagnostic found = problem(words);
    EXPECT_EQ(found.code, "D003");
    EXPECT_EQ(found.what, "`--limit` needs a value");
    EXPECT_EQ(found.help, "write for instance `--limit 3`");
  }
}

TEST(Flags, AWrongNumberIsReported) {
  for (const char* typed : {"x", "3x", "-1", "1.5", "99999999999999999999"}) {
    EXPECT_EQ(problem({"f", "--limit", typed}).what,
              std::string("expected a whole number, found `") + typed + "`");
  }
}

TEST(Flags, AChoiceMustBeListed) {
  EXPECT_EQ(parse({"f", "--to", "plan"}).form, "plan");
  const Diagnostic far = problem({"f", "--to", "xml"});
  EXPECT_EQ(far.what, "invalid value `xml` for `--to`");
  EXPECT_EQ(far.help, "there are: plan, json");
  const Diagnostic near = problem({"f", "--to", "JSON"});
  EXPECT_EQ(near.help, "did you mean `json`?");
  EXPECT_EQ(near.why, "valid values: plan, json");
}

TEST(Flags, ASwitchTakesNoValueAndNoFlagComesTwice) {
  EXPECT_EQ(problem({"f", "--json=yes"}).what, "`--json` takes no value, found `yes`");
  EXPECT_EQ(problem({"f", "--limit", "1", "--limit", "2"}).what, "`--limit` is given twice");
}

TEST(Flags, AMissingArgumentIsReported) {
  EXPECT_EQ(problem({}).what, "`show` needs FILE: a plan");
  EXPECT_EQ(problem({}).help, "write for instance `shiplap show a.plan`");
}

TEST(Flags, TooManyArgumentsAreReported) {
  std::string file;
  Flags flags("show");
  flags.argument({.name = "FILE"}, file);
  const std::vector<std::string> words = {"a", "b"};
  EXPECT_THROW(flags.parse(words), InputError);
}

TEST(Flags, SeveralProblemsAreReportedTogether) {
  EXPECT_EQ(problems({"--limit", "x", "--to", "y"}).size(), 3U);  // and FILE is missing
}

}  // namespace
}  // namespace shiplap::cli
