// Memory for communication: blocks that a call borrows, so that calls one after another share them,
// and blocks whose contents last. Any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "shiplap/run/buffer_registry.h"

namespace shiplap::run {

// Every block begins at a multiple of this.
inline constexpr std::int64_t kAlignment = 256;

[[nodiscard]] constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Ordinary memory of the process. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<std::byte> ordinary_memory(std::int64_t bytes);

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(Allocate allocate) : allocate_(std::move(allocate)) {}

  // A block that goes back when its last owner does; who takes it next finds what was in it. If
  // none that is free is large enough, all that are free make room for a new one, so calls one
  // after another need the memory of the largest. Throws InputError D809.
  [[nodiscard]] std::shared_ptr<std::byte> lease(std::int64_t bytes);
  // A block of its own that nobody shares, all zero. Throws InputError D809.
  [[nodiscard]] std::shared_ptr<std::byte> own(std::int64_t bytes);
  // Gives back what nobody uses.
  void trim();

  struct Usage {
    std::int64_t own = 0;
    std::int64_t shared = 0;  // whether leased or free
    std::int64_t leased = 0;
    std::int64_t peak = 0;  // of own and shared together
  };
  [[nodiscard]] Usage usage() const;

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::int64_t bytes = 0;
  };
  // These are called with the lock held.
  [[nodiscard]] Block take(std::int64_t bytes);
  [[nodiscard]] Block allocated(std::int64_t bytes, std::int64_t& counter);
  void drop_free();

  void give_back(Block block) noexcept;
  void give_up(std::int64_t bytes) noexcept;

  Allocate allocate_;
  mutable std::mutex mutex_;
  std::vector<Block> free_;
  std::size_t blocks_ = 0;  // that are shared
  Usage usage_;
};

}  // namespace shiplap::run
