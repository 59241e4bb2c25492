// The buffers of one rank, as real memory.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

// Where the memory of buffers comes from: it is made, all zero, or all of it is bound later.
enum class Memory { own, bound };

class RankMemory {
 public:
  // The program must live longer.
  explicit RankMemory(const plan::RankProgram& program, Memory memory = Memory::own);

  // Memory from elsewhere in place of what the buffer had; `owner` is kept as long as it is bound.
  // Promises that it is as large as the buffer, or nothing at all.
  void bind(plan::BufferId id, std::span<std::byte> bytes, std::shared_ptr<void> owner);
  // It has no memory, and rows of it are no bytes.
  void leave_out(plan::BufferId id);
  // Whether every buffer has its memory, or needs none.
  [[nodiscard]] bool is_complete() const;

  [[nodiscard]] const plan::RankProgram& program() const { return program_; }
  [[nodiscard]] std::span<std::byte> buffer(plan::BufferId id) const {
    return buffers_[id.index()].bytes;
  }
  [[nodiscard]] DType type(plan::BufferId id) const;
  [[nodiscard]] std::int64_t row_bytes(plan::BufferId id) const {
    return program_.buffers[id].row_bytes;
  }
  // Rows that follow each other. Promises that the region is not a list of rows.
  [[nodiscard]] std::span<std::byte> rows(const plan::flat::Region& region) const;
  // Row k of any region.
  [[nodiscard]] std::span<std::byte> row(const plan::flat::Region& region, std::int64_t k) const;

  // Makes every number of a region a NaN, whatever its type.
  void poison(const plan::flat::Region& region) const;

 private:
  // In lines of the cache, so that numbers of any type can lie in it.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  struct Buffer {
    std::unique_ptr<Line[]> lines;
    std::span<std::byte> bytes;
    std::shared_ptr<void> owner;  // of bytes that were bound
    bool is_left_out = false;
  };
  [[nodiscard]] std::size_t size(std::size_t buffer) const;

  const plan::RankProgram& program_;
  std::vector<Buffer> buffers_;
};

// Keeps something until the process ends: a transport that failed may still write there.
void keep_for_ever(std::shared_ptr<void> thing);

}  // namespace shiplap::run
