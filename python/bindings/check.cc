// Bindings of shiplap::check.
#include "shiplap/check/check.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <tuple>
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

std::string finding_text(const check::Finding& finding) {
  std::string text = render(finding.diagnostic);
  for (const Diagnostic& note : finding.notes) text += render(note);
  return without_newline(text);
}

std::string report_text(const report::CheckedPlan& checked, report::Detail detail) {
  return without_newline(report::check_text(checked, {}, detail));
}

// The fields of shiplap.Report that follow `plan`, but for `_options`.
nb::tuple check_plan(const SharedPlan& plan, std::string rules, std::string sends,
                     std::optional<std::int64_t> eager, bool symmetry) {
  const Wanted wanted{std::move(rules), std::move(sends), eager, symmetry};
  const report::CheckedPlan found = unlocked([&] { return checked(plan, wanted); });
  const check::Report& report = found.report;
  return nb::make_tuple(report.sound(), report.findings, report.ranks, report.operations,
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

// For pickle.
using FindingState =
    std::tuple<Diagnostic, std::vector<Diagnostic>, std::int64_t, std::int64_t, bool>;

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
      .def(
          "__eq__",
          [](const Finding& a, const Finding& b) {
            return a.diagnostic == b.diagnostic && a.notes == b.notes;
          },
          nb::is_operator())
      .def("__hash__", [](const Finding& f) { return nb::hash(nb::cast(f.diagnostic)); })
      .def("__getstate__",
           [](const Finding& f) {
             return FindingState(f.diagnostic, f.notes, f.place.exists() ? f.place.rank : -1,
                                 f.folded, f.only_rendezvous);
           })
      .def("__setstate__",
           [](Finding& f, const FindingState& state) {
             const auto& [diagnostic, notes, rank, folded, only_rendezvous] = state;
             new (&f) Finding{.diagnostic = diagnostic,
                              .place = {},
                              .notes = notes,
                              .folded = folded,
                              .only_rendezvous = only_rendezvous};
             f.place.rank = static_cast<std::int32_t>(rank);
           })
      .def("__str__", &finding_text)
      .def("__repr__", [](const Finding& f) {
        return fmt::format("<{}: {}>", f.diagnostic.code, f.diagnostic.what);
      });
}

}  // namespace

void bind_check(nb::module_& m) {
  bind_finding(m);
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
