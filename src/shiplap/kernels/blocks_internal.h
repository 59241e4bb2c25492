// Blocks of the queries and keys of a sequence.
//
// oneDNN compiles a kernel for each GEMM shape, about a millisecond, so the last block of a
// sequence is padded to kLanes times a power of two: five sizes instead of as many as there are
// lengths. Padded queries are rows of zeros, padded keys are hidden.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/softmax_internal.h"

namespace shiplap::kernels {

// Smaller blocks take longer per score; larger ones exceed the L2 cache, and more of the blocks on
// the diagonal is masked.
inline constexpr std::int64_t kBlockRows = 512;
inline constexpr std::int64_t kMaxBlockQueries = 256;
inline constexpr std::int64_t kBlockKeys = 256;

constexpr std::int64_t padded(std::int64_t count) {
  const auto vectors = static_cast<std::uint64_t>(divide_up(count, kLanes));
  return kLanes * static_cast<std::int64_t>(std::bit_ceil(vectors));
}

// The queries of a block, when `group` heads share keys: kLanes times a power of two.
constexpr std::int64_t block_queries(std::int64_t group) {
  const std::int64_t vectors = std::max<std::int64_t>(1, kBlockRows / group / kLanes);
  return std::min(
      kMaxBlockQueries,
      kLanes * static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(vectors))));
}

// One sequence: where its tokens begin and how many there are.
struct Sequence {
  std::int64_t first_query = 0;
  std::int64_t queries = 0;
  std::int64_t first_key = 0;
  std::int64_t keys = 0;
};

inline Sequence sequence_at(const Sequences& sequences, std::size_t index) {
  const auto first_query = sequences.cu_seqlens_q[index];
  const auto first_key = sequences.cu_seqlens_kv[index];
  return {.first_query = first_query,
          .queries = sequences.cu_seqlens_q[index + 1] - first_query,
          .first_key = first_key,
          .keys = sequences.cu_seqlens_kv[index + 1] - first_key};
}

// A block of queries of all the heads of a group; row head * padded + i is query first + i.
struct QueryBlock {
  std::int64_t first = 0;  // in its sequence
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::int64_t rows = 0;
  std::int64_t visible = 0;  // keys that its last query sees
};

inline QueryBlock query_block(const Sequence& sequence, std::int64_t first, std::int64_t group) {
  const std::int64_t count = std::min(block_queries(group), sequence.queries - first);
  return {.first = first,
          .count = count,
          .padded = padded(count),
          .rows = group * padded(count),
          .visible = sequence.keys - sequence.queries + first + count};
}

struct KeyBlock {
  std::int64_t first = 0;
  std::int64_t padded = 0;
};

inline KeyBlock key_block(const QueryBlock& queries, std::int64_t first) {
  return {.first = first, .padded = padded(std::min(kBlockKeys, queries.visible - first))};
}

// Counts the keys of the block that each row sees. A padded query sees the same as the last one.
inline void count_visible(const QueryBlock& queries, const KeyBlock& keys,
                          std::span<std::int32_t> visible) {
  for (std::int64_t row = 0; row < queries.rows; ++row) {
    const std::int64_t i = std::min(row % queries.padded, queries.count - 1);
    const std::int64_t seen = queries.visible - (queries.count - 1 - i) - keys.first;
    visible[row] = static_cast<std::int32_t>(std::clamp<std::int64_t>(seen, 0, keys.padded));
  }
}

}  // namespace shiplap::kernels
