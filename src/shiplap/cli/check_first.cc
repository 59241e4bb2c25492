#include "shiplap/cli/check_first.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "shiplap/check/check.h"
#include "shiplap/cli/check_formats.h"
#include "shiplap/cli/table.h"

namespace shiplap::cli {

bool checked_first(const plan::Plan& plan, Context& context, const SourceText* source) {
  const auto act = [&] { return check::check(plan, {}); };
  CheckedPlan checked{.name = source != nullptr ? source->short_name() : "the plan",
                      .file = source != nullptr ? source->file : "",
                      .options = {},
                      .report = source != nullptr ? placing_errors(*source, act) : act()};
  if (source != nullptr) place_findings(checked.report, *source);
  const check::Report& report = checked.report;
  if (!report.sound() || !report.findings.empty()) {
    context.err.stream << check_text(checked,
                                     {.colour = context.err.colour, .width = context.width()});
  } else {
    context.err.stream << fmt::format("checked: sound ({}, {})\n", counted(report.ranks, "rank"),
                                      counted(report.operations, "operation"));
  }
  return report.sound();
}

}  // namespace shiplap::cli
