// Executes single actions of a plan on memory: copies, collectives and exchanges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

// Temporary memory of the actions of one thread.
struct Scratch {
  std::vector<std::byte> bytes;
  std::vector<std::byte> pieces;  // received from all ranks
  std::vector<float> floats;
  std::span<std::byte> first(std::size_t count) {
    if (bytes.size() < count) bytes.resize(count);
    return std::span(bytes).first(count);
  }
};

struct ActionContext {
  const RankMemory& memory;
  Scratch& scratch;
};

// Returns D641 for everything in the program that this executor does not support.
[[nodiscard]] std::vector<Diagnostic> unsupported(const plan::RankProgram& program);

// REQUIRES for all of these: unsupported() returned nothing.
void do_copy(const ActionContext& context, const plan::flat::Operation& op);
// REQUIRES: the ranks of the communicator are those of the group, in its order.
void do_collective(const ActionContext& context, const plan::flat::Operation& op,
                   comm::Communicator& group);
void do_exchange(const ActionContext& context, const plan::flat::Operation& op,
                 comm::Communicator& group);

// Returns the byte offsets of the pieces of a collective in the region that holds all of them, and
// the end. Empty if the region cannot be split this way.
[[nodiscard]] std::vector<std::int64_t> piece_offsets(const plan::RankProgram& program,
                                                      const plan::flat::Operation& op);

[[nodiscard]] inline bool same_rows(const plan::flat::Region& a, const plan::flat::Region& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.count == b.count;
}

}  // namespace shiplap::run
