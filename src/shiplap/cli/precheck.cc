#include "shiplap/cli/precheck.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "shiplap/check/check.h"
#include "shiplap/report/check.h"

namespace shiplap::cli {

namespace {

// Checking this many takes about five seconds.
constexpr std::int64_t kMaxCheckedOperations = 2'000'000;

bool is_too_large(const InputError& error) { return error.diagnostics().front().code == "D632"; }

}  // namespace

bool precheck(const plan::Plan& plan, Context& context, const SourceText* source,
              std::optional<Bytes> eager_limit) {
  report::CheckedPlan checked{.name = source != nullptr ? source->short_name() : "the plan",
                              .file = source != nullptr ? source->file : "",
                              .options = {.eager_limit = eager_limit,
                                          .operations = kMaxCheckedOperations,
                                          .progress = context.progress},
                              .report = {}};
  const auto act = [&] { return check::check(plan, checked.options); };
  try {
    checked.report = source != nullptr ? with_source_locations(*source, act) : act();
  } catch (const InputError& error) {
    if (!is_too_large(error)) throw;
    context.err.stream << "not checked: the plan is large; run `shiplap check`\n";
    return true;
  }
  if (source != nullptr) report::add_source_locations(checked.report, *source);
  const check::Report& report = checked.report;
  if (!report.sound() || !report.findings.empty()) {
    context.err.stream << report::check_text(
        checked, {.colour = context.err.colour, .width = context.width()});
  } else {
    context.err.stream << fmt::format("checked: sound ({})\n", report::checked_scope(checked));
    // The bubble does not count a misspelled kernel.
    for (const Diagnostic& warning : report.advice) {
      if (warning.code == "D757") context.err.stream << render(warning, context.err.colour);
    }
  }
  return report.sound();
}

}  // namespace shiplap::cli
