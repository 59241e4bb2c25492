#include "shiplap/plan/expr.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/plan/testing_internal.h"

namespace shiplap::plan {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// ---- an independent evaluator: trees instead of postfix, search instead of division

const std::vector<List> kLists = {{.name = "cuts", .values = {4, -1, 7}}};
const std::vector<std::int64_t> kAxes = {2, 5};
const std::vector<std::int64_t> kLocals = {-3};
const Position kPosition{.rank = 6, .axes = kAxes, .locals = kLocals, .lists = kLists};

struct Tree {
  enum class Kind { literal, axis, rank, local, element, negate, binary };
  Kind kind = Kind::literal;
  Expr::Op op = Expr::Op::add;
  std::int64_t value = 0;
  std::shared_ptr<const Tree> left;
  std::shared_ptr<const Tree> right;
};
using Ptr = std::shared_ptr<const Tree>;

Ptr leaf(Tree::Kind kind, std::int64_t value) {
  return std::make_shared<Tree>(Tree{.kind = kind, .value = value});
}

// The largest q with q*b <= a, by exhaustive search.
std::int64_t search_quotient(std::int64_t a, std::int64_t b) {
  std::int64_t q = -1000;
  const auto passes = [&](std::int64_t k) { return b > 0 ? k * b > a : k * b < a; };
  while (!passes(q + 1)) ++q;
  return q;
}

std::optional<std::int64_t> slow_binary(Expr::Op op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case Expr::Op::add:
      return a + b;
    case Expr::Op::subtract:
      return a - b;
    case Expr::Op::multiply:
      return a * b;
    case Expr::Op::divide:
      return b == 0 ? std::nullopt : std::optional(search_quotient(a, b));
    default:
      return b == 0 ? std::nullopt : std::optional(a - b * search_quotient(a, b));
  }
}

std::optional<std::int64_t> slow(const Tree& tree) {
  switch (tree.kind) {
    case Tree::Kind::literal:
      return tree.value;
    case Tree::Kind::axis:
      return kAxes[tree.value];
    case Tree::Kind::rank:
      return 6;
    case Tree::Kind::local:
      return -3;
    case Tree::Kind::element: {
      const auto index = slow(*tree.left);
      if (!index || *index < 0 || *index > 2) return std::nullopt;
      return std::vector<std::int64_t>{4, -1, 7}[*index];
    }
    case Tree::Kind::negate: {
      const auto value = slow(*tree.left);
      return value ? std::optional(-*value) : std::nullopt;
    }
    case Tree::Kind::binary: {
      const auto a = slow(*tree.left);
      const auto b = slow(*tree.right);
      return a && b ? slow_binary(tree.op, *a, *b) : std::nullopt;
    }
  }
  return std::nullopt;
}

Expr build(const Tree& tree) {
  switch (tree.kind) {
    case Tree::Kind::literal:
      return {tree.value};
    case Tree::Kind::axis:
      return Expr::axis(AxisId(static_cast<std::int32_t>(tree.value)));
    case Tree::Kind::rank:
      return Expr::rank();
    case Tree::Kind::local:
      return Expr::local(LocalId(std::int32_t{0}));
    case Tree::Kind::element:
      return Expr::element(ListId(std::int32_t{0}), build(*tree.left));
    case Tree::Kind::negate:
      return -build(*tree.left);
    case Tree::Kind::binary:
      break;
  }
  return Expr::combine(tree.op, build(*tree.left), build(*tree.right));
}

std::vector<Ptr> one_level_more(const std::vector<Ptr>& below) {
  std::vector<Ptr> trees = below;
  for (const Ptr& a : below) {
    trees.push_back(std::make_shared<Tree>(Tree{.kind = Tree::Kind::element, .left = a}));
    trees.push_back(std::make_shared<Tree>(Tree{.kind = Tree::Kind::negate, .left = a}));
    for (const Ptr& b : below) {
      for (const Expr::Op op : {Expr::Op::add, Expr::Op::subtract, Expr::Op::multiply,
                                Expr::Op::divide, Expr::Op::modulo}) {
        trees.push_back(std::make_shared<Tree>(
            Tree{.kind = Tree::Kind::binary, .op = op, .left = a, .right = b}));
      }
    }
  }
  return trees;
}

std::optional<std::int64_t> fast(const Expr& expr) {
  try {
    return evaluate(expr, kPosition);
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().at(0).code, "D203");
    return std::nullopt;
  }
}

TEST(Expr, EvaluatesAllSmallTreesAsASecondEvaluatorDoes) {
  const std::vector<Ptr> leaves = {leaf(Tree::Kind::literal, 0), leaf(Tree::Kind::literal, -2),
                                   leaf(Tree::Kind::literal, 3), leaf(Tree::Kind::axis, 1),
                                   leaf(Tree::Kind::rank, 0),    leaf(Tree::Kind::local, 0)};
  const std::vector<Ptr> trees = one_level_more(one_level_more(leaves));
  ASSERT_GT(trees.size(), 100'000U);
  std::size_t without_result = 0;
  for (std::size_t k = 0; k < trees.size(); ++k) {
    const auto expected = slow(*trees[k]);
    without_result += expected ? 0 : 1;
    ASSERT_EQ(fast(build(*trees[k])), expected) << "tree " << k;
  }
  EXPECT_GT(without_result, 1000U);
}

TEST(Expr, DivisionAndRemainderObeyTheirLawsForAllSmallNumbers) {
  for (std::int64_t a = -40; a <= 40; ++a) {
    for (std::int64_t b = -12; b <= 12; ++b) {
      if (b == 0) continue;
      const std::int64_t q = evaluate(div(Expr(a), Expr(b)), {});
      const std::int64_t r = evaluate(mod(Expr(a), Expr(b)), {});
      EXPECT_EQ(q * b + r, a) << a << " and " << b;
      EXPECT_TRUE(b > 0 ? r >= 0 && r < b : r <= 0 && r > b) << a << " and " << b;
    }
  }
}

TEST(Expr, FoldingDoesNotChangeWhatAnExpressionIsWorth) {
  const std::vector<std::int64_t> axes = {0};
  for (std::int64_t a = -9; a <= 9; ++a) {
    for (std::int64_t b = -9; b <= 9; ++b) {
      for (const Expr::Op op : {Expr::Op::add, Expr::Op::subtract, Expr::Op::multiply,
                                Expr::Op::divide, Expr::Op::modulo}) {
        if (b == 0 && (op == Expr::Op::divide || op == Expr::Op::modulo)) continue;
        const Expr folded = Expr::combine(op, a, b);
        const Expr unfolded = Expr::combine(op, Expr::axis(AxisId(std::int32_t{0})) + a, b);
        EXPECT_TRUE(folded.is_literal());
        EXPECT_FALSE(unfolded.is_literal());
        EXPECT_EQ(folded.literal(), evaluate(unfolded, {.axes = axes}));
      }
    }
  }
}

TEST(Expr, EqualNumbersAreEqualExpressions) {
  EXPECT_EQ(Expr(2) + Expr(3), Expr(5));
  EXPECT_EQ(-Expr(5), Expr(-5));
  EXPECT_EQ(Expr(kMax) - 1 + 1, Expr(kMax));
  EXPECT_EQ(Expr(kMaxLiteral) + 1, Expr(kMaxLiteral + 1));
  EXPECT_NE(Expr(kMax), Expr(kMax - 1));
  EXPECT_NE(Expr(kMax), Expr(kMin));
  EXPECT_NE(Expr::rank(), Expr(0));
  EXPECT_NE(Expr::rank() + Expr(1), Expr(1) + Expr::rank());
  EXPECT_NE(Expr::rank() + Expr(1), Expr::rank() - Expr(1));
}

TEST(Expr, HoldsEveryNumberOf64Bits) {
  for (const std::int64_t edge :
       {kMaxLiteral, -kMaxLiteral - 1, kMax, kMin, std::int64_t{0}, std::int64_t{1} << 55,
        -(std::int64_t{1} << 55), std::int64_t{1} << 40, std::int64_t{1} << 31}) {
    for (std::int64_t step = -2; step <= 2; ++step) {
      if ((step < 0 && edge < kMin - step) || (step > 0 && edge > kMax - step)) continue;
      const std::int64_t number = edge + step;
      EXPECT_EQ(evaluate(Expr(number), {}), number);
      EXPECT_EQ(evaluate(Expr::rank() + Expr(number), {}), number);
      const bool small = number <= kMaxLiteral && number >= -kMaxLiteral - 1;
      EXPECT_EQ(Expr(number).is_literal(), small) << number;
      EXPECT_EQ(Expr(number).code().empty(), small) << number;
      EXPECT_EQ(Expr(number), Expr(number));
    }
  }
}

TEST(Expr, ANumberBeyond64BitsIsRefusedAndNeverFolded) {
  for (const Expr& expr : {Expr(kMax) + 1, Expr(kMin) - 1, Expr(kMax) * 2, -Expr(kMin),
                           div(Expr(kMin), Expr(-1)), mod(Expr(kMin), Expr(-1))}) {
    EXPECT_FALSE(expr.is_literal());
    EXPECT_EQ(diagnostic_of([&] { (void)evaluate(expr, {}); }).code, "D203");
  }
}

TEST(Expr, TheQuotientsAtTheEdgeOf64BitsAreExact) {
  EXPECT_EQ(evaluate(div(Expr(kMin), Expr(2)), {}), kMin / 2);
  EXPECT_EQ(evaluate(div(Expr(kMin), Expr(kMax)), {}), -2);
  EXPECT_EQ(evaluate(mod(Expr(kMin), Expr(kMax)), {}), kMax - 1);
  EXPECT_EQ(evaluate(div(Expr(kMax), Expr(kMin)), {}), -1);
  EXPECT_EQ(evaluate(mod(Expr(kMax), Expr(kMin)), {}), -1);
  EXPECT_EQ(evaluate(mod(Expr(kMin), Expr(kMin)), {}), 0);
}

TEST(Expr, WhatHasNoResultSaysWhy) {
  const auto what = [](const Expr& expr) {
    return diagnostic_of([&] { (void)evaluate(expr, kPosition); }).what;
  };
  EXPECT_EQ(what(div(Expr::rank(), Expr(0))), "6 divided by zero");
  EXPECT_EQ(what(mod(Expr::rank(), Expr(0))), "6 divided by zero");
  EXPECT_EQ(what(Expr::element(ListId(std::int32_t{0}), 3)), "entry 3 of list `cuts`, which has 3");
  EXPECT_EQ(what(Expr::element(ListId(std::int32_t{0}), -1)),
            "entry -1 of list `cuts`, which has 3");
}

TEST(Expr, LongExpressionsAreEvaluatedToo) {
  Expr sum = Expr::rank();
  for (int k = 0; k < 1000; ++k) sum = sum + Expr::rank();
  EXPECT_EQ(evaluate(sum, {.rank = 3}), 3003);
  Expr nested = Expr::rank();  // needs a deep stack: r-(r-(r-..))
  for (int k = 0; k < 999; ++k) nested = Expr::rank() - nested;
  EXPECT_EQ(evaluate(nested, {.rank = 3}), 0);
}

TEST(Expr, CopiesShareNothing) {
  const Expr original = Expr::rank() * 2;
  Expr copy = original;
  EXPECT_NE(copy.code().data(), original.code().data());
  copy = copy + 1;
  EXPECT_EQ(evaluate(original, {.rank = 5}), 10);
  EXPECT_EQ(evaluate(copy, {.rank = 5}), 11);
}

TEST(Expr, CanBeCopiedAndMovedInEveryCombination) {
  const std::vector<Expr> kinds = {Expr(7), Expr(kMax), Expr::rank() + 1};
  for (const Expr& from : kinds) {
    for (const Expr& to : kinds) {
      Expr copied = to;
      copied = from;
      EXPECT_EQ(copied, from);
      Expr source = from;
      Expr moved = to;
      moved = std::move(source);
      EXPECT_EQ(moved, from);
      const Expr constructed(std::move(moved));
      EXPECT_EQ(constructed, from);
    }
    Expr self = from;
    Expr& alias = self;
    self = alias;
    EXPECT_EQ(self, from);
    self = std::move(alias);
    EXPECT_EQ(self, from);
  }
}

TEST(Condition, ComparesInAllSixWays) {
  for (std::int64_t a = -1; a <= 1; ++a) {
    for (std::int64_t b = -1; b <= 1; ++b) {
      const auto compares = [&](Comparator how) { return holds({{a, how, b}}, {}); };
      EXPECT_EQ(compares(Comparator::equal), a == b);
      EXPECT_EQ(compares(Comparator::not_equal), a != b);
      EXPECT_EQ(compares(Comparator::less), a < b);
      EXPECT_EQ(compares(Comparator::less_equal), a <= b);
      EXPECT_EQ(compares(Comparator::greater), a > b);
      EXPECT_EQ(compares(Comparator::greater_equal), a >= b);
    }
  }
}

TEST(Condition, HoldsIfAllComparisonsDo) {
  const Comparison yes{0, Comparator::equal, 0};
  const Comparison no{0, Comparator::less, 0};
  EXPECT_TRUE(holds({}, {}));
  EXPECT_TRUE(holds({yes, yes}, {}));
  EXPECT_FALSE(holds({yes, no}, {}));
  EXPECT_FALSE(holds({no, yes}, {}));
}

TEST(Condition, StopsAtTheFirstComparisonThatFails) {
  // So `i>0 and list[i-1]=2` is safe at i = 0.
  const Comparison no{0, Comparator::less, 0};
  const Comparison undefined{div(Expr(1), Expr(0)), Comparator::equal, 0};
  EXPECT_FALSE(holds({no, undefined}, {}));
  EXPECT_EQ(diagnostic_of([&] { (void)holds({undefined, no}, {}); }).code, "D203");
}

}  // namespace
}  // namespace shiplap::plan
