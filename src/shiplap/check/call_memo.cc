// Memoization (Michie 1968) of collectives up to a translation of their inputs.
//
// Problem: in every layer of every microbatch, the tokens of 64 ranks go to 64 experts and back. To
// track one all-to-all of 64 members takes hundreds of contents, and a step has 15,000 of them. No
// two have equal inputs, because the layer is the instance of the tensor, and the microbatch is
// added to the samples. But all of them move rows in the same way.
//
// Idea: slicing, binding, joining and fitting contents commute with a translation, that is, with
// adding one number to all instances and, dimension by dimension, one number to all coordinates.
// They compare instances and the begins of runs with each other only, never with constants. (Sizes
// of dimensions do not occur: the runs of a plan are within them, and rows that only move stay so.)
// So inputs are described relative to an origin, and inputs with equal descriptions have outputs
// that differ by the same translation as they do. Sums and scales are part of the description as
// they are.
//
// Descriptions are compared, not only their hashes. The total size of descriptions and outputs is
// limited, so that a plan without repetition does not store all its calls.
//
// An alternative would be to move one slice along the axis instead of binding each member. It needs
// a case for each form of runs that can continue each other, while this leaves the general code as
// it is, and every proof that it makes.
#include <algorithm>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/check/call_memo_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMaxSize = std::size_t{1} << 22U;  // 32 MiB

// Two numbers of 32 bits as one.
std::int64_t pair_of(std::int32_t high, std::int32_t low) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(high) << 32U |
                                   static_cast<std::uint32_t>(low));
}

}  // namespace

CallMemo::Lists CallMemo::get(std::span<const std::int64_t> call, const Lists& inputs,
                              const std::function<Lists()>& compute) {
  describe(call, inputs);
  std::uint64_t hash = key_.size();
  for (const std::int64_t word : key_) hash = hash_combine(hash, word);
  const std::int32_t found =
      by_hash_.find(hash, [&](std::int32_t id) { return entries_[id].key == key_; });
  if (found >= 0) return translated(entries_[found]);
  ++computed_;
  Lists outputs = compute();
  std::size_t size = key_.size();
  for (const Pieces& pieces : outputs) size += pieces.size() * sizeof(Piece) / sizeof(key_[0]);
  if (size_ + size > kMaxSize) return outputs;
  size_ += size;
  by_hash_.insert(hash, static_cast<std::int32_t>(entries_.size()));
  entries_.push_back({key_, origin_, outputs});
  return outputs;
}

void CallMemo::describe(std::span<const std::int64_t> call, const Lists& inputs) {
  key_.assign(call.begin(), call.end());
  origin_.begins.clear();
  bool is_first = true;
  for (const Pieces& pieces : inputs) {
    key_.push_back(std::ssize(pieces));
    for (const Piece& piece : pieces) {
      ensure(piece.state == RowState::known, "a call is looked up only if its inputs are known");
      const Content& content = contents_[piece.content];
      if (std::exchange(is_first, false)) origin_.instance = content.instance;
      key_.push_back(piece.rows);
      describe(content);
    }
  }
}

void CallMemo::describe(const Content& content) {
  key_.push_back(pair_of(content.tensor.value, content.is_new ? 1 : 0));
  key_.push_back(content.instance - origin_.instance);
  key_.push_back(pair_of(content.rows, content.first));
  key_.push_back(pair_of(content.of, content.runs_count));
  key_.push_back(pair_of(content.sum.value, content.scale.value));
  for (const Run& run : Contents::runs(content)) {
    key_.push_back(pair_of(run.dimension, run.slope));
    key_.push_back(pair_of(run.begin - begin_of(run), run.count));
    key_.push_back(run.stride);
  }
}

std::int32_t CallMemo::begin_of(const Run& run) {
  const auto dimension = static_cast<std::size_t>(run.dimension);
  if (dimension >= origin_.begins.size()) origin_.begins.resize(dimension + 1, kAbsent);
  std::int32_t& begin = origin_.begins[dimension];
  if (begin == kAbsent) begin = run.begin;
  return begin;
}

CallMemo::Lists CallMemo::translated(const Entry& entry) {
  Lists result = entry.outputs;
  for (Pieces& pieces : result) {
    for (Piece& piece : pieces) piece = translated(piece, entry.origin);
  }
  return result;
}

Piece CallMemo::translated(const Piece& piece, const Origin& from) {
  Content content = contents_[piece.content];
  const std::span<const Run> runs = Contents::runs(content);
  runs_.assign(runs.begin(), runs.end());
  content.instance += origin_.instance - from.instance;
  for (Run& run : runs_) {
    const auto dimension = static_cast<std::size_t>(run.dimension);
    run.begin += origin_.begins.at(dimension) - from.begins.at(dimension);
  }
  Piece result = piece;
  result.content = contents_.intern(content, runs_);
  return result;
}

}  // namespace shiplap::check
