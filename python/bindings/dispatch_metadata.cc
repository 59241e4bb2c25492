// The table that an exchange of tokens follows, and the pair of them.
#include <fmt/format.h>

#include <sstream>

#include "arrays.h"
#include "dispatch.h"
#include "shiplap/base/error.h"
#include "shiplap/dispatch/dense.h"
#include "shiplap/dispatch/json.h"
#include "shiplap/dispatch/traffic.h"

namespace shiplap::python {
namespace {

using dispatch::Copy;
using dispatch::Metadata;
using dispatch::MetadataPair;

// With copies of its own: what Metadata shows of a row lives only as long as the table.
struct Row {
  std::uint32_t begin = 0;
  std::uint32_t length = 0;
  std::vector<Copy> copies;
};

Row row_of(const Metadata& metadata, int rank, std::uint32_t index) {
  check_rank(rank, metadata.world_size());
  if (index >= metadata.num_seqs(rank)) {
    throw InputError(Diagnostic{
        .code = "D400",
        .where = {.rank = rank},
        .what = fmt::format("there is no row {}", index),
        .help = fmt::format("the rank has {} rows, from 0 on", metadata.num_seqs(rank))});
  }
  const Metadata::Row row = metadata.row(rank, index);
  return {
      .begin = row.begin, .length = row.length, .copies = {row.copies.begin(), row.copies.end()}};
}

Copy copy_of(nb::handle item) {
  if (nb::isinstance<Copy>(item)) return nb::cast<Copy>(item);
  const Integers<std::int64_t> numbers(item, "copy");
  const std::span<const std::int64_t> n = numbers.with_dimensions(1).values();
  if (n.size() != 2 || !std::in_range<std::int32_t>(n[0]) || !std::in_range<std::uint32_t>(n[1])) {
    throw InputError(Diagnostic{.code = "D003", .what = "a copy is (rank, offset)"});
  }
  return {.rank = static_cast<std::int32_t>(n[0]), .offset = static_cast<std::uint32_t>(n[1])};
}

[[noreturn]] void refuse_copies(std::size_t rank, std::size_t copies, int max_cp) {
  throw InputError(
      Diagnostic{.code = "D401",
                 .where = {.rank = static_cast<std::int64_t>(rank)},
                 .what = fmt::format("a row with {} copies", copies),
                 .why = max_cp == 0 ? "in a table of two dimensions every row has one"
                                    : fmt::format("in this table a row has at most {}", max_cp),
                 .help = "give max_cp"});
}

Metadata from_rows(nb::handle rows, int max_cp, const std::string& arrival) {
  if (max_cp < 0) refuse_below_zero("max_cp");
  Metadata::Builder builder({.world_size = static_cast<int>(nb::len(rows)),
                             .max_cp = max_cp,
                             .arrival = arrival_called(arrival)});
  std::size_t at_rank = 0;
  for (const nb::handle rank : nb::borrow<nb::object>(rows)) {
    for (const nb::handle row : nb::borrow<nb::object>(rank)) {
      const auto [length, places] = nb::cast<std::pair<std::uint32_t, nb::object>>(row);
      std::vector<Copy> copies;
      for (const nb::handle place : places) copies.push_back(copy_of(place));
      const auto most = static_cast<std::size_t>(max_cp);
      if (max_cp == 0 ? copies.size() != 1 : copies.size() > most) {
        refuse_copies(at_rank, copies.size(), max_cp);
      }
      builder.add_row(length, copies);
    }
    builder.end_rank();
    ++at_rank;
  }
  return builder.take();
}

nb::list rows_list(const Metadata& metadata) {
  nb::list all;
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    nb::list own;
    for (std::uint32_t i = 0; i < metadata.num_seqs(rank); ++i) {
      const Metadata::Row row = metadata.row(rank, i);
      nb::list copies;
      for (const Copy& copy : row.copies) copies.append(nb::make_tuple(copy.rank, copy.offset));
      own.append(nb::make_tuple(row.length, copies));
    }
    all.append(own);
  }
  return all;
}

std::string describe(const Metadata& metadata) {
  return fmt::format("<Metadata: {}, {} rows, {} copies, {}>", ranks_text(metadata.world_size()),
                     metadata.rows(), metadata.copies(), dispatch::name(metadata.arrival()));
}

void bind_parts(nb::module_& m) {
  nb::class_<Copy>(m, "Copy", "One place where a row goes.")
      .def(
          "__init__",
          [](Copy* self, std::int32_t rank, std::uint32_t offset) {
            new (self) Copy{.rank = rank, .offset = offset};
          },
          "rank"_a = -1, "offset"_a = 0)
      .def_ro("rank", &Copy::rank, "-1: nowhere.")
      .def_ro("offset", &Copy::offset, "In the buffer of that rank, in tokens.")
      .def("__eq__", [](const Copy& a, const Copy& b) { return a == b; })
      .def("__eq__", [](const Copy&, nb::handle) { return false; })
      .def("__hash__", [](const Copy& c) { return nb::hash(nb::make_tuple(c.rank, c.offset)); })
      .def("__repr__",
           [](const Copy& c) { return fmt::format("Copy(rank={}, offset={})", c.rank, c.offset); });
  nb::class_<Row>(m, "Row", "Some consecutive tokens of a rank's buffer, and where they go.")
      .def_ro("begin", &Row::begin, "In the sending rank's buffer.")
      .def_ro("length", &Row::length)
      .def_ro("copies", &Row::copies)
      .def("__repr__", [](const Row& row) {
        std::string copies;
        for (const Copy& copy : row.copies) {
          copies +=
              fmt::format("{}(rank {}, {})", copies.empty() ? "" : ", ", copy.rank, copy.offset);
        }
        return fmt::format("<Row: tokens {} to {} -> {}>", row.begin,
                           std::uint64_t{row.begin} + row.length, copies);
      });
}

// As in C++, but for arguments that are checked.
void bind_counts(nb::class_<Metadata>& table) {
  table.def_prop_ro("world_size", &Metadata::world_size)
      .def_prop_ro("max_cp", &Metadata::max_cp,
                   "0: every row has exactly one place. Otherwise the most that a row may have.")
      .def_prop_ro(
          "arrival", [](const Metadata& t) { return dispatch::name(t.arrival()); },
          "What becomes of tokens that arrive at one place: ``placed`` or ``summed``.")
      .def_prop_ro("max_seqs", &Metadata::max_seqs)
      .def_prop_ro("rows", &Metadata::rows)
      .def_prop_ro("copies", &Metadata::copies)
      .def_prop_ro(
          "bytes", [](const Metadata& t) { return t.bytes().count; }, "What it takes in memory.")
      .def(
          "num_seqs",
          [](const Metadata& t, int rank) {
            check_rank(rank, t.world_size());
            return t.num_seqs(rank);
          },
          "rank"_a, "Rows of a rank, placeholders included.")
      .def(
          "num_send_tokens",
          [](const Metadata& t, int rank) {
            check_rank(rank, t.world_size());
            return t.num_send_tokens(rank);
          },
          "rank"_a, "The length of a rank's buffer on the sending side.")
      .def(
          "num_total_recv_tokens",
          [](const Metadata& t, int rank) {
            check_rank(rank, t.world_size());
            return t.num_total_recv_tokens(rank);
          },
          "rank"_a, "What a rank receives.")
      .def(
          "num_recv_tokens",
          [](const Metadata& t, int rank) {
            check_rank(rank, t.world_size());
            std::vector<std::uint64_t> tokens = t.num_recv_tokens(rank);
            const std::size_t size = tokens.size();
            return array_of(std::move(tokens), {size});
          },
          "rank"_a, nb::sig("def num_recv_tokens(self, rank: int) -> Any"),
          "How many tokens a rank receives from each rank; last, in all.")
      .def("row", &row_of, "rank"_a, "index"_a);
}

void bind_table(nb::module_& m) {
  nb::class_<Metadata> table(m, "Metadata",
                             R"(What every rank sends, and where it arrives; counted in tokens.

Rows of a rank follow each other in its buffer. Each goes to one place, or to several.

>>> table = shiplap.dispatch.Metadata.from_rows([[(3, [(0, 0)]), (1, [(1, 0)])], [(2, [(1, 1)])]])
>>> table
<Metadata: 2 ranks, 3 rows, 3 copies, placed>
>>> table.row(0, 1)
<Row: tokens 3 to 4 -> (rank 1, 0)>)");
  bind_counts(table);
  table
      .def_static("from_rows", &from_rows, "rows"_a, nb::kw_only(), "max_cp"_a = 0,
                  "arrival"_a = "placed",
                  nb::sig("def from_rows(rows: Sequence[Iterable[tuple[int, Iterable[Copy | "
                          "tuple[int, int]]]]], *, max_cp: int = 0, arrival: str = 'placed') -> "
                          "Metadata"),
                  "For each rank its rows: a length, and the places (rank, offset) where it goes. "
                  "It takes any numbers; ``validate`` says whether they make sense.")
      .def("to_rows", &rows_list,
           nb::sig("def to_rows(self) -> list[list[tuple[int, list[tuple[int, int]]]]]"),
           "What ``from_rows`` takes.")
      .def(
          "hashes",
          [](const Metadata& t) {
            nb::dict all;
            const auto hashes = t.hashes();
            for (std::size_t k = 0; k < hashes.size(); ++k) {
              all[nb::cast(Metadata::kHashedFields[k])] = hashes[k];
            }
            return all;
          },
          nb::sig("def hashes(self) -> dict[str, int]"),
          "One number per field: ranks hold the same table if these are the same.")
      .def(
          "to_dense",
          [](const Metadata& t, std::int64_t largest) { return dispatch::to_dense(t, largest); },
          "largest"_a = dispatch::kLargestDense, Released(), "As padded tensors.")
      .def(
          "to_dict", [](const Metadata& t) { return to_python(dispatch::to_json(t)); },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.dispatch/1``.")
      .def(
          "to_json", [](const Metadata& t) { return to_text(dispatch::to_json(t)); }, Released(),
          "The same as text.")
      .def("__eq__", [](const Metadata& a, const Metadata& b) { return a == b; })
      .def("__eq__", [](const Metadata&, nb::handle) { return false; })
      .def(
          "__getstate__",
          [](const Metadata& t) {
            return nb::make_tuple(rows_list(t), t.max_cp(),
                                  std::string(dispatch::name(t.arrival())));
          },
          nb::sig("def __getstate__(self) -> tuple[Any, ...]"))
      .def(
          "__setstate__",
          [](Metadata& t, const nb::tuple& state) {
            new (&t) Metadata(
                from_rows(state[0], nb::cast<int>(state[1]), nb::cast<std::string>(state[2])));
          },
          nb::sig("def __setstate__(self, state: tuple[Any, ...], /) -> None"))
      .def("__repr__", &describe);
}

void bind_traffic(nb::module_& m) {
  using dispatch::Flow;
  using dispatch::TrafficSummary;
  nb::class_<Flow>(m, "Flow", "What goes from one rank to another.")
      .def(
          "__init__",
          [](Flow* self, std::int32_t from, std::int32_t to, std::uint64_t tokens,
             std::uint32_t pieces) {
            new (self) Flow{.from = from, .to = to, .tokens = tokens, .pieces = pieces};
          },
          "from_"_a = 0, "to"_a = 0, "tokens"_a = 0, "pieces"_a = 0)
      .def_ro("from_", &Flow::from)
      .def_ro("to", &Flow::to)
      .def_ro("tokens", &Flow::tokens)
      .def_ro("pieces", &Flow::pieces)
      .def("__eq__", [](const Flow& a, const Flow& b) { return a == b; })
      .def("__eq__", [](const Flow&, nb::handle) { return false; })
      .def("__repr__", [](const Flow& f) {
        return fmt::format("Flow(from_={}, to={}, tokens={}, pieces={})", f.from, f.to, f.tokens,
                           f.pieces);
      });
  nb::class_<TrafficSummary>(m, "TrafficSummary", "Flows, added up.")
      .def_ro("tokens", &TrafficSummary::tokens, "In all, with what stays.")
      .def_ro("between_ranks", &TrafficSummary::between_ranks, "That leave their rank.")
      .def_ro("between_nodes", &TrafficSummary::between_nodes, "That leave their node.")
      .def_ro("largest", &TrafficSummary::largest, "Between two ranks; of equal ones the first.")
      .def_ro("most_sent", &TrafficSummary::most_sent, "To other ranks by one.")
      .def_ro("most_received", &TrafficSummary::most_received)
      .def("__repr__", [](const TrafficSummary& s) {
        return fmt::format("<TrafficSummary: {} tokens, {} between ranks, {} between nodes>",
                           s.tokens, s.between_ranks, s.between_nodes);
      });
  m.def("dispatch_flows", &dispatch::flows, "metadata"_a, Released(),
        R"(Pairs of ranks that exchange anything, by sender, then receiver. What stays is there too.

>>> table = shiplap.dispatch.Metadata.from_rows([[(3, [(0, 0)]), (1, [(1, 0)])], []])
>>> shiplap.dispatch.flows(table)[1]
Flow(from_=0, to=1, tokens=1, pieces=1))");
  m.def(
      "dispatch_summarize",
      [](const std::vector<Flow>& flows, int ranks_per_node) {
        return dispatch::summarize(flows, ranks_per_node);
      },
      "flows"_a, "ranks_per_node"_a,
      "Flows added up. ``ranks_per_node`` consecutive ranks share a node.");
}

}  // namespace

void bind_dispatch_metadata(nb::module_& m) {
  bind_parts(m);
  bind_table(m);
  m.def(
      "bytes_at",
      [](std::uint64_t tokens, std::int64_t row_bytes) {
        return dispatch::bytes_at(tokens, row_bytes).count;
      },
      "tokens"_a, "row_bytes"_a,
      "A count of tokens as bytes of a buffer whose rows have ``row_bytes`` bytes each.");
  nb::class_<MetadataPair>(m, "MetadataPair", "The way there and the way back.")
      .def(
          "__init__",
          [](MetadataPair* self, const Metadata& forward, const Metadata& reverse) {
            new (self) MetadataPair{.forward = forward, .reverse = reverse};
          },
          "forward"_a, "reverse"_a)
      .def_ro("forward", &MetadataPair::forward)
      .def_ro("reverse", &MetadataPair::reverse)
      .def(
          "__iter__",
          [](nb::handle self) {
            return nb::iter(nb::make_tuple(self.attr("forward"), self.attr("reverse")));
          },
          nb::sig("def __iter__(self) -> Iterator[Metadata]"))
      .def("__len__", [](const MetadataPair&) { return 2; })
      .def("__eq__", [](const MetadataPair& a, const MetadataPair& b) { return a == b; })
      .def("__eq__", [](const MetadataPair&, nb::handle) { return false; })
      .def(
          "__getstate__",
          [](const MetadataPair& pair) { return nb::make_tuple(pair.forward, pair.reverse); },
          nb::sig("def __getstate__(self) -> tuple[Metadata, Metadata]"))
      .def(
          "__setstate__",
          [](MetadataPair& pair, const std::pair<Metadata, Metadata>& state) {
            new (&pair) MetadataPair{.forward = state.first, .reverse = state.second};
          },
          nb::sig("def __setstate__(self, state: tuple[Metadata, Metadata], /) -> None"))
      .def("__repr__", [](const MetadataPair& pair) {
        return fmt::format("<MetadataPair: forward {}, reverse {}>", describe(pair.forward),
                           describe(pair.reverse));
      });
  bind_traffic(m);
}

}  // namespace shiplap::python
