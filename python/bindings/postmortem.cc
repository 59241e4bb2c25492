// Bindings of shiplap::postmortem.
#include "shiplap/postmortem/postmortem.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <utility>

#include "bind.h"
#include "plan.h"
#include "shiplap/dump/read.h"
#include "shiplap/report/html.h"
#include "shiplap/report/postmortem.h"

namespace shiplap::python {
namespace {

using postmortem::CallSite;
using postmortem::Postmortem;
using postmortem::Suspect;

postmortem::Options options_of(const std::string& hung, std::int32_t world,
                               const SharedPlan& plan) {
  return {.hung = hung, .world = world, .plan = plan == nullptr ? nullptr : &plan->plan};
}

Postmortem of_files(const std::vector<std::string>& paths, const std::string& hung,
                    std::int32_t world, const SharedPlan& plan) {
  return postmortem::diagnose(dump::read_job(paths), options_of(hung, world, plan));
}

// Dumps, or texts with stacks, each with its rank.
Postmortem of_contents(const std::vector<std::pair<std::int32_t, nb::bytes>>& contents,
                       const std::string& hung, std::int32_t world, const SharedPlan& plan) {
  std::vector<dump::DumpFile> files;
  files.reserve(contents.size());
  for (const auto& [rank, bytes] : contents) {
    files.push_back({.name = fmt::format("rank {}", rank),
                     .bytes = {bytes.c_str(), bytes.size()},
                     .rank = rank});
  }
  const LongCall released;
  return postmortem::diagnose(dump::read_job(files), options_of(hung, world, plan));
}

std::string text_of(const Postmortem& found) {
  std::string text = report::postmortem_text(found, {});
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::optional<CallSite> if_any(const CallSite& site) {
  return site.exists() ? std::optional(site) : std::nullopt;
}

std::string line_of(const dump::Frame& frame) {
  return frame.file.empty() ? "" : fmt::format("{}:{}", frame.file, frame.line);
}

void bind_parts(nb::module_& m) {
  nb::class_<CallSite>(m, "CallSite", "A call of a rank.")
      .def_ro("rank", &CallSite::rank)
      .def_ro("operation", &CallSite::operation, "``all_reduce``")
      .def_ro("group", &CallSite::group, "The name of the group and its ranks.")
      .def_ro("sequence", &CallSite::sequence, "Its number on the group.")
      .def_ro("arguments", &CallSite::arguments, "``f32 [4096]``")
      .def_prop_ro(
          "line", [](const CallSite& s) { return line_of(s.frame); },
          "``train.py:88``, the innermost line of yours; empty if there is no stack.")
      .def_prop_ro("function", [](const CallSite& s) { return s.frame.function; })
      .def("__repr__", [](const CallSite& s) {
        return fmt::format("<{} {} on {}>", s.operation, s.arguments, s.group);
      });
  nb::class_<Suspect>(m, "Suspect", "Ranks that may have made a job hang.")
      .def_ro("ranks", &Suspect::ranks)
      .def_prop_ro(
          "fault", [](const Suspect& s) { return name(s.fault); },
          "``absent``, ``cpu_stuck``, ``divergence``, ``device_stuck``, ``order_across_groups``, "
          "``message_cycle`` or ``slow``.")
      .def_prop_ro(
          "divergence", [](const Suspect& s) { return name(s.divergence); },
          "How its program differs: ``skipped``, ``size``, ..; ``none``.")
      .def_ro("confidence", &Suspect::confidence, "0 to 1.")
      .def_ro("what", &Suspect::what, "One line.")
      .def_ro("evidence", &Suspect::evidence)
      .def_ro("by_plan", &Suspect::by_plan, "What the plan says of it.")
      .def_ro("would_help", &Suspect::would_help, "What would raise the confidence.")
      .def_prop_ro(
          "at", [](const Suspect& s) { return if_any(s.at); },
          "Its last call, or the one that differs.")
      .def_prop_ro(
          "expected", [](const Suspect& s) { return if_any(s.expected); },
          "The call that the others make, or wait in.")
      .def_ro("victims", &Suspect::victims, "How many ranks wait for it, directly or not.")
      .def("__repr__", [](const Suspect& s) {
        return fmt::format("<Suspect {:.0f} %: {}>", 100 * s.confidence, s.what);
      });
}

}  // namespace

void bind_postmortem(nb::module_& m) {
  bind_parts(m);
  nb::class_<Postmortem>(m, "Postmortem", "Why a job hung; the result of ``postmortem``.")
      .def_prop_ro(
          "status", [](const Postmortem& p) { return name(p.status); },
          "``hung``, ``slow``, ``undecided`` (calls are pending, and nothing proves that they will "
          "not end) "
          "or "
          "``finished``.")
      .def_prop_ro("found_culprit", &Postmortem::found_culprit)
      .def_ro("suspects", &Postmortem::suspects, "The most likely first.")
      .def_ro("proof", &Postmortem::proof, "Why the job hung.")
      .def_ro("world", &Postmortem::world)
      .def_ro("absent", &Postmortem::absent, "Ranks without a dump.")
      .def_ro("notes", &Postmortem::notes, "About the files.")
      .def(
          "to_dict", [](const Postmortem& p) { return to_python(report::postmortem_json(p)); },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.postmortem/1``.")
      .def(
          "html",
          [](const Postmortem& p) {
            return report::to_html(report::postmortem_page(p, "shiplap.postmortem"));
          },
          "The report as the text of one HTML page.")
      .def(
          "save_report",
          [](const Postmortem& p, nb::object path) {
            write_file(path_text(path),
                       report::to_html(report::postmortem_page(p, "shiplap.postmortem")));
          },
          "path"_a, nb::sig("def save_report(self, path: str | os.PathLike[str]) -> None"),
          "Writes the report as one HTML file.")
      .def("__str__", &text_of)
      .def("__repr__",
           [](const Postmortem& p) {
             return fmt::format(
                 "<Postmortem of {} ranks: {}>", p.world,
                 p.suspects.empty() ? std::string(name(p.status)) : p.suspects.front().what);
           })
      .def("_repr_html_", [](const Postmortem& p) {
        return fmt::format("<pre style=\"white-space: pre-wrap\">{}</pre>",
                           report::escaped(text_of(p)));
      });
  m.def("_postmortem_files", &of_files, "paths"_a, "hung"_a, "world"_a, "plan"_a.none(),
        Released());
  m.def("_postmortem_contents", &of_contents, "contents"_a, "hung"_a, "world"_a, "plan"_a.none());
}

}  // namespace shiplap::python
