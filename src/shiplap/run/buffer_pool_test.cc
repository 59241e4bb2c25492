#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/run/buffer_pool_internal.h"

namespace shiplap::run {
namespace {

std::shared_ptr<BufferPool> pool_of(Allocate allocate = ordinary_memory) {
  return std::make_shared<BufferPool>(std::move(allocate));
}

bool is_aligned(const std::shared_ptr<std::byte>& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.get()) % 256 == 0;
}

TEST(BufferPool, OneAfterAnotherNeedTheMemoryOfTheLargest) {
  const auto pool = pool_of();
  for (const std::int64_t bytes : {1000, 5000, 100, 3000}) {
    const auto block = pool->lease(bytes);
    EXPECT_TRUE(is_aligned(block));
    EXPECT_GE(pool->usage().leased, bytes);
  }
  EXPECT_EQ(pool->usage().leased, 0);
  EXPECT_EQ(pool->usage().shared, 5120);
  EXPECT_EQ(pool->usage().peak, 5120);
}

TEST(BufferPool, AtTheSameTimeTheyHaveDifferentBlocks) {
  const auto pool = pool_of();
  auto first = pool->lease(1000);
  auto second = pool->lease(500);
  EXPECT_NE(first, second);
  EXPECT_EQ(pool->usage().shared, 1024 + 512);
  std::byte* const small = second.get();
  first.reset();
  second.reset();
  EXPECT_EQ(pool->lease(400).get(), small);  // the smallest that is large enough
  EXPECT_EQ(pool->usage().shared, 1024 + 512);
}

TEST(BufferPool, OwnBlocksAreZeroAndGoWithTheirOwner) {
  const auto pool = pool_of();
  std::memset(pool->lease(600).get(), 7, 600);
  const auto own = pool->allocate_persistent(600);
  EXPECT_TRUE(is_aligned(own));
  EXPECT_TRUE(std::all_of(own.get(), own.get() + 600, [](auto b) { return b == std::byte{}; }));
  EXPECT_EQ(pool->usage().persistent, 768);
  {
    const auto other = pool->allocate_persistent(1);
    EXPECT_EQ(pool->usage().persistent, 1024);
  }
  EXPECT_EQ(pool->usage().persistent, 768);
  EXPECT_EQ(pool->usage().peak, 768 + 1024);
  pool->trim();
  EXPECT_EQ(pool->usage().shared, 0);
}

TEST(BufferPool, LivesAsLongAsItsBlocks) {
  auto pool = pool_of();
  const auto block = pool->lease(100);
  pool.reset();
  std::memset(block.get(), 1, 100);
}

TEST(BufferPool, SaysWhatItCouldNotGet) {
  const auto pool = pool_of([](std::int64_t bytes) {
    if (bytes > 2000) throw std::bad_alloc();
    return ordinary_memory(bytes);
  });
  const auto block = pool->lease(900);
  try {
    static_cast<void>(pool->lease(5'000'000'000));
    FAIL();
  } catch (const InputError& error) {
    const Diagnostic& said = error.diagnostics().front();
    EXPECT_EQ(said.code, "D809");
    EXPECT_EQ(said.what, "out of memory: cannot allocate a buffer of 5000000000 bytes");
    EXPECT_EQ(said.why, "the buffers of this registry already hold 1024 bytes");
  }
  EXPECT_EQ(pool->usage().leased, 1024);
}

TEST(BufferPool, ManyThreadsNeverGetTheSameBlock) {
  const auto pool = pool_of();
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&pool, k] {
      for (int round = 0; round < 200; ++round) {
        const std::int64_t bytes = std::int64_t{64} * (1 + (k + round) % 5);
        const auto block = pool->lease(bytes);
        std::fill_n(block.get(), bytes, std::byte(k));
        ASSERT_EQ(std::count(block.get(), block.get() + bytes, std::byte(k)), bytes);
        static_cast<void>(pool->usage());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->usage().leased, 0);
  EXPECT_LE(pool->usage().peak, 4 * 512);
}

}  // namespace
}  // namespace shiplap::run
