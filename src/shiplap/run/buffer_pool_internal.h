// Memory for communication: blocks that consecutive calls share, and persistent blocks.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "shiplap/run/buffer_registry.h"

namespace shiplap::run {

// Alignment of every block.
inline constexpr std::int64_t kAlignment = 256;

[[nodiscard]] constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Allocates heap memory. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<std::byte> ordinary_memory(std::int64_t bytes);

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(Allocate allocate) : allocate_(std::move(allocate)) {}

  // Returns a shared block, uninitialized; it returns to the pool with its last owner. If no free
  // block is large enough, all free blocks are released before a new one is allocated, so
  // consecutive calls need the memory of the largest. Throws InputError D809.
  [[nodiscard]] std::shared_ptr<std::byte> lease(std::int64_t bytes);
  // Returns an exclusive block, zeroed. Throws InputError D809.
  [[nodiscard]] std::shared_ptr<std::byte> allocate_persistent(std::int64_t bytes);
  // Releases all free blocks.
  void trim();

  struct Usage {
    std::int64_t persistent = 0;
    std::int64_t shared = 0;  // leased or free
    std::int64_t leased = 0;
    std::int64_t peak = 0;  // of persistent and shared together
  };
  [[nodiscard]] Usage usage() const;

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::int64_t bytes = 0;
  };
  // REQUIRES for these: mutex_ is held.
  [[nodiscard]] Block take(std::int64_t bytes);
  [[nodiscard]] Block allocated(std::int64_t bytes, std::int64_t& counter);
  void drop_free();

  void give_back(Block block) noexcept;
  void give_up(std::int64_t bytes) noexcept;

  Allocate allocate_;
  mutable std::mutex mutex_;
  std::vector<Block> free_;
  std::size_t blocks_ = 0;  // shared ones
  Usage usage_;
};

}  // namespace shiplap::run
