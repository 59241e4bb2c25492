// Bindings of shiplap::trace: events, totals, reports.
#include "trace.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "bind.h"
#include "shiplap/base/error.h"
#include "shiplap/report/trace.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/trace/event.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/text.h"

namespace shiplap::python {
namespace {

report::Page page_of(const NamedTrace& trace) {
  return report::trace_page(
      trace.trace,
      {.name = trace.name, .assumed = trace.assumed, .command = "", .mesh = trace.mesh});
}

// Weights are loaded once but there are many steps, so a static drawing shows only the step.
NamedTrace without_loading(NamedTrace named) {
  const trace::Summary known = trace::summarize(named.trace);
  const Seconds begin = known.step.begin;
  if (begin <= known.whole.begin || known.step.end <= begin) return named;
  for (trace::RankTrace& rank : named.trace.ranks) {
    rank = report::cut_before(std::move(rank), begin);
  }
  named.assumed.push_back(fmt::format("Loading the weights, {} before it, is left out.",
                                      to_string(begin - known.whole.begin)));
  return named;
}

const trace::RankTrace& rank_of(const NamedTrace& trace, std::int64_t rank) {
  if (rank >= 0 && rank < std::ssize(trace.trace.ranks)) {
    return trace.trace.ranks[rank];
  }
  throw InputError(
      Diagnostic{.code = "D003",
                 .what = fmt::format("rank {} is out of range", rank),
                 .help = fmt::format("there are ranks 0 to {}", trace.trace.ranks.size() - 1)});
}

std::string show(const NamedTrace& trace) {
  return report::show_trace(trace.trace, trace::summarize(trace.trace), {}, trace.mesh);
}

std::int64_t events_of(const NamedTrace& trace) {
  std::int64_t events = 0;
  for (const trace::RankTrace& rank : trace.trace.ranks) events += std::ssize(rank.events);
  return events;
}

void bind_event(nb::module_& m) {
  using trace::Event;
  nb::class_<Event>(m, "Event", "One event on one rank.")
      .def_prop_ro(
          "kind", [](const Event& e) { return trace::name(e.kind); }, "``forward``, ..")
      .def_prop_ro(
          "typ", [](const Event& e) { return trace::name(e.kind); }, "The same.")
      .def_ro("rank", &Event::rank)
      .def_prop_ro(
          "layer",
          [](const Event& e) { return e.layer < 0 ? std::nullopt : std::optional(e.layer); })
      .def_ro("stream", &Event::stream, "0 is ``main``.")
      .def_prop_ro(
          "peer", [](const Event& e) { return e.peer < 0 ? std::nullopt : std::optional(e.peer); },
          "The other rank of a message.")
      .def_prop_ro(
          "time", [](const Event& e) { return e.time.value; }, "The start time in seconds.")
      .def_prop_ro(
          "duration", [](const Event& e) { return e.duration.value; }, "Seconds.")
      .def_prop_ro(
          "end", [](const Event& e) { return e.end().value; }, "Seconds.")
      .def_prop_ro(
          "bytes", [](const Event& e) { return e.bytes.count; }, "The bytes of communication.")
      .def_prop_ro(
          "memory", [](const Event& e) { return e.memory.count; }, "The bytes of memory in use.")
      .def_prop_ro(
          "samples",
          [](const Event& e) {
            return nb::steal<nb::frozenset>(PyFrozenSet_New(nb::cast(e.samples.indices()).ptr()));
          },
          nb::sig("def samples(self) -> frozenset[int]"))
      .def("__repr__", [](const Event& e) {
        return fmt::format("<{} on rank {} at {}, {}>", trace::label(e), e.rank, to_string(e.time),
                           to_string(e.duration));
      });
}

}  // namespace

std::string picture(const NamedTrace& trace) {
  return to_fragment(page_of(without_loading(trace)));
}
std::string page(const NamedTrace& trace) { return to_html(page_of(trace)); }

void bind_trace(nb::module_& m) {
  bind_event(m);
  nb::class_<NamedTrace>(m, "Trace", R"(The events of all ranks.

>>> trace = shiplap.train("ddp", ranks=2).trace
>>> len(trace), trace.events(0)[0].kind
(2, 'load_weights'))")
      .def("__len__", [](const NamedTrace& t) { return t.trace.ranks.size(); })
      .def_prop_ro("streams", [](const NamedTrace& t) { return t.trace.streams; })
      .def(
          "events", [](const NamedTrace& t, std::int64_t rank) { return rank_of(t, rank).events; },
          "rank"_a, "The events of one rank, in program order.")
      .def(
          "summary",
          [](const NamedTrace& t) {
            return to_python(report::trace_to_json(t.trace, trace::summarize(t.trace)));
          },
          nb::sig("def summary(self) -> dict[str, Any]"),
          "Step time, bubble, memory, exposed communication; in seconds and bytes.")
      .def(
          "to_dict",
          [](const NamedTrace& t) {
            return to_python(parse_json(trace::to_json(t.trace), "trace"));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.trace/1``.")
      .def(
          "save",
          [](const NamedTrace& t, nb::object path) {
            write_file(path_text(path), trace::to_perfetto(t.trace, {.title = t.name}));
          },
          "path"_a, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
          "Writes a file for https://ui.perfetto.dev.")
      .def(
          "save_report",
          [](const NamedTrace& t, nb::object path) { write_file(path_text(path), page(t)); },
          "path"_a, nb::sig("def save_report(self, path: str | os.PathLike[str]) -> None"),
          "Writes a report as one HTML file.")
      .def("__str__", &show)
      .def("__repr__",
           [](const NamedTrace& t) {
             return fmt::format("<Trace {}: {} ranks, {} events>", t.name, t.trace.ranks.size(),
                                events_of(t));
           })
      .def("_repr_html_", &picture);
}

}  // namespace shiplap::python
