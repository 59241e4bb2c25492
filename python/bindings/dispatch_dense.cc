// Bindings of dispatch tables as padded tensors, in the shapes that kernels use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "arrays.h"
#include "dispatch.h"
#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/dispatch/dense.h"

namespace shiplap::python {
namespace {

using dispatch::DenseMetadata;
using dispatch::NormalizedMetadata;

std::size_t at(std::int64_t value) { return static_cast<std::size_t>(value); }

// Shapes of the fields, by name, in the order of the first description of this type.
struct Shapes {
  Shape copies;  // dst_rank, dst_offset, and the mask
  Shape rows;    // seq_len
  Shape counts;  // num_recv_tokens
  Shape by_rank;
};
template <class Dense>
Shapes shapes_of(const Dense& dense) {
  const std::size_t world = at(dense.world_size);
  Shapes shapes{.copies = {world, at(dense.max_seqs)},
                .rows = {world, at(dense.max_seqs)},
                .counts = {world, world + 1},
                .by_rank = {world}};
  if (dense.max_cp > 0) shapes.copies.push_back(at(dense.max_cp));
  return shapes;
}

template <class T>
Shape received_shape(const std::vector<T>& lengths, int world_size) {
  return {at(world_size), world_size == 0 ? 0 : lengths.size() / at(world_size)};
}

// Calls act(name, field, shape) for each field that is present.
template <class Dense, class Act>
void for_each_field(Dense& dense, const Act& act) {
  const Shapes shapes = shapes_of(dense);
  act("dst_rank", dense.dst_rank, shapes.copies);
  act("dst_offset", dense.dst_offset, shapes.copies);
  act("seq_len", dense.seq_len, shapes.rows);
  if (!dense.num_recv_tokens.empty()) {
    act("num_recv_tokens", dense.num_recv_tokens, shapes.counts);
  }
  if (dense.seq_recv_mask) act("seq_recv_mask", *dense.seq_recv_mask, shapes.copies);
  if (dense.recv_seq_lens) {
    act("recv_seq_lens", *dense.recv_seq_lens,
        received_shape(*dense.recv_seq_lens, dense.world_size));
  }
  if (dense.num_seqs) act("num_seqs", *dense.num_seqs, shapes.by_rank);
  if (dense.num_total_recv_tokens) {
    act("num_total_recv_tokens", *dense.num_total_recv_tokens, shapes.by_rank);
  }
}

template <class Dense>
nb::object hash_key(const Dense& dense) {
  nb::list key;
  key.append(dense.world_size);
  for_each_field(
      dense, [&]<class T>(const char* field, const std::vector<T>& values, const Shape& /*shape*/) {
        const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
        key.append(field);
        key.append(std::hash<std::string_view>{}(
            {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
      });
  return nb::tuple(key);
}

// One field as a read-only array, since C++ has validated it. None if it is absent.
template <class Dense>
nb::object field_of(nb::handle self, const char* wanted) {
  nb::object found = nb::none();
  for_each_field(nb::cast<const Dense&>(self),
                 [&]<class T>(const char* name, const std::vector<T>& values, const Shape& shape) {
                   if (std::string_view(name) != wanted) return;
                   found = array_view(std::span<const T>(values), shape, self);
                 });
  return found;
}

// ---- from Python

[[noreturn]] void throw_shape_mismatch(const char* field, const Shape& found,
                                       const Shape& expected) {
  throw InputError(
      Diagnostic{.code = "D401",
                 .where = {.operation = field},
                 .what = fmt::format("shape ({}), expected ({})", fmt::join(found, ", "),
                                     fmt::join(expected, ", "))});
}

std::vector<std::int64_t> numbers_of(nb::handle from, const char* field, const Shape& expected) {
  const Integers<std::int64_t> numbers(from, field);
  if (numbers.shape() != expected) throw_shape_mismatch(field, numbers.shape(), expected);
  return {numbers.values().begin(), numbers.values().end()};
}

struct Fields {
  nb::object num_recv_tokens;
  nb::object seq_recv_mask;
  nb::object recv_seq_lens;
  nb::object num_seqs;
  nb::object num_total_recv_tokens;
};

DenseMetadata dense_of(nb::handle dst_rank, nb::handle dst_offset, nb::handle seq_len,
                       const Fields& fields, const std::string& arrival) {
  const Integers<std::int64_t> ranks(dst_rank, "dst_rank");
  const Shape& shape = ranks.shape();
  if (shape.size() != 2 && shape.size() != 3) (void)ranks.with_dimensions(2);
  if (shape.size() == 3 && shape[2] == 0)
    throw_shape_mismatch("dst_rank", shape, {shape[0], shape[1], 1});
  DenseMetadata dense{.world_size = static_cast<int>(shape[0]),
                      .max_seqs = static_cast<std::int64_t>(shape[1]),
                      .max_cp = shape.size() == 3 ? static_cast<int>(shape[2]) : 0,
                      .arrival = parse_arrival(arrival),
                      .dst_rank = {ranks.values().begin(), ranks.values().end()}};
  const Shapes shapes = shapes_of(dense);
  dense.dst_offset = numbers_of(dst_offset, "dst_offset", shape);
  dense.seq_len = numbers_of(seq_len, "seq_len", shapes.rows);
  if (!fields.num_recv_tokens.is_none()) {
    dense.num_recv_tokens = numbers_of(fields.num_recv_tokens, "num_recv_tokens", shapes.counts);
  }
  if (!fields.seq_recv_mask.is_none()) {
    const Integers<std::uint8_t> mask(fields.seq_recv_mask, "seq_recv_mask");
    if (mask.shape() != shape) throw_shape_mismatch("seq_recv_mask", mask.shape(), shape);
    dense.seq_recv_mask.emplace(mask.values().begin(), mask.values().end());
  }
  if (!fields.recv_seq_lens.is_none()) {
    const Integers<std::int64_t> lengths(fields.recv_seq_lens, "recv_seq_lens");
    const Shape& found = lengths.with_dimensions(2).shape();
    if (found[0] != shape[0]) throw_shape_mismatch("recv_seq_lens", found, {shape[0], found[1]});
    dense.recv_seq_lens.emplace(lengths.values().begin(), lengths.values().end());
  }
  if (!fields.num_seqs.is_none()) {
    dense.num_seqs = numbers_of(fields.num_seqs, "num_seqs", shapes.by_rank);
  }
  if (!fields.num_total_recv_tokens.is_none()) {
    dense.num_total_recv_tokens =
        numbers_of(fields.num_total_recv_tokens, "num_total_recv_tokens", shapes.by_rank);
  }
  return dense;
}

// Tensors of torch may be on a GPU, or part of a graph.
nb::object on_host(nb::handle tensor) {
  if (!nb::hasattr(tensor, "detach")) return nb::borrow(tensor);
  return tensor.attr("detach")().attr("cpu")();
}

nb::object attribute_or_none(nb::handle from, const char* name) {
  return nb::hasattr(from, name) ? from.attr(name) : nb::none();
}

nb::object field_or_none(nb::handle from, const char* name) {
  return nb::hasattr(from, name) ? on_host(from.attr(name)) : nb::none();
}

bool has_tensors(nb::handle from) {
  return nb::hasattr(from, "dst_rank") && nb::hasattr(from, "dst_offset") &&
         nb::hasattr(from, "seq_len");
}

// The row with the largest offset on a rank.
struct LastRow {
  std::int64_t offset = 0;
  std::int64_t length = 0;
};

std::vector<LastRow> last_rows(const DenseMetadata& dense) {
  const std::size_t copies = dense.max_cp > 0 ? at(dense.max_cp) : 1;
  std::vector<LastRow> last(at(dense.world_size));
  for (std::size_t k = 0; k < dense.dst_rank.size(); ++k) {
    const std::int64_t to = dense.dst_rank[k];
    const std::int64_t length = dense.seq_len[k / copies];
    if (to < 0 || to >= dense.world_size || length <= 0) continue;
    if (dense.dst_offset[k] >= last[at(to)].offset) last[at(to)] = {dense.dst_offset[k], length};
  }
  return last;
}

// Returns w > 1 if on every rank offsets in units of 1/w tokens end exactly where the tokens that
// it receives end, which those of a table in bytes do; otherwise 1. A table in tokens may have
// gaps, but seldom such ones.
std::int64_t likely_row_bytes(const DenseMetadata& dense) {
  const std::size_t world = at(dense.world_size);
  const std::vector<LastRow> last = last_rows(dense);
  std::int64_t width = 0;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const std::int64_t received = dense.num_recv_tokens[rank * (world + 1) + world];
    if (received < last[rank].length) return 1;
    const std::int64_t before = received - last[rank].length;
    if (before == 0 && last[rank].offset == 0) continue;
    if (before == 0 || last[rank].offset % before != 0) return 1;
    if (width != 0 && width != last[rank].offset / before) return 1;
    width = last[rank].offset / before;
  }
  return std::max<std::int64_t>(width, 1);
}

void throw_if_in_bytes(const DenseMetadata& dense) {
  if (dense.num_recv_tokens.empty()) return;
  const std::int64_t width = likely_row_bytes(dense);
  if (width == 1) return;
  throw InputError(Diagnostic{
      .code = "D415",
      .where = {.operation = "dst_offset"},
      .what = fmt::format(
          "missing `offset_unit`: `dst_offset` seems to be in bytes, with {} per token", width),
      .why = "then the rows end where the tokens end that num_recv_tokens counts",
      .help = fmt::format("set offset_unit to \"bytes\" and row_bytes to {}, or offset_unit to "
                          "\"tokens\"",
                          width)});
}

[[noreturn]] void throw_wrong_unit(const std::string& what) {
  throw InputError(Diagnostic{
      .code = "D003",
      .where = {.operation = "dst_offset"},
      .what = what,
      .help = "offset_unit is \"tokens\", or \"bytes\" with row_bytes, the bytes of a token"});
}

void divide_offsets(DenseMetadata& dense, nb::handle row_bytes) {
  std::int64_t width = 0;
  if (!nb::try_cast(row_bytes, width) || width < 1) {
    throw_wrong_unit(fmt::format("offsets in bytes need row_bytes, found {}",
                                 nb::cast<std::string>(nb::repr(row_bytes))));
  }
  for (std::size_t k = 0; k < dense.dst_offset.size(); ++k) {
    if (dense.dst_rank[k] < 0) continue;  // padding
    std::int64_t& offset = dense.dst_offset[k];
    if (offset % width != 0) {
      throw_wrong_unit(fmt::format("offset {} is not a multiple of row_bytes ({})", offset, width));
    }
    offset /= width;
  }
}

void convert_offsets_to_tokens(DenseMetadata& dense, nb::handle from) {
  const nb::object unit = attribute_or_none(from, "offset_unit");
  if (unit.is_none()) {
    throw_if_in_bytes(dense);
    return;
  }
  const std::string word = nb::cast<std::string>(nb::str(unit));
  if (word == "bytes") {
    divide_offsets(dense, attribute_or_none(from, "row_bytes"));
  } else if (word != "tokens") {
    throw_wrong_unit(fmt::format("unknown offset_unit `{}`", word));
  }
}

// The tensors of another program's class, by the names of their fields. `arrival` is used if the
// class has no such field.
DenseMetadata dense_of_attributes(nb::handle from, dispatch::ArrivalMode arrival) {
  nb::object totals = field_or_none(from, "num_total_recv_tokens");
  if (nb::isinstance<nb::int_>(totals)) totals = nb::none();
  const nb::object given = attribute_or_none(from, "arrival");
  DenseMetadata dense = dense_of(
      on_host(from.attr("dst_rank")), on_host(from.attr("dst_offset")),
      on_host(from.attr("seq_len")),
      {.num_recv_tokens = field_or_none(from, "num_recv_tokens"),
       .seq_recv_mask = field_or_none(from, "seq_recv_mask"),
       .recv_seq_lens = field_or_none(from, "recv_seq_lens"),
       .num_seqs = field_or_none(from, "num_seqs"),
       .num_total_recv_tokens = totals},
      given.is_none() ? std::string(dispatch::name(arrival)) : nb::cast<std::string>(given));
  convert_offsets_to_tokens(dense, from);
  return dense;
}

bool has_rows_with_several_copies(const dispatch::Metadata& table) {
  for (int rank = 0; rank < table.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < table.num_seqs(rank); ++i) {
      const auto copies = table.row(rank, i).copies;
      if (std::ranges::count_if(copies, [](const auto& copy) { return copy.rank >= 0; }) > 1) {
        return true;
      }
    }
  }
  return false;
}

void throw_if_wrong(const DenseMetadata& dense) {
  if (std::vector<Diagnostic> found = dispatch::validate(dense); !found.empty()) {
    throw InputError(std::move(found));
  }
}
// Its values are those of a valid DenseMetadata, but the memory may have been written to since.
void throw_if_wrong(const NormalizedMetadata& normalized) {
  if (!normalized.num_seqs) return;
  for (const std::int64_t rows : *normalized.num_seqs) {
    if (rows >= 0 && rows <= normalized.max_seqs) continue;
    throw InputError(Diagnostic{.code = "D402",
                                .where = {.operation = "num_seqs"},
                                .what = fmt::format("num_seqs is out of range: {} of at most {}",
                                                    rows, normalized.max_seqs)});
  }
}

// ---- slices

// As shiplap.dispatch.MetadataSlice, whose arrays own their memory.
template <class Slice>
nb::object slice_object(Slice slice) {
  const auto array = [&]<class T>(std::vector<T>& values, bool by_copy) {
    Shape shape{values.size()};
    if (by_copy && slice.max_cp > 0) shape = {at(slice.num_seqs), at(slice.max_cp)};
    return array_of(std::move(values), shape);
  };
  const auto array_or_none = [&](auto& values, bool by_copy) {
    return values ? array(*values, by_copy) : nb::none();
  };
  return nb::module_::import_("shiplap._dispatch_values")
      .attr("MetadataSlice")(
          slice.rank, slice.world_size, slice.max_cp, dispatch::name(slice.arrival), slice.num_seqs,
          slice.num_total_recv_tokens, array(slice.dst_rank, true), array(slice.dst_offset, true),
          array(slice.seq_len, false), array(slice.num_recv_tokens, false),
          array_or_none(slice.seq_recv_mask, true), array_or_none(slice.recv_seq_lens, false));
}

// The fields of both formats.
template <class Dense>
void bind_fields(nb::class_<Dense>& type, const char* name) {
  type.def_ro("world_size", &Dense::world_size)
      .def_ro("max_seqs", &Dense::max_seqs)
      .def_ro("max_cp", &Dense::max_cp, "0: two dimensions.")
      .def_prop_ro("arrival", [](const Dense& d) { return dispatch::name(d.arrival); })
      .def_prop_ro("normalized", [](const Dense&) { return Dense::normalized; });
  const auto add = [&](const char* field, const char* signature) {
    type.def_prop_ro(
        field, [field](nb::handle self) { return field_of<Dense>(self, field); },
        nb::sig(signature));
  };
  add("dst_rank", "def dst_rank(self) -> Any");
  add("dst_offset", "def dst_offset(self) -> Any");
  add("seq_len", "def seq_len(self) -> Any");
  add("num_recv_tokens", "def num_recv_tokens(self) -> Any");
  add("seq_recv_mask", "def seq_recv_mask(self) -> Any");
  add("recv_seq_lens", "def recv_seq_lens(self) -> Any");
  add("num_seqs", "def num_seqs(self) -> Any");
  add("num_total_recv_tokens", "def num_total_recv_tokens(self) -> Any");
  type.def(
          "get_slice",
          [](const Dense& d, int rank) {
            throw_if_wrong(d);
            return slice_object(unlocked([&] { return d.get_slice(rank); }));
          },
          "rank"_a, nb::sig("def get_slice(self, rank: int) -> MetadataSlice"),
          "The rows of one rank, without padding.")
      .def(
          "to_dict",
          [](nb::handle self) {
            nb::dict dict;
            const auto& d = nb::cast<const Dense&>(self);
            dict["world_size"] = d.world_size;
            dict["arrival"] = std::string(dispatch::name(d.arrival));
            for_each_field(d, [&]<class T>(const char* field, const std::vector<T>& values,
                                           const Shape& shape) {
              const nb::object array = array_view(std::span<const T>(values), shape, self);
              const nb::object view = nb::module_::import_("builtins").attr("memoryview")(array);
              dict[field] = values.empty() ? nb::object(nb::list()) : view.attr("tolist")();
            });
            return dict;
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"))
      .def("__eq__", &equal<Dense>, nb::is_operator())
      .def("__hash__", [](const Dense& value) { return nb::hash(hash_key(value)); })
      .def("__repr__", [name](const Dense& d) {
        return fmt::format("<{}: {}, up to {} rows{}>", name, ranks_text(d.world_size), d.max_seqs,
                           d.max_cp > 0 ? fmt::format(", {} copies", d.max_cp) : "");
      });
}

// The tensors of a table as writable arrays, which own their memory.
nb::dict owned_arrays(nb::object metadata) {
  const SharedTable table = table_of(metadata);
  auto kept = std::make_unique<DenseMetadata>();
  {
    const LongCall released;
    *kept = dispatch::to_dense(*table);
  }
  DenseMetadata& dense = *kept;
  const nb::capsule owner(kept.get(), [](void* memory) noexcept {
    const std::unique_ptr<DenseMetadata> freed(static_cast<DenseMetadata*>(memory));
  });
  kept.release();  // NOLINT(bugprone-unused-return-value): the capsule has it
  nb::dict arrays;
  for_each_field(dense, [&]<class T>(const char* name, std::vector<T>& values, const Shape& shape) {
    arrays[name] = array_view(std::span<T>(values), shape, owner);
  });
  return arrays;
}

}  // namespace

SharedTable table_of(nb::handle from, const char* argument) {
  using dispatch::Metadata;
  if (nb::isinstance<Metadata>(from)) {
    return {std::shared_ptr<void>(), &nb::cast<const Metadata&>(from)};
  }
  if (nb::isinstance<DenseMetadata>(from)) {
    return std::make_shared<const Metadata>(nb::cast<const DenseMetadata&>(from));
  }
  if (nb::isinstance<NormalizedMetadata>(from)) {
    return std::make_shared<const Metadata>(nb::cast<const NormalizedMetadata&>(from));
  }
  if (nb::hasattr(from, "to_dispatch")) {
    const nb::object table = from.attr("to_dispatch")();
    if (nb::isinstance<Metadata>(table)) {
      return std::make_shared<const Metadata>(nb::cast<const Metadata&>(table));
    }
  }
  if (has_tensors(from)) {
    return std::make_shared<const Metadata>(
        dense_of_attributes(from, dispatch::ArrivalMode::placed));
  }
  throw_type_error(
      argument,
      fmt::format("expected a table, found {}",
                  nb::cast<std::string>(from.type().attr("__name__"))),
      "Metadata, DenseMetadata, NormalizedMetadata, shiplap.torch.Metadata, or an object "
      "with dst_rank, dst_offset and seq_len");
}

dispatch::MetadataPair pair_of(nb::handle from, const char* argument) {
  if (nb::isinstance<dispatch::MetadataPair>(from)) {
    return nb::cast<const dispatch::MetadataPair&>(from);
  }
  if (!nb::isinstance<nb::sequence>(from) || nb::len(from) != 2) {
    throw_type_error(argument,
                     fmt::format("expected two tables, found {}",
                                 nb::cast<std::string>(from.type().attr("__name__"))),
                     "a MetadataPair, or (forward, reverse)");
  }
  const nb::object forward = from[0];
  const nb::object reverse = from[1];
  return pair_of(forward, argument, reverse, argument);
}

dispatch::MetadataPair pair_of(nb::handle forward, const char* forward_argument, nb::handle reverse,
                               const char* reverse_argument) {
  dispatch::Metadata there = *table_of(forward, forward_argument);
  // Gradients of copies that were placed would overwrite each other.
  if (!nb::isinstance<dispatch::Metadata>(reverse) && has_tensors(reverse) &&
      attribute_or_none(reverse, "arrival").is_none() && !nb::hasattr(reverse, "to_dispatch") &&
      has_rows_with_several_copies(there)) {
    return {
        .forward = std::move(there),
        .reverse = dispatch::Metadata(dense_of_attributes(reverse, dispatch::ArrivalMode::summed))};
  }
  return {.forward = std::move(there), .reverse = *table_of(reverse, reverse_argument)};
}

void bind_dispatch_dense(nb::module_& m) {
  nb::class_<NormalizedMetadata> normalized(
      m, "NormalizedMetadata", "int32 ranks, uint32 offsets and lengths, uint64 counts.");
  bind_fields(normalized, "NormalizedMetadata");
  nb::class_<DenseMetadata> dense(m, "DenseMetadata",
                                  R"(A table as padded tensors, int64 throughout.

Padding has rank -1, offset 0 and length 0. Arrays are views of the object, without a copy.

>>> table = shiplap.dispatch.Metadata.from_rows([[(3, [(0, 0)]), (1, [(1, 0)])], [(2, [(1, 1)])]])
>>> table.to_dense().dst_rank.tolist()
[[0, 1], [1, -1]])");
  dense.def(
      "__init__",
      [](DenseMetadata* self, nb::object dst_rank, nb::object dst_offset, nb::object seq_len,
         nb::object num_recv_tokens, nb::object seq_recv_mask, nb::object recv_seq_lens,
         nb::object num_seqs, nb::object num_total_recv_tokens, const std::string& arrival) {
        new (self)
            DenseMetadata(dense_of(dst_rank, dst_offset, seq_len,
                                   {.num_recv_tokens = std::move(num_recv_tokens),
                                    .seq_recv_mask = std::move(seq_recv_mask),
                                    .recv_seq_lens = std::move(recv_seq_lens),
                                    .num_seqs = std::move(num_seqs),
                                    .num_total_recv_tokens = std::move(num_total_recv_tokens)},
                                   arrival));
      },
      "dst_rank"_a, "dst_offset"_a, "seq_len"_a, "num_recv_tokens"_a = nb::none(),
      "seq_recv_mask"_a = nb::none(), "recv_seq_lens"_a = nb::none(), "num_seqs"_a = nb::none(),
      "num_total_recv_tokens"_a = nb::none(), nb::kw_only(), "arrival"_a = "placed");
  bind_fields(dense, "DenseMetadata");
  dense
      .def(
          "normalize_dtype", [](const DenseMetadata& d) { return dispatch::normalize_dtype(d); },
          Released(),
          "Converts to int32 ranks, uint32 offsets and lengths, uint64 counts. Raises InputError "
          "if "
          "a value does not fit.")
      .def(
          "to_sparse", [](const DenseMetadata& d) { return dispatch::to_sparse(d); }, Released(),
          "Converts to a table.");
  m.def("_dense_arrays", &owned_arrays, "metadata"_a,
        nb::sig("def _dense_arrays(metadata: Any) -> dict[str, Any]"));
}

}  // namespace shiplap::python
