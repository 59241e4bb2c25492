#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

// A small plan as JSON, with one statement to vary.
std::string plan_with(const std::string& body, const std::string& rest = "") {
  return R"({"schema": "shiplap.plan/1", "mesh": [{"axis": "dp", "size": 2}],)"
         R"("tensors": [{"name": "A", "kind": "Activation",)"
         R"("part": [{"dimension": "tok", "size": 2}]}],)"
         R"("programs": [{"name": "all", "on": "all",)"
         R"("buffers": [{"name": "x", "rows": 2, "row_bytes": 4, "type": "f32"}],)"
         R"("body": [)" +
         body + "]}]" + rest + "}";
}

Diagnostic diagnostic_of(const std::string& text) {
  try {
    (void)parse_plan(text, "step.json");
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

TEST(PlanJson, IsReadAsTheTextThatItStandsFor) {
  const std::string json =
      plan_with(R"({"given": "x", "value": "A"}, {"repeat": "i", "count": 2, "body": [)"
                R"({"do": "all_reduce", "name": "r[i]", "from": "x[i +1]", "over": "dp",)"
                R"("after": ["r[i-1]"]}]})");
  const std::string text =
      "shiplap-plan 1\nmesh dp=2\ntensor A Activation tok 2\nprogram all on all\n"
      "  buffer x rows 2 row_bytes 4 f32\n  given x = A\n  repeat i 2\n"
      "    r[i]: all_reduce x[i +1] over dp after r[i-1]\n  end\n";
  EXPECT_EQ(parse_plan(json, "step.json"), parse_plan(text, "step.plan"));
}

TEST(PlanJson, AMistakeInAPhraseNamesTheObject) {
  const Diagnostic found = diagnostic_of(plan_with(R"({"given": "x", "value": "B"})"));
  EXPECT_EQ(found.code, "D102");
  EXPECT_EQ(found.where.operation, "at /programs/0/body/0");
  EXPECT_EQ(found.where.line, 0) << "generated lines are not reported";
}

TEST(PlanJson, AMistakeInsideABlockNamesThatObject) {
  const Diagnostic found = diagnostic_of(plan_with(
      R"({"when": "dp=0", "body": [{"let": "k", "value": 1}, {"let": "dp", "value": 1}]})"));
  EXPECT_EQ(found.code, "D103");
  EXPECT_EQ(found.where.operation, "at /programs/0/body/0/body/1");
}

TEST(PlanJson, AMemberThatNobodyReadsIsRefused) {
  const Diagnostic found =
      diagnostic_of(plan_with(R"({"do": "all_reduce", "from": "x", "ovr": "dp", "over": "dp"})"));
  EXPECT_EQ(found.code, "D011");
  EXPECT_NE(found.what.find("`ovr`"), std::string::npos);
  EXPECT_NE(found.help.find("`over`"), std::string::npos);
}

TEST(PlanJson, AMissingMemberIsNamed) {
  const Diagnostic found = diagnostic_of(plan_with(R"({"do": "send", "from": "x"})"));
  EXPECT_EQ(found.code, "D011");
  EXPECT_NE(found.what.find("`peer`"), std::string::npos);
}

TEST(PlanJson, APhraseCannotSmuggleInALine) {
  for (const char* phrase : {"x\\nend", "x; end", "x # y"}) {
    const Diagnostic found =
        diagnostic_of(plan_with(R"({"given": ")" + std::string(phrase) + R"(", "value": "A"})"));
    EXPECT_EQ(found.code, "D011") << phrase;
  }
}

TEST(PlanJson, APhraseSaysNoMoreThanItsMemberStandsFor) {
  const auto send = [](const std::string& more) {
    return plan_with(R"({"do": "send", "from": "x", "peer": ")" + more + R"("})");
  };
  EXPECT_NO_THROW((void)parse_plan(send("dp+1 wrap"), "step.json"));
  const Diagnostic found = diagnostic_of(send("dp+1 wrap tag 5"));
  EXPECT_EQ(found.code, "D011");
  EXPECT_NE(found.what.find("`tag`"), std::string::npos);
  std::string two_axes = plan_with(R"({"let": "k", "value": "1"})");
  const std::string axis = "\"dp\"";
  two_axes.replace(two_axes.find(axis), axis.size(), "\"pp=2 dp\"");
  EXPECT_EQ(diagnostic_of(two_axes).code, "D011");
}

TEST(PlanJson, AnotherSchemaOrAnotherShapeIsRefused) {
  EXPECT_EQ(diagnostic_of(R"({"schema": "shiplap.plan/2", "mesh": []})").code, "D011");
  EXPECT_EQ(diagnostic_of(R"({"schema": "shiplap.plan/1", "mesh": {"dp": 2}})").code, "D011");
  EXPECT_EQ(diagnostic_of(R"({"mesh": []})").code, "D011");
  EXPECT_EQ(diagnostic_of(plan_with(R"({"nothing": 1})")).code, "D011");
  EXPECT_EQ(diagnostic_of(plan_with(R"({"value": 1})")).code, "D011");
  EXPECT_EQ(diagnostic_of(plan_with("7")).code, "D011");
  EXPECT_EQ(diagnostic_of(plan_with("", R"(, "spare": [])")).code, "D011");
  EXPECT_EQ(diagnostic_of("{").code, "D010");
}

TEST(PlanJson, ErrorsOfExpansionDoNotNameLinesThatNobodyWrote) {
  const Plan plan = parse_plan(plan_with(R"({"let": "k", "value": "1"})"), "step.json");
  EXPECT_EQ(std::get<Let>(plan.programs[0].body[0].node).origin.line, 0);
}

}  // namespace
}  // namespace shiplap::plan
