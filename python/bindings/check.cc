// Bindings of shiplap::check.
#include "shiplap/check/check.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <utility>

#include "bind.h"
#include "plan.h"
#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/check/fix.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/check.h"
#include "shiplap/report/html.h"

namespace shiplap::python {
namespace {

check::Sends parse_sends(const std::string& word) {
  if (word == "eager") return check::Sends::eager;
  if (word == "rendezvous") return check::Sends::rendezvous;
  if (word == "both") return check::Sends::both;
  throw_argument_error("sends", fmt::format("there is no `{}`", word),
                       suggest(word, std::vector<std::string>{"eager", "rendezvous", "both"}));
}

check::Rules parse_rules(const std::string& word) {
  if (const auto rules = check::parse_rules(word)) return *rules;
  throw_argument_error("rules", fmt::format("there is no `{}`", word),
                       suggest(word, check::rules_names()));
}

struct Wanted {
  std::string rules;
  std::string sends;
  std::optional<std::int64_t> eager;
  bool symmetry = true;
};

report::CheckedPlan checked(const SharedPlan& plan, const Wanted& wanted) {
  check::Options options{.rules = parse_rules(wanted.rules),
                         .sends = parse_sends(wanted.sends),
                         .symmetry = wanted.symmetry};
  if (wanted.eager && *wanted.eager < 0) throw_negative("eager");
  if (wanted.eager) options.eager_limit = Bytes{*wanted.eager};
  check::Report report =
      with_source_locations(*plan, [&] { return check::check(plan->plan, options); });
  if (plan->source) report::add_source_locations(report, *plan->source);
  return {.name = plan->name,
          .file = plan->source ? plan->source->file : "",
          .options = options,
          .report = std::move(report)};
}

std::string without_newline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string report_text(const report::CheckedPlan& checked, report::Detail detail) {
  return without_newline(report::check_text(checked, {}, detail));
}

// The fields of shiplap.Finding.
nb::list finding_fields(const check::Report& report) {
  nb::list findings;
  for (const check::Finding& f : report.findings) {
    const nb::object rank = f.place.exists() ? nb::object(nb::int_(f.place.rank)) : nb::none();
    findings.append(nb::make_tuple(f.diagnostic, f.notes, rank, f.folded, f.only_rendezvous));
  }
  return findings;
}

// The fields of shiplap.Report that follow `plan`, but for `_options`.
nb::tuple check_plan(const SharedPlan& plan, std::string rules, std::string sends,
                     std::optional<std::int64_t> eager, bool symmetry) {
  const Wanted wanted{std::move(rules), std::move(sends), eager, symmetry};
  const report::CheckedPlan found = unlocked([&] { return checked(plan, wanted); });
  const check::Report& report = found.report;
  return nb::make_tuple(report.sound(), finding_fields(report), report.ranks, report.operations,
                        nb::make_tuple(report_text(found, report::Detail::brief),
                                       report_text(found, report::Detail::verbose)),
                        to_python(report::check_json(found)),
                        to_python(report::check_sarif(found)));
}

nb::object fixed(const SharedPlan& plan, std::string rules, std::string sends,
                 std::optional<std::int64_t> eager, bool symmetry) {
  const Wanted wanted{std::move(rules), std::move(sends), eager, symmetry};
  std::optional<check::Fix> found = unlocked([&] {
    const report::CheckedPlan before = checked(plan, wanted);
    return check::fix(plan->plan, before.report, before.options);
  });
  if (!found) return nb::none();
  SharedPlan sound =
      std::make_shared<NamedPlan>(std::move(found->plan), plan->name + " (fixed)", std::nullopt);
  return nb::make_tuple(sound, found->what);
}

}  // namespace

void bind_check(nb::module_& m) {
  m.def("_check", &check_plan, "plan"_a, "rules"_a, "sends"_a, "eager"_a.none(), "symmetry"_a,
        nb::sig("def _check(plan: Plan, rules: str, sends: str, eager: int | None, symmetry: bool) "
                "-> tuple[Any, ...]"));
  m.def("_fix", &fixed, "plan"_a, "rules"_a, "sends"_a, "eager"_a.none(), "symmetry"_a,
        nb::sig("def _fix(plan: Plan, rules: str, sends: str, eager: int | None, symmetry: bool) "
                "-> tuple[Plan, str] | None"));
  m.def(
      "_pre",
      [](const std::string& text) {
        return fmt::format("<pre style=\"white-space: pre-wrap\">{}</pre>", report::escaped(text));
      },
      "HTML of a text.");
}

}  // namespace shiplap::python
