// What `check` found, in the forms that people and programs read.
#pragma once

#include <string>

#include "shiplap/base/files.h"
#include "shiplap/base/json.h"
#include "shiplap/check/check.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct CheckedPlan {
  std::string name;  // for titles
  std::string file;  // that the lines of the findings are in; "" if there is none
  check::Options options;
  check::Report report;
};

// Gives findings and notes their file and excerpt, where only the line was known.
void place_findings(check::Report& report, const SourceText& source);

// "eager", "rendezvous", "both", or "by_size" if there is a limit.
[[nodiscard]] std::string sends_word(const check::Options& options);

// One paragraph if it is sound; else, as a compiler would, each finding with its notes.
[[nodiscard]] std::string check_text(const CheckedPlan& checked, const TextLook& look);

// Schema "shiplap.check/1".
[[nodiscard]] Json check_json(const CheckedPlan& checked);

// SARIF 2.1.0, for code scanning.
[[nodiscard]] Json check_sarif(const CheckedPlan& checked);

// Workflow commands that GitHub shows beside the lines of a change.
[[nodiscard]] std::string check_github(const CheckedPlan& checked);

}  // namespace shiplap::report
