// Helpers for the tests of this module: plans with one mistake, and the expected finding.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>

#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap::check {

inline Report checked(std::string_view text, const Options& options = {}) {
  const plan::Plan plan = plan::parse_text("shiplap-plan 1\n" + std::string(text), "test.plan");
  return check(plan, options);
}

// A text with the last `found` in it replaced.
inline std::string changed(std::string_view text, std::string_view found, std::string_view by) {
  std::string result(text);
  const std::size_t at = result.rfind(found);
  if (at == std::string::npos) {
    ADD_FAILURE() << "`" << found << "` is not in the plan";
    return result;
  }
  return result.replace(at, found.size(), by);
}

struct Expected {
  std::string code;
  int rank = -1;
  int operation = -1;
  std::string what;  // a part of the diagnostic's `what`
};

inline std::string listing(const Report& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    text += std::to_string(finding.place.rank) + ":" + std::to_string(finding.place.operation) +
            " " + render(finding.diagnostic);
  }
  return text;
}

inline void expect_sound(std::string_view text, const Options& options = {}) {
  const Report report = checked(text, options);
  EXPECT_TRUE(report.sound()) << text << "\n" << listing(report);
  EXPECT_THAT(report.findings, testing::IsEmpty()) << text << "\n" << listing(report);
}

// Exactly one finding, with symmetry and without; returns it.
inline Finding expect_finding(std::string_view text, const Expected& expected,
                              Options options = {}) {
  Finding result;
  for (const bool symmetry : {false, true}) {
    options.symmetry = symmetry;
    const Report report = checked(text, options);
    EXPECT_FALSE(report.sound()) << text;
    EXPECT_EQ(report.findings.size(), 1U) << text << "\n" << listing(report);
    if (report.findings.empty()) continue;
    result = report.findings.front();
    EXPECT_EQ(result.diagnostic.code, expected.code) << text << "\n" << listing(report);
    EXPECT_EQ(result.diagnostic.severity, Severity::error) << text;
    EXPECT_EQ(result.place.rank, expected.rank) << text << "\n" << listing(report);
    EXPECT_EQ(result.place.operation, expected.operation) << text << "\n" << listing(report);
    EXPECT_THAT(result.diagnostic.what, testing::HasSubstr(expected.what)) << text;
    EXPECT_EQ(result.diagnostic.where.rank.value_or(-1), expected.rank) << text;
  }
  return result;
}

// A sound plan, and a mistake made in it.
struct Mistake {
  std::string_view plan;
  std::string_view found;  // the last of it
  std::string_view by;
};

inline Finding expect_finding(const Mistake& mistake, const Expected& expected,
                              const Options& options = {}) {
  expect_sound(mistake.plan, options);
  return expect_finding(changed(mistake.plan, mistake.found, mistake.by), expected, options);
}

}  // namespace shiplap::check
