#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

RankMemory::RankMemory(const plan::RankProgram& program, Memory memory) : program_(program) {
  buffers_.reserve(program.buffers.size());
  if (memory == Memory::bound) {
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
  ensure(bytes.empty() || bytes.size() == size(id.index()), "memory as large as the buffer");
  buffers_[id.index()] = {.lines = nullptr, .bytes = bytes, .owner = std::move(owner)};
}

void RankMemory::leave_out(plan::BufferId id) {
  buffers_[id.index()] = {};
  buffers_[id.index()].is_left_out = true;
}

bool RankMemory::is_complete() const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (!buffers_[k].is_left_out && buffers_[k].bytes.size() != size(k)) return false;
  }
  return true;
}

DType RankMemory::type(plan::BufferId id) const {
  return program_.plan->programs[program_.program].buffers[id].type;
}

std::span<std::byte> RankMemory::rows(const plan::flat::Region& region) const {
  ensure(region.listed < 0, "rows that follow each other");
  if (buffers_[region.buffer.index()].is_left_out) return {};
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

// All bits set are a NaN in every floating-point format of plans.
void RankMemory::poison(const plan::flat::Region& region) const {
  const std::span<std::byte> bytes = rows(region);
  if (!bytes.empty()) std::memset(bytes.data(), 0xff, bytes.size());
}

// It stays where a leak detector finds it: it is not lost, only not ours any more.
void keep_for_ever(std::shared_ptr<void> thing) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  try {
    static auto* const kept = new std::vector<std::shared_ptr<void>>;
    kept->push_back(thing);
  } catch (const std::bad_alloc&) {  // a copy that is never destroyed needs no memory
    using Thing = std::shared_ptr<void>;
    alignas(Thing) static std::array<std::byte, sizeof(Thing)> last;
    new (last.data()) Thing(std::move(thing));
  }
}

}  // namespace shiplap::run
