// Bindings of shiplap::postmortem. What Python sees is in shiplap/_results.py.
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

postmortem::Options options_of(const std::string& hung, std::int32_t world,
                               const SharedPlan& plan) {
  return {.hung = hung, .world = world, .plan = plan == nullptr ? nullptr : &plan->plan};
}

// The JSON, the text and the page of a postmortem.
nb::tuple forms_of(const postmortem::Postmortem& found) {
  return nb::make_tuple(to_python(report::postmortem_json(found)),
                        report::postmortem_text(found, {}),
                        report::to_html(report::postmortem_page(found, "shiplap.postmortem")));
}

nb::tuple of_files(const std::vector<std::string>& paths, const std::string& hung,
                   std::int32_t world, const SharedPlan& plan) {
  return forms_of(unlocked(
      [&] { return postmortem::diagnose(dump::read_job(paths), options_of(hung, world, plan)); }));
}

// Dumps, or texts with stacks, each with its rank.
nb::tuple of_contents(const std::vector<std::pair<std::int32_t, nb::bytes>>& contents,
                      const std::string& hung, std::int32_t world, const SharedPlan& plan) {
  std::vector<dump::DumpFile> files;
  files.reserve(contents.size());
  for (const auto& [rank, bytes] : contents) {
    files.push_back({.name = fmt::format("rank {}", rank),
                     .bytes = {bytes.c_str(), bytes.size()},
                     .rank = rank});
  }
  return forms_of(unlocked(
      [&] { return postmortem::diagnose(dump::read_job(files), options_of(hung, world, plan)); }));
}

}  // namespace

void bind_postmortem(nb::module_& m) {
  m.def("_postmortem_files", &of_files, "paths"_a, "hung"_a, "world"_a, "plan"_a.none(),
        nb::sig("def _postmortem_files(paths: Sequence[str], hung: str, world: int, plan: Plan | "
                "None) -> tuple[dict[str, Any], str, str]"));
  m.def("_postmortem_contents", &of_contents, "contents"_a, "hung"_a, "world"_a, "plan"_a.none(),
        nb::sig("def _postmortem_contents(contents: Sequence[tuple[int, bytes]], hung: str, world: "
                "int, plan: Plan | None) -> tuple[dict[str, Any], str, str]"));
}

}  // namespace shiplap::python
