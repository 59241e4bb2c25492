#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/buffer_pool_internal.h"

namespace shiplap::run {

std::shared_ptr<std::byte> ordinary_memory(std::int64_t bytes) {
  void* const memory = std::aligned_alloc(static_cast<std::size_t>(kAlignment),
                                          static_cast<std::size_t>(aligned(bytes)));
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), [](std::byte* begin) { std::free(begin); }};
}

BufferPool::Block BufferPool::allocated(std::int64_t bytes, std::int64_t& counter) {
  const std::int64_t held = usage_.persistent + usage_.shared;
  Block block{.bytes = aligned(std::max<std::int64_t>(bytes, 1))};
  try {
    block.memory = allocate_(block.bytes);
  } catch (const std::bad_alloc&) {
    throw InputError(Diagnostic{
        .code = "D809",
        .what = fmt::format("out of memory: cannot allocate a buffer of {} bytes", block.bytes),
        .why = fmt::format("the buffers of this registry already hold {} bytes", held),
        .help = "destroy unused buffers, or let their contents last only during a call"});
  }
  const auto address = reinterpret_cast<std::uintptr_t>(block.memory.get());
  ensure(address % static_cast<std::uintptr_t>(kAlignment) == 0,
         "the allocator returns aligned memory");
  counter += block.bytes;
  usage_.peak = std::max(usage_.peak, usage_.persistent + usage_.shared);
  return block;
}

BufferPool::Block BufferPool::take(std::int64_t bytes) {
  auto best = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    if (block->bytes < bytes) continue;
    if (best == free_.end() || block->bytes < best->bytes) best = block;
  }
  if (best != free_.end()) {
    Block found = std::move(*best);
    free_.erase(best);
    return found;
  }
  drop_free();
  free_.reserve(blocks_ + 1);  // so that give_back() cannot throw
  Block made = allocated(bytes, usage_.shared);
  ++blocks_;
  return made;
}

void BufferPool::drop_free() {
  for (const Block& block : free_) usage_.shared -= block.bytes;
  blocks_ -= free_.size();
  free_.clear();
}

std::shared_ptr<std::byte> BufferPool::lease(std::int64_t bytes) {
  // The deleter locks mutex_ too, and runs even if creating the shared_ptr throws.
  std::unique_lock lock(mutex_);
  Block block = take(bytes);
  usage_.leased += block.bytes;
  lock.unlock();
  std::byte* const begin = block.memory.get();
  return {begin, [pool = shared_from_this(), block = std::move(block)](std::byte*) mutable {
            pool->give_back(std::move(block));
          }};
}

void BufferPool::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  usage_.leased -= block.bytes;
  free_.push_back(std::move(block));
}

std::shared_ptr<std::byte> BufferPool::allocate_persistent(std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  Block block = allocated(bytes, usage_.persistent);
  lock.unlock();
  std::byte* const begin = block.memory.get();
  std::memset(begin, 0, static_cast<std::size_t>(block.bytes));
  return {begin, [pool = shared_from_this(), block = std::move(block)](std::byte*) mutable {
            block.memory.reset();
            pool->give_up(block.bytes);
          }};
}

void BufferPool::give_up(std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  usage_.persistent -= bytes;
}

void BufferPool::trim() {
  const std::lock_guard lock(mutex_);
  drop_free();
}

BufferPool::Usage BufferPool::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace shiplap::run
