// The memory of the buffers of one rank.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

// Buffers are allocated and zeroed, or bound to the caller's memory later.
enum class MemorySource { allocated, bound };

class RankMemory {
 public:
  // REQUIRES: `program` outlives this.
  explicit RankMemory(const plan::RankProgram& program,
                      MemorySource source = MemorySource::allocated);

  // Replaces the memory of a buffer. `owner` is kept alive as long as it is bound.
  // REQUIRES: `bytes` is as large as the buffer, or empty.
  void bind(plan::BufferId id, std::span<std::byte> bytes, std::shared_ptr<void> owner);
  // The buffer gets no memory; its rows are empty spans.
  void skip_allocation(plan::BufferId id);
  // Returns whether every buffer has its memory or is skipped.
  [[nodiscard]] bool is_complete() const;

  [[nodiscard]] const plan::RankProgram& program() const { return program_; }
  [[nodiscard]] std::span<std::byte> buffer(plan::BufferId id) const {
    return buffers_[id.index()].bytes;
  }
  [[nodiscard]] DType type(plan::BufferId id) const;
  [[nodiscard]] std::int64_t row_bytes(plan::BufferId id) const {
    return program_.buffers[id].row_bytes;
  }
  // Contiguous rows. REQUIRES: the region is not a list of rows.
  [[nodiscard]] std::span<std::byte> rows(const plan::flat::Region& region) const;
  // Row k of any region.
  [[nodiscard]] std::span<std::byte> row(const plan::flat::Region& region, std::int64_t k) const;

  // Fills a region with NaN, whatever its type.
  void poison(const plan::flat::Region& region) const;

 private:
  // A cache line, aligned for any element type.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  struct Buffer {
    std::unique_ptr<Line[]> lines;
    std::span<std::byte> bytes;
    std::shared_ptr<void> owner;  // of bound memory
    bool is_skipped = false;
  };
  [[nodiscard]] std::size_t size(std::size_t buffer) const;

  const plan::RankProgram& program_;
  std::vector<Buffer> buffers_;
};

// Keeps `owner` alive until the process ends: a transport that failed may still write to its
// memory.
void leak_intentionally(std::shared_ptr<void> owner);

}  // namespace shiplap::run
