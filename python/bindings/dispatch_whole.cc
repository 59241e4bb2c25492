// Bindings of a whole dispatch: compute it from a routing, validate it, convert it to JSON, a plan
// and HTML.
#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <sstream>
#include <utility>

#include "arrays.h"
#include "dispatch.h"
#include "plan.h"
#include "shiplap/base/error.h"
#include "shiplap/dispatch/json.h"
#include "shiplap/dispatch/lower.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/report/dispatch.h"
#include "shiplap/report/html.h"
#include "shiplap/run/agreement.h"

namespace shiplap::python {
namespace {

using dispatch::AttentionLayout;
using dispatch::Metadata;
using dispatch::MetadataPair;
using dispatch::Routing;
using SharedRouting = std::shared_ptr<const Routing>;

// The default sizes of `shiplap dispatch` in bf16: 8 heads, 2 KV heads, head dimension 64.
constexpr std::int64_t kQRowBytes = 1024;
constexpr std::int64_t kKvRowBytes = 512;

Dispatch compute(const SharedRouting& routing) {
  return {.dispatch = dispatch::compute_qkv_dispatch(*routing), .routing = routing};
}

std::string describe(const Dispatch& d) {
  return fmt::format("<QkvDispatch: {}, {} rows, {} copies of keys>",
                     ranks_text(d.dispatch.world_size()), d.dispatch.q.forward.rows(),
                     d.dispatch.kv.forward.copies());
}

report::DispatchView view_of(const Dispatch& d) {
  return {.dispatch = d.dispatch,
          .routing = d.routing.get(),
          .sizes = {.q_row_bytes = kQRowBytes, .kv_row_bytes = kKvRowBytes}};
}

// The output of `shiplap dispatch`; the diagnostics if the dispatch is unsound.
std::string shown(const Dispatch& d) {
  if (const std::vector<Diagnostic> found = dispatch::validate(d.dispatch); !found.empty()) {
    return render(found);
  }
  return dispatch_text(view_of(d), {});
}

std::string picture(const Dispatch& d) {
  const bool sound = dispatch::validate(d.dispatch).empty();
  if (!d.routing || !sound) return fmt::format("<pre>{}</pre>", report::escaped(shown(d)));
  return to_fragment(dispatch_page(view_of(d)));
}

// ---- the layout of attention

nb::object ends(nb::handle self, int rank,
                std::span<const std::uint32_t> (AttentionLayout::*of)(int) const) {
  const auto& layout = nb::cast<const AttentionLayout&>(self);
  check_rank(rank, layout.world_size());
  const std::span<const std::uint32_t> values = (layout.*of)(rank);
  return array_view(values, {values.size()}, self);
}

template <class Result>
auto of_rank(Result (AttentionLayout::*of)(int) const) {
  return [of](const AttentionLayout& layout, int rank) {
    check_rank(rank, layout.world_size());
    return (layout.*of)(rank);
  };
}

AttentionLayout layout_of(nb::handle by_rank) {
  std::vector<std::vector<AttentionLayout::Item>> all;
  for (const nb::handle rank : nb::borrow<nb::object>(by_rank)) {
    std::vector<AttentionLayout::Item>& own = all.emplace_back();
    for (const nb::handle item : nb::borrow<nb::object>(rank)) {
      const auto [q, kv] = nb::cast<std::pair<std::uint32_t, std::uint32_t>>(item);
      own.push_back({.q_length = q, .kv_length = kv});
    }
  }
  return AttentionLayout(all);
}

// The inverse of layout_of.
nb::list lengths_of(const AttentionLayout& layout) {
  nb::list all;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const auto q = layout.cu_seqlens_q(rank);
    const auto kv = layout.cu_seqlens_kv(rank);
    nb::list own;
    for (std::size_t i = 0; i + 1 < q.size(); ++i) {
      own.append(nb::make_tuple(q[i + 1] - q[i], kv[i + 1] - kv[i]));
    }
    all.append(own);
  }
  return all;
}

void bind_attention(nb::module_& m) {
  nb::class_<AttentionLayout>(m, "AttentionLayout",
                              R"(The sequence lengths for the attention kernel of each rank.

>>> layout = shiplap.dispatch.AttentionLayout([[(3, 3), (2, 2)], [(3, 6)]])
>>> layout.cu_seqlens_q(0).tolist(), layout.max_seqlen_kv(1)
([0, 3, 5], 6))")
      .def(
          "__init__",
          [](AttentionLayout* self, nb::object by_rank) {
            new (self) AttentionLayout(layout_of(by_rank));
          },
          "by_rank"_a,
          nb::sig("def __init__(self, by_rank: Iterable[Iterable[tuple[int, int]]]) -> None"),
          "The items of each rank: the numbers of queries and keys.")
      .def_prop_ro("world_size", &AttentionLayout::world_size)
      .def("num_local_seqs", of_rank(&AttentionLayout::num_local_seqs), "rank"_a)
      .def(
          "cu_seqlens_q",
          [](nb::handle self, int rank) {
            return ends(self, rank, &AttentionLayout::cu_seqlens_q);
          },
          "rank"_a, nb::sig("def cu_seqlens_q(self, rank: int) -> Any"),
          "Cumulative sequence lengths of the queries: a view, uint32.")
      .def(
          "cu_seqlens_kv",
          [](nb::handle self, int rank) {
            return ends(self, rank, &AttentionLayout::cu_seqlens_kv);
          },
          "rank"_a, nb::sig("def cu_seqlens_kv(self, rank: int) -> Any"), "The same for the keys.")
      .def("max_seqlen_q", of_rank(&AttentionLayout::max_seqlen_q), "rank"_a)
      .def("max_seqlen_kv", of_rank(&AttentionLayout::max_seqlen_kv), "rank"_a)
      .def_prop_ro("bytes", [](const AttentionLayout& l) { return l.bytes().count; })
      .def("__eq__", [](const AttentionLayout& a, const AttentionLayout& b) { return a == b; })
      .def("__eq__", [](const AttentionLayout&, nb::handle) { return false; })
      .def("__getstate__", &lengths_of, nb::sig("def __getstate__(self) -> list[Any]"))
      .def(
          "__setstate__",
          [](AttentionLayout& l, const nb::list& state) {
            new (&l) AttentionLayout(layout_of(state));
          },
          nb::sig("def __setstate__(self, state: list[Any], /) -> None"))
      .def("__repr__", [](const AttentionLayout& l) {
        int items = 0;
        for (int rank = 0; rank < l.world_size(); ++rank) items += l.num_local_seqs(rank);
        return fmt::format("<AttentionLayout: {}, {} items>", ranks_text(l.world_size()), items);
      });
  m.def(
      "causal_pairs",
      [](const AttentionLayout& layout, int rank) {
        check_rank(rank, layout.world_size());
        return dispatch::causal_pairs(layout, rank);
      },
      "layout"_a, "rank"_a,
      "The attention work of a rank: the number of (query, key) pairs under the causal mask.");
}

// ---- the whole

void bind_qkv(nb::module_& m) {
  nb::class_<Dispatch>(m, "QkvDispatch", R"(All results of one dispatch.

It iterates as the five of them: queries there and back, keys and values there and back, and what
the attention kernels must know.

>>> dispatch = shiplap.dispatch.create_qkv_dispatch(4, 64, 2, 2, seed=1)
>>> fwd_q, rev_q, fwd_kv, rev_kv, attention = dispatch
>>> rev_kv.arrival
'summed')")
      .def(
          "__init__",
          [](Dispatch* self, const MetadataPair& q, const MetadataPair& kv,
             const AttentionLayout& attention) {
            new (self) Dispatch{.dispatch = {.q = q, .kv = kv, .attention = attention},
                                .routing = nullptr};
          },
          "q"_a, "kv"_a, "attention"_a)
      .def_prop_ro(
          "q", [](const Dispatch& d) -> const MetadataPair& { return d.dispatch.q; },
          nb::rv_policy::reference_internal, "The tables of the queries.")
      .def_prop_ro(
          "kv", [](const Dispatch& d) -> const MetadataPair& { return d.dispatch.kv; },
          nb::rv_policy::reference_internal, "The tables of keys and values.")
      .def_prop_ro(
          "attention",
          [](const Dispatch& d) -> const AttentionLayout& { return d.dispatch.attention; },
          nb::rv_policy::reference_internal)
      .def_prop_ro("world_size", [](const Dispatch& d) { return d.dispatch.world_size(); })
      .def_prop_ro(
          "routing", [](const Dispatch& d) { return d.routing; },
          nb::sig("def routing(self) -> Routing | None"),
          "The routing that it was computed from, if known.")
      .def(
          "hashes",
          [](const Dispatch& d) {
            nb::dict all;
            for (const run::TableField& field : run::table_fields(d.dispatch)) {
              all[field.name.c_str()] = field.hash;
            }
            return all;
          },
          nb::sig("def hashes(self) -> dict[str, int]"),
          "One hash per field of each table, and one for the layout.")
      .def(
          "to_dict", [](const Dispatch& d) { return to_python(dispatch::to_json(d.dispatch)); },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.dispatch/1``.")
      .def(
          "to_json",
          [](const Dispatch& d, std::int64_t q_row_bytes, std::int64_t kv_row_bytes) {
            if (q_row_bytes < 0) throw_negative("q_row_bytes");
            if (kv_row_bytes < 0) throw_negative("kv_row_bytes");
            const bool sized = q_row_bytes > 0;
            if (sized != (kv_row_bytes > 0)) {
              throw InputError(Diagnostic{.code = "D003",
                                          .where = {.flag = "q_row_bytes"},
                                          .what = "`q_row_bytes` and `kv_row_bytes` are given "
                                                  "together"});
            }
            const Json json =
                sized ? dispatch::to_json(d.dispatch, {.q = q_row_bytes, .kv = kv_row_bytes})
                      : dispatch::to_json(d.dispatch);
            return to_text(json, Layout::compact) + "\n";
          },
          nb::kw_only(), "q_row_bytes"_a = 0, "kv_row_bytes"_a = 0, Released(),
          "The same as text: what ``shiplap dispatch --output`` writes. With the bytes of a "
          "token's "
          "query and of its key and value, which ``shiplap dispatch inspect`` uses; 0: unknown.")
      .def(
          "save_report",
          [](const Dispatch& d, nb::object path) {
            if (!d.routing) {
              throw InputError(Diagnostic{.code = "D003",
                                          .what = "the routing is missing: tables do not contain "
                                                  "document boundaries",
                                          .help = "create it by compute_qkv_dispatch(routing)"});
            }
            write_file(path_text(path), to_html(dispatch_page(view_of(d))));
          },
          "path"_a, nb::sig("def save_report(self, path: str | os.PathLike[str]) -> None"),
          "Writes a report as one HTML file.")
      .def(
          "__iter__",
          [](nb::handle self) {
            const nb::object q = self.attr("q");
            const nb::object kv = self.attr("kv");
            return nb::iter(nb::make_tuple(q.attr("forward"), q.attr("reverse"), kv.attr("forward"),
                                           kv.attr("reverse"), self.attr("attention")));
          },
          nb::sig("def __iter__(self) -> Iterator[Any]"))
      .def("__len__", [](const Dispatch&) { return 5; })
      .def("__eq__", [](const Dispatch& a, const Dispatch& b) { return a.dispatch == b.dispatch; })
      .def("__eq__", [](const Dispatch&, nb::handle) { return false; })
      .def(
          "__getstate__",
          [](const Dispatch& d) {
            return nb::make_tuple(d.dispatch.q, d.dispatch.kv, d.dispatch.attention, d.routing);
          },
          nb::sig("def __getstate__(self) -> tuple[Any, ...]"))
      .def(
          "__setstate__",
          [](Dispatch& d, const nb::tuple& state) {
            new (&d) Dispatch{.dispatch = {.q = nb::cast<MetadataPair>(state[0]),
                                           .kv = nb::cast<MetadataPair>(state[1]),
                                           .attention = nb::cast<AttentionLayout>(state[2])},
                              .routing = nullptr};
            if (!nb::handle(state[3]).is_none()) d.routing = nb::cast<SharedRouting>(state[3]);
          },
          nb::sig("def __setstate__(self, state: tuple[Any, ...], /) -> None"))
      .def("__str__", &shown)
      .def("__repr__", &describe)
      .def("_repr_html_", &picture);
}

void bind_compute(nb::module_& m) {
  m.def("compute_metadata", nb::overload_cast<const Routing&>(&dispatch::compute_metadata),
        "routing"_a, Released(), "Queries: every token is sent to its item, and returned.");
  m.def(
      "compute_metadata",
      [](nb::object seq_lens, nb::object dst_rank) {
        const dispatch::SequenceDispatch sequences{
            .seq_lens = integer_rows<std::uint32_t>(seq_lens, "seq_lens"),
            .dst_rank = integer_rows<std::int32_t>(dst_rank, "dst_rank")};
        const nb::gil_scoped_release released;
        return dispatch::compute_metadata(sequences);
      },
      "seq_lens"_a, "dst_rank"_a,
      nb::sig("def compute_metadata(seq_lens: Any, dst_rank: Any) -> MetadataPair"),
      R"(Whole sequences: sequence s of rank r has ``seq_lens[r][s]`` tokens, sent to one rank.

Rank -1 with length 0 is padding.

>>> there, back = shiplap.dispatch.compute_metadata([[3, 1], [2, 0]], [[0, 1], [0, -1]])
>>> there.row(1, 0)
<Row: tokens 0 to 2 -> (rank 0, 3)>)");
  m.def(
      "compute_metadata_kv", &dispatch::compute_metadata_kv, "routing"_a, Released(),
      "Keys and values: an item needs its document up to the item's end. In the reverse direction "
      "the gradients of the copies are summed.");
  m.def("compute_attention_layout", &dispatch::compute_attention_layout, "routing"_a, Released(),
        "Computes the sequence lengths for the attention kernels.");
  m.def("compute_qkv_dispatch", &compute, "routing"_a, Released(),
        R"(Computes all tables from the home and the attention layout.

>>> home = shiplap.dispatch.pack_documents([6, 2], 2)
>>> items = shiplap.dispatch.cut_documents([6, 2], [2, 1])
>>> attention = shiplap.dispatch.assign_randomly(items, 2, seed=3)
>>> shiplap.dispatch.compute_qkv_dispatch(shiplap.dispatch.Routing(home, attention)).world_size
2)");
  m.def(
      "create_qkv_dispatch",
      [](int world_size, std::uint32_t total_seq_len, int num_seqs, int max_cp_degree,
         std::uint64_t seed) {
        return compute(
            std::make_shared<Routing>(dispatch::random_routing({.world_size = world_size,
                                                                .total_seq_len = total_seq_len,
                                                                .num_seqs = num_seqs,
                                                                .max_cp_degree = max_cp_degree,
                                                                .seed = seed})));
      },
      "world_size"_a = 1, "total_seq_len"_a = 1, "num_seqs"_a = 1, "max_cp_degree"_a = 1,
      "seed"_a = 0, Released(),
      "A random dispatch, for tests and tutorials: every rank has ``num_seqs`` documents that sum "
      "to "
      "``total_seq_len`` tokens; each is split into 1 to ``max_cp_degree`` items, each assigned to "
      "a "
      "random rank. It is not balanced.");
  // For benchmarks of the call overhead.
  m.def(
      "_compute_qkv_dispatch_often",
      [](const Routing& routing, int times) {
        std::size_t copies = 0;
        for (int k = 0; k < times; ++k) {
          copies += dispatch::compute_qkv_dispatch(routing).kv.forward.copies();
        }
        return copies;
      },
      "routing"_a, "times"_a, Released());
}

// ---- validate

template <class What>
auto checking(std::vector<Diagnostic> (*check)(const What&, const dispatch::ValidateOptions&)) {
  return [check](const What& what, const std::string& table, nb::object buffer_tokens,
                 nb::object kv_buffer_tokens, int max_per_code) {
    dispatch::ValidateOptions options{.table = table, .max_per_code = max_per_code};
    const auto read = [](nb::handle from, const char* name, std::vector<std::uint64_t>& to) {
      if (from.is_none()) return;
      const Integers<std::uint64_t> numbers(from, name);
      to.assign(numbers.values().begin(), numbers.values().end());
    };
    read(buffer_tokens, "buffer_tokens", options.buffer_tokens);
    read(kv_buffer_tokens, "kv_buffer_tokens", options.kv_buffer_tokens);
    const nb::gil_scoped_release released;
    return check(what, options);
  };
}

std::vector<Diagnostic> validate_whole(const Dispatch& d, const dispatch::ValidateOptions& how) {
  return dispatch::validate(d.dispatch, how);
}

void bind_validate(nb::module_& m) {
  const auto add = [&](const char* name, auto check, const char* type, const char* doc) {
    const std::string signature = fmt::format(
        "def {}(what: {}, *, table: str = 'metadata', buffer_tokens: Any = None, kv_buffer_tokens: "
        "Any = None, max_per_code: int = 4) -> list[Diagnostic]",
        name, type);
    m.def(name, checking(check), "what"_a, nb::kw_only(), "table"_a = "metadata",
          "buffer_tokens"_a = nb::none(), "kv_buffer_tokens"_a = nb::none(), "max_per_code"_a = 4,
          nb::sig(signature.c_str()), doc);
  };
  add("dispatch_validate", &validate_whole, "QkvDispatch",
      R"(Returns the diagnostics of a dispatch, a table, tensors or a routing; empty if it is sound.

>>> shiplap.dispatch.validate(shiplap.dispatch.create_qkv_dispatch(4, 64, 2, 2))
[])");
  using Check = std::vector<Diagnostic>(const Metadata&, const dispatch::ValidateOptions&);
  add("dispatch_validate", static_cast<Check*>(&dispatch::validate), "Metadata",
      "Validates one table.");
  m.def(
      "dispatch_validate", [](const Routing& r) { return dispatch::validate(r); }, "what"_a,
      Released());
  m.def(
      "dispatch_validate", [](const dispatch::DenseMetadata& d) { return dispatch::validate(d); },
      "what"_a, Released());
  m.def(
      "dispatch_validate", [](const dispatch::DispatchFile& f) { return dispatch::validate(f); },
      "what"_a, Released());
  m.def(
      "dispatch_validate",
      [](nb::object seq_lens, nb::object dst_rank) {
        return dispatch::validate(dispatch::SequenceDispatch{
            .seq_lens = integer_rows<std::uint32_t>(seq_lens, "seq_lens"),
            .dst_rank = integer_rows<std::int32_t>(dst_rank, "dst_rank")});
      },
      "seq_lens"_a, "dst_rank"_a,
      nb::sig("def dispatch_validate(seq_lens: Any, dst_rank: Any) -> list[Diagnostic]"));
  add("validate_queries", &dispatch::validate_queries, "MetadataPair",
      "Validates each table, and that the second is the inverse of the first.");
  add("validate_keys", &dispatch::validate_keys, "MetadataPair",
      "Validates each table, and that every copy is returned home once and summed there.");
}

// ---- files

void bind_files(nb::module_& m) {
  using dispatch::DispatchFile;
  nb::class_<DispatchFile>(m, "DispatchFile", "The contents of a file of tables.")
      .def_prop_ro(
          "tables",
          [](nb::handle self) {
            const auto& file = nb::cast<const DispatchFile&>(self);
            nb::dict tables;
            for (const dispatch::NamedTable& named : file.tables) {
              tables[named.name.c_str()] =
                  nb::cast(named.table, nb::rv_policy::reference_internal, self);
            }
            return tables;
          },
          nb::sig("def tables(self) -> dict[str, DenseMetadata]"))
      .def_prop_ro("attention", [](const DispatchFile& f) { return f.attention; })
      .def_ro("buffer_tokens", &DispatchFile::buffer_tokens)
      .def_ro("warnings", &DispatchFile::warnings)
      .def(
          "to_dispatch",
          [](const DispatchFile& f) {
            if (f.tables.size() != 4 || !f.attention) {
              throw InputError(Diagnostic{
                  .code = "D413", .what = "the file must have all four tables and the layout"});
            }
            const auto table = [&](std::size_t k) { return to_sparse(f.tables[k].table); };
            return Dispatch{.dispatch = {.q = {.forward = table(0), .reverse = table(1)},
                                         .kv = {.forward = table(2), .reverse = table(3)},
                                         .attention = *f.attention},
                            .routing = nullptr};
          },
          Released(), "Converts to a QkvDispatch. Raises InputError if a table is missing.")
      .def("__repr__", [](const DispatchFile& f) {
        std::string names;
        for (const auto& named : f.tables) names += (names.empty() ? "" : ", ") + named.name;
        return fmt::format("<DispatchFile: {}{}>", names, f.attention ? ", attention" : "");
      });
  m.def("read_dispatch", &dispatch::read_dispatch, "text"_a, "file"_a = "dispatch", Released(),
        R"(Reads tables from JSON; ``file`` is the name for error messages.

>>> dispatch = shiplap.dispatch.create_qkv_dispatch(2, 8, 2, 2)
>>> shiplap.dispatch.read_dispatch(dispatch.to_json()).to_dispatch() == dispatch
True)");
  m.def(
      "dispatch_lower",
      [](const Routing& routing, const Dispatch& made, std::int64_t q_row_bytes,
         std::int64_t kv_row_bytes) -> SharedPlan {
        plan::Plan plan = dispatch::lower(
            routing, made.dispatch, {.q_row_bytes = q_row_bytes, .kv_row_bytes = kv_row_bytes});
        return std::make_shared<NamedPlan>(
            std::move(plan), "dispatch on " + ranks_text(made.dispatch.world_size()), std::nullopt);
      },
      "routing"_a, "dispatch"_a, nb::kw_only(), "q_row_bytes"_a = 8, "kv_row_bytes"_a = 8,
      Released(), R"(Converts a dispatch to a plan, to be checked, simulated or run.

>>> dispatch = shiplap.dispatch.create_qkv_dispatch(2, 8, 2, 2)
>>> shiplap.check(shiplap.dispatch.lower(dispatch.routing, dispatch)).sound
True)");
}

}  // namespace

void bind_dispatch_whole(nb::module_& m) {
  bind_attention(m);
  bind_qkv(m);
  bind_compute(m);
  bind_validate(m);
  bind_files(m);
}

}  // namespace shiplap::python
