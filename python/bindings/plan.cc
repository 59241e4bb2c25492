// Bindings of shiplap::plan.
#include "plan.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "bind.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/summary.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/plan.h"
#include "shiplap/report/text.h"
#include "shiplap/strategy/import_schedule.h"

namespace shiplap::python {
namespace {

SharedPlan parse(const std::string& text, const std::string& file) {
  SourceText source{.file = file, .text = text};
  plan::Plan plan = shiplap::with_source_locations(
      source, [&] { return plan::parse_plan(source.text, source.file); });
  std::string name = source.short_name();
  return std::make_shared<NamedPlan>(std::move(plan), std::move(name), std::move(source));
}

SharedPlan of_schedule(const std::string& csv, const std::string& file) {
  SourceText source{.file = file, .text = csv};
  plan::Plan plan = shiplap::with_source_locations(
      source, [&] { return strategy::plan_of_schedule(source.text, source.file); });
  std::string name = source.short_name();
  return std::make_shared<NamedPlan>(std::move(plan), std::move(name), std::move(source));
}

std::string describe(const NamedPlan& plan) {
  return fmt::format("<Plan {}: {} ({}), {}>", plan.name,
                     report::counted(plan.plan.mesh.ranks(), "rank"),
                     format_axes(plan.plan.mesh.axes, " "),
                     report::counted(std::ssize(plan.plan.programs), "program"));
}

// The output of `shiplap show`.
std::string show(const NamedPlan& named, std::optional<std::int64_t> rank,
                 std::optional<std::int64_t> limit) {
  if (limit && *limit < 0) {
    throw_negative("limit");
  }
  if (rank && (*rank < 0 || *rank >= named.plan.mesh.ranks())) {
    throw InputIndexError(
        Diagnostic{.code = "D003",
                   .what = fmt::format("rank {} is out of range", *rank),
                   .help = fmt::format("the plan has ranks 0 to {}", named.plan.mesh.ranks() - 1)});
  }
  const report::ShowOptions options{.title = named.name, .detail = {}, .limit = limit};
  return with_source_locations(named, [&] {
    if (!rank) {
      return report::show_plan(named.plan, plan::summarize(named.plan), options, {});
    }
    return report::show_rank(plan::expand(named.plan, Rank(static_cast<std::int32_t>(*rank))),
                             options, {});
  });
}

}  // namespace

std::string path_text(nb::handle path) {
  return nb::cast<std::string>(nb::module_::import_("os").attr("fsdecode")(path));
}

std::string read_file(const std::string& path) {
  std::istringstream nothing;
  return read_text(path, nothing).text;
}

void write_file(const std::string& path, const std::string& content) {
  write_text(path, content, "");
}

void bind_plan(nb::module_& m) {
  m.def("_read_file", &read_file, "path"_a);
  m.def("_write_file", &write_file, "path"_a, "content"_a);
  nb::class_<NamedPlan>(
      m, "Plan", R"(For every rank, which operations it performs, in which order, on which data.

>>> plan = shiplap.train("ddp", ranks=4).plan
>>> plan.ranks, plan.mesh
(4, {'dp': 4})
>>> shiplap.Plan.parse(plan.to_text()) == plan
True)")
      .def_static("parse", &parse, "text"_a, "file"_a = "plan", Released(),
                  "Parses a plan, as text or JSON. ``file`` is the name for error messages.")
      .def_static(
          "read",
          [](nb::object path) {
            const std::string file = path_text(path);
            const LongCall released;
            return parse(read_file(file), file);
          },
          "path"_a, nb::sig("def read(path: str | os.PathLike[str]) -> Plan"), "Reads a file.")
      .def_static("from_schedule", &of_schedule, "csv"_a, "file"_a = "schedule.csv", Released(),
                  R"(Converts a schedule of torch.distributed.pipelining: a row of actions per rank.

>>> shiplap.Plan.from_schedule("0F0,,0B0\n,1F0,1B0\n").ranks
2)")
      .def_static(
          "from_dict",
          [](const nb::dict& form) { return parse(to_text(from_python(form)), "plan"); }, "form"_a,
          nb::sig("def from_dict(form: dict[str, Any]) -> Plan"), "The inverse of ``to_dict()``.")
      .def_prop_ro(
          "name", [](const NamedPlan& p) { return p.name; }, "The name of the plan.")
      .def_prop_ro(
          "ranks", [](const NamedPlan& p) { return p.plan.mesh.ranks(); }, "The number of ranks.")
      .def_prop_ro(
          "mesh",
          [](const NamedPlan& p) {
            nb::dict axes;
            for (const plan::Axis& axis : p.plan.mesh.axes) axes[axis.name.c_str()] = axis.size;
            return axes;
          },
          nb::sig("def mesh(self) -> dict[str, int]"), "The size of each axis, by its name.")
      .def(
          "to_text", [](const NamedPlan& p) { return plan::to_text(p.plan); }, Released(),
          "Returns the plan as text, the content of a ``.plan`` file.")
      .def(
          "to_dict",
          [](const NamedPlan& p) {
            return to_python(unlocked([&] { return plan::to_json(p.plan); }));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "The JSON form, ``shiplap.plan/1``.")
      .def(
          "save",
          [](const NamedPlan& p, nb::object path) {
            const std::string file = path_text(path);
            const LongCall released;
            write_file(file, plan::to_text(p.plan));
          },
          "path"_a, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
          "Writes a ``.plan`` file.")
      .def(
          "show", &show, "rank"_a = nb::none(), "limit"_a = nb::none(), Released(),
          "The output of ``shiplap show``: an overview of the plan, or the operations of one rank.")
      .def(
          "__str__", [](const NamedPlan& p) { return show(p, std::nullopt, std::nullopt); },
          Released())
      .def("__repr__", &describe)
      .def(
          "__eq__", [](const NamedPlan& a, const NamedPlan& b) { return a.plan == b.plan; },
          nb::is_operator())
      .def("__hash__",
           [](const NamedPlan& p) {
             return nb::hash(nb::cast(unlocked([&] { return plan::to_text(p.plan); })));
           })
      .def(
          "__getstate__",
          [](const NamedPlan& p) { return std::pair(p.name, plan::to_text(p.plan)); }, Released())
      .def("__setstate__", [](NamedPlan& p, const std::pair<std::string, std::string>& state) {
        new (&p)
            NamedPlan{.plan = unlocked([&] { return plan::parse_text(state.second, state.first); }),
                      .name = state.first,
                      .source = std::nullopt};
      });
}

}  // namespace shiplap::python
