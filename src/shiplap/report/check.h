// Reports of `check`: text, JSON, SARIF and GitHub workflow commands.
#pragma once

#include <string>
#include <vector>

#include "shiplap/base/files.h"
#include "shiplap/base/json.h"
#include "shiplap/check/check.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct CheckedPlan {
  std::string name;  // for titles
  std::string file;  // the plan file of the findings; "" if there is none
  check::Options options;
  check::Report report;
  std::vector<std::string> allowed;  // codes of errors that were made warnings
};

// Adds file and excerpt to findings and notes that have only a line number.
void add_source_locations(check::Report& report, const SourceText& source);

// "eager", "rendezvous", "both", or "by_size" if there is a limit.
[[nodiscard]] std::string send_mode_name(const check::Options& options);

// The findings with their notes, like a compiler, then the verdict in one line. Verbose: also what
// was proved, how much of it, and what was assumed.
enum class Detail { brief, verbose };
[[nodiscard]] std::string check_text(const CheckedPlan& checked, const TextStyle& style,
                                     Detail detail = Detail::brief);

// "4 ranks, eager and rendezvous sends": what a verdict covers.
[[nodiscard]] std::string checked_scope(const CheckedPlan& checked);

// Schema "shiplap.check/1".
[[nodiscard]] Json check_json(const CheckedPlan& checked);

// SARIF 2.1.0, for code scanning.
[[nodiscard]] Json check_sarif(const CheckedPlan& checked);

// GitHub workflow commands, which annotate the lines of a pull request.
[[nodiscard]] std::string check_github(const CheckedPlan& checked);

}  // namespace shiplap::report
