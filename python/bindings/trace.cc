// Bindings of shiplap::trace: events, totals, reports.
#include "trace.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "arrays.h"
#include "bind.h"
#include "shiplap/base/argument_error.h"
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

report::Page page_of(const NamedTrace& trace, const report::TracePageLimits& limits) {
  return report::trace_page(trace.trace, {.name = trace.name,
                                          .assumed = trace.assumed,
                                          .command = "",
                                          .mesh = trace.mesh,
                                          .limits = limits});
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
  for (std::size_t rank = 0; rank < trace.trace.ranks.size(); ++rank) {
    events += std::ssize(trace.trace.of(rank).events);
  }
  return events;
}

// Makes objects of shiplap.Event. Their constructor takes ten times as long: a frozen dataclass
// sets its fields one by one, by a function of Python.
class EventMaker {
 public:
  [[nodiscard]] nb::object event(const trace::Event& e) {
    const auto if_any = [](std::int64_t n) { return n < 0 ? nb::none() : nb::object(nb::int_(n)); };
    nb::dict fields;
    fields[kind_key_] = kind(e.kind);
    fields[rank_key_] = e.rank;
    fields[layer_key_] = if_any(e.layer);
    fields[stream_key_] = e.stream;
    fields[peer_key_] = if_any(e.peer);
    fields[time_key_] = e.time.value;
    fields[duration_key_] = e.duration.value;
    fields[bytes_key_] = e.bytes.count;
    fields[memory_key_] = e.memory.count;
    fields[samples_key_] = samples(e.samples);
    nb::object event = nb::steal(PyObject_CallOneArg(new_.ptr(), type_.ptr()));
    if (!event.is_valid() ||
        PyObject_GenericSetAttr(event.ptr(), dict_key_.ptr(), fields.ptr()) != 0) {
      nb::raise_python_error();
    }
    return event;
  }

  [[nodiscard]] const nb::object& kind(trace::EventKind of) {
    nb::object& known = kinds_[of];
    if (!known.is_valid()) known = nb::cast(trace::name(of));
    return known;
  }
  // Events of a pass have the same samples.
  [[nodiscard]] nb::object samples(const IndexSet& set) {
    if (set.runs().size() > 1) return frozen_set(set);
    const IndexSet::Run run = set.empty() ? IndexSet::Run{} : set.runs().front();
    nb::object& known = samples_[{run.begin, run.count, run.stride}];
    if (!known.is_valid()) known = frozen_set(set);
    return known;
  }

 private:
  nb::object type_ = nb::module_::import_("shiplap._results").attr("Event");
  nb::object new_ = type_.attr("__new__");
  nb::str dict_key_{"__dict__"};
  nb::str kind_key_{"kind"};
  nb::str rank_key_{"rank"};
  nb::str layer_key_{"layer"};
  nb::str stream_key_{"stream"};
  nb::str peer_key_{"peer"};
  nb::str time_key_{"time_s"};
  nb::str duration_key_{"duration_s"};
  nb::str bytes_key_{"bytes"};
  nb::str memory_key_{"memory"};
  nb::str samples_key_{"samples"};
  std::map<trace::EventKind, nb::object> kinds_;
  std::map<std::array<std::int32_t, 3>, nb::object> samples_;
};

// The rank that is to `rank` what `peer` is to its representative.
std::int32_t moved_peer(const plan::Mesh& mesh, std::int32_t peer, std::int32_t representative,
                        std::int32_t rank) {
  if (peer < 0) return peer;
  const std::vector<std::int64_t> from = mesh.positions(Rank(representative));
  const std::vector<std::int64_t> to = mesh.positions(Rank(rank));
  Rank moved(peer);
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (from[axis] == to[axis]) continue;
    const auto id = plan::AxisId(static_cast<std::int32_t>(axis));
    const std::int64_t position = mesh.positions(moved)[axis] + to[axis] - from[axis];
    moved = mesh.moved(moved, id, (position + mesh.size(id)) % mesh.size(id));
  }
  return moved.value;
}

// Of a folded trace, the events of the representative, with the ranks of this one.
std::vector<trace::Event> events_of_rank(const NamedTrace& named, std::int64_t rank) {
  (void)rank_of(named, rank);
  const auto own = static_cast<std::int32_t>(rank);
  const auto representative = static_cast<std::int32_t>(named.trace.representative(own));
  std::vector<trace::Event> events = named.trace.of(own).events;
  if (representative == own) return events;
  for (trace::Event& event : events) {
    event.rank = own;
    event.peer = moved_peer(named.mesh, event.peer, representative, own);
  }
  return events;
}

// The fields of events as arrays, under their names. -1: none.
nb::dict columns_of_rank(const NamedTrace& named, std::int64_t rank) {
  const std::vector<trace::Event> events = events_of_rank(named, rank);
  const auto column = [&](const auto& of) {
    std::vector<std::decay_t<decltype(of(events.front()))>> values;
    values.reserve(events.size());
    for (const trace::Event& e : events) values.push_back(of(e));
    return array_of(std::move(values), {events.size()});
  };
  EventMaker made;
  nb::list kinds;
  nb::list samples;
  for (const trace::Event& e : events) {
    kinds.append(made.kind(e.kind));
    samples.append(made.samples(e.samples));
  }
  nb::dict columns;
  columns["kind"] = kinds;
  columns["rank"] = column([](const trace::Event& e) { return e.rank; });
  columns["layer"] = column([](const trace::Event& e) { return e.layer; });
  columns["stream"] = column([](const trace::Event& e) { return e.stream; });
  columns["peer"] = column([](const trace::Event& e) { return e.peer; });
  columns["time_s"] = column([](const trace::Event& e) { return e.time.value; });
  columns["duration_s"] = column([](const trace::Event& e) { return e.duration.value; });
  columns["bytes"] = column([](const trace::Event& e) { return e.bytes.count; });
  columns["memory"] = column([](const trace::Event& e) { return e.memory.count; });
  columns["samples"] = samples;
  return columns;
}

// Calls `act` with a trace in which every rank has its own events, for files.
template <class Act>
auto with_all_events(const NamedTrace& named, const Act& act) {
  if (named.trace.representatives.empty()) return act(named.trace);
  if (named.replay_all) return act(named.replay_all());
  throw InputError(Diagnostic{.code = "D003",
                              .what = "a copied trace has the events of one of the alike ranks",
                              .help = "copy that of simulate(.., fold=False)"});
}

// For pickle: all that a trace has.
using EventState =
    std::tuple<std::tuple<int, std::int32_t, std::int32_t, std::int32_t>,
               std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int64_t>,
               std::tuple<double, double, std::int64_t, std::int64_t>, std::vector<std::int32_t>>;
using RankState = std::pair<std::vector<EventState>, std::vector<std::pair<double, std::int64_t>>>;
using TraceState =
    std::tuple<std::string, std::vector<std::string>,
               std::vector<std::pair<std::string, std::int64_t>>, std::vector<std::string>,
               std::vector<std::string>, std::vector<RankState>, std::vector<std::int32_t>, double>;

TraceState state_of(const NamedTrace& named) {
  std::vector<std::pair<std::string, std::int64_t>> mesh;
  for (const plan::Axis& axis : named.mesh.axes) mesh.emplace_back(axis.name, axis.size);
  std::vector<RankState> ranks;
  for (const trace::RankTrace& rank : named.trace.ranks) {
    auto& [events, memory] = ranks.emplace_back();
    for (const trace::Event& e : rank.events) {
      events.push_back({{static_cast<int>(e.kind), e.rank, e.layer, e.stream},
                        {e.operation, e.peer, e.axis, e.match},
                        {e.time.value, e.duration.value, e.bytes.count, e.memory.count},
                        e.samples.indices()});
    }
    for (const trace::MemoryPoint& point : rank.memory) {
      memory.emplace_back(point.time.value, point.bytes.count);
    }
  }
  const trace::Trace& trace = named.trace;
  return {named.name,
          named.assumed,
          mesh,
          trace.streams,
          trace.axes,
          ranks,
          trace.representatives,
          trace.clock_uncertainty.value};
}

trace::Event event_of(const EventState& state) {
  const auto& [what, links, numbers, samples] = state;
  const auto& [kind, rank, layer, stream] = what;
  const auto& [operation, peer, axis, match] = links;
  const auto& [time, duration, bytes, memory] = numbers;
  return {.kind = static_cast<trace::EventKind>(kind),
          .rank = rank,
          .layer = layer,
          .stream = stream,
          .operation = operation,
          .peer = peer,
          .axis = axis,
          .match = match,
          .time = {time},
          .duration = {duration},
          .bytes = {bytes},
          .memory = {memory},
          .samples = IndexSet(samples)};
}

NamedTrace trace_of(const TraceState& state) {
  const auto& [name, assumed, mesh, streams, axes, ranks, representatives, uncertainty] = state;
  NamedTrace named{.trace = {.streams = streams,
                             .axes = axes,
                             .ranks = {},
                             .clock_uncertainty = {uncertainty},
                             .representatives = representatives},
                   .name = name,
                   .assumed = assumed,
                   .mesh = {}};
  for (const auto& [axis, size] : mesh) named.mesh.axes.push_back({axis, size});
  for (const auto& [events, memory] : ranks) {
    trace::RankTrace& rank = named.trace.ranks.emplace_back();
    for (const EventState& event : events) rank.events.push_back(event_of(event));
    for (const auto& [time, bytes] : memory) {
      rank.memory.push_back({.time = {time}, .bytes = {bytes}});
    }
  }
  return named;
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
  NamedTrace named{.trace = {}, .name = name, .assumed = assumed};
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

nb::list events_to_python(const std::vector<trace::Event>& events) {
  EventMaker made;
  nb::list all;
  for (const trace::Event& event : events) all.append(made.event(event));
  return all;
}

trace::EventKind parse_event_kind(const std::string& name) {
  using trace::EventKind;
  std::vector<std::string> names;
  for (auto i = static_cast<int>(EventKind::load_weights); i <= static_cast<int>(EventKind::recv);
       ++i) {
    const auto kind = static_cast<EventKind>(i);
    if (trace::name(kind) == name) return kind;
    names.emplace_back(trace::name(kind));
  }
  throw_argument_error("typ", fmt::format("unknown event type `{}`", name), suggest(name, names));
}

std::string picture(const NamedTrace& trace) {
  return to_fragment(page_of(trace, report::kNotebookLimits));
}
std::string page(const NamedTrace& trace) { return to_html(page_of(trace, {})); }

void bind_trace(nb::module_& m) {
  nb::class_<NamedTrace>(m, "Trace", R"(The events of all ranks.

>>> trace = shiplap.train("ddp", ranks=2).trace
>>> len(trace), trace.events(0)[0].kind
(2, 'load_weights'))")
      .def("__len__", [](const NamedTrace& t) { return t.trace.ranks.size(); })
      .def_prop_ro("streams", [](const NamedTrace& t) { return t.trace.streams; })
      .def(
          "events",
          [](const NamedTrace& t, std::int64_t rank) {
            return events_to_python(events_of_rank(t, rank));
          },
          "rank"_a, nb::sig("def events(self, rank: int) -> list[Event]"),
          "The events of one rank, in program order. Of alike ranks that were simulated once, the "
          "samples are those of the first.")
      .def("columns", &columns_of_rank, "rank"_a,
           nb::sig("def columns(self, rank: int) -> dict[str, Any]"),
           "The same as one array or list per field, in a fifth of the time; -1 is none.")
      .def(
          "__getitem__",
          [](const NamedTrace& t, std::int64_t rank) {
            const std::int64_t ranks = std::ssize(t.trace.ranks);
            return events_to_python(events_of_rank(t, rank < 0 ? rank + ranks : rank));
          },
          "rank"_a, nb::sig("def __getitem__(self, rank: int) -> list[Event]"),
          "The events of one rank; so a trace can be iterated.")
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
            return to_python(unlocked([&] {
              return with_all_events(t, [](const trace::Trace& all) {
                return parse_json(trace::to_json(all), "trace");
              });
            }));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.trace/1``.")
      .def(
          "save",
          [](const NamedTrace& t, nb::object path) {
            const std::string file = path_text(path);
            const LongCall released;
            with_all_events(t, [&](const trace::Trace& all) {
              write_file(file, trace::to_perfetto(all, {.title = t.name}));
            });
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
      .def("_repr_html_", &picture, Released())
      .def(
          "__eq__",
          [](const NamedTrace& a, const NamedTrace& b) {
            return a.name == b.name && a.trace == b.trace;
          },
          nb::is_operator())
      .def("__hash__",
           [](const NamedTrace& t) {
             return nb::hash(nb::make_tuple(t.name, t.trace.ranks.size(), events_of(t)));
           })
      .def("__getstate__", &state_of)
      .def("__setstate__",
           [](NamedTrace& t, const TraceState& state) { new (&t) NamedTrace(trace_of(state)); });
  m.def("_seconds", [](double s) { return to_string(Seconds{s}); }, "Such as ``1.66 ms``.");
  m.def("_bytes", [](std::int64_t b) { return to_string(Bytes{b}); }, "Such as ``536 MiB``.");
  m.def("_trace_of_events", &trace_of_events, "name"_a, "ranks"_a, "assumed"_a,
        "A trace of events from Python, by rank and in order: kind, layer, time, duration, bytes, "
        "memory, samples, peer, match.");
}

}  // namespace shiplap::python
