// Plans written in C++: the statements of the `.plan` text as calls, its expressions as operators.
//
//   Builder b;
//   const AxisRef tp = b.axis("tp", 4);
//   const Dimension tok{"tok", 64};
//   const TensorRef tokens = b.tensor({.name = "X", .kind = "Activation", .part = {tok}});
//   b.program("all");
//   const BufferRef x = b.buffer({.name = "x", .rows = 64, .row_bytes = 512});
//   const StreamId net = b.stream("net");
//   b.given(x(16 * tp, 16), tokens(tok, 16 * tp, 16));
//   b.repeat("s", 3, [&](const Expr& s) {
//     const Expr from = b.let("from", 16 * mod(tp - s, 4));
//     b.add({.stream = net, .async = true, .action = Send{x(from, 16), tp.wrap(1), s}});
//   });
//   const Plan plan = std::move(b).build();
//
// Names, blocks, batches, dimensions and the assignment of ranks are checked with the codes of
// text.h; the other rules of the format when a printed plan is parsed. A Builder that has thrown
// must not be used again.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// An axis or alias: in an expression, the position of the rank on it.
struct AxisRef : Expr {
  explicit AxisRef(AxisId axis) : Expr(Expr::axis(axis)), id(axis) {}
  // `tp+1`, and `tp+1 wrap`.
  [[nodiscard]] Peer shift(Expr by) const { return {id, false, std::move(by)}; }
  [[nodiscard]] Peer wrap(Expr by) const { return {id, true, std::move(by)}; }
  [[nodiscard]] Group group() const { return {.axes = {id}, .positions = {}, .channel = {}}; }
  // `tp=2`, for the selector of a program.
  [[nodiscard]] SelectorTerm at(std::int64_t position) const {
    return {id, {{position, position}}};
  }

  AxisId id;
};

[[nodiscard]] inline Peer peer_rank(Expr rank) { return {{}, false, std::move(rank)}; }

struct ListRef {
  [[nodiscard]] Expr operator[](const Expr& index) const { return Expr::element(id, index); }
  // The difference between two entries: the size of piece `index` if the list has offsets.
  [[nodiscard]] Expr size(const Expr& index) const { return (*this)[index + 1] - (*this)[index]; }

  ListId id;
};

struct BufferRef {
  // `x`, `x[begin +count]`, `x[index of cuts]`, `x[from rows[begin +count]]`.
  operator Region() const { return {.buffer = id}; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] Region operator()(Expr begin, Expr count) const {
    return {id, {}, Region::Kind::rows, std::move(begin), std::move(count)};
  }
  [[nodiscard]] Region cut(Expr index, ListRef cuts) const {
    return {id, cuts.id, Region::Kind::cut, std::move(index), {}};
  }
  [[nodiscard]] Region listed(ListRef rows, Expr begin, Expr count) const {
    return {id, rows.id, Region::Kind::listed, std::move(begin), std::move(count)};
  }

  BufferId id;
};

// A tensor, refined step by step: `new W[l] shard dp +1` is `weight[l].updated()(shard, dp, 1)`.
// Valid as long as its Builder.
class TensorRef {
 public:
  TensorRef() = default;  // invalid until it is assigned
  TensorRef(const Plan& plan, TensorId id) : plan_(&plan) { value_.tensor = id; }

  // `count` coordinates of a dimension of its part or sum. May be repeated for the same dimension.
  [[nodiscard]] TensorRef operator()(const Dimension& dimension, Expr begin, Expr count,
                                     Expr stride = 1) const;
  // The coordinates in entries `begin` to `begin+count-1` of a list.
  [[nodiscard]] TensorRef listed(const Dimension& dimension, ListRef coordinates, Expr begin,
                                 Expr count) const;
  [[nodiscard]] TensorRef operator[](Expr index) const;
  [[nodiscard]] TensorRef updated() const;         // `new`
  [[nodiscard]] TensorRef zero() const;            // `sum none`
  [[nodiscard]] TensorRef scaled(Ratio by) const;  // `scale 1/8`
  operator Value() const;                          // NOLINT(google-explicit-constructor)

 private:
  [[nodiscard]] TensorRef with(const Dimension& dimension, Run run) const;

  const Plan* plan_ = nullptr;
  Value value_;
};

// A name of operations: with `const OperationName send{"s"}`, send(d, u) is `s[d,u]`.
struct OperationName {
  template <class... Indices>
  [[nodiscard]] Reference operator()(Indices&&... indices) const {
    return {.name = name, .indices = {Expr(std::forward<Indices>(indices))...}};
  }

  std::string name;
};

[[nodiscard]] inline Access reads(Region region, Value value) {
  return {Access::Kind::reads, {}, std::move(region), std::move(value)};
}
[[nodiscard]] inline Access writes(Region region, Value value) {
  return {Access::Kind::writes, {}, std::move(region), std::move(value)};
}
[[nodiscard]] inline Access adds(Region region, Value value) {
  return {Access::Kind::adds, {}, std::move(region), std::move(value)};
}

class Builder {
 public:
  Builder() = default;
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // ---- shared by all programs. Axes come first, then aliases.

  AxisRef axis(std::string name, std::int64_t size);
  AxisRef alias(std::string name, const std::vector<AxisRef>& axes);
  ListRef list(std::string name, std::vector<std::int64_t> values);
  TensorRef tensor(Tensor tensor);
  TableId table(ExchangeTable table);
  void spare(std::vector<SelectorTerm> on) { plan_.spares.push_back({std::move(on), origin_}); }

  // ---- a program: all statements up to the next one. No terms: all ranks.

  void program(std::string name, std::vector<SelectorTerm> on = {});
  BufferRef buffer(Buffer buffer);
  StreamId stream(std::string name);
  // Sets the source line of the following statements.
  void set_origin(Origin origin) { origin_ = origin; }

  void given(Region region, Value value) {
    fact(Fact::Kind::given, std::move(region), std::move(value));
  }
  void goal(Region region, Value value) {
    fact(Fact::Kind::goal, std::move(region), std::move(value));
  }
  void keep(Region region, Value value) {
    fact(Fact::Kind::keep, std::move(region), std::move(value));
  }
  void add(Operation operation);

  // ---- blocks, which are scopes

  Expr let(std::string variable, Expr value);
  template <class Body>  // called with the variable
  void repeat(std::string variable, Expr count, const Body& body) {
    body(begin_repeat(std::move(variable), std::move(count)));
    end();
  }
  template <class Body>
  void when(Condition condition, const Body& body) {
    begin_when(std::move(condition));
    body();
    end();
  }
  // `operation` is a Batch without members, which `body` adds.
  template <class Body>
  void batch(Operation operation, const Body& body) {
    begin_batch(std::move(operation));
    body();
    end();
  }
  // The same for callers whose blocks are not functions.
  Expr begin_repeat(std::string variable, Expr count);
  void begin_when(Condition condition);
  void begin_batch(Operation operation);
  void end();

  // Throws D108 if a rank has no program and D205 if an `after` names an unknown operation.
  [[nodiscard]] Plan build() &&;

 private:
  using Names = std::set<std::string, std::less<>>;
  struct Block {
    Statement opened;
    std::vector<Statement> before;  // of the block around it
    std::size_t bound = 0;          // locals
  };

  [[nodiscard]] Program& current();
  [[nodiscard]] Expr bind(std::string variable);
  void open(Statement statement);
  void close_program();
  void fact(Fact::Kind kind, Region region, Value value);
  void unbind_to(std::size_t count);
  static void claim(Names& names, const std::string& name);
  void claim_shared(Names& names, const std::string& name);

  Plan plan_;
  Names in_expressions_;  // axes, aliases, lists, and the locals in scope
  Names tensors_;
  Names tables_;
  Names programs_;

  // Of the current program:
  std::vector<Statement> statements_;  // of the innermost block
  std::vector<Block> blocks_;
  std::vector<std::string> locals_;
  Names buffers_;
  Names streams_ = {"main"};
  Names operations_;
  Names waited_for_;
  Origin origin_;
};

}  // namespace shiplap::plan
