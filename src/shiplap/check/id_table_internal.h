// An open-addressing hash table from hashes to ids, for hash-consing. The caller has the objects.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "shiplap/check/arena_internal.h"

namespace shiplap::check {

// Not symmetric in its arguments, so that (a, a+1) and (a+1, a) have different hashes.
[[nodiscard]] inline std::uint64_t hash_combine(std::uint64_t hash, std::int64_t more) {
  hash = std::rotl(hash, 23) * 0xBF58476D1CE4E5B9U;
  hash = (hash ^ static_cast<std::uint64_t>(more)) * 0x9E3779B97F4A7C15U;
  return hash ^ (hash >> 31U);
}

class IdTable {
 public:
  // The id with this hash for which `same(id)` holds; -1 if there is none.
  template <class Same>
  [[nodiscard]] std::int32_t find(std::uint64_t hash, const Same& same) const {
    if (slots_.empty()) return -1;
    const auto short_hash = static_cast<std::uint32_t>(hash >> 32U);
    for (std::size_t at = start(short_hash); slots_[at].id >= 0;
         at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].hash == short_hash && same(slots_[at].id)) return slots_[at].id;
    }
    return -1;
  }
  void insert(std::uint64_t hash, std::int32_t id) {
    if (3 * (count_ + 1) > 2 * slots_.size()) grow();
    place(static_cast<std::uint32_t>(hash >> 32U), id);
    ++count_;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;
  };
  [[nodiscard]] std::size_t start(std::uint32_t hash) const { return hash & (slots_.size() - 1); }
  void place(std::uint32_t hash, std::int32_t id) {
    std::size_t at = start(hash);
    while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {hash, id};
  }
  void grow() {
    LargeVector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.id >= 0) place(slot.hash, slot.id);
    }
  }

  LargeVector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace shiplap::check
