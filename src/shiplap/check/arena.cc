// A bump allocator for objects that live as long as the check: the compact programs of all ranks.
// They are trivially copyable and are freed all at once. Together with the hash-consed contents
// (content.cc) they take gigabytes for thousands of ranks, accessed at random, so TLB misses
// dominate: blocks are aligned to 2 MiB and the kernel is asked for transparent huge pages.
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "shiplap/check/arena_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20U;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

void* allocate_large(std::size_t bytes) {
  const bool large = bytes >= kLargePage;
  void* memory = large ? std::aligned_alloc(kLargePage, rounded(bytes, kLargePage))
                       : std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  if (large) ::madvise(memory, rounded(bytes, kLargePage), MADV_HUGEPAGE);  // a hint only
  return memory;
}

void free_large(void* memory) { std::free(memory); }

void* Arena::take(std::size_t bytes) {
  bytes = rounded(bytes, kAlignment);
  if (bytes > size_ - used_) {
    size_ = rounded(std::max(bytes, blocks_.empty() ? kLargePage : kBlock), kLargePage);
    blocks_.emplace_back(static_cast<std::byte*>(allocate_large(size_)));
    used_ = 0;
  }
  void* memory = blocks_.back().get() + used_;
  used_ += bytes;
  return memory;
}

}  // namespace shiplap::check
