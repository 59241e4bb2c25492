// Helpers for the gaps_*_test.cc: the findings of a plan as one line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "shiplap/check/testing_internal.h"

namespace shiplap::check {

// "D701@1:0/2": code, rank, operation and number of folded consequences of every finding; "+D702"
// for each note.
inline std::string check_summary(const std::string& text, const Options& options = {}) {
  std::string result;
  for (const Finding& finding : checked(text, options).findings) {
    result += (result.empty() ? "" : " ") + finding.diagnostic.code + "@" +
              std::to_string(finding.place.rank) + ":" + std::to_string(finding.place.operation);
    if (finding.folded > 0) result += "/" + std::to_string(finding.folded);
    for (const Diagnostic& note : finding.notes) result += "+" + note.code;
  }
  return result;
}

inline Finding first(const std::string& text) {
  const Report report = checked(text);
  EXPECT_FALSE(report.findings.empty()) << text;
  return report.findings.empty() ? Finding{} : report.findings.front();
}

}  // namespace shiplap::check
