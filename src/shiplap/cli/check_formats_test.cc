#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "shiplap/base/catalogue.h"
#include "shiplap/cli/testing_internal.h"
#include "shiplap/report/check.h"

namespace shiplap::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

check::Finding deadlock() {
  return {.diagnostic = {.code = "D621",  // one that has a page
                         .where = {.file = "my plans/a,b.plan",
                                   .line = 12,
                                   .excerpt = "  send x to pp+1",
                                   .rank = 3,
                                   .operation = "send"},
                         .what = "100% deadlock",
                         .why = "each waits\nfor the other",
                         .help = "batch them"},
          .place = {.rank = 3, .operation = 7},
          .witness = {{.rank = 3, .operation = 7}, {.rank = 4, .operation = 2}},
          .notes = {{.severity = Severity::note,
                     .where = {.file = "my plans/a,b.plan", .line = 14, .rank = 4},
                     .what = "waits for rank 3"}},
          .folded = 5,
          .only_rendezvous = true};
}

report::CheckedPlan unsound() {
  return {.name = "a,b.plan",
          .file = "my plans/a,b.plan",
          .options = {},
          .report = {.findings = {deadlock()},
                     .examined = {{.property = "messages", .objects = 8},
                                  {.property = "declared values", .objects = 0, .reached = false}},
                     .ranks = 8,
                     .programs = 2,
                     .operations = 40,
                     .assumed = {{.kernel = "other", .computations = 1}},
                     .absent = 2}};
}

report::CheckedPlan sound() {
  report::CheckedPlan checked = unsound();
  checked.report.findings.clear();
  checked.report.examined.back() = {.property = "declared values", .objects = 1234};
  return checked;
}

std::string verbose_text(const report::CheckedPlan& checked) {
  return report::check_text(checked, {.width = 10'000}, report::Detail::verbose);
}

TEST(CheckText, SoundIsOneLine) {
  report::CheckedPlan checked = sound();
  EXPECT_EQ(report::check_text(checked, {}), "sound: 8 ranks, eager and rendezvous sends\n");
  checked.options = {.rules = check::Rules::nccl, .sends = check::Sends::eager};
  EXPECT_EQ(report::check_text(checked, {}), "sound: 8 ranks, eager sends only, NCCL only\n");
  checked.options = {.eager_limit = Bytes{4096}};
  EXPECT_EQ(report::check_text(checked, {}), "sound: 8 ranks, eager sends up to 4,096 bytes\n");
}

TEST(CheckText, VerboseSaysWhatWasProvedAndWhatWasAssumed) {
  const std::string line = verbose_text(sound());
  EXPECT_THAT(line, StartsWith("sound: 8 ranks, eager and rendezvous sends\n"
                               "Proved for a,b.plan with the rules of NCCL, MPI and gloo: "));
  EXPECT_THAT(line, HasSubstr("8 ranks (2 representatives), 40 operations: 8 messages, "
                              "1,234 declared values."));
  EXPECT_THAT(line, HasSubstr("what 1 computation writes (1 `other`)"));
  EXPECT_THAT(line, HasSubstr("2 references"));
  EXPECT_THAT(line, Not(HasSubstr("not checked")));
  EXPECT_THAT(line, Not(HasSubstr("more:")));
  EXPECT_EQ(std::ranges::count(line, '\n'), 2);
}

TEST(CheckText, AdviceComesBeforeTheVerdictAndDoesNotChangeIt) {
  report::CheckedPlan checked = sound();
  checked.report.advice = {{.code = "D761",
                            .severity = Severity::warning,
                            .what = "nothing says what the ranks must hold"}};
  const std::string text = report::check_text(checked, {.width = 10'000});
  EXPECT_THAT(text, StartsWith("warning[D761]: nothing says what the ranks must hold"));
  EXPECT_THAT(text, EndsWith("sound: 8 ranks, eager and rendezvous sends, 1 warning\n"));
  const Json json = report::check_json(checked);
  EXPECT_TRUE(json.find("sound")->as_bool());
  ASSERT_EQ(json.find("advice")->as_array().size(), 1U);
  EXPECT_EQ(json.find("advice")->as_array()[0].find("code")->as_string(), "D761");
}

TEST(CheckText, WhereNothingWasExaminedNothingIsClaimed) {
  report::CheckedPlan checked = sound();
  EXPECT_THAT(verbose_text(checked), HasSubstr("Proved for "));
  checked.report.examined.clear();
  const std::string text = verbose_text(checked);
  EXPECT_THAT(text, Not(HasSubstr("Proved")));
  EXPECT_THAT(text, HasSubstr("nothing was checked"));
}

TEST(CheckText, FindingsComeWithNotesAndTheWayToThePage) {
  const std::string text = report::check_text(unsound(), {.width = 10'000});
  EXPECT_THAT(text, StartsWith("error[D621]: 100% deadlock\n"));
  EXPECT_THAT(text, HasSubstr("--> my plans/a,b.plan:12, rank 3, send\n"));
  EXPECT_THAT(text, HasSubstr("note: waits for rank 3\n"));
  EXPECT_THAT(text, HasSubstr("  5 follow-on errors suppressed\n"));
  EXPECT_THAT(text, HasSubstr("\nnot sound: 1 error; not checked: declared values\n"));
  EXPECT_THAT(verbose_text(unsound()), HasSubstr("\nChecked 8 ranks (2 representatives), "));
  EXPECT_THAT(text, EndsWith("more: shiplap explain D621\n"));
}

TEST(CheckText, WarningsLeaveItSound) {
  report::CheckedPlan checked = unsound();
  checked.report.findings[0].diagnostic.severity = Severity::warning;
  const std::string text = report::check_text(checked, {});
  EXPECT_THAT(text, StartsWith("warning[D621]"));
  EXPECT_THAT(text, HasSubstr("\nsound: 8 ranks, eager and rendezvous sends, 1 warning; "));
}

TEST(CheckJson, HasAllOfTheReport) {
  const Json json = report::check_json(unsound());
  EXPECT_EQ(json.find("schema")->as_string(), "shiplap.check/1");
  EXPECT_FALSE(json.find("sound")->as_bool());
  EXPECT_EQ(json.find("sends")->as_string(), "both");
  EXPECT_EQ(json.find("ranks")->as_integer(), 8);
  EXPECT_EQ(json.find("programs")->as_integer(), 2);
  EXPECT_EQ(json.find("operations")->as_integer(), 40);
  const Json& assumed = *json.find("assumed");
  ASSERT_EQ(assumed.as_array().size(), 1U);
  EXPECT_EQ(assumed.as_array()[0].find("kernel")->as_string(), "other");
  EXPECT_EQ(assumed.as_array()[0].find("computations")->as_integer(), 1);
  EXPECT_EQ(json.find("absent")->as_integer(), 2);
  const Json& finding = json.find("findings")->as_array().at(0);
  EXPECT_EQ(finding.find("code")->as_string(), "D621");
  EXPECT_EQ(finding.find("severity")->as_string(), "error");
  EXPECT_EQ(finding.find("rank")->as_integer(), 3);
  EXPECT_EQ(finding.find("operation")->as_integer(), 7);
  EXPECT_EQ(finding.find("where")->find("line")->as_integer(), 12);
  EXPECT_EQ(finding.find("witness")->as_array().at(1).find("rank")->as_integer(), 4);
  EXPECT_TRUE(finding.find("only_rendezvous")->as_bool());
  EXPECT_EQ(finding.find("folded")->as_integer(), 5);
  EXPECT_EQ(finding.find("notes")->as_array().size(), 1U);
  EXPECT_FALSE(json.find("examined")->as_array().at(1).find("reached")->as_bool());
}

TEST(CheckJson, SaysTheLimitIfSendsGoBySize) {
  report::CheckedPlan checked = sound();
  checked.options.eager_limit = Bytes{4096};
  EXPECT_EQ(report::check_json(checked).find("sends")->as_string(), "by_size");
  EXPECT_EQ(report::check_json(checked).find("eager_limit")->as_integer(), 4096);
}

TEST(CheckSarif, HasWhatTheStandardRequires) {
  const Json sarif = report::check_sarif(unsound());
  EXPECT_EQ(sarif.find("version")->as_string(), "2.1.0");
  EXPECT_THAT(sarif.find("$schema")->as_string(), HasSubstr("sarif-2.1.0"));
  const Json& run = sarif.find("runs")->as_array().at(0);
  const Json& driver = *run.find("tool")->find("driver");
  EXPECT_EQ(driver.find("name")->as_string(), "shiplap");
  const Json& rule = driver.find("rules")->as_array().at(0);
  EXPECT_EQ(rule.find("id")->as_string(), "D621");
  EXPECT_EQ(rule.find("shortDescription")->find("text")->as_string(),
            find_in_catalogue("D621")->title);
  const Json& result = run.find("results")->as_array().at(0);
  EXPECT_EQ(result.find("ruleId")->as_string(), "D621");
  EXPECT_EQ(result.find("ruleIndex")->as_integer(), 0);
  EXPECT_EQ(result.find("level")->as_string(), "error");
  EXPECT_THAT(result.find("message")->find("text")->as_string(), StartsWith("100% deadlock\n"));
  const Json& place = *result.find("locations")->as_array().at(0).find("physicalLocation");
  EXPECT_EQ(place.find("artifactLocation")->find("uri")->as_string(), "my%20plans/a%2Cb.plan");
  EXPECT_EQ(place.find("region")->find("startLine")->as_integer(), 12);
  EXPECT_EQ(result.find("relatedLocations")->as_array().size(), 1U);
}

TEST(CheckSarif, WithoutAFileThereIsOnlyTheOperation) {
  report::CheckedPlan checked = unsound();
  checked.file = "";
  const Json sarif = report::check_sarif(checked);
  const Json& result = sarif.find("runs")->as_array().at(0).find("results")->as_array().at(0);
  const Json& location = result.find("locations")->as_array().at(0);
  EXPECT_EQ(location.find("physicalLocation"), nullptr);
  EXPECT_EQ(
      location.find("logicalLocations")->as_array().at(0).find("fullyQualifiedName")->as_string(),
      "rank 3, send");
}

TEST(CheckSarif, SoundHasNoResults) {
  const Json sarif = report::check_sarif(sound());
  EXPECT_TRUE(sarif.find("runs")->as_array().at(0).find("results")->as_array().empty());
}

TEST(CheckGithub, IsOneCommandForEachFinding) {
  const std::string text = report::check_github(unsound());
  EXPECT_THAT(text, StartsWith("::error file=my plans/a%2Cb.plan,line=12,title=D621::100%25 "
                               "deadlock%0Aat rank 3, send%0Aeach waits%0Afor the other%0A"));
  EXPECT_THAT(text,
              EndsWith("help: batch them\nnot sound: 1 error; not checked: declared values\n"));
}

TEST(CheckGithub, WithoutAFileThereIsOnlyATitle) {
  report::CheckedPlan checked = unsound();
  checked.file = "";
  EXPECT_THAT(report::check_github(checked), StartsWith("::error title=D621::"));
}

// ---- the command

constexpr const char* kPlan =
    "shiplap-plan 1\nmesh dp=2\ntensor G WeightGrad sum sample 2\nprogram all on all\n"
    "  buffer g rows 4 row_bytes 512 f32\n  goal g = G\n"
    "  b: compute other\n    writes g = G sum sample dp +1\n"
    "  all_reduce g over dp after b\n";

TEST(CheckVerb, ASoundPlanIsAYes) {
  const Outcome outcome = shiplap({"check", "-"}, {.input = kPlan});
  EXPECT_EQ(outcome.code, ExitCode::yes) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("sound: 2 ranks"));
  const Outcome verbose = shiplap({"check", "-", "-v"}, {.input = kPlan});
  EXPECT_THAT(verbose.out, HasSubstr("Proved for standard input "));
  const Outcome json = shiplap({"check", "-", "--json"}, {.input = kPlan});
  EXPECT_TRUE(parse_json(json.out, "stdout").find("sound")->as_bool());
}

TEST(CheckVerb, EveryFormIsRead) {
  for (const char* form : {"json", "sarif"}) {
    const Outcome outcome = shiplap({"check", "-", "--format", form}, {.input = kPlan});
    EXPECT_TRUE(parse_json(outcome.out, form).is_object());
  }
  EXPECT_EQ(shiplap({"check", "-", "--format", "github"}, {.input = kPlan}).code, ExitCode::yes);
}

// A file of the test's own, gone with it.
struct Scratch {
  explicit Scratch(const std::string& name) : path(testing::TempDir() + name) {
    std::filesystem::remove(path);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::filesystem::remove(path); }
  std::string path;
};

constexpr const char* kHangs = "museum/pytorch-172668.plan";

TEST(CheckVerb, FixWritesAPlanThatIsSound) {
  const Scratch fixed("check_verb_fix.plan");
  const Outcome outcome = shiplap({"check", kHangs, "--fix", "-o", fixed.path});
  EXPECT_EQ(outcome.code, ExitCode::no);
  EXPECT_THAT(outcome.out, HasSubstr("error[D721]"));
  EXPECT_THAT(outcome.err, StartsWith("fixed: `receive_f0: receive` (line 18) before `send_f1: "
                                      "send` (line 17), on rank 0; wrote "));
  EXPECT_EQ(shiplap({"check", fixed.path}).code, ExitCode::yes);
}

TEST(CheckVerb, FixNamesTheFileAfterThePlan) {
  const Scratch plan("check_verb_named.plan");
  const Scratch fixed("check_verb_named.fixed.plan");
  std::filesystem::copy_file(kHangs, plan.path);
  EXPECT_EQ(shiplap({"check", plan.path, "--fix"}).code, ExitCode::no);
  EXPECT_EQ(shiplap({"check", fixed.path}).code, ExitCode::yes);
  const Outcome again = shiplap({"check", plan.path, "--fix"});
  EXPECT_EQ(again.code, ExitCode::wrong_input);
  EXPECT_THAT(again.err, HasSubstr("already"));
}

TEST(CheckVerb, FixSaysWhereThereIsNothingToDo) {
  const Scratch fixed("check_verb_none.plan");
  const Outcome sound = shiplap({"check", "-", "--fix", "-o", fixed.path}, {.input = kPlan});
  EXPECT_EQ(sound.code, ExitCode::yes);
  EXPECT_EQ(sound.err, "nothing to fix: the plan is sound\n");
  const Outcome other = shiplap({"check", "museum/verl-6176.plan", "--fix", "-o", fixed.path});
  EXPECT_EQ(other.code, ExitCode::no);
  EXPECT_THAT(other.err, StartsWith("not fixed: "));
  EXPECT_FALSE(std::filesystem::exists(fixed.path));
}

// The ring of two sends that wait for each other, as recorded from a script.
const char* const kRecordedRing =
    "shiplap-plan 1\nmesh pp=2\nvalues undeclared\n"
    "source ring \"my scripts/ring.py\" in \"exchange\"\n"
    "program all on all\n  buffer x rows 2 row_bytes 4 f32\n"
    "  send x[0 +1] to pp+1 wrap at ring:7\n  receive x[1 +1] from pp-1 wrap at ring:8\n";

TEST(CheckVerb, FindingsOfARecordingNameTheLineOfTheProgram) {
  const Scratch plan("check_verb_recorded.plan");
  write_text(plan.path, kRecordedRing, "");
  const Outcome text = shiplap({"check", plan.path});
  EXPECT_EQ(text.code, ExitCode::no);
  EXPECT_THAT(text.out, HasSubstr("--> my scripts/ring.py:7 in exchange, rank 0, send\n"));
  const Outcome github = shiplap({"check", plan.path, "--format", "github"});
  EXPECT_THAT(github.out, StartsWith("::error file=my scripts/ring.py,line=7,title=D721::"));
  const Outcome sarif = shiplap({"check", plan.path, "--format", "sarif"});
  EXPECT_THAT(sarif.out, HasSubstr("\"uri\": \"my%20scripts/ring.py\""));
  EXPECT_THAT(sarif.out, HasSubstr("\"startLine\": 7"));
  const Outcome eager = shiplap({"check", plan.path, "--sends", "eager", "--rules", "mpi"});
  EXPECT_EQ(eager.code, ExitCode::yes) << eager.out;
  EXPECT_THAT(eager.out, HasSubstr("not checked: what buffers hold (`values undeclared`)\n"));
}

TEST(CheckVerb, AnExcerptOfTheProgramIsShownIfItCanBeRead) {
  const Scratch script("check_verb_ring.py");
  std::string lines;
  for (int k = 1; k < 10; ++k) lines += fmt::format("line_{}()\n", k);
  write_text(script.path, lines, "");
  std::string plan = kRecordedRing;
  plan.replace(plan.find("my scripts/ring.py"), 18, script.path);
  EXPECT_THAT(shiplap({"check", "-"}, {.input = plan}).out, HasSubstr("7 | line_7()\n"));
  plan.replace(plan.find("ring:7"), 6, "ring:99");
  EXPECT_THAT(shiplap({"check", "-"}, {.input = plan}).out, HasSubstr(":99 in exchange"));
}

TEST(CheckVerb, AllowedErrorsAreWarnings) {
  const Outcome allowed = shiplap({"check", "-", "--allow", "D721"}, {.input = kRecordedRing});
  EXPECT_EQ(allowed.code, ExitCode::yes);
  EXPECT_THAT(allowed.out, HasSubstr("warning[D721]"));
  EXPECT_THAT(allowed.out, HasSubstr("sound except for D721: 2 ranks, eager and rendezvous sends"));
  const Outcome other = shiplap({"check", "-", "--allow", "D701, D722"}, {.input = kRecordedRing});
  EXPECT_EQ(other.code, ExitCode::no);
  const Outcome unknown = shiplap({"check", "-", "--allow", "D999"}, {.input = kRecordedRing});
  EXPECT_EQ(unknown.code, ExitCode::wrong_input);
  EXPECT_THAT(unknown.err, HasSubstr("there is no code `D999`"));
}

TEST(CheckVerb, WrongInputIsTold) {
  EXPECT_EQ(shiplap({"check", "-"}, {.input = "shiplap-plan 2"}).code, ExitCode::wrong_input);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"check"},
        {"check", "-", "--strategy", "ddp"},
        {"check", "-", "--ranks", "4"},
        {"check", "-", "--sends", "lazy"},
        {"check", "-", "--sends", "both", "--eager-limit", "1"},
        {"check", "-", "--json", "--format", "sarif"},
        {"check", "-", "--fix"},
        {"check", "-", "--fix", "-o", "-"},
        {"check", "--strategy", "1f1b", "--fix"},
        {"check", "-", "--schedule", "x.csv"},
        {"check", "--schedule", "x.csv", "--ranks", "4"}}) {
    const Outcome outcome = shiplap(words, {.input = kPlan});
    EXPECT_EQ(outcome.code, ExitCode::wrong_input) << testing::PrintToString(words);
    EXPECT_THAT(outcome.err, StartsWith("error[D003]")) << testing::PrintToString(words);
  }
}

}  // namespace
}  // namespace shiplap::cli
