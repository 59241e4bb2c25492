// Bindings of layouts: which tokens are on which rank.
#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <limits>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "dispatch.h"
#include "shiplap/base/error.h"
#include "shiplap/dispatch/layout.h"

namespace shiplap::python {
namespace {

using dispatch::Layout;
using dispatch::Routing;
using dispatch::Segment;

// A Segment, or three numbers.
Segment segment_of(nb::handle item) {
  std::tuple<std::int32_t, std::uint32_t, std::uint32_t> fields;
  if (nb::isinstance<nb::tuple>(item) && nb::try_cast(item, fields)) {
    const auto& [document, begin, length] = fields;
    return {.document = document, .begin = begin, .length = length};
  }
  const Integers<std::int64_t> numbers(item, "segment");
  const std::span<const std::int64_t> n = numbers.with_dimensions(1).values();
  if (n.size() != 3 || !std::in_range<std::int32_t>(n[0]) || !std::in_range<std::uint32_t>(n[1]) ||
      !std::in_range<std::uint32_t>(n[2])) {
    throw InputError(Diagnostic{.code = "D003",
                                .what = "a segment is (document, begin, length)",
                                .why = "each of them has 32 bits"});
  }
  return {.document = static_cast<std::int32_t>(n[0]),
          .begin = static_cast<std::uint32_t>(n[1]),
          .length = static_cast<std::uint32_t>(n[2])};
}

std::vector<Segment> segments_of(nb::handle items) {
  std::vector<Segment> segments;
  for (const nb::handle item : nb::borrow<nb::object>(items)) {
    segments.push_back(segment_of(item));
  }
  return segments;
}

Layout layout_of(nb::handle by_rank) {
  std::vector<std::vector<Segment>> all;
  for (const nb::handle rank : nb::borrow<nb::object>(by_rank)) all.push_back(segments_of(rank));
  return Layout(all);
}

nb::list segment_list(std::span<const Segment> segments) {
  const TupleMaker made("Segment");
  nb::list all;
  for (const Segment& s : segments) all.append(made(s.document, s.begin, s.length));
  return all;
}

std::string describe(const Layout& layout) {
  return fmt::format("<Layout: {}, {} segments>", ranks_text(layout.world_size()),
                     layout.all().size());
}

nb::list lists_of(const Layout& layout) {
  nb::list all;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    nb::list own;
    for (const Segment& s : layout.of(rank)) {
      own.append(nb::make_tuple(s.document, s.begin, s.length));
    }
    all.append(own);
  }
  return all;
}

nb::object hash_key(const Layout& layout) {
  nb::list ranks;
  for (const nb::handle own : lists_of(layout)) ranks.append(nb::tuple(own));
  return nb::tuple(ranks);
}

void bind_layout(nb::module_& m) {
  nb::class_<Layout>(m, "Layout", R"(The segments of each rank, in the order of its buffer.

>>> layout = shiplap.dispatch.Layout([[(0, 0, 4)], [(0, 4, 2), (1, 0, 2)]])
>>> layout.world_size, layout.tokens(1)
(2, 4)
>>> layout.of(0)
[Segment(document=0, begin=0, length=4)])")
      .def(
          "__init__",
          [](Layout* self, nb::object by_rank) { new (self) Layout(layout_of(by_rank)); },
          "by_rank"_a,
          nb::sig("def __init__(self, by_rank: Iterable[Iterable[Segment | Sequence[int]]]) -> "
                  "None"))
      .def_prop_ro("world_size", &Layout::world_size)
      .def(
          "of",
          [](const Layout& l, int rank) {
            check_rank(rank, l.world_size());
            return segment_list(l.of(rank));
          },
          "rank"_a, nb::sig("def of(self, rank: int) -> list[Segment]"),
          "The segments of one rank.")
      .def_prop_ro(
          "all", [](const Layout& l) { return segment_list(l.all()); },
          nb::sig("def all(self) -> list[Segment]"),
          "The segments of all ranks, one after another.")
      .def(
          "first",
          [](const Layout& l, int rank) {
            check_rank(rank, l.world_size());
            return l.first(rank);
          },
          "rank"_a, "The index in ``all`` of the first segment of a rank.")
      .def(
          "tokens",
          [](const Layout& l, int rank) {
            check_rank(rank, l.world_size());
            return l.tokens(rank);
          },
          "rank"_a, "The number of tokens of one rank.")
      .def(
          "to_dict",
          [](const Layout& l) {
            nb::dict dict;
            dict["world_size"] = l.world_size();
            dict["segments"] = lists_of(l);
            return dict;
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"))
      .def("__len__", &Layout::world_size)
      .def("__eq__", &equal<Layout>, nb::is_operator())
      .def("__hash__", [](const Layout& value) { return nb::hash(hash_key(value)); })
      .def("__repr__", &describe);
  nb::class_<Routing>(m, "Routing",
                      "The input of a dispatch: the home layout of the tokens and their attention "
                      "layout.")
      .def(
          "__init__",
          [](Routing* self, const Layout& home, const Layout& attention) {
            new (self) Routing{.home = home, .attention = attention};
          },
          "home"_a, "attention"_a)
      .def_ro("home", &Routing::home)
      .def_ro("attention", &Routing::attention)
      .def(
          "to_dict",
          [](const Routing& r) {
            nb::dict dict;
            dict["home"] = lists_of(r.home);
            dict["attention"] = lists_of(r.attention);
            return dict;
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"))
      .def(
          "__eq__",
          [](const Routing& a, const Routing& b) {
            return a.home == b.home && a.attention == b.attention;
          },
          nb::is_operator())
      .def("__hash__",
           [](const Routing& r) {
             return nb::hash(nb::make_tuple(hash_key(r.home), hash_key(r.attention)));
           })
      .def("__repr__", [](const Routing& r) {
        return fmt::format("<Routing: home {}, attention {}>", describe(r.home),
                           describe(r.attention));
      });
}

}  // namespace

void bind_dispatch_layout(nb::module_& m) {
  bind_layout(m);
  m.def(
      "gen_seq_lens",
      [](int world_size, int num_seqs, std::uint32_t total_len, std::uint64_t seed) {
        std::vector<std::uint32_t> flat;
        {
          const LongCall released;
          const auto lengths = dispatch::gen_seq_lens(
              {.world_size = world_size, .num_seqs = num_seqs, .total_len = total_len}, seed);
          for (const auto& rank : lengths) flat.insert(flat.end(), rank.begin(), rank.end());
        }
        return array_of(std::move(flat),
                        {static_cast<std::size_t>(world_size), static_cast<std::size_t>(num_seqs)});
      },
      "world_size"_a = 1, "num_seqs"_a = 1, "total_len"_a = 1, "seed"_a = 0,
      nb::sig("def gen_seq_lens(world_size: int = 1, num_seqs: int = 1, total_len: int = 1, "
              "seed: int = 0) -> Any"),
      R"(Random document lengths: ``num_seqs`` per rank, which sum to ``total_len`` on each rank.

Each is at least 1; some are long. The same seed gives the same lengths on every machine. An array
of uint32, (world_size, num_seqs).

>>> shiplap.dispatch.gen_seq_lens(2, num_seqs=3, total_len=16, seed=1).sum(axis=1).tolist()
[16, 16])");
  m.def(
      "pack_documents",
      [](nb::object lengths, int world_size) {
        const Integers<std::uint32_t> numbers(lengths, "lengths");
        const auto values = numbers.with_dimensions(1).values();
        const LongCall released;
        return dispatch::pack_documents(values, world_size);
      },
      "lengths"_a, "world_size"_a,
      R"(Packs documents in order, with the same number of tokens on each rank, splitting documents.

>>> shiplap.dispatch.pack_documents([6, 2], 2).of(1)[0]
Segment(document=0, begin=4, length=2))");
  m.def(
      "cut_documents",
      [](nb::object lengths, nb::object cp_degree) {
        const Integers<std::uint32_t> numbers(lengths, "lengths");
        const auto values = numbers.with_dimensions(1).values();
        std::vector<int> same;
        std::optional<Integers<int>> given;
        if (nb::isinstance<nb::int_>(cp_degree)) {
          same.assign(values.size(), nb::cast<int>(cp_degree));
        } else {
          given.emplace(cp_degree, "cp_degree");
        }
        const std::span<const int> degrees =
            given ? given->with_dimensions(1).values() : std::span<const int>(same);
        return segment_list(unlocked([&] { return dispatch::cut_documents(values, degrees); }));
      },
      "lengths"_a, "cp_degree"_a,
      nb::sig("def cut_documents(lengths: Any, cp_degree: Any) -> list[Segment]"),
      R"(Splits document d into ``cp_degree[d]`` items, or each into ``cp_degree``, of equal size.

>>> [item.length for item in shiplap.dispatch.cut_documents([7, 2], [3, 1])]
[2, 2, 3, 2])");
  m.def(
      "assign_randomly",
      [](nb::object items, int world_size, std::uint64_t seed) {
        const std::vector<Segment> segments = segments_of(items);
        const LongCall released;
        return dispatch::assign_randomly(segments, world_size, seed);
      },
      "items"_a, "world_size"_a, "seed"_a = 0,
      nb::sig("def assign_randomly(items: Iterable[Segment | Sequence[int]], world_size: int, "
              "seed: int = 0) -> Layout"),
      "Assigns every item to a random rank. Items keep their order within a rank.");
  m.def(
      "random_routing",
      [](int world_size, std::uint32_t total_seq_len, int num_seqs, int max_cp_degree,
         std::uint64_t seed) {
        return std::make_shared<Routing>(dispatch::random_routing({.world_size = world_size,
                                                                   .total_seq_len = total_seq_len,
                                                                   .num_seqs = num_seqs,
                                                                   .max_cp_degree = max_cp_degree,
                                                                   .seed = seed}));
      },
      "world_size"_a = 1, "total_seq_len"_a = 1, "num_seqs"_a = 1, "max_cp_degree"_a = 1,
      "seed"_a = 0, Released(),
      "The routing of ``create_qkv_dispatch``: random documents, random items, random ranks.");
}

}  // namespace shiplap::python
