#include "shiplap/cli/check_first.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "shiplap/check/check.h"
#include "shiplap/report/check.h"
#include "shiplap/report/text.h"

namespace shiplap::cli {

namespace {

// So many are checked in about five seconds.
constexpr std::int64_t kMaxCheckedOperations = 2'000'000;

bool is_too_large(const InputError& error) { return error.diagnostics().front().code == "D632"; }

}  // namespace

bool checked_first(const plan::Plan& plan, Context& context, const SourceText* source,
                   std::optional<Bytes> eager_up_to) {
  report::CheckedPlan checked{.name = source != nullptr ? source->short_name() : "the plan",
                              .file = source != nullptr ? source->file : "",
                              .options = {.eager_up_to = eager_up_to,
                                          .operations = kMaxCheckedOperations,
                                          .progress = context.progress},
                              .report = {}};
  const auto act = [&] { return check::check(plan, checked.options); };
  try {
    checked.report = source != nullptr ? placing_errors(*source, act) : act();
  } catch (const InputError& error) {
    if (!is_too_large(error)) throw;
    context.err.stream << "not checked, as it is large: `shiplap check` does it\n";
    return true;
  }
  if (source != nullptr) report::place_findings(checked.report, *source);
  const check::Report& report = checked.report;
  if (!report.sound() || !report.findings.empty()) {
    context.err.stream << report::check_text(
        checked, {.colour = context.err.colour, .width = context.width()});
  } else {
    context.err.stream << fmt::format("checked: sound ({}, {})\n",
                                      report::counted(report.ranks, "rank"),
                                      report::counted(report.operations, "operation"));
  }
  return report.sound();
}

}  // namespace shiplap::cli
