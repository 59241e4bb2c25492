#include "shiplap/dispatch/lower.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/builder.h"

namespace shiplap::dispatch {
namespace {

plan::ExchangeTable table_of(std::string name, const Metadata& metadata) {
  std::vector<plan::TableRow> sends;
  std::vector<plan::TableRow> receives;
  for (int from = 0; from < metadata.world_size(); ++from) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(from); ++i) {
      throw_if_cancelled();
      const Metadata::Row row = metadata.row(from, i);
      if (row.length == 0) continue;
      for (const Copy& copy : row.copies) {
        if (copy.rank < 0) continue;
        sends.push_back({.rank = from, .peer = copy.rank, .first = row.begin, .count = row.length});
        receives.push_back(
            {.rank = copy.rank, .peer = from, .first = copy.offset, .count = row.length});
      }
    }
  }
  return {std::move(name), std::move(sends), std::move(receives)};
}

// The lists of the program, by name. Tokens are numbered across documents.
class Lists {
 public:
  Lists(const Routing& routing, const AttentionLayout& attention) : mask_(attention.mask()) {
    for (const Segment& segment : routing.home.all()) {
      std::uint64_t& length = lengths_[segment.document];
      length = std::max(length, segment.end());
    }
    for (const auto& [document, length] : lengths_) {
      bases_[document] = tokens_;
      tokens_ += length;
    }
    add_home(routing.home);
    add_items(routing.attention, attention);
  }

  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  // What the mask asks of each token: its document, or its first and its last key.
  void add_mask() {
    std::uint64_t number = 0;
    for (const auto& [document, length] : lengths_) {
      for (std::uint64_t position = 0; position < length; ++position) {
        if (mask_.is_causal()) {
          add("doc", number);
          continue;
        }
        const KeyRange keys =
            mask_.keys_of({.begin = static_cast<std::uint32_t>(position), .length = 1}, length);
        add("first_key", bases_[document] + keys.begin);
        add("last_key", bases_[document] + keys.end - 1);
      }
      ++number;
    }
  }
  [[nodiscard]] const std::map<std::string, std::vector<std::int64_t>>& all() const {
    return lists_;
  }

 private:
  void add(const char* list, std::uint64_t number) {
    lists_[list].push_back(static_cast<std::int64_t>(number));
  }

  void add_home(const Layout& home) {
    add("homes", 0);
    for (int rank = 0; rank < home.world_size(); ++rank) {
      std::uint64_t row = 0;
      for (const Segment& segment : home.of(rank)) {
        if (segment.length == 0) continue;
        add("h0", bases_[segment.document] + segment.begin);
        add("hn", segment.length);
        add("hrow", row);
        row += segment.length;
      }
      add("homes", lists_["h0"].size());
      add("home_rows", std::max<std::uint64_t>(row, 1));
    }
  }

  void add_items(const Layout& items, const AttentionLayout& attention) {
    add("items", 0);
    for (int rank = 0; rank < items.world_size(); ++rank) {
      std::uint64_t q_row = 0;
      int number = -1;
      for (const Segment& item : items.of(rank)) {
        ++number;
        if (item.length == 0) continue;
        const KeyRange keys = mask_.keys_of(item, lengths_[item.document]);
        add("q0", bases_[item.document] + item.begin);
        add("qn", item.length);
        add("qrow", q_row);
        add("k0", bases_[item.document] + keys.begin);
        add("kn", keys.length());
        add("krow", attention.keys(rank, number).begin);
        q_row += item.length;
      }
      add("items", lists_["q0"].size());
      add("q_rows", std::max<std::uint64_t>(q_row, 1));
      add("kv_rows", std::max<std::uint32_t>(attention.num_kv_tokens(rank), 1));
    }
  }

  Mask mask_;
  std::map<std::int32_t, std::uint64_t> lengths_;  // of each document
  std::map<std::int32_t, std::uint64_t> bases_;    // its first token
  std::uint64_t tokens_ = 0;
  std::map<std::string, std::vector<std::int64_t>> lists_;
};

// Contiguous rows, and the tokens they hold.
struct TokenRows {
  plan::Expr row;
  plan::Expr first;
  plan::Expr count;
};

// Builds the program, which is the same for all ranks and all dispatches.
class ProgramBuilder {
 public:
  ProgramBuilder(const Lists& lists, int ranks, const LowerOptions& options)
      : options_(options),
        tokens_(static_cast<std::int64_t>(lists.tokens())),
        cp_(b_.axis("cp", ranks)) {
    for (const auto& [name, values] : lists.all()) lists_.emplace(name, b_.list(name, values));
  }

  plan::Plan moves(const QkvDispatch& dispatch) && {
    const TensorRef query = tensor("Q", "Query", tok_);
    const TensorRef key_value = tensor("KV", "KeyValue", key_);
    begin(dispatch);
    const BufferRef q = buffer("q", "home_rows", options_.q_row_bytes);
    const BufferRef kv = buffer("kv", "home_rows", options_.kv_row_bytes);
    const BufferRef back = buffer("back", "home_rows", options_.q_row_bytes);
    const BufferRef q_remote = buffer("q_", "q_rows", options_.q_row_bytes);
    const BufferRef kv_remote = buffer("kv_", "kv_rows", options_.kv_row_bytes);
    each_home([&](const TokenRows& home) {
      b_.given(rows(q, home), part(query, tok_, home));
      b_.given(rows(kv, home), part(key_value, key_, home));
      b_.goal(rows(back, home), part(query, tok_, home));
    });
    each_item([&](const TokenRows& queries, const TokenRows& keys) {
      b_.goal(rows(q_remote, queries), part(query, tok_, queries));
      b_.goal(rows(kv_remote, keys), part(key_value, key_, keys));
    });
    exchange({.from = q, .to = q_remote, .table = q_table_});
    exchange({.from = kv, .to = kv_remote, .table = kv_table_});
    exchange({.from = q_remote, .to = back, .table = q_table_, .reversed = true});
    return std::move(b_).build();
  }

  plan::Plan step(const QkvDispatch& dispatch) && {
    const TensorRef query = tensor("Q", "Query", tok_);
    const TensorRef key_value = tensor("KV", "KeyValue", key_);
    const TensorRef output = masked("O", "AttentionOutput", tok_, key_);
    const TensorRef output_grad = tensor("dO", "AttentionGrad", tok_);
    const TensorRef query_grad = masked("dQ", "QueryGrad", tok_, key_);
    const TensorRef key_value_grad = masked("dKV", "KeyValueGrad", key_, tok_);
    begin(dispatch);
    const Buffers home = buffers("", "home_rows", "home_rows");
    const Buffers there = buffers("_", "q_rows", "kv_rows");
    each_home([&](const TokenRows& piece) {
      b_.given(rows(home.q, piece), part(query, tok_, piece));
      b_.given(rows(home.kv, piece), part(key_value, key_, piece));
      b_.goal(rows(home.o, piece), part(output, tok_, piece));
      b_.goal(rows(home.dq, piece), part(query_grad, tok_, piece));
      b_.goal(rows(home.dkv, piece), part(key_value_grad, key_, piece));
    });
    exchange({.from = home.q, .to = there.q, .table = q_table_});
    exchange({.from = home.kv, .to = there.kv, .table = kv_table_});
    each_item([&](const TokenRows& queries, const TokenRows& keys) {
      compute("attention",
              {reads(rows(there.q, queries), part(query, tok_, queries)),
               reads(rows(there.kv, keys), part(key_value, key_, keys)),
               writes(rows(there.o, queries), part(part(output, tok_, queries), key_, keys))});
    });
    exchange({.from = there.o, .to = home.o, .table = q_table_, .reversed = true});
    each_home([&](const TokenRows& piece) {
      b_.add(
          {.action = plan::Compute{"other",
                                   {reads(rows(home.o, piece), part(output, tok_, piece)),
                                    writes(rows(home.d_o, piece), part(output_grad, tok_, piece))}},
           .label = "the rest of the network, forward and backward"});
      compute("zero", {writes(rows(home.dkv, piece), part(key_value_grad, key_, piece).zero())});
    });
    exchange({.from = home.d_o, .to = there.d_o, .table = q_table_});
    const bool shares_keys = dispatch.attention.shares_keys();
    if (shares_keys) {
      each_item([&](const TokenRows&, const TokenRows& keys) {
        compute("zero", {writes(rows(there.dkv, keys), part(key_value_grad, key_, keys).zero())});
      });
    }
    each_item([&](const TokenRows& queries, const TokenRows& keys) {
      const plan::Region grad = rows(there.dkv, keys);
      const TensorRef terms = part(part(key_value_grad, key_, keys), tok_, queries);
      compute("attention_backward",
              {reads(rows(there.q, queries), part(query, tok_, queries)),
               reads(rows(there.kv, keys), part(key_value, key_, keys)),
               reads(rows(there.d_o, queries), part(output_grad, tok_, queries)),
               writes(rows(there.dq, queries), part(part(query_grad, tok_, queries), key_, keys)),
               shares_keys ? adds(grad, terms) : writes(grad, terms)});
    });
    exchange({.from = there.dq, .to = home.dq, .table = q_table_, .reversed = true});
    exchange(
        {.from = there.dkv, .to = home.dkv, .table = kv_table_, .reversed = true, .add = true});
    return std::move(b_).build();
  }

 private:
  using BufferRef = plan::BufferRef;
  using TensorRef = plan::TensorRef;

  struct Buffers {
    BufferRef q, kv, o, d_o, dq, dkv;
  };

  static plan::Region rows(const BufferRef& buffer, const TokenRows& piece) {
    return buffer(piece.row, piece.count);
  }
  static TensorRef part(const TensorRef& tensor, const plan::Dimension& of,
                        const TokenRows& piece) {
    return tensor(of, piece.first, piece.count);
  }

  TensorRef tensor(const char* name, const char* kind, const plan::Dimension& part) {
    return b_.tensor({.name = name, .kind = kind, .part = {part}});
  }
  // Causal: a token attends to the tokens of its document up to itself. Other masks are lists of
  // the first and the last key of each token.
  TensorRef masked(const char* name, const char* kind, const plan::Dimension& part,
                   const plan::Dimension& sum) {
    const plan::DimensionId tok(part == tok_ ? 0 : 1);
    const plan::DimensionId key(part == tok_ ? 1 : 0);
    plan::Tensor tensor{.name = name, .kind = kind, .part = {part}, .sum = {sum}};
    if (lists_.contains("doc")) {
      const plan::ListId doc = lists_.at("doc").id;
      tensor.mask = {{{{}, key}, plan::Comparator::less_equal, {{}, tok}},
                     {{doc, key}, plan::Comparator::equal, {doc, tok}}};
    } else {
      tensor.mask = {{{lists_.at("first_key").id, tok}, plan::Comparator::less_equal, {{}, key}},
                     {{{}, key}, plan::Comparator::less_equal, {lists_.at("last_key").id, tok}}};
    }
    return b_.tensor(std::move(tensor));
  }

  void begin(const QkvDispatch& dispatch) {
    q_table_ = b_.table(table_of("q_forward", dispatch.q.forward));
    kv_table_ = b_.table(table_of("kv_forward", dispatch.kv.forward));
    b_.program("all");
  }
  BufferRef buffer(const std::string& name, const char* rows, std::int64_t bytes,
                   DType type = DType::bf16) {
    return b_.buffer(
        {.name = name, .rows = lists_.at(rows)[cp_], .row_bytes = bytes, .type = type});
  }
  // All buffers of home or attention; `after` is the suffix of their names.
  Buffers buffers(const std::string& after, const char* q_rows, const char* kv_rows) {
    const std::int64_t q = options_.q_row_bytes;
    const std::int64_t kv = options_.kv_row_bytes;
    return {.q = buffer("q" + after, q_rows, q),
            .kv = buffer("kv" + after, kv_rows, kv),
            .o = buffer("o" + after, q_rows, q),
            .d_o = buffer("do" + after, q_rows, q),
            .dq = buffer("dq" + after, q_rows, q),
            .dkv = buffer("dkv" + after, kv_rows, kv, DType::f32)};
  }

  template <class Body>
  void each(const char* bounds, const Body& body) {
    const plan::ListRef list = lists_.at(bounds);
    b_.repeat("i", list.size(cp_), [&](const plan::Expr& i) { body(b_.let("t", list[cp_] + i)); });
  }
  [[nodiscard]] TokenRows piece(const char* row, const char* first, const char* count,
                                const plan::Expr& t) const {
    return {lists_.at(row)[t], lists_.at(first)[t], lists_.at(count)[t]};
  }
  // The segments of a rank at home, and its items: queries and the keys that they attend to.
  template <class Body>
  void each_home(const Body& body) {
    each("homes", [&](const plan::Expr& t) { body(piece("hrow", "h0", "hn", t)); });
  }
  template <class Body>
  void each_item(const Body& body) {
    each("items", [&](const plan::Expr& t) {
      body(piece("qrow", "q0", "qn", t), piece("krow", "k0", "kn", t));
    });
  }

  void compute(const char* kernel, std::vector<plan::Access> accesses) {
    b_.add({.action = plan::Compute{kernel, std::move(accesses)}});
  }
  void exchange(plan::Exchange exchange) {
    exchange.over = cp_.group();
    b_.add({.action = std::move(exchange)});
  }

  plan::Builder b_;
  LowerOptions options_;
  std::int64_t tokens_;
  plan::Dimension tok_{"tok", tokens_};
  plan::Dimension key_{"key", tokens_};
  plan::AxisRef cp_;
  std::map<std::string, plan::ListRef> lists_;
  plan::TableId q_table_;
  plan::TableId kv_table_;
};

}  // namespace

plan::Plan lower(const Routing& routing, const QkvDispatch& dispatch, const LowerOptions& options) {
  if (std::vector<Diagnostic> found = validate(routing); !found.empty()) {
    throw InputError(std::move(found));
  }
  Lists lists(routing, dispatch.attention);
  if (lists.tokens() == 0) {
    throw InputError(Diagnostic{.code = "D400", .what = "a dispatch without tokens has no plan"});
  }
  const bool attends = lists.tokens() <= kMaxAttendedTokens;
  if (attends) lists.add_mask();
  ProgramBuilder program(lists, routing.home.world_size(), options);
  return attends ? std::move(program).step(dispatch) : std::move(program).moves(dispatch);
}

}  // namespace shiplap::dispatch
