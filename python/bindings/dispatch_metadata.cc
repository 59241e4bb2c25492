// Bindings of the tables of a token exchange, and of pairs of them.
#include <fmt/format.h>
#include <nanobind/stl/tuple.h>

#include <sstream>
#include <tuple>

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

nb::object row_of(const Metadata& metadata, int rank, std::uint32_t index) {
  check_rank(rank, metadata.world_size());
  if (index >= metadata.num_seqs(rank)) {
    throw InputError(Diagnostic{
        .code = "D400",
        .where = {.rank = rank},
        .what = fmt::format("row {} is out of range", index),
        .help = fmt::format("the rank has {} rows, counted from 0", metadata.num_seqs(rank))});
  }
  const Metadata::Row row = metadata.row(rank, index);
  const TupleMaker made("Copy");
  nb::list copies;
  for (const Copy& copy : row.copies) copies.append(made(copy.rank, copy.offset));
  return TupleMaker("Row")(row.begin, row.length, copies);
}

Copy copy_of(nb::handle item) {
  const Integers<std::int64_t> numbers(item, "copy");
  const std::span<const std::int64_t> n = numbers.with_dimensions(1).values();
  if (n.size() != 2 || !std::in_range<std::int32_t>(n[0]) || !std::in_range<std::uint32_t>(n[1])) {
    throw InputError(Diagnostic{.code = "D003", .what = "a copy is (rank, offset)"});
  }
  return {.rank = static_cast<std::int32_t>(n[0]), .offset = static_cast<std::uint32_t>(n[1])};
}

[[noreturn]] void throw_too_many_copies(std::size_t rank, std::size_t copies, int max_cp) {
  throw InputError(
      Diagnostic{.code = "D401",
                 .where = {.rank = static_cast<std::int64_t>(rank)},
                 .what = fmt::format("a row with {} copies", copies),
                 .why = max_cp == 0 ? "in a table of two dimensions every row has one"
                                    : fmt::format("in this table a row has at most {}", max_cp),
                 .help = "give max_cp"});
}

Metadata from_rows(nb::handle rows, int max_cp, const std::string& arrival) {
  if (max_cp < 0) throw_negative("max_cp");
  Metadata::Builder builder({.world_size = static_cast<int>(nb::len(rows)),
                             .max_cp = max_cp,
                             .arrival = parse_arrival(arrival)});
  std::size_t at_rank = 0;
  for (const nb::handle rank : nb::borrow<nb::object>(rows)) {
    for (const nb::handle row : nb::borrow<nb::object>(rank)) {
      const auto [length, places] = nb::cast<std::pair<std::uint32_t, nb::object>>(row);
      std::vector<Copy> copies;
      for (const nb::handle place : places) copies.push_back(copy_of(place));
      const auto most = static_cast<std::size_t>(max_cp);
      if (max_cp == 0 ? copies.size() != 1 : copies.size() > most) {
        throw_too_many_copies(at_rank, copies.size(), max_cp);
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

// One of the padded tensors; computed anew each time.
auto dense_field(const char* name) {
  return [name](const Metadata& table) -> nb::object {
    const nb::object dense = nb::cast(dispatch::to_dense(table));
    return dense.attr(name);
  };
}

void bind_dense_fields(nb::class_<Metadata>& table) {
  const auto add = [&](const char* name, const char* doc) {
    table.def_prop_ro(name, dense_field(name),
                      nb::sig(fmt::format("def {}(self) -> Any", name).c_str()), doc);
  };
  add("dst_rank", "As in ``to_dense()``: the destination of each row or copy; -1 is none.");
  add("dst_offset", "As in ``to_dense()``: the offset at the destination, in tokens.");
  add("seq_len", "As in ``to_dense()``: the tokens of each row.");
  add("seq_recv_mask", "As in ``to_dense()``: whether a copy has a destination; None in 2-D.");
  add("recv_seq_lens", "As in ``to_dense()``: the lengths of the received rows, by offset.");
}

// As in C++, but arguments are checked.
void bind_counts(nb::class_<Metadata>& table) {
  table.def_prop_ro("world_size", &Metadata::world_size)
      .def_prop_ro("max_cp", &Metadata::max_cp,
                   "The maximum number of destinations of a row; 0: exactly one.")
      .def_prop_ro(
          "arrival", [](const Metadata& t) { return dispatch::name(t.arrival()); },
          "How received tokens are written: ``placed`` or ``summed``.")
      .def_prop_ro("max_seqs", &Metadata::max_seqs)
      .def_prop_ro("rows", &Metadata::rows)
      .def_prop_ro("copies", &Metadata::copies)
      .def_prop_ro(
          "bytes", [](const Metadata& t) { return t.bytes().count; }, "Its size in memory.")
      .def(
          "num_seqs",
          [](const Metadata& t, int rank) {
            check_rank(rank, t.world_size());
            return t.num_seqs(rank);
          },
          "rank"_a, "Rows of a rank, placeholders included; without a rank, those of all ranks.")
      .def("num_seqs", dense_field("num_seqs"), nb::sig("def num_seqs(self) -> Any"))
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
          "rank"_a, "The number of tokens that a rank receives; without a rank, that of all ranks.")
      .def("num_total_recv_tokens", dense_field("num_total_recv_tokens"),
           nb::sig("def num_total_recv_tokens(self) -> Any"))
      .def(
          "num_recv_tokens",
          [](const Metadata& t, int rank) {
            check_rank(rank, t.world_size());
            std::vector<std::uint64_t> tokens = t.num_recv_tokens(rank);
            const std::size_t size = tokens.size();
            return array_of(std::move(tokens), {size});
          },
          "rank"_a, nb::sig("def num_recv_tokens(self, rank: int) -> Any"),
          "The number of tokens that a rank receives from each rank; the last entry is the total. "
          "Without a rank, those of all ranks.")
      .def("num_recv_tokens", dense_field("num_recv_tokens"),
           nb::sig("def num_recv_tokens(self) -> Any"))
      .def("row", &row_of, "rank"_a, "index"_a,
           nb::sig("def row(self, rank: int, index: int) -> Row"));
}

void bind_table(nb::module_& m) {
  nb::class_<Metadata> table(m, "Metadata",
                             R"(The rows that every rank sends and their destinations, in tokens.

Rows of a rank follow each other in its buffer. Each goes to one place, or to several.

>>> table = shiplap.dispatch.Metadata.from_rows([[(3, [(0, 0)]), (1, [(1, 0)])], [(2, [(1, 1)])]])
>>> table
<Metadata: 2 ranks, 3 rows, 3 copies, placed>
>>> table.row(0, 1)
<Row: tokens 3 to 4 -> (rank 1, 0)>)");
  bind_counts(table);
  bind_dense_fields(table);
  table
      .def(
          "__init__",
          [](Metadata* self, nb::object metadata) { new (self) Metadata(*table_of(metadata)); },
          "metadata"_a,
          "From padded tensors: DenseMetadata, NormalizedMetadata, shiplap.torch.Metadata, or any "
          "object with dst_rank, dst_offset and seq_len.")
      .def_static("from_rows", &from_rows, "rows"_a, nb::kw_only(), "max_cp"_a = 0,
                  "arrival"_a = "placed",
                  nb::sig("def from_rows(rows: Sequence[Iterable[tuple[int, Iterable[Copy | "
                          "tuple[int, int]]]]], *, max_cp: int = 0, arrival: str = 'placed') -> "
                          "Metadata"),
                  "The rows of each rank: a length, and the destinations (rank, offset). "
                  "Values are not checked; use ``validate``.")
      .def("to_rows", &rows_list,
           nb::sig("def to_rows(self) -> list[list[tuple[int, list[tuple[int, int]]]]]"),
           "The inverse of ``from_rows``.")
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
          "One hash per field, to compare tables between ranks.")
      .def(
          "to_dense",
          [](const Metadata& t, std::int64_t max_elements) {
            return dispatch::to_dense(t, max_elements);
          },
          "max_elements"_a = dispatch::kMaxDenseElements, Released(), "Converts to padded tensors.")
      .def(
          "to_dict",
          [](const Metadata& t) {
            return to_python(unlocked([&] { return dispatch::to_json(t); }));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.dispatch/1``.")
      .def(
          "to_json", [](const Metadata& t) { return to_text(dispatch::to_json(t)); }, Released(),
          "The same as text.")
      .def("__eq__", &equal<Metadata>, nb::is_operator())
      .def("__hash__", [](const Metadata& value) { return nb::hash(hash_key(value)); })
      .def("__repr__", &describe);
}

nb::object flow_object(const dispatch::Flow& flow, const TupleMaker& made) {
  return made(flow.from, flow.to, flow.tokens, flow.pieces);
}

nb::list flows_of(nb::object metadata) {
  const SharedTable table = table_of(metadata);
  const TupleMaker made("Flow");
  nb::list flows;
  for (const dispatch::Flow& flow : unlocked([&] { return dispatch::flows(*table); })) {
    flows.append(flow_object(flow, made));
  }
  return flows;
}

using FlowFields = std::tuple<std::int32_t, std::int32_t, std::uint64_t, std::uint32_t>;

nb::object summary_of(const std::vector<FlowFields>& fields, int ranks_per_node) {
  std::vector<dispatch::Flow> flows;
  for (const auto& [from, to, tokens, pieces] : fields) {
    flows.push_back({.from = from, .to = to, .tokens = tokens, .pieces = pieces});
  }
  const dispatch::TrafficSummary s = dispatch::summarize(flows, ranks_per_node);
  return TupleMaker("TrafficSummary")(s.tokens, s.between_ranks, s.between_nodes,
                                      flow_object(s.largest, TupleMaker("Flow")), s.max_sent,
                                      s.max_received);
}

void bind_traffic(nb::module_& m) {
  m.def("dispatch_flows", &flows_of, "metadata"_a,
        nb::sig("def dispatch_flows(metadata: Any) -> list[Flow]"),
        R"(The flows between ranks, ordered by sender, then receiver, including those within a rank.

>>> table = shiplap.dispatch.Metadata.from_rows([[(3, [(0, 0)]), (1, [(1, 0)])], []])
>>> shiplap.dispatch.flows(table)[1]
Flow(from_=0, to=1, tokens=1, pieces=1))");
  m.def("dispatch_summarize", &summary_of, "flows"_a, "ranks_per_node"_a,
        nb::sig("def dispatch_summarize(flows: Sequence[Flow], ranks_per_node: int) -> "
                "TrafficSummary"),
        "Totals of flows. ``ranks_per_node`` consecutive ranks share a node.");
}

}  // namespace

nb::object hash_key(const Metadata& metadata) {
  nb::list key;
  for (const std::uint64_t hash : metadata.hashes()) key.append(hash);
  return nb::tuple(key);
}

nb::object hash_key(const MetadataPair& pair) {
  return nb::make_tuple(hash_key(pair.forward), hash_key(pair.reverse));
}

void bind_dispatch_metadata(nb::module_& m) {
  bind_table(m);
  nb::class_<MetadataPair>(m, "MetadataPair",
                           "The tables of the forward and the reverse direction.")
      .def(
          "__init__",
          [](MetadataPair* self, nb::object forward, nb::object reverse) {
            new (self) MetadataPair(pair_of(forward, "forward", reverse, "reverse"));
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
      .def("__eq__", &equal<MetadataPair>, nb::is_operator())
      .def("__hash__", [](const MetadataPair& value) { return nb::hash(hash_key(value)); })
      .def("__repr__", [](const MetadataPair& pair) {
        return fmt::format("<MetadataPair: forward {}, reverse {}>", describe(pair.forward),
                           describe(pair.reverse));
      });
  bind_traffic(m);
}

}  // namespace shiplap::python
