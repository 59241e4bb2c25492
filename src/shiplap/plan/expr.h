// Integer expressions of the position of a rank: `2*dp+m`, `(tp-s) mod 4`, `items[cp+1]-items[cp]`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shiplap/base/id.h"

namespace shiplap::plan {

// An axis of the mesh, or an alias; ids of aliases follow those of the axes.
using AxisId = Id<struct AxisTag>;
using ListId = Id<struct ListTag>;
// A name bound by `repeat` or `let`: its nesting depth (a de Bruijn level), 0 for the outermost.
using LocalId = Id<struct LocalTag>;

// A named list of integers.
struct List {
  std::string name;
  std::vector<std::int64_t> values;
  friend bool operator==(const List&, const List&) = default;
};

class Expr {
 public:
  enum class Op : std::uint8_t {
    literal,  // pushes its operand
    axis,     // pushes the position on an axis or alias
    rank,     // pushes the rank
    local,    // pushes a loop or `let` name
    element,  // replaces an index by that entry of a list
    negate,   // these replace their operands by the result
    add,
    subtract,
    multiply,
    divide,  // `div`, rounds down
    modulo,  // `mod`, takes the sign of the divisor
    end,
  };

  // An operation with its operand, a number or an id, in one word. Numbers of more than 56 bits are
  // made from several nodes.
  class Node {
   public:
    Node() : Node(Op::end) {}
    explicit Node(Op op, std::int64_t operand = 0)
        : word_((static_cast<std::uint64_t>(operand) << 8) | static_cast<std::uint64_t>(op)) {}
    [[nodiscard]] Op op() const { return static_cast<Op>(word_ & 0xFF); }
    [[nodiscard]] std::int64_t operand() const { return static_cast<std::int64_t>(word_) >> 8; }
    friend bool operator==(Node, Node) = default;

   private:
    std::uint64_t word_;
  };

  Expr() : Expr(0) {}
  // Implicit, so that numbers can be passed as expressions.
  Expr(std::int64_t literal);                         // NOLINT(google-explicit-constructor)
  Expr(int literal) : Expr(std::int64_t{literal}) {}  // NOLINT(google-explicit-constructor)

  static Expr axis(AxisId id) { return leaf(Node(Op::axis, id.value)); }
  static Expr rank() { return leaf(Node(Op::rank)); }
  static Expr local(LocalId id) { return leaf(Node(Op::local, id.value)); }
  static Expr element(ListId list, const Expr& index);

  // Constants are folded if the result fits, so equal numbers are equal expressions.
  friend Expr operator-(const Expr& a);
  friend Expr operator+(const Expr& a, const Expr& b) { return combine(Op::add, a, b); }
  friend Expr operator-(const Expr& a, const Expr& b) { return combine(Op::subtract, a, b); }
  friend Expr operator*(const Expr& a, const Expr& b) { return combine(Op::multiply, a, b); }
  friend Expr div(const Expr& a, const Expr& b) { return combine(Op::divide, a, b); }
  friend Expr mod(const Expr& a, const Expr& b) { return combine(Op::modulo, a, b); }
  static Expr combine(Op op, const Expr& a, const Expr& b);

  Expr(const Expr& other);
  Expr(Expr&& other) noexcept;
  Expr& operator=(const Expr& other);
  Expr& operator=(Expr&& other) noexcept;
  ~Expr();

  // Same operations in the same order: `a+b` and `b+a` differ.
  friend bool operator==(const Expr& a, const Expr& b);

  [[nodiscard]] bool is_literal() const { return (word_ & 1) != 0; }
  // REQUIRES: is_literal().
  [[nodiscard]] std::int64_t literal() const { return static_cast<std::int64_t>(word_) >> 1; }
  // Its value, if it names nothing and has a result.
  [[nodiscard]] std::optional<std::int64_t> constant() const;
  // Postfix: operands before their operation. Empty for a literal.
  [[nodiscard]] std::span<const Node> code() const;

 private:
  static Expr leaf(Node node) { return Expr(std::span(&node, 1)); }
  explicit Expr(std::span<const Node> code);
  [[nodiscard]] const Node* nodes() const {
    return reinterpret_cast<const Node*>(word_);  // NOLINT(performance-no-int-to-ptr): see word_
  }
  void release();

  // A plan has millions of expressions, and most are plain numbers. So this is a tagged pointer:
  // twice the number plus one, or the address of the code, terminated by Op::end.
  std::uintptr_t word_;
};

// Literals have 62 bits and a sign: one bit is the tag.
inline constexpr std::int64_t kMaxLiteral = (std::int64_t{1} << 62) - 1;

// The environment of an evaluation: the values of all names, on one rank.
struct Position {
  std::int64_t rank = 0;
  std::span<const std::int64_t> axes;  // positions on the axes, then on the aliases
  std::span<const std::int64_t> locals;
  std::span<const List> lists;
};

// Throws InputError D203, without a location, on division by zero, an index out of range, or 64-bit
// overflow.
[[nodiscard]] std::int64_t evaluate(const Expr& expr, const Position& position);

enum class Comparator { equal, not_equal, less, less_equal, greater, greater_equal };

struct Comparison {
  Expr left;
  Comparator comparator = Comparator::equal;
  Expr right;
  friend bool operator==(const Comparison&, const Comparison&) = default;
};

// All of them must hold.
using Condition = std::vector<Comparison>;

[[nodiscard]] bool holds(const Condition& condition, const Position& position);

}  // namespace shiplap::plan
