#include "shiplap/plan/expr.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::plan {
namespace {

[[noreturn]] void throw_no_result(std::string what, std::string why = "") {
  throw InputError(Diagnostic{.code = "D203", .what = std::move(what), .why = std::move(why)});
}

std::int64_t divide_down(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t remainder_down(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Returns nullopt on division by zero and on overflow.
std::optional<std::int64_t> apply(Expr::Op op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Expr::Op::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Expr::Op::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Expr::Op::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Expr::Op::divide:
    case Expr::Op::modulo: {
      overflow = b == 0 || (b == -1 && a == std::numeric_limits<std::int64_t>::min());
      if (overflow) break;
      result = op == Expr::Op::divide ? divide_down(a, b) : remainder_down(a, b);
      break;
    }
    default:
      throw InternalError("not an operation of two numbers");
  }
  return overflow ? std::nullopt : std::optional(result);
}

std::int64_t must_apply(Expr::Op op, std::int64_t a, std::int64_t b) {
  if (const auto result = apply(op, a, b)) return *result;
  if (b == 0) throw_no_result(fmt::format("{} divided by zero", a));
  throw_no_result(fmt::format("64-bit overflow, from {} and {}", a, b));
}

std::int64_t entry(const List& list, std::int64_t index) {
  if (index < 0 || static_cast<std::size_t>(index) >= list.values.size()) {
    throw_no_result(
        fmt::format("entry {} of list `{}`, which has {}", index, list.name, list.values.size()),
        "entries are counted from 0");
  }
  return list.values[index];
}

bool is_binary(Expr::Op op) { return op >= Expr::Op::add && op <= Expr::Op::modulo; }

// Runs postfix code on `stack`, which has room for one number per node.
std::int64_t run(std::span<const Expr::Node> code, const Position& position, std::int64_t* stack) {
  std::int64_t* top = stack - 1;
  for (const Expr::Node& node : code) {
    switch (node.op()) {
      case Expr::Op::literal:
        *++top = node.operand();
        break;
      case Expr::Op::axis:
        *++top = position.axes[node.operand()];
        break;
      case Expr::Op::rank:
        *++top = position.rank;
        break;
      case Expr::Op::local:
        *++top = position.locals[node.operand()];
        break;
      case Expr::Op::element:
        *top = entry(position.lists[node.operand()], *top);
        break;
      case Expr::Op::negate:
        *top = must_apply(Expr::Op::subtract, 0, *top);
        break;
      default:
        --top;
        *top = must_apply(node.op(), top[0], top[1]);
    }
  }
  return *top;
}

// A number that does not fit in a node is written as high * 2^40 + low, with low not negative.
void append_number(std::vector<Expr::Node>& code, std::int64_t number) {
  constexpr std::int64_t kMax = (std::int64_t{1} << 55) - 1;
  constexpr std::int64_t kUnit = std::int64_t{1} << 40;
  if (number >= -kMax - 1 && number <= kMax) {
    code.emplace_back(Expr::Op::literal, number);
    return;
  }
  const std::int64_t high = divide_down(number, kUnit);
  code.emplace_back(Expr::Op::literal, high);
  code.emplace_back(Expr::Op::literal, kUnit);
  code.emplace_back(Expr::Op::multiply);
  code.emplace_back(Expr::Op::literal, number - high * kUnit);
  code.emplace_back(Expr::Op::add);
}

void append(std::vector<Expr::Node>& code, const Expr& expr) {
  if (expr.is_literal()) return append_number(code, expr.literal());
  code.insert(code.end(), expr.code().begin(), expr.code().end());
}

}  // namespace

Expr::Expr(std::int64_t literal) : word_(1) {
  if (literal >= -kMaxLiteral - 1 && literal <= kMaxLiteral) {
    word_ = (static_cast<std::uintptr_t>(literal) << 1) | 1;
  } else {
    std::vector<Node> code;
    append_number(code, literal);
    *this = Expr(code);
  }
}

Expr::Expr(std::span<const Node> code) {
  auto* nodes = new Node[code.size() + 1];  // NOLINT: owned by word_, freed in release()
  std::copy(code.begin(), code.end(), nodes);
  nodes[code.size()] = Node(Op::end);
  word_ = reinterpret_cast<std::uintptr_t>(nodes);
}

Expr::Expr(const Expr& other) : word_(1) { *this = other; }

Expr::Expr(Expr&& other) noexcept : word_(std::exchange(other.word_, 1)) {}

Expr& Expr::operator=(const Expr& other) {
  if (this == &other) return *this;
  if (other.is_literal()) {
    release();
    word_ = other.word_;
  } else {
    *this = Expr(other.code());
  }
  return *this;
}

Expr& Expr::operator=(Expr&& other) noexcept {
  std::swap(word_, other.word_);
  return *this;
}

Expr::~Expr() { release(); }

void Expr::release() {
  if (!is_literal()) delete[] nodes();  // NOLINT: see the constructor
  word_ = 1;
}

std::span<const Expr::Node> Expr::code() const {
  if (is_literal()) return {};
  std::size_t count = 0;
  while (nodes()[count].op() != Op::end) ++count;
  return {nodes(), count};
}

Expr Expr::element(ListId list, const Expr& index) {
  std::vector<Node> code;
  append(code, index);
  code.emplace_back(Op::element, list.value);
  return Expr(code);
}

Expr operator-(const Expr& a) {
  if (const auto number = a.constant()) {
    if (const auto folded = apply(Expr::Op::subtract, 0, *number)) return {*folded};
  }
  std::vector<Expr::Node> code;
  append(code, a);
  code.emplace_back(Expr::Op::negate);
  return Expr(code);
}

Expr Expr::combine(Op op, const Expr& a, const Expr& b) {
  ensure(is_binary(op), "combine() takes an operation of two numbers");
  const auto left = a.constant();
  const auto right = b.constant();
  if (left && right) {
    if (const auto folded = apply(op, *left, *right)) return {*folded};
  }
  std::vector<Node> code;
  append(code, a);
  append(code, b);
  code.emplace_back(op);
  return Expr(code);
}

std::optional<std::int64_t> Expr::constant() const {
  if (is_literal()) return literal();
  const bool named = std::ranges::any_of(code(), [](const Node& node) {
    return node.op() == Op::axis || node.op() == Op::rank || node.op() == Op::local ||
           node.op() == Op::element;
  });
  if (named) return std::nullopt;
  try {
    return evaluate(*this, {});
  } catch (const InputError&) {
    return std::nullopt;  // it has no result
  }
}

bool operator==(const Expr& a, const Expr& b) {
  if (a.is_literal() || b.is_literal()) return a.word_ == b.word_;
  return std::ranges::equal(a.code(), b.code());
}

std::int64_t evaluate(const Expr& expr, const Position& position) {
  if (expr.is_literal()) return expr.literal();
  const auto code = expr.code();
  if (code.size() == 1) {  // the most common case: a single name
    std::int64_t single = 0;
    return run(code, position, &single);
  }
  constexpr std::size_t kUsual = 32;
  if (code.size() <= kUsual) {
    std::array<std::int64_t, kUsual> stack;  // NOLINT: written before it is read
    return run(code, position, stack.data());
  }
  std::vector<std::int64_t> stack(code.size());
  return run(code, position, stack.data());
}

bool holds(const Condition& condition, const Position& position) {
  return std::ranges::all_of(condition, [&](const Comparison& comparison) {
    const std::int64_t left = evaluate(comparison.left, position);
    const std::int64_t right = evaluate(comparison.right, position);
    switch (comparison.comparator) {
      case Comparator::equal:
        return left == right;
      case Comparator::not_equal:
        return left != right;
      case Comparator::less:
        return left < right;
      case Comparator::less_equal:
        return left <= right;
      case Comparator::greater:
        return left > right;
      case Comparator::greater_equal:
        return left >= right;
    }
    throw InternalError("unknown comparator");
  });
}

}  // namespace shiplap::plan
