// Exchange tables as padded tensors, in the shapes and dtypes that kernels and other programs use.
//
// `dst_offset` is in tokens. Padding: rows from num_seqs[r] on have rank -1, offset 0 and length 0,
// and so do unused copies of a row in the 3-D form. A row of length 0 with a rank is a placeholder
// and counts in num_seqs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

// The part of one rank. In the 3-D form dst_rank and dst_offset have max_cp entries per row.
template <class RankType, class TokenType, class CountType>
struct MetadataSlice {
  int rank = 0;
  int world_size = 0;
  int max_cp = 0;
  ArrivalMode arrival = ArrivalMode::placed;
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
  ArrivalMode arrival = ArrivalMode::placed;
  std::vector<RankType> dst_rank;     // (world_size, max_seqs[, max_cp])
  std::vector<TokenType> dst_offset;  // the same
  std::vector<TokenType> seq_len;     // (world_size, max_seqs)
  // (world_size, world_size + 1), the last is the total. May be empty in input: then unknown.
  std::vector<CountType> num_recv_tokens;
  std::optional<std::vector<std::uint8_t>> seq_recv_mask;  // (world_size, max_seqs, max_cp)
  // Lengths of the rows that each rank receives, as they were sent, by offset, without empty ones;
  // rows that are summed into one place count once. (world_size, max_seqs), padded with 0; wider if
  // a rank receives more rows than any rank sends.
  std::optional<std::vector<TokenType>> recv_seq_lens;
  std::optional<std::vector<std::int64_t>> num_seqs;            // (world_size)
  std::optional<std::vector<CountType>> num_total_recv_tokens;  // (world_size)
  friend bool operator==(const BasicDenseMetadata&, const BasicDenseMetadata&) = default;

  // Returns the rows of one rank without padding, and all world_size + 1 columns of
  // num_recv_tokens. Throws InputError D400 if the rank does not exist.
  [[nodiscard]] Slice get_slice(int rank) const;
};

// DenseMetadata is int64 throughout, the default dtype of index tensors. NormalizedMetadata has
// int32 ranks, uint32 offsets and lengths, uint64 counts.

// Throws InputError D410 for each field with a value out of range.
[[nodiscard]] NormalizedMetadata normalize_dtype(const DenseMetadata& dense);

// The maximum number of elements of all tensors together: 2^27, one GiB.
inline constexpr std::int64_t kMaxDenseElements = std::int64_t{1} << 27;

// Fills in all fields, the mask only in the 3-D form. Throws InputError D411 above `max_elements`.
[[nodiscard]] DenseMetadata to_dense(const Metadata& metadata,
                                     std::int64_t max_elements = kMaxDenseElements);

// Returns inconsistencies between the tensors: shapes (D401), padding (D402), ranks (D403), counts
// (D406), values out of range (D410). Does not check whether the table is a valid exchange.
[[nodiscard]] std::vector<Diagnostic> validate(const DenseMetadata& dense);

// Throws InputError with the findings of validate(dense). to_dense(to_sparse(d)) has d's rows, and
// to_sparse(to_dense(m)) == m if all ranks in m exist. Metadata(dense) is the same.
[[nodiscard]] Metadata to_sparse(const DenseMetadata& dense);

}  // namespace shiplap::dispatch
