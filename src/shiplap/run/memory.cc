#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

RankMemory::RankMemory(const plan::RankProgram& program, MemorySource source) : program_(program) {
  buffers_.reserve(program.buffers.size());
  if (source == MemorySource::bound) {
    buffers_.resize(program.buffers.size());
    return;
  }
  for (std::size_t k = 0; k < program.buffers.size(); ++k) {
    const std::size_t bytes = size(k);
    const std::size_t lines = bytes / sizeof(Line) + 1;
    Buffer made{.lines = std::make_unique<Line[]>(lines)};
    made.bytes = std::as_writable_bytes(std::span(made.lines.get(), lines)).first(bytes);
    buffers_.push_back(std::move(made));
  }
}

std::size_t RankMemory::size(std::size_t buffer) const {
  const plan::flat::Buffer& declared = program_.buffers[buffer];
  return static_cast<std::size_t>(declared.rows * declared.row_bytes);
}

void RankMemory::bind(plan::BufferId id, std::span<std::byte> bytes, std::shared_ptr<void> owner) {
  ensure(bytes.empty() || bytes.size() == size(id.index()),
         "bound memory has the size of the buffer");
  buffers_[id.index()] = {.lines = nullptr, .bytes = bytes, .owner = std::move(owner)};
}

void RankMemory::skip_allocation(plan::BufferId id) {
  buffers_[id.index()] = {};
  buffers_[id.index()].is_skipped = true;
}

bool RankMemory::is_complete() const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (!buffers_[k].is_skipped && buffers_[k].bytes.size() != size(k)) return false;
  }
  return true;
}

DType RankMemory::type(plan::BufferId id) const {
  return program_.plan->programs[program_.program].buffers[id].type;
}

std::span<std::byte> RankMemory::rows(const plan::flat::Region& region) const {
  ensure(region.listed < 0, "the rows of the region are contiguous");
  if (buffers_[region.buffer.index()].is_skipped) return {};
  const auto width = static_cast<std::size_t>(row_bytes(region.buffer));
  return buffer(region.buffer)
      .subspan(static_cast<std::size_t>(region.begin) * width,
               static_cast<std::size_t>(region.count) * width);
}

std::span<std::byte> RankMemory::row(const plan::flat::Region& region, std::int64_t k) const {
  const auto width = static_cast<std::size_t>(row_bytes(region.buffer));
  const std::int64_t row =
      region.listed < 0 ? region.begin + k : program_.listed_rows[region.listed + k];
  return buffer(region.buffer).subspan(static_cast<std::size_t>(row) * width, width);
}

// All bits set is a NaN in every floating-point format of plans.
void RankMemory::poison(const plan::flat::Region& region) const {
  const std::span<std::byte> bytes = rows(region);
  if (!bytes.empty()) std::memset(bytes.data(), 0xff, bytes.size());
}

// It stays reachable, so leak detectors do not report it.
void leak_intentionally(std::shared_ptr<void> owner) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  try {
    static auto* const kept = new std::vector<std::shared_ptr<void>>;
    kept->push_back(owner);
  } catch (const std::bad_alloc&) {  // a pointer that is never destroyed needs no allocation
    using Owner = std::shared_ptr<void>;
    alignas(Owner) static std::array<std::byte, sizeof(Owner)> last;
    new (last.data()) Owner(std::move(owner));
  }
}

}  // namespace shiplap::run
