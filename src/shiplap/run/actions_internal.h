// What the actions of a plan do to memory, one at a time: copies, collectives and exchanges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

// Memory that actions of one lane use beside the buffers.
struct Scratch {
  std::vector<std::byte> bytes;
  std::vector<std::byte> pieces;  // that arrive from all ranks
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

// What this executor cannot do with an operation (D641), all of it. Nothing was touched.
[[nodiscard]] std::vector<Diagnostic> unsupported(const plan::RankProgram& program);

// These promise that unsupported() found nothing.
void do_copy(const ActionContext& context, const plan::flat::Operation& op);
// Over a communicator whose ranks are those of the group, in its order.
void do_collective(const ActionContext& context, const plan::flat::Operation& op,
                   comm::Communicator& group);
void do_exchange(const ActionContext& context, const plan::flat::Operation& op,
                 comm::Communicator& group);

// Where the pieces of a collective begin in the region that holds them all, in bytes, and the end.
[[nodiscard]] std::vector<std::int64_t> piece_ends(const plan::RankProgram& program,
                                                   const plan::flat::Operation& op);

[[nodiscard]] inline bool same_rows(const plan::flat::Region& a, const plan::flat::Region& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.count == b.count;
}

}  // namespace shiplap::run
