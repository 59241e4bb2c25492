// Grouped products whose rows come in chunks: the same bits, without allocations.
#include <gtest/gtest.h>

#include <algorithm>

#include "shiplap/kernels/allocations_testing_internal.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/grouped_testing_internal.h"

namespace shiplap::kernels {
namespace {

// The runs, cut wherever a chunk of `rows` ends.
std::vector<std::vector<GroupRows>> cut(std::span<const GroupRows> runs, std::int64_t rows) {
  std::vector<std::vector<GroupRows>> chunks(1);
  std::int64_t room = rows;
  for (const GroupRows& run : runs) {
    for (std::int64_t left = run.rows; left > 0;) {
      const std::int64_t now = std::min(left, room);
      chunks.back().push_back({.group = run.group, .rows = now});
      left -= now;
      room -= now;
      if (room > 0) continue;
      chunks.emplace_back();
      room = rows;
    }
  }
  return chunks;
}

void multiply_in_chunks(GroupedArrays& arrays, GroupedLinear& kernel, std::int64_t rows) {
  std::int64_t first = 0;
  for (const std::vector<GroupRows>& runs : cut(arrays.question.runs, rows)) {
    arrays.multiply(kernel, first, runs);
    first += rows_of(runs);
  }
}

void expect_same_bits(const GroupedQuestion& q, std::uint64_t seed) {
  Random random(seed);
  GroupedArrays given(q, random, Fill::fractions);
  GroupedLinear kernel(given.shape());
  given.prepare(kernel);
  GroupedArrays whole = given;
  whole.multiply(kernel);
  for (const std::int64_t rows : {1, 2, 3, 7, 16, 17, 33, 64, 100}) {
    GroupedArrays chunks = given;
    multiply_in_chunks(chunks, kernel, rows);
    ASSERT_TRUE(chunks.c == whole.c)
        << "chunks of " << rows << ": " << q << ", seed " << seed << " by " << kernel.by();
    ASSERT_TRUE(chunks.before == whole.before) << rows << ": " << q << ", seed " << seed;
  }
}

TEST(GroupedChunks, ARowHasTheSameBitsAloneInAChunkAndInTheWhole) {
  struct Size {
    std::int64_t columns;
    std::int64_t depth;
  };
  for (const Size size : {Size{64, 64}, Size{9, 7}, Size{100, 333}, Size{1, 40}, Size{1030, 31}}) {
    for (const Number type : kNumbers) {
      for (const Number out : {Number::f32, type}) {
        GroupedQuestion q{.groups = 4, .runs = {{3, 70}, {0, 1}, {1, 0}, {2, 33}, {3, 20}, {0, 6}}};
        q.all = {
            .rows = 130, .columns = size.columns, .depth = size.depth, .type = type, .out = out};
        expect_same_bits(q, 1);
        q.typical_rows = 4;
        expect_same_bits(q, 2);
      }
    }
  }
}

TEST(GroupedChunks, EpiloguesAndTransposesKeepTheBits) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    GroupedQuestion q{
        .groups = 5, .runs = random_runs(random, 5, 60), .typical_rows = random.between(1, 130)};
    q.all = {.rows = rows_of(q.runs),
             .columns = random.between(1, 200),
             .depth = random.between(1, 200),
             .type = kNumbers[random.between(0, 3)],
             .a_is_transposed = random.chance(0.3),
             .weights_are_transposed = random.chance()};
    choose_rest(random, q.all);
    expect_same_bits(q, seed);
    if (HasFatalFailure()) return;
  }
}

// Of the size that layers have, where the inner size is cut into pieces.
TEST(GroupedChunks, LargeProductsKeepTheBits) {
  if (products_by() == "plain loops") GTEST_SKIP() << "plain loops take too long";
  for (const Number type : kNumbers) {
    GroupedQuestion q{.groups = 3, .runs = {{2, 100}, {0, 9}, {1, 41}}};
    q.all = {.rows = 150, .columns = 520, .depth = 2100, .type = type, .out = type};
    expect_same_bits(q, 3);
    q.all.beta = 1;
    q.all.out = Number::f32;
    expect_same_bits(q, 4);
  }
}

TEST(GroupedChunks, AKernelCanBeMoved) {
  Random random(7);
  GroupedQuestion q{.groups = 2, .runs = {{1, 3}, {0, 2}}};
  q.all = {.rows = 5, .columns = 6, .depth = 7};
  GroupedArrays first(q, random, Fill::fractions);
  GroupedArrays second = first;
  GroupedLinear kernel(first.shape());
  first.prepare(kernel);
  first.multiply(kernel);
  GroupedLinear moved = std::move(kernel);
  second.multiply(moved);
  EXPECT_TRUE(first.c == second.c);
}

}  // namespace
}  // namespace shiplap::kernels
