// The buffers of one rank, as real memory.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

class RankMemory {
 public:
  // The program must live longer. All is zero at first.
  explicit RankMemory(const plan::RankProgram& program);

  [[nodiscard]] const plan::RankProgram& program() const { return program_; }
  [[nodiscard]] std::span<std::byte> buffer(plan::BufferId id) const {
    return buffers_[id.index()].bytes;
  }
  [[nodiscard]] plan::ElementType type(plan::BufferId id) const;
  [[nodiscard]] std::int64_t row_bytes(plan::BufferId id) const {
    return program_.buffers[id.index()].row_bytes;
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
  };

  const plan::RankProgram& program_;
  std::vector<Buffer> buffers_;
};

// Keeps something until the process ends: a transport that failed may still write there.
void keep_for_ever(std::shared_ptr<void> thing);

}  // namespace shiplap::run
