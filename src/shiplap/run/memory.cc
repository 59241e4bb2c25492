#include <cstring>
#include <mutex>

#include "shiplap/base/error.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

RankMemory::RankMemory(const plan::RankProgram& program) : program_(program) {
  for (const plan::flat::Buffer& buffer : program.buffers) {
    const auto bytes = static_cast<std::size_t>(buffer.rows * buffer.row_bytes);
    const std::size_t lines = bytes / sizeof(Line) + 1;
    Buffer made{.lines = std::make_unique<Line[]>(lines)};
    made.bytes = std::as_writable_bytes(std::span(made.lines.get(), lines)).first(bytes);
    buffers_.push_back(std::move(made));
  }
}

plan::ElementType RankMemory::type(plan::BufferId id) const {
  return program_.plan->programs[program_.program.index()].buffers[id.index()].type;
}

std::span<std::byte> RankMemory::rows(const plan::flat::Region& region) const {
  ensure(region.listed < 0, "rows that follow each other");
  const auto width = static_cast<std::size_t>(row_bytes(region.buffer));
  return buffer(region.buffer)
      .subspan(static_cast<std::size_t>(region.begin) * width,
               static_cast<std::size_t>(region.count) * width);
}

std::span<std::byte> RankMemory::row(const plan::flat::Region& region, std::int64_t k) const {
  const auto width = static_cast<std::size_t>(row_bytes(region.buffer));
  const std::int64_t row = region.listed < 0
                               ? region.begin + k
                               : program_.listed_rows[static_cast<std::size_t>(region.listed + k)];
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
  static std::vector<std::shared_ptr<void>>* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(thing));
}

}  // namespace shiplap::run
