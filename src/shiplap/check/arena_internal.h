// An arena: memory that is freed all at once, for gigabytes of small objects in few large blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace shiplap::check {

// Memory in huge pages (2 MiB) if the system has them: random access to gigabytes then causes fewer
// TLB misses. Throws std::bad_alloc.
[[nodiscard]] void* allocate_large(std::size_t bytes);
void free_large(void* memory);

struct FreeLarge {
  void operator()(std::byte* memory) const { free_large(memory); }
};
using LargeBlock = std::unique_ptr<std::byte, FreeLarge>;

// For vectors that may become large.
template <class T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <class U>
  explicit LargeAllocator(const LargeAllocator<U>&) {}
  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(allocate_large(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t) { free_large(memory); }
  friend bool operator==(const LargeAllocator&, const LargeAllocator&) { return true; }
};
template <class T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

class Arena {
 public:
  // Returns a copy that lives as long as the arena.
  template <class T>
  [[nodiscard]] std::span<T> keep(std::span<const T> things) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    if (things.empty()) return {};
    T* copy = static_cast<T*>(take(things.size_bytes()));
    std::ranges::uninitialized_copy(things, std::span(copy, things.size()));
    return {copy, things.size()};
  }

 private:
  static constexpr std::size_t kAlignment = alignof(std::max_align_t);
  static constexpr std::size_t kBlock = std::size_t{8} << 20U;

  [[nodiscard]] void* take(std::size_t bytes);

  std::vector<LargeBlock> blocks_;
  std::size_t used_ = 0;  // of the last block
  std::size_t size_ = 0;  // of the last block
};

}  // namespace shiplap::check
