#include "shiplap/kernels/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/kernels/allocations_testing_internal.h"
#include "shiplap/kernels/attention_testing_internal.h"

namespace shiplap::kernels {
namespace {

using testing::Each;
using testing::HasSubstr;

template <class T>
AttentionResult solve(const AttentionProblem& problem) {
  Attention attention(problem.shape);
  AttentionArrays<T> arrays(problem);
  arrays.run(attention, problem.sequences());
  return arrays.answer();
}

struct Bounds {
  double o;
  double lse;  // absolute: it is a logarithm
  double gradient;
};

constexpr Bounds kF32{.o = 1e-5, .lse = 1e-5, .gradient = 1e-5};

// Rounding to bf16 has a relative error of up to u = 2^-8. The output is rounded once, and so are
// the weights of which it is made: 2 u, if the values do not cancel much. A gradient is rounded
// once, and so are its operands P or dS; dS = P (dP - D) also takes D from the rounded output,
// which for few keys or dimensions adds as much again: 4 u. The largest errors seen are half of
// these. lse is float throughout.
constexpr double kU = 1.0 / 256;
constexpr Bounds kBf16{.o = 2 * kU, .lse = 1e-5, .gradient = 4 * kU};

void expect_right(const AttentionResult& found, const AttentionResult& expected,
                  const Bounds& bounds) {
  EXPECT_LE(error_of(found.o, expected.o), bounds.o);
  for (std::size_t i = 0; i < expected.lse.size(); ++i) {
    ASSERT_NEAR(found.lse[i], expected.lse[i], bounds.lse * (1 + std::abs(expected.lse[i]))) << i;
  }
  EXPECT_LE(error_of(found.d_q, expected.d_q), bounds.gradient);
  EXPECT_LE(error_of(found.d_k, expected.d_k), bounds.gradient);
  EXPECT_LE(error_of(found.d_v, expected.d_v), bounds.gradient);
}

void expect_right(const AttentionShape& shape, const std::vector<Lengths>& lengths,
                  std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of "
                                  << shape.head_dim << ", " << lengths.size() << " sequences, seed "
                                  << seed);
  const AttentionProblem problem = random_problem(shape, lengths, seed);
  const AttentionProblem exact = rounded<float>(problem);
  expect_right(solve<float>(exact), reference(exact), kF32);
  const AttentionProblem coarse = rounded<Bf16>(problem);
  expect_right(solve<Bf16>(coarse), reference(coarse), kBf16);
}

TEST(Attention, IsRightForAllSmallLengths) {
  for (std::uint32_t queries = 0; queries <= 5; ++queries) {
    for (std::uint32_t keys = queries; keys <= 7; ++keys) {
      if (keys == 0) continue;
      expect_right({.heads = 2, .head_dim = 8}, {{queries, keys}}, 100 * queries + keys);
    }
  }
}

TEST(Attention, IsRightForLengthsAroundTheEdgesOfBlocks) {
  for (const std::uint32_t length : {17U, 16U, 15U, 127U, 129U, 128U, 255U, 256U, 257U, 300U}) {
    expect_right({.heads = 1, .head_dim = 16}, {{length, length}}, length);
    expect_right({.heads = 4, .kv_heads = 1, .head_dim = 16}, {{1, length}, {3, length}}, length);
  }
}

TEST(Attention, IsRightForManyBlocks) {
  struct Case {
    AttentionShape shape;
    Lengths lengths;
  };
  std::uint64_t seed = 0;
  for (const Case& one : {Case{{.heads = 4, .kv_heads = 1, .head_dim = 8}, {301, 301}},
                          Case{{.heads = 8, .kv_heads = 1, .head_dim = 8}, {140, 531}},
                          Case{{.heads = 2, .kv_heads = 2, .head_dim = 8}, {530, 600}}}) {
    expect_right(one.shape, {one.lengths}, ++seed);
  }
}

TEST(Attention, IsRightForEveryGroupAndDimension) {
  for (const std::int32_t group : {1, 2, 3, 4, 8, 64}) {
    for (const std::int32_t dim : {1, 7, 24, 64, 128}) {
      if (group == 64 && dim > 8) continue;
      expect_right({.heads = 2 * group, .kv_heads = 2, .head_dim = dim}, {{19, 37}},
                   static_cast<std::uint64_t>(100 * group + dim));
    }
  }
}

TEST(Attention, IsRightForRandomShapes) {
  Random random(7);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const auto kv_heads = static_cast<std::int32_t>(random.between(1, 4));
    const auto group = static_cast<std::int32_t>(1 << random.between(0, 4));
    const auto dim = random.pick(std::vector{8, 40, 64});
    std::vector<Lengths> lengths(random.between(1, 9));
    for (Lengths& length : lengths) {
      length.queries = static_cast<std::uint32_t>(random.chance(0.2) ? 0 : random.between(1, 70));
      length.keys = length.queries;
      if (random.chance()) length.keys += static_cast<std::uint32_t>(random.between(0, 90));
    }
    lengths.push_back({.queries = 5, .keys = 5});
    expect_right({.heads = kv_heads * group, .kv_heads = kv_heads, .head_dim = dim}, lengths, seed);
  }
}

TEST(Attention, IsRightForOtherScales) {
  for (const float scale : {-0.7F, 1e-3F, 2.5F}) {
    expect_right({.heads = 2, .kv_heads = 1, .head_dim = 8, .scale = scale}, {{33, 40}}, 4);
  }
}

// Scores of a few hundred would overflow without the maximum.
TEST(Attention, LargeScoresDoNotOverflow) {
  AttentionProblem problem =
      random_problem({.heads = 2, .head_dim = 16, .scale = 1}, {{300, 300}}, 5);
  for (double& number : problem.q) number *= 30;
  const AttentionResult answer = solve<float>(rounded<float>(problem));
  for (const Doubles* numbers : {&answer.o, &answer.lse, &answer.d_q, &answer.d_k, &answer.d_v}) {
    EXPECT_TRUE(std::ranges::all_of(*numbers, [](double x) { return std::isfinite(x); }));
  }
}

TEST(Attention, TheFirstQueryOfAWholeSequenceSeesOnlyItsOwnValue) {
  const AttentionProblem problem =
      rounded<float>(random_problem({.heads = 2, .kv_heads = 2, .head_dim = 8}, {{20, 20}}, 6));
  const AttentionResult answer = solve<float>(problem);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(answer.o[i], problem.v[i], 1e-6) << i;
}

TEST(Attention, TheLastQuerySeesAllKeys) {
  // With queries of zero, each output is the mean of the values seen.
  AttentionProblem problem = random_problem({.heads = 1, .head_dim = 1}, {{3, 400}}, 8);
  std::ranges::fill(problem.q, 0.0);
  std::ranges::fill(problem.v, 0.0);
  problem.v[399] = 400;
  problem.v[398] = 399;
  const AttentionResult answer = solve<float>(problem);
  EXPECT_NEAR(answer.o[0], 0, 0);
  EXPECT_NEAR(answer.o[1], 1, 1e-5);
  EXPECT_NEAR(answer.o[2], 1 + 399.0 / 400, 1e-5);
}

TEST(Attention, ASequenceDoesNotSeeItsNeighbours) {
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 8};
  const AttentionProblem both = random_problem(shape, {{40, 50}, {21, 21}}, 9);
  AttentionProblem second{.shape = shape, .q_ends = {0, 21}, .kv_ends = {0, 21}};
  const auto tail = [](const Doubles& all, std::size_t count) {
    return Doubles(all.end() - static_cast<std::ptrdiff_t>(count), all.end());
  };
  second.q = tail(both.q, 21UL * 16);
  second.k = tail(both.k, 21UL * 8);
  second.v = tail(both.v, 21UL * 8);
  second.d_o = tail(both.d_o, 21UL * 16);
  const AttentionResult of_both = solve<Bf16>(both);
  const AttentionResult alone = solve<Bf16>(second);
  EXPECT_EQ(tail(of_both.o, 21UL * 16), alone.o);
  EXPECT_EQ(tail(of_both.lse, 21UL * 2), alone.lse);
  EXPECT_EQ(tail(of_both.d_q, 21UL * 16), alone.d_q);
  EXPECT_EQ(tail(of_both.d_k, 21UL * 8), alone.d_k);
  EXPECT_EQ(tail(of_both.d_v, 21UL * 8), alone.d_v);
}

TEST(Attention, KeysWithoutQueriesHaveNoGradient) {
  const AttentionProblem problem = random_problem({.heads = 2, .head_dim = 8}, {{0, 30}}, 10);
  AttentionArrays<float> arrays(problem);
  std::ranges::fill(arrays.d_k, 1.0F);
  std::ranges::fill(arrays.d_v, 1.0F);
  Attention attention(problem.shape);
  arrays.run(attention, problem.sequences());
  EXPECT_THAT(arrays.d_k, Each(0.0F));
  EXPECT_THAT(arrays.d_v, Each(0.0F));
}

TEST(Attention, NoSequencesAreNoWork) {
  const AttentionProblem problem = random_problem({.heads = 2, .head_dim = 8}, {}, 11);
  Attention attention(problem.shape);
  AttentionArrays<float> arrays(problem);
  EXPECT_NO_THROW(arrays.run(attention, problem.sequences()));
}

template <class T>
bool same_bits(const AttentionArrays<T>& a, const AttentionArrays<T>& b) {
  return a.o == b.o && a.lse == b.lse && a.d_q == b.d_q && a.d_k == b.d_k && a.d_v == b.d_v;
}

// Whatever the object did before, and whichever object it is.
template <class T>
void expect_same_bits() {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 24};
  const AttentionProblem problem = random_problem(shape, {{270, 300}, {5, 9}}, 12);
  const AttentionProblem other = random_problem(shape, {{33, 600}}, 13);
  Attention attention(shape);
  AttentionArrays<T> first(problem);
  AttentionArrays<T> between(other);
  AttentionArrays<T> second(problem);
  AttentionArrays<T> third(problem);
  first.run(attention, problem.sequences());
  between.run(attention, other.sequences());
  second.run(attention, problem.sequences());
  Attention moved = std::move(attention);
  third.run(moved, problem.sequences());
  EXPECT_TRUE(same_bits(first, second));
  EXPECT_TRUE(same_bits(first, third));
}

TEST(Attention, GivesTheSameBitsEveryTime) {
  expect_same_bits<float>();
  expect_same_bits<Bf16>();
}

// Any NaN payload: arithmetic on the bits of a NaN must not produce a number.
TEST(Attention, LetsNoNanBecomeANumber) {
  for (const std::uint32_t bits : {0x7fc00000U, 0x7fc00001U, 0x7fffffffU, 0xffffffffU}) {
    const AttentionProblem problem = random_problem({.head_dim = 8}, {{20, 20}}, 3);
    AttentionArrays<float> arrays(problem);
    arrays.k[0] = std::bit_cast<float>(bits);
    Attention attention(problem.shape);
    arrays.run(attention, problem.sequences());
    for (const float value : arrays.o) EXPECT_TRUE(std::isnan(value)) << std::hex << bits;
  }
}

TEST(Attention, TwoThreadsHaveOneEach) {
  const AttentionProblem problem =
      random_problem({.heads = 4, .kv_heads = 2, .head_dim = 16}, {{90, 300}, {40, 40}}, 14);
  AttentionArrays<Bf16> expected(problem);
  Attention alone(problem.shape);
  expected.run(alone, problem.sequences());
  std::vector<AttentionArrays<Bf16>> results(2, AttentionArrays<Bf16>(problem));
  std::vector<std::thread> threads;
  for (AttentionArrays<Bf16>& result : results) {
    threads.emplace_back([&] {
      Attention attention(problem.shape);
      for (int i = 0; i < 3; ++i) result.run(attention, problem.sequences());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const AttentionArrays<Bf16>& result : results) EXPECT_TRUE(same_bits(result, expected));
}

// oneDNN allocates a few hundred bytes for the arguments of every call, and 1,296, whatever the
// sizes, where it multiplies bf16 without instructions for it.
TEST(Attention, ALaterCallOfTheSameSizesAllocatesNothing) {
  const AttentionProblem problem =
      random_problem({.heads = 4, .kv_heads = 2, .head_dim = 16}, {{90, 300}, {40, 40}}, 15);
  Attention attention(problem.shape);
  AttentionArrays<float> f32(problem);
  AttentionArrays<Bf16> bf16(problem);
  f32.run(attention, problem.sequences());
  bf16.run(attention, problem.sequences());
  allocations = 0;
  largest_allocation = 0;
  counting = true;
  f32.run(attention, problem.sequences());
  bf16.run(attention, problem.sequences());
  counting = false;
  if (gemm_backend_name() == "reference") {
    EXPECT_EQ(allocations, 0U);
  }
  EXPECT_LE(largest_allocation, 1536U);
}

// The reference checks the gradient, so it is itself checked with finite differences of sum(d_o *
// o).
TEST(Reference, ItsGradientIsThatOfFiniteDifferences) {
  AttentionProblem problem =
      random_problem({.heads = 4, .kv_heads = 2, .head_dim = 3}, {{3, 5}, {0, 2}, {2, 2}}, 16);
  const AttentionResult answer = reference(problem);
  const auto loss = [&] {
    const AttentionResult here = reference(problem);
    double sum = 0;
    for (std::size_t i = 0; i < here.o.size(); ++i) sum += here.o[i] * problem.d_o[i];
    return sum;
  };
  const auto compare = [&](Doubles& input, const Doubles& gradient, const char* name) {
    constexpr double kStep = 1e-5;
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double before = input[i];
      input[i] = before + kStep;
      const double above = loss();
      input[i] = before - kStep;
      const double below = loss();
      input[i] = before;
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-8) << name << " " << i;
    }
  };
  compare(problem.q, answer.d_q, "q");
  compare(problem.k, answer.d_k, "k");
  compare(problem.v, answer.d_v, "v");
}

void expect_refused(const std::function<void()>& act, const std::string& part) {
  try {
    act();
    ADD_FAILURE() << "not refused: " << part;
  } catch (const InputError& error) {
    ASSERT_EQ(error.diagnostics().size(), 1U);
    EXPECT_EQ(error.diagnostics().front().code, "D500");
    EXPECT_THAT(error.diagnostics().front().what, HasSubstr(part));
  }
}

TEST(Refused, ShapesThatAreNone) {
  const auto make = [](const AttentionShape& shape) { return [=] { Attention{shape}; }; };
  expect_refused(make({.heads = 0}), "at least 1");
  expect_refused(make({.kv_heads = -1}), "at least 1");
  expect_refused(make({.head_dim = 0}), "at least 1");
  expect_refused(make({.heads = 6, .kv_heads = 4}), "6 heads cannot share 4 key heads");
  expect_refused(make({.heads = 1, .kv_heads = 2}), "1 heads cannot share 2 key heads");
  expect_refused(make({.scale = std::nanf("")}), "scale");
}

TEST(Refused, LengthsThatMakeNoSense) {
  const auto with = [](const std::vector<std::uint32_t>& q, const std::vector<std::uint32_t>& kv) {
    return [=] {
      Attention attention({.head_dim = 8});
      attention.forward<float>({q, kv}, {});
    };
  };
  expect_refused(with({}, {}), "cu_seqlens_q is empty");
  expect_refused(with({0}, {}), "cu_seqlens_kv is empty");
  expect_refused(with({1, 2}, {0, 2}), "cu_seqlens_q begins with 1");
  expect_refused(with({0, 2}, {1, 2}), "cu_seqlens_kv begins with 1");
  expect_refused(with({0, 4, 3}, {0, 4, 8}), "decreases from 4 to 3 at entry 2");
  expect_refused(with({0, 2}, {0, 2, 3}), "2 entries and cu_seqlens_kv 3");
  expect_refused(with({0, 2, 5}, {0, 2, 4}), "sequence 1 has 3 queries but only 2 keys");
}

TEST(Refused, ArraysOfTheWrongSize) {
  const AttentionProblem problem = random_problem({.heads = 2, .head_dim = 8}, {{3, 4}}, 17);
  Attention attention(problem.shape);
  AttentionArrays<float> arrays(problem);
  const auto forward = [&](auto shorten) {
    return [&, shorten] {
      AttentionForward<float> data = arrays.forward();
      shorten(data);
      attention.forward<float>(problem.sequences(), data);
    };
  };
  expect_refused(forward([](auto& d) { d.q = d.q.subspan(1); }), "q has 47 elements");
  expect_refused(forward([](auto& d) { d.k = d.k.subspan(1); }), "k has 31 elements");
  expect_refused(forward([](auto& d) { d.v = {}; }), "v has 0 elements");
  expect_refused(forward([](auto& d) { d.o = {}; }), "o has 0 elements");
  expect_refused(forward([](auto& d) { d.lse = {}; }), "lse has 0 elements");
  const auto backward = [&](auto shorten) {
    return [&, shorten] {
      AttentionBackward<float> data = arrays.backward();
      shorten(data);
      attention.backward<float>(problem.sequences(), data);
    };
  };
  expect_refused(backward([](auto& d) { d.q = {}; }), "q has 0 elements");
  expect_refused(backward([](auto& d) { d.k = {}; }), "k has 0 elements");
  expect_refused(backward([](auto& d) { d.v = {}; }), "v has 0 elements");
  expect_refused(backward([](auto& d) { d.o = {}; }), "o has 0 elements");
  expect_refused(backward([](auto& d) { d.lse = {}; }), "lse has 0 elements");
  expect_refused(backward([](auto& d) { d.d_o = {}; }), "d_o has 0 elements");
  expect_refused(backward([](auto& d) { d.d_q = {}; }), "d_q has 0 elements");
  expect_refused(backward([](auto& d) { d.d_k = {}; }), "d_k has 0 elements");
  expect_refused(backward([](auto& d) { d.d_v = {}; }), "d_v has 0 elements");
}

}  // namespace
}  // namespace shiplap::kernels
