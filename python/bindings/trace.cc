// Bindings of shiplap::trace: events, totals, reports.
#include "trace.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>
#include <tuple>
#include <utility>

#include "bind.h"
#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/report/trace.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/trace/event.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/text.h"
#include "strategy.h"

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
  throw InputIndexError(
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

// kind, layer, time, duration, bytes, memory, samples, peer, match; -1: none.
using EventRow = std::tuple<std::string, std::int32_t, double, double, std::int64_t, std::int64_t,
                            nb::object, std::int32_t, std::int64_t>;

trace::Event event_of(const EventRow& row, std::int32_t rank) {
  const auto& [kind, layer, time, duration, bytes, memory, samples, peer, match] = row;
  return {.kind = parse_event_kind(kind),
          .rank = rank,
          .layer = layer,
          .peer = peer,
          .match = match,
          .time = {time},
          .duration = {duration},
          .bytes = {bytes},
          .memory = {memory},
          .samples = index_set(samples)};
}

std::shared_ptr<NamedTrace> trace_of_events(const std::string& name,
                                            const std::vector<std::vector<EventRow>>& ranks,
                                            const std::vector<std::string>& assumed) {
  NamedTrace named{.trace = {}, .name = name, .assumed = assumed, .mesh = {}};
  for (const std::vector<EventRow>& rows : ranks) {
    trace::RankTrace& rank = named.trace.ranks.emplace_back();
    const auto number = static_cast<std::int32_t>(named.trace.ranks.size() - 1);
    for (const EventRow& row : rows) {
      rank.events.push_back(event_of(row, number));
      rank.memory.push_back({.time = rank.events.back().time, .bytes = rank.events.back().memory});
    }
  }
  return std::make_shared<NamedTrace>(std::move(named));
}

}  // namespace

trace::EventKind parse_event_kind(const std::string& name) {
  using trace::EventKind;
  std::vector<std::string> names;
  for (auto i = static_cast<int>(EventKind::load_weights); i <= static_cast<int>(EventKind::recv);
       ++i) {
    const auto kind = static_cast<EventKind>(i);
    if (trace::name(kind) == name) return kind;
    names.emplace_back(trace::name(kind));
  }
  throw InputError(Diagnostic{.code = "D003",
                              .where = {.flag = "typ"},
                              .what = fmt::format("unknown event type `{}`", name),
                              .help = suggest(name, names)});
}

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
            return to_python(unlocked(
                [&] { return report::trace_to_json(t.trace, trace::summarize(t.trace)); }));
          },
          nb::sig("def summary(self) -> dict[str, Any]"),
          "Step time, bubble, memory, exposed communication; in seconds and bytes.")
      .def(
          "to_dict",
          [](const NamedTrace& t) {
            return to_python(
                unlocked([&] { return parse_json(trace::to_json(t.trace), "trace"); }));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.trace/1``.")
      .def(
          "save",
          [](const NamedTrace& t, nb::object path) {
            const std::string file = path_text(path);
            const LongCall released;
            write_file(file, trace::to_perfetto(t.trace, {.title = t.name}));
          },
          "path"_a, nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
          "Writes a file for https://ui.perfetto.dev.")
      .def(
          "save_report",
          [](const NamedTrace& t, nb::object path) {
            const std::string file = path_text(path);
            const LongCall released;
            write_file(file, page(t));
          },
          "path"_a, nb::sig("def save_report(self, path: str | os.PathLike[str]) -> None"),
          "Writes a report as one HTML file.")
      .def("__str__", &show, Released())
      .def("__repr__",
           [](const NamedTrace& t) {
             return fmt::format("<Trace {}: {} ranks, {} events>", t.name, t.trace.ranks.size(),
                                events_of(t));
           })
      .def("_repr_html_", &picture, Released());
  m.def("_trace_of_events", &trace_of_events, "name"_a, "ranks"_a, "assumed"_a,
        "A trace of events from Python, by rank and in order: kind, layer, time, duration, bytes, "
        "memory, samples, peer, match.");
}

}  // namespace shiplap::python
