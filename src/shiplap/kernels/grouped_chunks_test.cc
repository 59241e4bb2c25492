// Grouped GEMM of rows in chunks: the same bits, without allocations.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

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

void multiply_in_chunks(GroupedArrays& arrays, LinearKernel& kernel, std::int64_t rows) {
  std::int64_t first = 0;
  for (const std::vector<GroupRows>& runs : cut(arrays.spec.runs, rows)) {
    arrays.multiply(kernel, first, runs);
    first += rows_of(runs);
  }
}

void expect_same_bits(const GroupedGemmCase& q, std::uint64_t seed) {
  Random random(seed);
  GroupedArrays given(q, random, Fill::fractions);
  LinearKernel kernel(given.shape());
  given.prepare(kernel);
  GroupedArrays whole = given;
  whole.multiply(kernel);
  for (const std::int64_t rows : {1, 2, 3, 7, 16, 17, 33, 64, 100}) {
    GroupedArrays chunks = given;
    multiply_in_chunks(chunks, kernel, rows);
    ASSERT_TRUE(chunks.c == whole.c) << "chunks of " << rows << ": " << q << ", seed " << seed
                                     << " by " << kernel.backend_name();
    ASSERT_TRUE(chunks.before == whole.before) << rows << ": " << q << ", seed " << seed;
  }
}

TEST(GroupedChunks, ARowHasTheSameBitsAloneInAChunkAndInTheWhole) {
  struct Size {
    std::int64_t n;
    std::int64_t k;
  };
  for (const Size size : {Size{64, 64}, Size{9, 7}, Size{100, 333}, Size{1, 40}, Size{1030, 31}}) {
    for (const DType type : kFloatTypes) {
      for (const DType out : {DType::f32, type}) {
        GroupedGemmCase q{.groups = 4, .runs = {{3, 70}, {0, 1}, {1, 0}, {2, 33}, {3, 20}, {0, 6}}};
        q.all = {.m = 130, .n = size.n, .k = size.k, .type = type, .out = out};
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
    GroupedGemmCase q{
        .groups = 5, .runs = random_runs(random, 5, 60), .typical_rows = random.between(1, 130)};
    q.all = {.m = rows_of(q.runs),
             .n = random.between(1, 200),
             .k = random.between(1, 200),
             .type = kFloatTypes[random.between(0, 3)],
             .a_is_transposed = random.chance(0.3),
             .weights_are_transposed = random.chance()};
    randomize_rest(random, q.all);
    expect_same_bits(q, seed);
    if (HasFatalFailure()) return;
  }
}

// Of the size that layers have, where the inner size is cut into pieces.
TEST(GroupedChunks, LargeProductsKeepTheBits) {
  if (gemm_backend_name() == "reference") GTEST_SKIP() << "the reference takes too long";
  for (const DType type : kFloatTypes) {
    GroupedGemmCase q{.groups = 3, .runs = {{2, 100}, {0, 9}, {1, 41}}};
    q.all = {.m = 150, .n = 520, .k = 2100, .type = type, .out = type};
    expect_same_bits(q, 3);
    q.all.beta = 1;
    q.all.out = DType::f32;
    expect_same_bits(q, 4);
  }
}

TEST(GroupedChunks, PackedOnceOrByEveryCallTheBitsAreTheSame) {
  for (const DType type : kFloatTypes) {
    for (const std::int64_t columns : {70, 1030}) {
      Random random(5);
      GroupedGemmCase q{.groups = 3, .runs = {{2, 40}, {0, 9}, {2, 3}, {1, 17}}};
      q.all = {.m = 69, .n = columns, .k = 300, .type = type, .out = type};
      GroupedArrays once(q, random, Fill::fractions);
      GroupedArrays every_call = once;
      every_call.spec.packing = Packing::every_call;
      for (GroupedArrays* const arrays : {&once, &every_call}) {
        LinearKernel kernel(arrays->shape());
        arrays->prepare(kernel);
        arrays->multiply(kernel);
      }
      EXPECT_TRUE(once.c == every_call.c) << q;
    }
  }
}

// What would be used for bf16 if there were no tiles.
TEST(GroupedChunks, WithoutTilesItIsRightAndKeepsTheBits) {
  Random random(6);
  GroupedGemmCase q{.groups = 3, .runs = {{2, 70}, {0, 9}, {2, 3}, {1, 17}}};
  q.all = {.m = 99, .n = 70, .k = 90, .type = DType::bf16, .out = DType::bf16};
  GroupedArrays whole(q, random, Fill::fractions);
  GroupedArrays rows = whole;
  const GroupedArrays given = whole;
  LinearShape shape = whole.shape();
  shape.engine = Engine::no_amx;
  LinearKernel kernel(shape);
  whole.prepare(kernel);
  whole.multiply(kernel);
  std::int64_t row = 0;
  for (const GroupRows& run : q.runs) {
    for (std::int64_t i = 0; i < run.rows; ++i, ++row) {
      const GroupRows one{.group = run.group, .rows = 1};
      rows.multiply(kernel, row, {&one, 1});
      expect_right_row(whole, given, run.group, row);
    }
  }
  EXPECT_TRUE(rows.c == whole.c) << kernel.backend_name();
}

TEST(GroupedChunks, TwoThreadsHaveOneEach) {
  for (const DType type : kFloatTypes) {
    Random random(8);
    GroupedGemmCase q{.groups = 3, .runs = {{2, 40}, {0, 9}, {1, 11}}};
    q.all = {.m = 60, .n = 90, .k = 70, .type = type, .out = type};
    const GroupedArrays given(q, random, Fill::fractions);
    std::vector<GroupedArrays> results(3, given);
    std::vector<std::thread> threads;
    for (GroupedArrays& result : results) {
      threads.emplace_back([&result] {
        LinearKernel kernel(result.shape());
        result.prepare(kernel);
        for (const std::int64_t rows : {7, 60, 16}) multiply_in_chunks(result, kernel, rows);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(results[1].c == results[0].c);
    EXPECT_TRUE(results[2].c == results[0].c);
  }
}

// oneDNN itself takes less than a kilobyte in every call.
TEST(GroupedChunks, ALaterCallOfOtherSizesAllocatesNothing) {
  for (const DType type : kFloatTypes) {
    for (const Activation activation : {Activation::none, Activation::gelu_tanh}) {
      Random random(9);
      GroupedGemmCase q{.groups = 3};
      q.all = {.m = 544,
               .n = 90,
               .k = 70,
               .type = type,
               .out = type,
               .has_bias = activation != Activation::none,
               .bias = type,
               .activation = activation};
      GroupedArrays arrays(q, random, Fill::fractions);
      LinearKernel kernel(arrays.shape());
      arrays.prepare(kernel);
      std::vector<GroupRows> all_classes;
      for (std::int64_t rows = 4; rows <= 64; rows += 4) all_classes.push_back({1, rows});
      arrays.multiply(kernel, 0, all_classes);
      allocations = 0;
      largest_allocation = 0;
      for (std::int64_t rows = 0; rows <= 100; ++rows) {
        const GroupRows runs[] = {{1, rows}, {0, 100 - rows}, {2, 100}};
        counting = true;
        arrays.multiply(kernel, 0, runs);
        counting = false;
      }
      if (kernel.backend_name() == "reference" || kernel.backend_name() == "AMX tiles") {
        EXPECT_EQ(allocations, 0U) << static_cast<int>(type);
      }
      EXPECT_LE(largest_allocation, 1024U) << static_cast<int>(type);
    }
  }
}

// Memory that ends at a guard page.
class Guarded {
 public:
  explicit Guarded(const TypedArray& numbers) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = static_cast<std::size_t>(numbers.count()) * bytes_of(numbers.type());
    const std::size_t room = (bytes_ + page - 1) / page * page;
    mapped_ = room + page;
    map_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_ + room, page, PROT_NONE);
    data_ = map_ + room - bytes_;
    std::memcpy(data_, numbers.data(), bytes_);
  }
  ~Guarded() { munmap(map_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  [[nodiscard]] void* data() { return data_; }
  [[nodiscard]] bool has(const TypedArray& numbers) const {
    return std::memcmp(data_, numbers.data(), bytes_) == 0;
  }

 private:
  std::size_t bytes_ = 0;
  std::size_t mapped_ = 0;
  std::byte* map_ = nullptr;
  std::byte* data_ = nullptr;
};

// Tiles and masks are beyond what a sanitizer sees.
TEST(GroupedChunks, NothingBehindTheMatricesIsTouched) {
  Random random(10);
  for (const std::int64_t rows : {1, 5, 16, 17, 31, 33}) {
    for (const std::int64_t k : {1, 31, 32, 64}) {
      for (const std::int64_t columns : {1, 31, 32, 33, 70}) {
        for (const Packing packing : {Packing::once, Packing::every_call}) {
          GroupedGemmCase q{.groups = 1, .runs = {{0, rows}}, .packing = packing};
          q.all = {.m = rows,
                   .n = columns,
                   .k = k,
                   .type = DType::bf16,
                   .out = random.chance() ? DType::bf16 : DType::f32,
                   .weights_are_transposed = random.chance()};
          GroupedArrays arrays(q, random, Fill::fractions);
          Guarded a(arrays.a);
          Guarded weights(arrays.weights[0]);
          Guarded c(arrays.c);
          LinearKernel kernel(arrays.shape());
          kernel.prepare({.data = weights.data(),
                          .type = DType::bf16,
                          .is_transposed = q.all.weights_are_transposed});
          kernel.multiply({.data = a.data(), .type = DType::bf16, .rows = rows},
                          {.data = c.data(), .type = q.all.out}, {}, q.runs);
          arrays.prepare(kernel);
          arrays.multiply(kernel);
          ASSERT_TRUE(c.has(arrays.c)) << q;
        }
      }
    }
  }
}

TEST(GroupedChunks, AKernelCanBeMoved) {
  Random random(7);
  GroupedGemmCase q{.groups = 2, .runs = {{1, 3}, {0, 2}}};
  q.all = {.m = 5, .n = 6, .k = 7};
  GroupedArrays first(q, random, Fill::fractions);
  GroupedArrays second = first;
  LinearKernel kernel(first.shape());
  first.prepare(kernel);
  first.multiply(kernel);
  LinearKernel moved = std::move(kernel);
  second.multiply(moved);
  EXPECT_TRUE(first.c == second.c);
}

}  // namespace
}  // namespace shiplap::kernels
