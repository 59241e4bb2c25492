// Attention in context parallel, products in tensor parallel, and sums over two dimensions.
#include "value_builder.h"

namespace shiplap::oracle {
namespace {

StatedValue over(const std::string& tensor, const std::string& dimension,
                 const std::vector<int>& at) {
  return {.tensor = tensor, .part = {{dimension, at}}};
}

StatedValue with_sum(StatedValue value, const std::string& dimension, const std::vector<int>& at) {
  value.sum = {{dimension, at}};
  return value;
}

// The rows of all ranks, one after the other.
std::vector<BufferRows> rows_of_all(ValueBuilder& b, int count) {
  std::vector<BufferRows> all;
  for (int rank = 0; rank < b.ranks(); ++rank) all.push_back(b.rows(rank, count));
  return all;
}

class ContextParallel {
 public:
  explicit ContextParallel(ValueBuilder& builder) : b_(builder) {
    own_ = b_.upto(1, 2);
    tokens_ = own_ * b_.ranks();
    rows_ = b_.layouts ? b_.upto(0, 2) : 1;
    if (own_ == 1 && rows_ == 0) rows_ = 1;
    const int mask = b_.upto(0, 3);
    causal_ = mask == 1 || mask == 2;
    if (mask == 3) b_.plan.lists.push_back(documents());
    b_.declare({.name = "Q", .kind = "Query", .part = {{"tok", tokens_}}});
    b_.declare({.name = "K", .kind = "KeyValue", .part = {{"key", tokens_}}});
    b_.declare({.name = "O",
                .kind = "AttentionOutput",
                .part = {{"tok", tokens_}},
                .sum = {{"key", tokens_}},
                .mask = mask == 0   ? ""
                        : mask == 3 ? "key<=tok and doc[key]=doc[tok]"
                                    : "key<=tok"});
    b_.declare({.name = "Y", .kind = "Activation", .part = {{"tok", tokens_}}});
  }

  void build() {
    keys_ = rows_of_all(b_, own_);
    int way = b_.upto(0, causal_ && rows_ > 0 ? 4 : 3);
    if (way == 2 && !b_.pieces) way = 1;
    all_tokens_ = way == 3;
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      const std::vector<int> mine = tokens(rank);
      queries_.push_back(b_.rows(rank, rows(mine)));
      outputs_.push_back(b_.rows(rank, rows(mine)));
      b_.fact(rank, "given", queries_.back(), over("Q", "tok", mine));
      b_.fact(rank, "given", at(keys_, rank), over("K", "key", block(rank)));
    }
    if (way == 0) ring();
    if (way == 1) gather(false);
    if (way == 2) gather(true);
    if (way == 3) partial();
    if (way == 4) token_by_token();
    if (way != 3) {
      for (int rank = 0; rank < b_.ranks(); ++rank) normalize(rank, outputs_);
    }
  }

 private:
  static BufferRows& at(std::vector<BufferRows>& all, int rank) { return all[rank]; }
  [[nodiscard]] std::vector<int> block(int rank) const { return range(rank * own_, own_); }
  [[nodiscard]] std::vector<int> tokens(int rank) const {
    return all_tokens_ ? range(0, tokens_) : block(rank);
  }
  // rows_ of a token; 0: two tokens make a row.
  [[nodiscard]] int rows(const std::vector<int>& some) const {
    const auto count = static_cast<int>(some.size());
    return rows_ == 0 ? count / 2 : count * rows_;
  }

  std::string documents() {
    std::string list = "list doc =";
    for (int k = 0, document = 0; k < tokens_; ++k) {
      if (b_.random.chance(0.3)) ++document;
      list += " " + std::to_string(document);
    }
    return list;
  }

  void attend(int rank, const std::string& kind, const std::vector<Assertion>& keys,
              const std::vector<int>& block) {
    std::vector<Assertion> assertions{
        {"reads", at(queries_, rank), over("Q", "tok", tokens(rank))}};
    if (!b_.is(Fault::reads_nothing) || rank > 0) {
      assertions.insert(assertions.end(), keys.begin(), keys.end());
    }
    if (b_.is(Fault::reads_twice) && rank == 0) assertions.push_back(keys.back());
    std::vector<int> stated = block;
    if (b_.is(Fault::claims_less) && stated.size() > 1) stated.pop_back();
    if (b_.is(Fault::claims_more) && stated.back() + 1 < tokens_)
      stated.push_back(stated.back() + 1);
    StatedValue value = over("O", "tok", tokens(rank));
    if (static_cast<int>(stated.size()) < tokens_) value = with_sum(value, "key", stated);
    assertions.push_back({kind, at(outputs_, rank), value});
    b_.compute(rank, "attention", assertions);
  }

  void ring() {
    std::vector<BufferRows> here = keys_;
    for (int round = 0; round < b_.ranks(); ++round) {
      for (int rank = 0; rank < b_.ranks(); ++rank) {
        const std::vector<int> keys = block((rank + b_.ranks() - round) % b_.ranks());
        StatedValue zero = over("O", "tok", tokens(rank));
        zero.zero = true;
        if (round == 0) b_.compute(rank, "zero", {{"writes", at(outputs_, rank), zero}});
        attend(rank, "adds", {{"reads", at(here, rank), over("K", "key", keys)}}, keys);
      }
      if (round + 1 == b_.ranks()) return;
      std::vector<BufferRows> next = rows_of_all(b_, own_);
      for (int rank = 0; rank < b_.ranks(); ++rank) pass_on(rank, at(here, rank), at(next, rank));
      here = next;
    }
  }

  void pass_on(int rank, const BufferRows& from, const BufferRows& to) {
    const int next = (rank + 1) % b_.ranks();
    const int last = (rank + b_.ranks() - 1) % b_.ranks();
    Step send{.action = "send", .from = from, .words = "to rank " + std::to_string(next)};
    Step receive{.action = "receive", .to = to, .words = "from rank " + std::to_string(last)};
    b_.plan.ranks[rank].steps.push_back({.action = "batch", .members = {send, receive}});
  }

  // Of all keys, as one operand or block by block.
  void gather(bool pieces) {
    std::vector<BufferRows> all = rows_of_all(b_, tokens_);
    b_.collective("all_gather", keys_, all);
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      std::vector<Assertion> keys;
      for (int k = 0; k < (pieces ? b_.ranks() : 0); ++k) {
        std::vector<int> some = block(k);
        BufferRows place = ValueBuilder::slice(at(all, rank), k * own_, own_);
        if (b_.is(Fault::overlapping_sums) && k + 1 < b_.ranks()) {
          some.push_back(some.back() + 1);
          ++place.count;
        }
        keys.push_back({"reads", place, over("K", "key", some)});
      }
      if (!pieces) keys.push_back({"reads", at(all, rank), {.tensor = "K"}});
      attend(rank, "writes", keys, range(0, tokens_));
    }
  }

  // Of each token the keys that the mask leaves, and no others.
  void token_by_token() {
    std::vector<BufferRows> all = rows_of_all(b_, tokens_);
    b_.collective("all_gather", keys_, all);
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      for (int k = 0; k < own_; ++k) {
        const int token = block(rank)[k];
        const std::vector<int> keys = range(0, token + 1);
        const BufferRows some = ValueBuilder::slice(at(all, rank), 0, token + 1);
        StatedValue output = with_sum(over("O", "tok", {token}), "key", keys);
        if (b_.is(Fault::claims_less) && token > 0) output.sum[0].at.pop_back();
        const auto rows = [&](std::vector<BufferRows>& of) {
          return ValueBuilder::slice(at(of, rank), k * rows_, rows_);
        };
        b_.compute(rank, "attention",
                   {{"reads", rows(queries_), over("Q", "tok", {token})},
                    {"reads", some, over("K", "key", keys)},
                    {"writes", rows(outputs_), output}});
      }
    }
  }

  // Each rank has some of the keys, for all tokens.
  void partial() {
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      const std::vector<int> keys = block(rank);
      attend(rank, "writes", {{"reads", at(keys_, rank), over("K", "key", keys)}}, keys);
    }
    if (b_.random.chance()) {
      b_.all_reduce(outputs_);
      for (int rank = 0; rank < b_.ranks(); ++rank) normalize(rank, outputs_);
      return;
    }
    all_tokens_ = false;
    std::vector<BufferRows> own = rows_of_all(b_, rows(block(0)));
    b_.collective("reduce_scatter", outputs_, own);
    for (int rank = 0; rank < b_.ranks(); ++rank) normalize(rank, own);
  }

  void normalize(int rank, std::vector<BufferRows>& from) {
    const BufferRows to = b_.rows(rank, at(from, rank).count);
    b_.compute(rank, "norm",
               {{"reads", at(from, rank), over("O", "tok", tokens(rank))},
                {"writes", to, over("Y", "tok", tokens(rank))}});
    b_.fact(rank, "goal", to, over("Y", "tok", tokens(rank)));
  }

  ValueBuilder& b_;
  int own_ = 1;
  int tokens_ = 1;
  int rows_ = 1;
  bool all_tokens_ = false;
  bool causal_ = false;
  std::vector<BufferRows> keys_;
  std::vector<BufferRows> queries_;
  std::vector<BufferRows> outputs_;
};

// Boxes that make up the product of two dimensions, each once.
struct Box {
  std::vector<int> a;
  std::vector<int> b;
};

std::vector<Box> partition(ValueBuilder& b, int size_a, int size_b, int count) {
  std::vector<Box> all{{range(0, size_a), range(0, size_b)}};
  for (int tries = 0; tries < 20 && static_cast<int>(all.size()) < count; ++tries) {
    const std::size_t k = static_cast<std::size_t>(b.upto(0, static_cast<int>(all.size()) - 1));
    Box more = all[k];
    const bool first = b.random.chance();
    std::vector<int>& kept = first ? all[k].a : all[k].b;
    std::vector<int>& taken = first ? more.a : more.b;
    if (kept.size() < 2) continue;
    const auto cut = b.upto(1, static_cast<int>(kept.size()) - 1);
    kept.resize(cut);
    taken.erase(taken.begin(), taken.begin() + cut);
    all.push_back(more);
  }
  return all;
}

}  // namespace

void build_attention(ValueBuilder& builder) { ContextParallel(builder).build(); }

void build_products(ValueBuilder& b) {
  const int own = b.upto(1, 2);
  const int width = own * b.ranks();
  const int tokens = b.ranks() * b.upto(1, 2);
  b.declare({.name = "X", .kind = "Activation", .part = {{"tok", tokens}, {"ff", width}}});
  b.declare({.name = "W", .kind = "Weight", .part = {{"ff", width}}});
  b.declare({.name = "Y", .kind = "Partial", .part = {{"tok", tokens}}, .sum = {{"ff", width}}});
  b.declare({.name = "H", .kind = "Partial", .part = {{"tok", tokens}}, .sum = {{"ff", width}}});
  b.declare({.name = "Z", .kind = "Activation", .part = {{"tok", tokens}}});
  std::vector<BufferRows> products = rows_of_all(b, tokens);
  const bool casts = b.random.chance(0.4);
  for (int rank = 0; rank < b.ranks(); ++rank) {
    std::vector<int> some = range(rank * own, own);
    std::vector<int> stated = some;
    const bool liar = rank == 0 && b.ranks() > 1;
    if (liar && b.is(Fault::claims_less)) some.push_back(own);
    if (liar && b.is(Fault::claims_more)) stated.push_back(own);
    const auto count = static_cast<int>(some.size());
    const BufferRows x = b.rows(rank, b.layouts ? tokens : tokens * count);
    const BufferRows w = b.rows(rank, count);
    StatedValue left = over("X", "ff", some);
    left.part.insert(left.part.begin(), {"tok", range(0, tokens)});
    std::vector<int> other = some;
    if (liar && b.is(Fault::operand_shape)) other.pop_back();
    b.fact(rank, "given", x, left);
    b.fact(rank, "given", w, over("W", "ff", some));
    const BufferRows& y = products[rank];
    const BufferRows shown = ValueBuilder::slice(w, 0, static_cast<int>(other.size()));
    StatedValue product{.tensor = "Y"};
    if (static_cast<int>(stated.size()) < width) product = with_sum(product, "ff", stated);
    b.compute(
        rank, b.random.chance(0.1) ? "forwrd" : "matmul",
        {{"reads", x, left}, {"reads", shown, over("W", "ff", other)}, {"writes", y, product}});
    if (!casts) continue;
    StatedValue after = product;
    after.tensor = "H";
    std::vector<Assertion> assertions{{"reads", y, product}, {"writes", y, after}};
    if (b.is(Fault::reads_nothing)) assertions.erase(assertions.begin());
    b.compute(rank, b.random.chance() ? "cast" : "add", assertions);
  }
  const int denominator = b.random.chance(0.2) ? 2 : 1;
  const bool partial = b.is(Fault::partial_read) && b.ranks() > 1;
  const bool scatters = !partial && b.random.chance(0.3);
  if (partial) {  // nobody adds them up
  } else if (scatters) {
    b.collective("reduce_scatter", products, {}, "", denominator);
  } else {
    b.all_reduce(products, denominator);
  }
  for (int rank = 0; rank < b.ranks(); ++rank) {
    const int mine = tokens / b.ranks();
    const std::vector<int> toks = scatters ? range(rank * mine, mine) : range(0, tokens);
    const BufferRows place =
        ValueBuilder::slice(products[rank], toks[0], static_cast<int>(toks.size()));
    StatedValue sum = over(casts ? "H" : "Y", "tok", toks);
    if (!b.is(Fault::scale_never) && !partial) sum.denominator = denominator;
    if (partial) sum = with_sum(sum, "ff", range(rank * own, own));
    const BufferRows z = b.rows(rank, place.count);
    b.compute(rank, "norm", {{"reads", place, sum}, {"writes", z, over("Z", "tok", toks)}});
    b.fact(rank, "goal", z, over("Z", "tok", toks));
  }
}

void build_boxes(ValueBuilder& b) {
  const int size_a = b.upto(2, 3);
  const int size_b = b.upto(1, 3);
  b.declare({.name = "G", .kind = "WeightGrad", .sum = {{"a", size_a}, {"b", size_b}}});
  b.declare({.name = "N", .kind = "Norm"});
  std::vector<Box> boxes = partition(b, size_a, size_b, b.upto(b.ranks(), b.ranks() + 3));
  if (b.is(Fault::not_a_product) && boxes.size() > 1) boxes.pop_back();
  if (b.is(Fault::overlapping_sums)) boxes.push_back(boxes.front());
  const BufferRows none;
  std::vector<BufferRows> sums;
  for (int rank = 0; rank < b.ranks(); ++rank) {
    std::vector<BufferRows> rows;
    std::vector<StatedValue> values;
    std::vector<int> list;
    const bool numbers = b.random.chance(0.2);  // the rows of a list are one buffer
    const BufferRows all = b.rows(rank, static_cast<int>(boxes.size()));
    for (std::size_t k = static_cast<std::size_t>(rank); k < boxes.size();
         k += static_cast<std::size_t>(b.ranks())) {
      StatedValue value{.tensor = "G", .sum = {{"a", boxes[k].a}, {"b", boxes[k].b}}};
      if (b.is(Fault::two_scales) && k == 0) value.denominator = 2;
      const BufferRows row = ValueBuilder::slice(all, static_cast<int>(rows.size()), 1);
      b.random.chance() ? b.fact(rank, "given", row, value)
                        : b.compute(rank, numbers ? "other" : "make", {{"writes", row, value}});
      rows.push_back(row);
      values.push_back(value);
      list.push_back(0);
    }
    const BufferRows sum = b.rows(rank, 1);
    sums.push_back(sum);
    const bool alone = b.ranks() == 1;
    const StatedValue whole{.tensor = "G"};
    if (alone && b.random.chance(0.6)) {
      std::vector<Assertion> assertions;
      for (std::size_t k = 0; k < rows.size(); ++k)
        assertions.push_back({"reads", rows[k], values[k]});
      assertions.push_back({"writes", sum, whole});
      const bool scales = b.random.chance(0.3);
      if (scales) assertions.back().value.denominator = 2;
      b.compute(rank, scales ? "scale" : "add", assertions);
      b.compute(rank, "norm",
                {{"reads", sum, assertions.back().value}, {"writes", all, {.tensor = "N"}}});
      return;
    }
    const StatedValue zero{.tensor = "G", .zero = true};
    b.compute(rank, "zero", {{"writes", sum, zero}});
    BufferRows to = sum;
    to.listed = list;
    BufferRows from = ValueBuilder::slice(all, 0, static_cast<int>(rows.size()));
    if (rows.empty()) continue;
    if (b.random.chance()) {
      b.copy(rank, from, to, true);
    } else {
      for (const BufferRows& row : rows) b.copy(rank, row, sum, true);
    }
  }
  if (b.ranks() > 1) b.all_reduce(sums);
  for (int rank = 0; rank < b.ranks(); ++rank) {
    b.fact(rank, "goal", sums[rank], {.tensor = "G"});
  }
}

}  // namespace shiplap::oracle
