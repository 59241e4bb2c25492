// The same tables as padded tensors, in the shapes and types that kernels and other programs use.
//
// The unit of `dst_offset` is the token here too. Padding: rows from num_seqs[r] on have rank -1,
// offset 0 and length 0; so have, in the 3-D form, the copies that a row does not have. A row of
// length 0 with a rank is a placeholder and counts in num_seqs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

// What a rank sees of it. In the 3-D form dst_rank and dst_offset have max_cp entries per row.
template <class RankType, class TokenType, class CountType>
struct MetadataSlice {
  int rank = 0;
  int world_size = 0;
  int max_cp = 0;
  Arrival arrival = Arrival::placed;
  std::int64_t num_seqs = 0;
  std::vector<RankType> dst_rank;
  std::vector<TokenType> dst_offset;
  std::vector<TokenType> seq_len;
  std::vector<CountType> num_recv_tokens;  // world_size + 1
  std::optional<std::vector<std::uint8_t>> seq_recv_mask;
  std::optional<std::vector<TokenType>> recv_seq_lens;
  CountType num_total_recv_tokens = 0;
};

template <class RankType, class TokenType, class CountType>
struct BasicDenseMetadata {
  // The name of the field in other programs. NOLINTNEXTLINE(readability-identifier-naming)
  static constexpr bool normalized = sizeof(RankType) < sizeof(std::int64_t);
  using Slice = MetadataSlice<RankType, TokenType, CountType>;

  int world_size = 0;
  std::int64_t max_seqs = 0;
  int max_cp = 0;  // 0: two dimensions
  Arrival arrival = Arrival::placed;
  std::vector<RankType> dst_rank;     // (world_size, max_seqs[, max_cp])
  std::vector<TokenType> dst_offset;  // the same
  std::vector<TokenType> seq_len;     // (world_size, max_seqs)
  // (world_size, world_size + 1), the last is the total. Read from elsewhere it may be empty: then
  // nothing is said.
  std::vector<CountType> num_recv_tokens;
  std::optional<std::vector<std::uint8_t>> seq_recv_mask;  // (world_size, max_seqs, max_cp)
  // Lengths of the pieces that each rank receives, by their place there, without empty ones; where
  // several are summed into one, once. (world_size, as many as one rank needs), padded with 0.
  std::optional<std::vector<TokenType>> recv_seq_lens;
  std::optional<std::vector<std::int64_t>> num_seqs;            // (world_size)
  std::optional<std::vector<CountType>> num_total_recv_tokens;  // (world_size)
  friend bool operator==(const BasicDenseMetadata&, const BasicDenseMetadata&) = default;

  // Rows of one rank without padding; all world_size + 1 columns of num_recv_tokens. Throws
  // InputError D400 if there is no such rank.
  [[nodiscard]] Slice get_slice(int rank) const;
};

// int64 throughout, as tensors begin their life.
using DenseMetadata = BasicDenseMetadata<std::int64_t, std::int64_t, std::int64_t>;
// int32 ranks, uint32 offsets and lengths, uint64 counts.
using NormalizedMetadata = BasicDenseMetadata<std::int32_t, std::uint32_t, std::uint64_t>;

// Throws InputError D410 for each field with a value that does not fit.
[[nodiscard]] NormalizedMetadata normalize_dtype(const DenseMetadata& dense);

// Tensors of more elements than this (all together) are refused: 2^27, one GiB.
inline constexpr std::int64_t kLargestDense = std::int64_t{1} << 27;

// All fields are filled in, the mask only in the 3-D form. Throws InputError D411 above `largest`
// elements.
[[nodiscard]] DenseMetadata to_dense(const Metadata& metadata,
                                     std::int64_t largest = kLargestDense);

// What makes the tensors contradict each other: shapes (D401), padding (D402), ranks (D403), counts
// (D406), numbers that do not fit (D410). Says nothing about whether the table is sound.
[[nodiscard]] std::vector<Diagnostic> validate(const DenseMetadata& dense);

// Throws InputError with what validate(dense) finds. to_dense(to_sparse(d)) has d's rows and
// to_sparse(to_dense(m)) is m, if m is a table of real ranks.
[[nodiscard]] Metadata to_sparse(const DenseMetadata& dense);

}  // namespace shiplap::dispatch
