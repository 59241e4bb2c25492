#include <algorithm>
#include <cstdlib>
#include <new>

#include "shiplap/kernels/allocations_testing_internal.h"

namespace shiplap::kernels {

std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0};
std::atomic<std::size_t> largest_allocation{0};

namespace {

void count(std::size_t bytes) {
  if (!counting) return;
  ++allocations;
  largest_allocation = std::max<std::size_t>(largest_allocation, bytes);
}

}  // namespace
}  // namespace shiplap::kernels

// No size is rounded up, so that sanitizers see where a block ends.
void* operator new(std::size_t bytes) {
  shiplap::kernels::count(bytes);
  void* const memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  shiplap::kernels::count(bytes);
  void* memory = nullptr;
  const auto multiple = static_cast<std::size_t>(alignment);
  if (posix_memalign(&memory, multiple, std::max<std::size_t>(bytes, 1)) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
