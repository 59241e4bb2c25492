#include "shiplap/dispatch/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/base/suggest.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

constexpr std::array<const char*, 4> kTables{"q_forward", "q_reverse", "kv_forward", "kv_reverse"};
// Elements of one table; a number takes 40 bytes as a JSON value.
constexpr std::int64_t kMaxJsonElements = std::int64_t{1} << 24;
constexpr std::string_view kSchema = "shiplap.dispatch/1";

// ---- writing

// A tensor as nested arrays.
template <class T>
Json nested(std::span<const T> values, std::span<const std::size_t> shape) {
  Json::Array items;
  if (shape.size() == 1) {
    for (const T value : values) items.emplace_back(static_cast<std::int64_t>(value));
    return items;
  }
  const std::size_t width = shape[0] == 0 ? 0 : values.size() / shape[0];
  for (std::size_t i = 0; i < shape[0]; ++i) {
    items.push_back(nested(values.subspan(i * width, width), shape.subspan(1)));
  }
  return items;
}

template <class T>
Json tensor(const std::vector<T>& values, std::vector<std::size_t> shape) {
  return nested(std::span<const T>(values), std::span<const std::size_t>(shape));
}

Json fields_of(const Metadata& metadata) {
  const DenseMetadata dense = to_dense(metadata, kMaxJsonElements);
  const std::size_t world = at(dense.world_size);
  const std::size_t seqs = at(dense.max_seqs);
  std::vector<std::size_t> copies{world, seqs};
  if (dense.max_cp > 0) copies.push_back(at(dense.max_cp));
  Json json = Json::object({{"world_size", dense.world_size}, {"arrival", name(dense.arrival)}});
  json.set("dst_rank", tensor(dense.dst_rank, copies));
  json.set("dst_offset", tensor(dense.dst_offset, copies));
  json.set("seq_len", tensor(dense.seq_len, {world, seqs}));
  json.set("num_recv_tokens", tensor(dense.num_recv_tokens, {world, world + 1}));
  if (dense.seq_recv_mask) json.set("seq_recv_mask", tensor(*dense.seq_recv_mask, copies));
  const auto lengths = dense.recv_seq_lens.value_or(std::vector<std::int64_t>());
  json.set("recv_seq_lens", tensor(lengths, {world, world == 0 ? 0 : lengths.size() / world}));
  json.set("num_seqs", tensor(dense.num_seqs.value_or(std::vector<std::int64_t>()), {world}));
  json.set("num_total_recv_tokens",
           tensor(dense.num_total_recv_tokens.value_or(std::vector<std::int64_t>()), {world}));
  return json;
}

// One array per rank: of(rank) gives its numbers.
template <class Of>
Json numbers_by_rank(const AttentionLayout& layout, const Of& of) {
  Json::Array ranks;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    Json::Array numbers;
    for (const auto number : of(rank)) numbers.emplace_back(static_cast<std::int64_t>(number));
    ranks.emplace_back(std::move(numbers));
  }
  return ranks;
}

Json attention_json(const AttentionLayout& layout) {
  Json json = Json::object();
  if (!layout.mask().is_causal()) json.set("mask", to_string(layout.mask()));
  json.set("cu_seqlens_q",
           numbers_by_rank(layout, [&](int rank) { return layout.cu_seqlens_q(rank); }));
  if (!layout.shares_keys()) {
    return json.set("cu_seqlens_kv",
                    numbers_by_rank(layout, [&](int rank) { return layout.cu_seqlens_kv(rank); }));
  }
  const auto keys = [&](const auto& number) {
    return numbers_by_rank(layout, [&](int rank) {
      std::vector<std::uint64_t> numbers;
      for (int i = 0; i < layout.num_local_seqs(rank); ++i) {
        numbers.push_back(number(layout.keys(rank, i)));
      }
      return numbers;
    });
  };
  json.set("kv_begin", keys([](const KeyRange& range) { return range.begin; }));
  return json.set("kv_length", keys([](const KeyRange& range) { return range.length(); }));
}

// ---- reading

// A JSON value and its name, for diagnostics.
struct NamedJson {
  const Json& json;
  std::string name;
  std::string_view file;
};

[[noreturn]] void throw_invalid_field(const NamedJson& value, std::string_view code,
                                      std::string what, std::string help = "") {
  throw InputError(Diagnostic{.code = std::string(code),
                              .where = {.file = std::string(value.file), .operation = value.name},
                              .what = std::move(what),
                              .help = std::move(help)});
}

// The shape and the flattened values of nested arrays.
class Tensor {
 public:
  explicit Tensor(const NamedJson& named, std::size_t dimensions) : named_(named) {
    shape_.resize(dimensions);
    add(named.json, 0);
  }
  [[nodiscard]] const std::vector<std::size_t>& shape() const { return shape_; }
  [[nodiscard]] std::vector<std::int64_t> take() { return std::move(values_); }

 private:
  void add(const Json& json, std::size_t depth) {
    if (depth == shape_.size()) {
      if (json.is_bool()) {
        values_.push_back(json.as_bool() ? 1 : 0);
      } else if (json.is_integer()) {
        values_.push_back(json.as_integer());
      } else {
        throw_invalid_field(named_, "D413",
                            fmt::format("expected an integer, found {}", json.type_name()));
      }
      return;
    }
    if (!json.is_array()) {
      throw_invalid_field(named_, "D413",
                          fmt::format("expected {} nested arrays, found {}", shape_.size() - depth,
                                      json.type_name()));
    }
    const std::size_t size = json.as_array().size();
    if (!seen_[depth]) {
      seen_[depth] = true;
      shape_[depth] = size;
    } else if (shape_[depth] != size) {
      throw_invalid_field(
          named_, "D401",
          fmt::format("ragged array: a row of {} entries among rows of {}", size, shape_[depth]),
          "pad rows with -1 (ranks) or 0");
    }
    for (const Json& item : json.as_array()) add(item, depth + 1);
  }

  const NamedJson& named_;
  std::vector<std::size_t> shape_;
  std::array<bool, 3> seen_{};
  std::vector<std::int64_t> values_;
};

std::size_t dimensions_of(const Json& json) {
  if (!json.is_array()) return 0;
  return json.as_array().empty() ? 1 : 1 + dimensions_of(json.as_array().front());
}

// The known fields of a table, and of a file.
const std::vector<std::string>& table_fields() {
  static const std::vector<std::string> fields{
      "dst_rank",      "dst_offset", "seq_len",    "num_recv_tokens",       "seq_recv_mask",
      "recv_seq_lens", "num_seqs",   "world_size", "num_total_recv_tokens", "normalized",
      "arrival"};
  return fields;
}
const std::vector<std::string>& file_fields() {
  static const std::vector<std::string> fields{"schema",        "offset_unit", "row_bytes",
                                               "buffer_tokens", "q_row_bytes", "kv_row_bytes"};
  return fields;
}
std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void check_fields(const NamedJson& table, const std::vector<std::string>& known) {
  if (!table.json.is_object()) {
    throw_invalid_field(table, "D413",
                        fmt::format("expected an object, found {}", table.json.type_name()));
  }
  for (const auto& [key, ignored] : table.json.as_object()) {
    if (std::ranges::find(known, key) == known.end()) {
      throw_invalid_field(table, "D413", fmt::format("unknown field `{}`", key),
                          suggest(key, known));
    }
  }
}

class TableReader {
 public:
  TableReader(const NamedJson& table, const std::vector<std::string>& known) : table_(table) {
    check_fields(table, known);
  }

  DenseMetadata read(const std::function<std::int64_t(std::int64_t)>& to_tokens) {
    const Json& ranks = required("dst_rank");
    const std::size_t dimensions = dimensions_of(ranks) == 3 ? 3 : 2;
    std::vector<std::size_t> shape;
    dense_.dst_rank = numbers("dst_rank", dimensions, &shape);
    dense_.world_size = static_cast<int>(shape[0]);
    dense_.max_seqs = static_cast<std::int64_t>(shape[1]);
    dense_.max_cp = dimensions == 3 ? static_cast<int>(shape[2]) : 0;
    dense_.dst_offset = numbers("dst_offset", dimensions);
    for (std::size_t k = 0; k < dense_.dst_offset.size(); ++k) {
      const bool goes = k < dense_.dst_rank.size() && dense_.dst_rank[k] >= 0;
      if (goes) dense_.dst_offset[k] = to_tokens(dense_.dst_offset[k]);
    }
    dense_.seq_len = numbers("seq_len", 2);
    optional_fields(dimensions);
    check_world_size();
    return std::move(dense_);
  }

 private:
  [[nodiscard]] NamedJson field(const std::string& key, const Json& json) const {
    return {.json = json, .name = table_.name + " " + key, .file = table_.file};
  }
  const Json& required(const std::string& key) const {
    const Json* const found = table_.json.find(key);
    if (found == nullptr) throw_invalid_field(table_, "D413", fmt::format("`{}` is missing", key));
    return *found;
  }
  std::vector<std::int64_t> numbers(const std::string& key, std::size_t dimensions,
                                    std::vector<std::size_t>* shape = nullptr) const {
    const NamedJson named = field(key, required(key));
    Tensor tensor(named, dimensions);
    if (shape != nullptr) *shape = tensor.shape();
    return tensor.take();
  }
  [[nodiscard]] bool has(const char* key) const {
    const Json* const found = table_.json.find(key);
    return found != nullptr && !found->is_null();
  }

  void optional_fields(std::size_t dimensions) {
    if (has("num_recv_tokens")) dense_.num_recv_tokens = numbers("num_recv_tokens", 2);
    if (has("recv_seq_lens")) dense_.recv_seq_lens = numbers("recv_seq_lens", 2);
    if (has("num_seqs")) dense_.num_seqs = numbers("num_seqs", 1);
    if (has("num_total_recv_tokens")) {
      dense_.num_total_recv_tokens = numbers("num_total_recv_tokens", 1);
    }
    if (has("seq_recv_mask")) {
      dense_.seq_recv_mask.emplace();
      for (const std::int64_t active : numbers("seq_recv_mask", dimensions)) {
        if (active != 0 && active != 1) {
          throw_invalid_field(field("seq_recv_mask", required("seq_recv_mask")), "D413",
                              fmt::format("expected 0 or 1, found {}", active));
        }
        dense_.seq_recv_mask->push_back(static_cast<std::uint8_t>(active));
      }
    }
    if (has("normalized") && !required("normalized").is_bool()) {
      throw_invalid_field(field("normalized", required("normalized")), "D413",
                          "expected true or false");
    }
    if (has("arrival")) {
      const Json& arrival = required("arrival");
      const bool summed = arrival == Json(name(ArrivalMode::summed));
      if (!summed && arrival != Json(name(ArrivalMode::placed))) {
        throw_invalid_field(field("arrival", arrival), "D413", "expected `placed` or `summed`");
      }
      dense_.arrival = summed ? ArrivalMode::summed : ArrivalMode::placed;
    }
  }

  void check_world_size() const {
    if (!has("world_size")) return;
    const Json& stated = required("world_size");
    if (stated.is_integer() && stated.as_integer() == dense_.world_size) return;
    throw_invalid_field(
        field("world_size", stated), "D401",
        fmt::format("world_size mismatch: dst_rank has {} rows", dense_.world_size));
  }

  const NamedJson& table_;
  DenseMetadata dense_;
};

// Returns the conversion of file offsets to tokens.
std::function<std::int64_t(std::int64_t)> unit_of(const NamedJson& file,
                                                  std::vector<Diagnostic>& warnings) {
  const auto tokens = [](std::int64_t offset) { return offset; };
  const Json* const unit = file.json.find("offset_unit");
  if (unit == nullptr) {
    warnings.push_back({.code = "D415",
                        .severity = Severity::warning,
                        .where = {.file = std::string(file.file)},
                        .what = "missing `offset_unit`: `dst_offset` is assumed to be in "
                                "tokens",
                        .help = "add \"offset_unit\": \"tokens\", or \"bytes\" and \"row_bytes\""});
    return tokens;
  }
  if (*unit == Json("tokens")) return tokens;
  if (*unit != Json("bytes")) {
    throw_invalid_field(file, "D413", "offset_unit must be `tokens` or `bytes`");
  }
  const Json* const row_bytes = file.json.find("row_bytes");
  if (row_bytes == nullptr || !row_bytes->is_integer() || row_bytes->as_integer() < 1) {
    throw_invalid_field(file, "D413", "offsets in bytes need `row_bytes`, the bytes of one token");
  }
  return [file, width = row_bytes->as_integer()](std::int64_t offset) {
    if (offset % width != 0) {
      throw_invalid_field(
          file, "D404",
          fmt::format("offset {} is not a multiple of row_bytes ({})", offset, width));
    }
    return offset / width;
  };
}

// The bytes of a token, if the file has them.
std::optional<TokenBytes> token_bytes_of(const NamedJson& file) {
  constexpr std::int64_t kMaxTokenBytes = std::int64_t{1} << 30;
  if (file.json.find("q_row_bytes") == nullptr && file.json.find("kv_row_bytes") == nullptr) {
    return std::nullopt;
  }
  const auto bytes = [&](const char* field) {
    const Json* const found = file.json.find(field);
    const bool fits = found != nullptr && found->is_integer() && found->as_integer() >= 1 &&
                      found->as_integer() <= kMaxTokenBytes;
    if (!fits) {
      throw_invalid_field(
          file, "D413",
          fmt::format("`{}` must be the bytes of a token, 1 to {}", field, kMaxTokenBytes),
          "give both `q_row_bytes` and `kv_row_bytes`, or neither");
    }
    return found->as_integer();
  };
  return TokenBytes{.q = bytes("q_row_bytes"), .kv = bytes("kv_row_bytes")};
}

std::vector<std::vector<std::int64_t>> ragged(const NamedJson& named) {
  if (!named.json.is_array()) throw_invalid_field(named, "D413", "expected an array of arrays");
  std::vector<std::vector<std::int64_t>> rows;
  for (const Json& row : named.json.as_array()) {
    const NamedJson one{.json = row, .name = named.name, .file = named.file};
    rows.push_back(Tensor(one, 1).take());
  }
  return rows;
}

class AttentionReader {
 public:
  explicit AttentionReader(const NamedJson& named) : named_(named) {
    check_fields(named, {"mask", "cu_seqlens_q", "cu_seqlens_kv", "kv_begin", "kv_length"});
  }

  AttentionLayout read() {
    DispatchOptions options{.mask = mask(), .shares_keys = named_.json.find("kv_begin") != nullptr};
    const Ragged q = numbers("cu_seqlens_q");
    for (std::size_t rank = 0; rank < q.size(); ++rank) check_cumulative(q[rank], rank);
    std::vector<std::vector<AttentionLayout::Item>> by_rank(q.size());
    for (std::size_t rank = 0; rank < q.size(); ++rank) {
      for (std::size_t i = 0; i + 1 < q[rank].size(); ++i) {
        by_rank[rank].push_back({.q_length = as_uint32(q[rank][i + 1] - q[rank][i])});
      }
    }
    if (options.shares_keys) {
      add_shared_keys(by_rank);
    } else {
      add_keys(by_rank);
    }
    return AttentionLayout(by_rank, options);
  }

 private:
  using Ragged = std::vector<std::vector<std::int64_t>>;
  using Items = std::vector<std::vector<AttentionLayout::Item>>;

  [[nodiscard]] Mask mask() const {
    const Json* const found = named_.json.find("mask");
    if (found == nullptr) return {};
    if (!found->is_string()) throw_invalid_field(named_, "D413", "`mask` must be a string");
    try {
      return parse_mask(found->as_string());
    } catch (const InputError& error) {
      const Diagnostic& one = error.diagnostics().front();
      throw_invalid_field(named_, "D413", one.what, one.help);
    }
  }
  [[nodiscard]] Ragged numbers(const char* key) const {
    const Json* const found = named_.json.find(key);
    if (found == nullptr) throw_invalid_field(named_, "D413", fmt::format("`{}` is missing", key));
    return ragged({.json = *found, .name = named_.name + " " + key, .file = named_.file});
  }
  static std::uint32_t as_uint32(std::int64_t number) { return static_cast<std::uint32_t>(number); }

  void check_ranks(const Ragged& kv, const Items& by_rank) const {
    if (kv.size() != by_rank.size()) {
      throw_invalid_field(named_, "D401", "rank count mismatch between q and kv");
    }
  }
  void check_cumulative(const std::vector<std::int64_t>& ends, std::size_t rank) const {
    if (!ends.empty() && ends[0] == 0 && std::ranges::is_sorted(ends) &&
        std::in_range<std::uint32_t>(ends.back())) {
      return;
    }
    throw_invalid_field(
        named_, "D401",
        fmt::format("the cumulative lengths of rank {} must start at 0 and not decrease", rank));
  }

  void add_keys(Items& by_rank) const {
    const Ragged kv = numbers("cu_seqlens_kv");
    check_ranks(kv, by_rank);
    for (std::size_t rank = 0; rank < kv.size(); ++rank) {
      check_cumulative(kv[rank], rank);
      if (kv[rank].size() != by_rank[rank].size() + 1) {
        throw_invalid_field(named_, "D401",
                            fmt::format("rank {} has {} items in q and {} in kv", rank,
                                        by_rank[rank].size(), kv[rank].size() - 1));
      }
      for (std::size_t i = 0; i + 1 < kv[rank].size(); ++i) {
        by_rank[rank][i].kv_length = as_uint32(kv[rank][i + 1] - kv[rank][i]);
      }
    }
  }

  void add_shared_keys(Items& by_rank) const {
    const Ragged begins = numbers("kv_begin");
    const Ragged lengths = numbers("kv_length");
    check_ranks(begins, by_rank);
    check_ranks(lengths, by_rank);
    for (std::size_t rank = 0; rank < begins.size(); ++rank) {
      const std::size_t items = by_rank[rank].size();
      if (begins[rank].size() != items || lengths[rank].size() != items) {
        throw_invalid_field(named_, "D401",
                            fmt::format("rank {} has {} items, {} kv_begin and {} kv_length", rank,
                                        items, begins[rank].size(), lengths[rank].size()));
      }
      for (std::size_t i = 0; i < items; ++i) {
        if (!std::in_range<std::uint32_t>(begins[rank][i]) ||
            !std::in_range<std::uint32_t>(lengths[rank][i])) {
          throw_invalid_field(
              named_, "D410",
              fmt::format("the keys of item {} of rank {} do not fit 32 bits", i, rank));
        }
        by_rank[rank][i].kv_begin = as_uint32(begins[rank][i]);
        by_rank[rank][i].kv_length = as_uint32(lengths[rank][i]);
      }
    }
  }

  const NamedJson& named_;
};

}  // namespace

Json to_json(const Metadata& metadata) {
  Json json = Json::object({{"schema", kSchema}, {"offset_unit", "tokens"}});
  const Json fields = fields_of(metadata);
  for (const auto& [key, value] : fields.as_object()) json.set(key, value);
  return json;
}

Json to_json(const QkvDispatch& dispatch) {
  Json json = Json::object({{"schema", kSchema}, {"offset_unit", "tokens"}});
  json.set("q_forward", fields_of(dispatch.q.forward));
  json.set("q_reverse", fields_of(dispatch.q.reverse));
  json.set("kv_forward", fields_of(dispatch.kv.forward));
  json.set("kv_reverse", fields_of(dispatch.kv.reverse));
  return json.set("attention", attention_json(dispatch.attention));
}

Json to_json(const QkvDispatch& dispatch, const TokenBytes& token_bytes) {
  Json json = to_json(dispatch);
  json.set("q_row_bytes", token_bytes.q);
  return json.set("kv_row_bytes", token_bytes.kv);
}

DispatchFile read_dispatch(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file);
  const NamedJson whole{.json = json, .name = "", .file = file};
  DispatchFile result;
  const bool is_single = json.find("dst_rank") != nullptr;
  const std::vector<std::string> known =
      is_single ? joined(table_fields(), file_fields()) : table_fields();
  if (!is_single) {
    check_fields(whole, joined({"attention", kTables[0], kTables[1], kTables[2], kTables[3]},
                               file_fields()));
  }
  if (const Json* const schema = json.find("schema");
      schema != nullptr && *schema != Json(kSchema)) {
    throw_invalid_field(whole, "D413", fmt::format("unsupported schema: expected `{}`", kSchema));
  }
  const auto to_tokens = unit_of(whole, result.warnings);
  result.token_bytes = token_bytes_of(whole);
  if (is_single) {
    const NamedJson table{.json = json, .name = "metadata", .file = file};
    result.tables.push_back(
        {.name = table.name, .table = TableReader(table, known).read(to_tokens)});
  }
  for (const char* const key : kTables) {
    const Json* const found = is_single ? nullptr : json.find(key);
    if (found == nullptr) continue;
    const NamedJson table{.json = *found, .name = key, .file = file};
    result.tables.push_back({.name = key, .table = TableReader(table, known).read(to_tokens)});
  }
  if (result.tables.empty()) {
    throw_invalid_field(
        whole, "D413", "the file has no table",
        "a table has `dst_rank`; several tables are named q_forward, q_reverse, kv_forward, "
        "kv_reverse");
  }
  if (const Json* const attention = is_single ? nullptr : json.find("attention")) {
    const NamedJson named{.json = *attention, .name = "attention", .file = file};
    result.attention = AttentionReader(named).read();
  }
  if (const Json* const sizes = json.find("buffer_tokens")) {
    if (!is_single && json.find("q_forward") == nullptr) {
      throw_invalid_field(whole, "D413", "buffer_tokens requires the table q_forward");
    }
    const NamedJson named{.json = *sizes, .name = "buffer_tokens", .file = file};
    for (const std::int64_t tokens : Tensor(named, 1).take()) {
      if (tokens < 0) throw_invalid_field(named, "D413", "buffer_tokens must not be negative");
      result.buffer_tokens.push_back(static_cast<std::uint64_t>(tokens));
    }
  }
  return result;
}

std::vector<Diagnostic> validate(const DispatchFile& file) {
  std::vector<Diagnostic> found;
  const auto add = [&](std::vector<Diagnostic> more) {
    for (Diagnostic& one : more) found.push_back(std::move(one));
  };
  std::map<std::string, Metadata> tables;
  for (const NamedTable& named : file.tables) {
    std::vector<Diagnostic> wrong = validate(named.table);
    for (Diagnostic& one : wrong) one.where.operation = named.name + " " + one.where.operation;
    if (wrong.empty()) tables.emplace(named.name, to_sparse(named.table));
    add(std::move(wrong));
  }
  if (tables.size() != file.tables.size()) return found;
  const auto pair = [&](const std::string& which) -> std::optional<MetadataPair> {
    const auto forward = tables.find(which + "_forward");
    const auto reverse = tables.find(which + "_reverse");
    if (forward == tables.end() || reverse == tables.end()) return std::nullopt;
    return MetadataPair{.forward = forward->second, .reverse = reverse->second};
  };
  const std::optional<MetadataPair> q = pair("q");
  const std::optional<MetadataPair> kv = pair("kv");
  const ValidateOptions options{.buffer_tokens = file.buffer_tokens};
  if (q && kv && file.attention) {
    add(validate(QkvDispatch{.q = *q, .kv = *kv, .attention = *file.attention}, options));
    return found;
  }
  ValidateOptions pair_options = options;
  pair_options.table = "q";
  if (q) add(validate_queries(*q, pair_options));
  if (file.attention && !(q && kv)) {
    found.push_back({.code = "D413",
                     .where = {.operation = "attention"},
                     .what = "the attention layout cannot be checked: tables are missing",
                     .help = "add the missing tables, or remove `attention`"});
  }
  pair_options.buffer_tokens.clear();
  pair_options.table = "kv";
  if (kv) add(validate_keys(*kv, pair_options));
  for (const auto& [name, table] : tables) {
    if (name.starts_with("q_") ? q.has_value() : kv.has_value() && name.starts_with("kv_"))
      continue;
    ValidateOptions table_options = options;
    table_options.table = name;
    if (name != "metadata" && name != "q_forward") table_options.buffer_tokens.clear();
    add(validate(table, table_options));
  }
  return found;
}

}  // namespace shiplap::dispatch
