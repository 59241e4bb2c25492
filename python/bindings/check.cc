// Bindings of shiplap::check.
#include "shiplap/check/check.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <utility>

#include "bind.h"
#include "plan.h"
#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/check/fix.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/check.h"
#include "shiplap/report/html.h"

namespace shiplap::python {
namespace {

// The result of check(), with its plan.
struct CheckResult {
  SharedPlan plan;
  report::CheckedPlan checked;

  [[nodiscard]] const check::Report& report() const { return checked.report; }
};

check::Sends parse_sends(const std::string& word) {
  if (word == "eager") return check::Sends::eager;
  if (word == "rendezvous") return check::Sends::rendezvous;
  if (word == "both") return check::Sends::both;
  throw InputError(
      Diagnostic{.code = "D003",
                 .where = {.flag = "sends"},
                 .what = fmt::format("there is no `{}`", word),
                 .help = suggest(word, std::vector<std::string>{"eager", "rendezvous", "both"})});
}

check::Rules parse_rules(const std::string& word) {
  if (const auto rules = check::parse_rules(word)) return *rules;
  throw InputError(Diagnostic{.code = "D003",
                              .where = {.flag = "rules"},
                              .what = fmt::format("there is no `{}`", word),
                              .help = suggest(word, check::rules_names())});
}

CheckResult check_plan(const SharedPlan& plan, const std::string& rules, const std::string& sends,
                       std::optional<std::int64_t> eager, bool symmetry) {
  check::Options options{
      .rules = parse_rules(rules), .sends = parse_sends(sends), .symmetry = symmetry};
  if (eager && *eager < 0) throw_negative("eager");
  if (eager) options.eager_limit = Bytes{*eager};
  check::Report report =
      with_source_locations(*plan, [&] { return check::check(plan->plan, options); });
  if (plan->source) report::add_source_locations(report, *plan->source);
  return {.plan = plan,
          .checked = {.name = plan->name,
                      .file = plan->source ? plan->source->file : "",
                      .options = options,
                      .report = std::move(report)}};
}

std::string without_newline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string finding_text(const check::Finding& finding) {
  std::string text = render(finding.diagnostic);
  for (const Diagnostic& note : finding.notes) text += render(note);
  return without_newline(text);
}

std::string report_text(const CheckResult& verdict, bool verbose) {
  return without_newline(report::check_text(
      verdict.checked, {}, verbose ? report::Detail::verbose : report::Detail::brief));
}

std::string verdict_html(const CheckResult& verdict) {
  return fmt::format("<pre style=\"white-space: pre-wrap\">{}</pre>",
                     report::escaped(report_text(verdict, false)));
}

nb::object fixed(const CheckResult& verdict) {
  std::optional<check::Fix> found;
  {
    const LongCall released;
    found = check::fix(verdict.plan->plan, verdict.report(), verdict.checked.options);
  }
  if (!found) return nb::none();
  SharedPlan plan = std::make_shared<NamedPlan>(std::move(found->plan),
                                                verdict.plan->name + " (fixed)", std::nullopt);
  return nb::make_tuple(plan, found->what);
}

void bind_finding(nb::module_& m) {
  using check::Finding;
  nb::class_<Finding>(m, "Finding", "One root cause. Follow-on errors are folded into it.")
      .def_prop_ro(
          "code", [](const Finding& f) { return f.diagnostic.code; }, "``D720``")
      .def_prop_ro(
          "what", [](const Finding& f) { return f.diagnostic.what; }, "One line.")
      .def_prop_ro("why", [](const Finding& f) { return f.diagnostic.why; })
      .def_prop_ro("help", [](const Finding& f) { return f.diagnostic.help; })
      .def_prop_ro("severity",
                   [](const Finding& f) {
                     return f.diagnostic.severity == Severity::error ? "error" : "warning";
                   })
      .def_ro("diagnostic", &Finding::diagnostic)
      .def_ro("notes", &Finding::notes, "The witness as text: the wait cycle, the two operations.")
      .def_prop_ro(
          "rank",
          [](const Finding& f) {
            return f.place.exists() ? std::optional(f.place.rank) : std::nullopt;
          },
          "The rank of the finding.")
      .def_prop_ro("operation", [](const Finding& f) { return f.diagnostic.where.operation; })
      .def_prop_ro(
          "line", [](const Finding& f) { return f.diagnostic.where.line; },
          "The line in the plan's text, from 1; 0: unknown.")
      .def_ro("folded", &Finding::folded, "The number of follow-on errors that are suppressed.")
      .def_ro("only_rendezvous", &Finding::only_rendezvous,
              "Whether it is a deadlock only with rendezvous sends.")
      .def(
          "to_dict", [](const Finding& f) { return to_python(to_json(f.diagnostic)); },
          nb::sig("def to_dict(self) -> dict[str, Any]"))
      .def("__str__", &finding_text)
      .def("__repr__", [](const Finding& f) {
        return fmt::format("<{}: {}>", f.diagnostic.code, f.diagnostic.what);
      });
}

}  // namespace

void bind_check(nb::module_& m) {
  bind_finding(m);
  nb::class_<CheckResult>(m, "Report",
                          R"(The result of ``check``. It is true if the plan is sound.)")
      .def_prop_ro(
          "sound", [](const CheckResult& v) { return v.report().sound(); },
          "Whether no finding is an error.")
      .def_prop_ro(
          "findings", [](const CheckResult& v) { return v.report().findings; },
          "Errors and warnings, the most severe first.")
      .def_prop_ro("codes",
                   [](const CheckResult& v) {
                     std::vector<std::string> codes;
                     for (const auto& f : v.report().findings) codes.push_back(f.diagnostic.code);
                     return codes;
                   })
      .def_prop_ro("ranks", [](const CheckResult& v) { return v.report().ranks; })
      .def_prop_ro(
          "operations", [](const CheckResult& v) { return v.report().operations; },
          "The number of checked operations.")
      .def_prop_ro("plan", [](const CheckResult& v) { return v.plan; })
      .def(
          "fix", &fixed, nb::sig("def fix(self) -> tuple[Plan, str] | None"),
          "Returns the plan with the smallest reordering that makes it sound, and a description of "
          "the change; None if swapping two operations does not fix it.")
      .def(
          "to_dict",
          [](const CheckResult& v) {
            return to_python(unlocked([&] { return report::check_json(v.checked); }));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.check/1``.")
      .def(
          "to_sarif",
          [](const CheckResult& v) { return to_python(report::check_sarif(v.checked)); },
          nb::sig("def to_sarif(self) -> dict[str, Any]"), "SARIF 2.1.0, for code scanning.")
      .def("__bool__", [](const CheckResult& v) { return v.report().sound(); })
      .def("text", &report_text, nb::kw_only(), "verbose"_a = false,
           "Returns the findings and the verdict; with ``verbose``, also what was proved, how much "
           "of it, and what was assumed.")
      .def("__str__", [](const CheckResult& v) { return report_text(v, false); })
      .def("__repr__",
           [](const CheckResult& v) {
             const std::size_t findings = v.report().findings.size();
             return fmt::format("<Report {}: {}, {} finding{}>", v.plan->name,
                                v.report().sound() ? "sound" : "not sound", findings,
                                findings == 1 ? "" : "s");
           })
      .def("_repr_html_", &verdict_html);
  m.def("check", &check_plan, "plan"_a, nb::kw_only(), "rules"_a = "any", "sends"_a = "both",
        "eager"_a = nb::none(), "symmetry"_a = true, Released(),
        "Checks a Plan; see ``shiplap.check``.");
}

}  // namespace shiplap::python
