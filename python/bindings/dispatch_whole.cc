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
#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/dispatch/json.h"
#include "shiplap/dispatch/key_mapping.h"
#include "shiplap/dispatch/lower.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/report/dispatch.h"
#include "shiplap/report/html.h"
#include "shiplap/run/agreement.h"

namespace shiplap::python {
namespace {

using dispatch::AttentionLayout;
using dispatch::MetadataPair;
using dispatch::Routing;
using SharedRouting = std::shared_ptr<const Routing>;

// The default sizes of `shiplap dispatch` in bf16: 8 heads, 2 KV heads, head dimension 64.
constexpr std::int64_t kQRowBytes = 1024;
constexpr std::int64_t kKvRowBytes = 512;

// The options of a dispatch. REQUIRES: `mask` outlives the call.
dispatch::DispatchOptions options_of(const std::string& mask, bool shares_keys) {
  return {.mask = dispatch::parse_mask(mask), .shares_keys = shares_keys};
}

Dispatch compute(const SharedRouting& routing, const std::string& mask, bool shares_keys) {
  return {.dispatch = dispatch::compute_qkv_dispatch(*routing, options_of(mask, shares_keys)),
          .routing = routing};
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
  report::DispatchView view = view_of(d);
  view.limits = report::kNotebookDispatch;
  return to_fragment(dispatch_page(view));
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

AttentionLayout layout_of(nb::handle by_rank, const std::string& mask, bool shares_keys) {
  std::vector<std::vector<AttentionLayout::Item>> all;
  for (const nb::handle rank : nb::borrow<nb::object>(by_rank)) {
    std::vector<AttentionLayout::Item>& own = all.emplace_back();
    for (const nb::handle item : nb::borrow<nb::object>(rank)) {
      const auto numbers = nb::cast<std::vector<std::uint32_t>>(item);
      if (numbers.size() != (shares_keys ? 3 : 2)) {
        throw_argument_error("by_rank", fmt::format("an item of {} numbers", numbers.size()),
                             shares_keys
                                 ? "give (queries, keys, begin of the keys), as keys are shared"
                                 : "give (queries, keys)");
      }
      own.push_back({.q_length = numbers[0],
                     .kv_length = numbers[1],
                     .kv_begin = shares_keys ? numbers[2] : 0});
    }
  }
  return AttentionLayout(all, options_of(mask, shares_keys));
}

// One number of the keys of each item of a rank.
template <class Number>
auto of_keys(const Number& number) {
  return [number](const AttentionLayout& layout, int rank) {
    check_rank(rank, layout.world_size());
    std::vector<std::uint32_t> numbers;
    for (int i = 0; i < layout.num_local_seqs(rank); ++i) {
      numbers.push_back(static_cast<std::uint32_t>(number(layout.keys(rank, i))));
    }
    const std::size_t count = numbers.size();
    return array_of(std::move(numbers), {count});
  };
}

nb::object hash_key(const AttentionLayout& layout) {
  return nb::make_tuple(layout.world_size(), layout.bytes().count, to_string(layout.mask()),
                        layout.shares_keys());
}

void bind_attention(nb::module_& m) {
  nb::class_<AttentionLayout>(m, "AttentionLayout",
                              R"(The sequence lengths for the attention kernel of each rank.

>>> layout = shiplap.dispatch.AttentionLayout([[(3, 3), (2, 2)], [(3, 6)]])
>>> layout.cu_seqlens_q(0).tolist(), layout.max_seqlen_kv(1)
([0, 3, 5], 6))")
      .def(
          "__init__",
          [](AttentionLayout* self, nb::object by_rank, const std::string& mask, bool shares_keys) {
            new (self) AttentionLayout(layout_of(by_rank, mask, shares_keys));
          },
          "by_rank"_a, nb::kw_only(), "mask"_a = "causal", "shares_keys"_a = false,
          "The items of each rank: the numbers of queries and keys, and if keys are shared, where "
          "they begin.")
      .def_prop_ro(
          "mask", [](const AttentionLayout& l) { return to_string(l.mask()); },
          "``causal``, ``window:N``, ``prefix:N`` or ``full``.")
      .def_prop_ro("shares_keys", &AttentionLayout::shares_keys,
                   "Whether items of one document share their keys.")
      .def("num_kv_tokens", of_rank(&AttentionLayout::num_kv_tokens), "rank"_a,
           "The length of the buffer of keys.")
      .def("kv_begin", of_keys([](const dispatch::KeyRange& keys) { return keys.begin; }), "rank"_a,
           nb::sig("def kv_begin(self, rank: int) -> Any"),
           "Where the keys of each item begin in the buffer of the rank; uint32.")
      .def("kv_length", of_keys([](const dispatch::KeyRange& keys) { return keys.length(); }),
           "rank"_a, nb::sig("def kv_length(self, rank: int) -> Any"),
           "The number of keys of each item; uint32.")
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
          "rank"_a, nb::sig("def cu_seqlens_kv(self, rank: int) -> Any"),
          "The same for the keys. Raises InputError if items share them: use ``kv_begin`` and "
          "``kv_length``.")
      .def("max_seqlen_q", of_rank(&AttentionLayout::max_seqlen_q), "rank"_a)
      .def("max_seqlen_kv", of_rank(&AttentionLayout::max_seqlen_kv), "rank"_a)
      .def_prop_ro("bytes", [](const AttentionLayout& l) { return l.bytes().count; })
      .def("__eq__", &equal<AttentionLayout>, nb::is_operator())
      .def("__hash__", [](const AttentionLayout& value) { return nb::hash(hash_key(value)); })
      .def("__repr__", [](const AttentionLayout& l) {
        int items = 0;
        for (int rank = 0; rank < l.world_size(); ++rank) items += l.num_local_seqs(rank);
        return fmt::format("<AttentionLayout: {}, {} items>", ranks_text(l.world_size()), items);
      });
  m.def(
      "attention_pairs",
      [](const AttentionLayout& layout, int rank) {
        check_rank(rank, layout.world_size());
        return dispatch::attention_pairs(layout, rank);
      },
      "layout"_a, "rank"_a,
      "The attention work of a rank: the number of (query, key) pairs under the mask.");
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
          [](Dispatch* self, nb::object q, nb::object kv, const AttentionLayout& attention,
             SharedRouting routing) {
            new (self) Dispatch{
                .dispatch = {.q = pair_of(q, "q"), .kv = pair_of(kv, "kv"), .attention = attention},
                .routing = std::move(routing)};
          },
          "q"_a, "kv"_a, "attention"_a, "routing"_a = nb::none(),
          "Each of ``q`` and ``kv`` is a MetadataPair, or two tables in any form. Only with its "
          "routing it can be drawn.")
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
          "to_dict",
          [](const Dispatch& d) {
            return to_python(unlocked([&] { return dispatch::to_json(d.dispatch); }));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.dispatch/1``.")
      .def(
          "to_json",
          [](const Dispatch& d, std::int64_t q_row_bytes, std::int64_t kv_row_bytes) {
            if (q_row_bytes < 0) throw_negative("q_row_bytes");
            if (kv_row_bytes < 0) throw_negative("kv_row_bytes");
            const bool sized = q_row_bytes > 0;
            if (sized != (kv_row_bytes > 0)) {
              throw_argument_error("q_row_bytes",
                                   "`q_row_bytes` and `kv_row_bytes` are given "
                                   "together");
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
      .def(
          "__eq__", [](const Dispatch& a, const Dispatch& b) { return a.dispatch == b.dispatch; },
          nb::is_operator())
      .def("__hash__",
           [](const Dispatch& d) {
             return nb::hash(nb::make_tuple(python::hash_key(d.dispatch.q),
                                            python::hash_key(d.dispatch.kv),
                                            hash_key(d.dispatch.attention)));
           })
      .def("__str__", &shown)
      .def("__repr__", &describe)
      .def("_repr_html_", &picture);
}

bool is_list(nb::handle from) {
  return nb::isinstance<nb::list>(from) || nb::isinstance<nb::tuple>(from);
}

std::size_t dimensions_of(nb::handle from, const char* argument) {
  if (nb::isinstance<nb::int_>(from)) return 0;
  if (!is_list(from)) return any_array(from, argument).ndim();
  for (const nb::handle one : nb::borrow<nb::object>(from)) {
    if (is_list(one) && nb::len(one) == 0) continue;
    return 1 + dimensions_of(one, argument);
  }
  return 1;
}

// By rank and sequence: one destination per copy.
std::vector<std::vector<std::vector<std::int32_t>>> copies_of(nb::handle from,
                                                              const char* argument) {
  std::vector<std::vector<std::vector<std::int32_t>>> copies;
  if (is_list(from)) {
    for (const nb::handle rank : nb::borrow<nb::object>(from)) {
      copies.push_back(integer_rows<std::int32_t>(rank, argument));
    }
    return copies;
  }
  const Integers<std::int32_t> all(from, argument);
  const Shape& shape = all.with_dimensions(3).shape();
  const std::int32_t* next = all.values().data();
  copies.resize(shape[0]);
  for (auto& rank : copies) {
    for (std::size_t s = 0; s < shape[1]; ++s, next += shape[2]) {
      rank.emplace_back(next, next + shape[2]);
    }
  }
  return copies;
}

// Sequences of either form: dst_rank has two dimensions, or three with copies.
template <class Act>
auto with_sequences(nb::handle seq_lens, nb::handle dst_rank, const Act& act) {
  auto lengths = integer_rows<std::uint32_t>(seq_lens, "seq_lens");
  if (dimensions_of(dst_rank, "dst_rank") < 3) {
    return act(
        dispatch::SequenceDispatch{.seq_lens = std::move(lengths),
                                   .dst_rank = integer_rows<std::int32_t>(dst_rank, "dst_rank")});
  }
  return act(dispatch::CopyDispatch{.seq_lens = std::move(lengths),
                                    .dst_rank = copies_of(dst_rank, "dst_rank")});
}

dispatch::KeyMapping mapping_of(nb::handle kv_to_q_mapping, nb::handle kv_context_size,
                                nb::handle seq_lens, nb::handle dst_rank) {
  dispatch::KeyMapping mapping{
      .queries = {.seq_lens = integer_rows<std::uint32_t>(seq_lens, "seq_lens"),
                  .dst_rank = integer_rows<std::int32_t>(dst_rank, "dst_rank")},
      .kv_context_size = integer_rows<std::uint32_t>(kv_context_size, "kv_context_size")};
  const Integers<int> numbers(kv_to_q_mapping, "kv_to_q_mapping");
  const Shape& shape = numbers.with_dimensions(4).shape();
  if (shape[3] != 2) {
    throw InputError(Diagnostic{.code = "D401",
                                .where = {.operation = "kv_to_q_mapping"},
                                .what = fmt::format("the last dimension is {}", shape[3]),
                                .help = "it is 2: the rank and the sequence of the queries"});
  }
  const int* next = numbers.values().data();
  mapping.kv_to_q_mapping.resize(shape[0]);
  for (auto& rank : mapping.kv_to_q_mapping) {
    rank.resize(shape[1]);
    for (auto& queries : rank) {
      queries.resize(shape[2]);
      for (dispatch::KeyMapping::Shard& query : queries) {
        query = {.rank = next[0], .seq = next[1]};
        next += 2;
      }
    }
  }
  return mapping;
}

void bind_compute(nb::module_& m) {
  m.def("compute_metadata", nb::overload_cast<const Routing&>(&dispatch::compute_metadata),
        "routing"_a, Released());
  m.def(
      "compute_metadata",
      [](nb::object seq_lens, nb::object dst_rank) {
        return with_sequences(seq_lens, dst_rank, [](const auto& sequences) {
          const LongCall released;
          return dispatch::compute_metadata(sequences);
        });
      },
      "seq_lens"_a, "dst_rank"_a);
  m.def(
      "compute_metadata_kv",
      [](const Routing& routing, const std::string& mask, bool shares_keys) {
        return dispatch::compute_metadata_kv(routing, options_of(mask, shares_keys));
      },
      "routing"_a, nb::kw_only(), "mask"_a = "causal", "shares_keys"_a = false, Released());
  m.def(
      "compute_metadata_kv",
      [](nb::object kv_to_q_mapping, nb::object kv_context_size, nb::object seq_lens,
         nb::object dst_rank) {
        const auto mapping = mapping_of(kv_to_q_mapping, kv_context_size, seq_lens, dst_rank);
        const LongCall released;
        return dispatch::compute_metadata_kv(mapping);
      },
      "kv_to_q_mapping"_a, "kv_context_size"_a, "seq_lens"_a, "dst_rank"_a);
  m.def(
      "compute_attention_layout",
      [](const Routing& routing, const std::string& mask, bool shares_keys) {
        return dispatch::compute_attention_layout(routing, options_of(mask, shares_keys));
      },
      "routing"_a, nb::kw_only(), "mask"_a = "causal", "shares_keys"_a = false, Released(),
      "Computes the sequence lengths for the attention kernels.");
  m.def(
      "compute_attention_layout",
      [](nb::object kv_to_q_mapping, nb::object kv_context_size, nb::object seq_lens,
         nb::object dst_rank, const std::string& mask) {
        const auto mapping = mapping_of(kv_to_q_mapping, kv_context_size, seq_lens, dst_rank);
        const LongCall released;
        return dispatch::compute_attention_layout(mapping, dispatch::parse_mask(mask));
      },
      "kv_to_q_mapping"_a, "kv_context_size"_a, "seq_lens"_a, "dst_rank"_a, nb::kw_only(),
      "mask"_a = "causal");
  m.def("compute_qkv_dispatch", &compute, "routing"_a, nb::kw_only(), "mask"_a = "causal",
        "shares_keys"_a = false, Released(),
        R"(Computes all tables from the home and the attention layout.

``mask`` says which keys a query attends to: ``causal``, ``window:N`` (its own and the N - 1 before
it), ``prefix:N`` (the first N of the document, and those that causal has) or ``full``. If
``shares_keys``, items of one document on one rank share their keys: they are sent and held once.

>>> home = shiplap.dispatch.pack_documents([6, 2], 2)
>>> items = shiplap.dispatch.cut_documents([6, 2], [2, 1])
>>> attention = shiplap.dispatch.assign_randomly(items, 2, seed=3)
>>> shiplap.dispatch.compute_qkv_dispatch(shiplap.dispatch.Routing(home, attention)).world_size
2)");
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

// A function of an Argument that converts it, while the GIL is held, and checks it.
template <class Argument, class Convert, class Check>
auto checking(Convert convert, Check check) {
  return [convert, check](Argument what, const std::string& table, nb::object buffer_tokens,
                          nb::object kv_buffer_tokens, int max_per_code) {
    dispatch::ValidateOptions options{.table = table, .max_per_code = max_per_code};
    const auto read = [](nb::handle from, const char* name, std::vector<std::uint64_t>& to) {
      if (from.is_none()) return;
      const Integers<std::uint64_t> numbers(from, name);
      to.assign(numbers.values().begin(), numbers.values().end());
    };
    read(buffer_tokens, "buffer_tokens", options.buffer_tokens);
    read(kv_buffer_tokens, "kv_buffer_tokens", options.kv_buffer_tokens);
    const auto& value = convert(what);
    const LongCall released;
    return check(value, options);
  };
}

void bind_validate(nb::module_& m) {
  const auto add = [&](const char* name, auto check, const char* doc) {
    m.def(name, std::move(check), "what"_a, nb::kw_only(), "table"_a = "metadata",
          "buffer_tokens"_a = nb::none(), "kv_buffer_tokens"_a = nb::none(), "max_per_code"_a = 4,
          doc);
  };
  add("dispatch_validate",
      checking<const Dispatch&>(
          [](const Dispatch& d) -> const dispatch::QkvDispatch& { return d.dispatch; },
          [](const auto& d, const auto& options) { return dispatch::validate(d, options); }),
      R"(Returns the diagnostics of a dispatch, a table, tensors or a routing; empty if it is sound.

>>> shiplap.dispatch.validate(shiplap.dispatch.create_qkv_dispatch(4, 64, 2, 2))
[])");
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
        return with_sequences(seq_lens, dst_rank,
                              [](const auto& sequences) { return dispatch::validate(sequences); });
      },
      "seq_lens"_a, "dst_rank"_a);
  // Last, because it accepts any object.
  add("dispatch_validate",
      checking<nb::object>(
          [](nb::handle what) { return table_of(what, "what"); },
          [](const auto& t, const auto& options) { return dispatch::validate(*t, options); }),
      "Validates one table.");
  const auto to_pair = [](nb::handle what) { return pair_of(what, "what"); };
  add("validate_queries", checking<nb::object>(to_pair, &dispatch::validate_queries),
      "Validates each table, and that the second is the inverse of the first.");
  add("validate_keys", checking<nb::object>(to_pair, &dispatch::validate_keys),
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
