// Computes the four exchange tables of a dispatch from a routing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/mask.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct MetadataPair {
  Metadata forward;
  Metadata reverse;
  friend bool operator==(const MetadataPair&, const MetadataPair&) = default;
};

// Queries: every token goes from home to its item, and back. A home segment is split into one row
// per item that it overlaps. Throws InputError with the findings of validate(routing).
[[nodiscard]] MetadataPair compute_metadata(const Routing& routing);

struct DispatchOptions {
  Mask mask;
  // Whether items of one document on one rank share their keys: a key that several of them attend
  // to is then sent to the rank once and held once. Kernels must be able to read overlapping ranges
  // of keys (AttentionLayout::keys).
  bool shares_keys = false;
};

// Keys and values: an item needs a range of its document, contiguously (mask.h); under the causal
// mask, the whole prefix up to its end. So a row has a copy for every item that attends to it, or
// for every rank if keys are shared. In the reverse direction the gradient of each copy goes home,
// where they are summed. Rows at home are those of the queries, split further where a window or a
// prefix begins or ends. Also throws D410 if the keys of a rank do not fit 32 bits.
[[nodiscard]] MetadataPair compute_metadata_kv(const Routing& routing,
                                               const DispatchOptions& options = {});

// The simple case: whole sequences. Sequence s of rank r has length seq_lens[r][s] and goes to rank
// dst_rank[r][s]; -1 with length 0 is padding. Received sequences are ordered by rank, then s.
// Throws InputError: D401 shape mismatch, D402 a length with rank -1, D403 a rank that does not
// exist, D410 more tokens than fit 32 bits.
struct SequenceDispatch {
  std::vector<std::vector<std::uint32_t>> seq_lens;
  std::vector<std::vector<std::int32_t>> dst_rank;
};
[[nodiscard]] MetadataPair compute_metadata(const SequenceDispatch& dispatch);
[[nodiscard]] std::vector<Diagnostic> validate(const SequenceDispatch& dispatch);

// Whole sequences with copies: sequence s of rank r goes to every rank in dst_rank[r][s]; -1 is no
// copy. Received sequences are ordered by rank, then s, then copy. The reverse table sums the
// copies at home. Throws the same.
struct CopyDispatch {
  std::vector<std::vector<std::uint32_t>> seq_lens;
  std::vector<std::vector<std::vector<std::int32_t>>> dst_rank;
};
[[nodiscard]] MetadataPair compute_metadata(const CopyDispatch& dispatch);
[[nodiscard]] std::vector<Diagnostic> validate(const CopyDispatch& dispatch);

// The arguments of the attention kernel of each rank (variable-length attention).
class AttentionLayout {
 public:
  AttentionLayout() = default;
  // The lengths of items, by rank. Throws InputError D410 if their sums do not fit 32 bits.
  struct Item {
    std::uint32_t q_length = 0;
    std::uint32_t kv_length = 0;
    std::uint32_t kv_begin = 0;  // in the buffer of keys; only if they are shared
  };
  explicit AttentionLayout(const std::vector<std::vector<Item>>& by_rank,
                           const DispatchOptions& options = {});

  [[nodiscard]] int world_size() const { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] const Mask& mask() const { return mask_; }
  [[nodiscard]] bool shares_keys() const { return shares_keys_; }
  [[nodiscard]] int num_local_seqs(int rank) const;
  // Cumulative lengths: one entry more than items; the first is 0.
  [[nodiscard]] std::span<const std::uint32_t> cu_seqlens_q(int rank) const;
  // Throws InputError D416 if keys are shared: then ranges overlap, and only keys() has them.
  [[nodiscard]] std::span<const std::uint32_t> cu_seqlens_kv(int rank) const;
  // The keys of an item in the buffer of its rank, and the length of that buffer.
  [[nodiscard]] KeyRange keys(int rank, int item) const;
  [[nodiscard]] std::uint32_t num_kv_tokens(int rank) const;
  [[nodiscard]] std::uint32_t max_seqlen_q(int rank) const;
  [[nodiscard]] std::uint32_t max_seqlen_kv(int rank) const;
  [[nodiscard]] Bytes bytes() const;
  friend bool operator==(const AttentionLayout&, const AttentionLayout&) = default;

 private:
  Mask mask_;
  bool shares_keys_ = false;
  std::vector<std::uint32_t> first_{0};  // of the next three, by rank, and the end
  std::vector<std::uint32_t> cu_q_;
  std::vector<std::uint32_t> cu_kv_;      // if shared, where keys begin, and last, where they end
  std::vector<std::uint32_t> kv_length_;  // only if shared
  std::vector<std::uint32_t> longest_q_;  // by rank
  std::vector<std::uint32_t> longest_kv_;
};
[[nodiscard]] AttentionLayout compute_attention_layout(const Routing& routing,
                                                       const DispatchOptions& options = {});
// The attention work of a rank: the number of (query, key) pairs under the mask.
[[nodiscard]] double attention_pairs(const AttentionLayout& layout, int rank);

// The result of a dispatch: four tables and the attention layout.
struct QkvDispatch {
  MetadataPair q;
  MetadataPair kv;
  AttentionLayout attention;
  friend bool operator==(const QkvDispatch&, const QkvDispatch&) = default;

  [[nodiscard]] int world_size() const { return q.forward.world_size(); }
};
[[nodiscard]] QkvDispatch compute_qkv_dispatch(const Routing& routing,
                                               const DispatchOptions& options = {});

// A random dispatch, for tests and first steps: every rank has `num_seqs` documents that sum to
// `total_seq_len` tokens (gen_seq_lens); each is split into 1 to `max_cp_degree` items on random
// ranks. It is not load-balanced. Throws InputError D400.
struct RandomDispatch {
  int world_size = 1;
  std::uint32_t total_seq_len = 1;
  int num_seqs = 1;
  int max_cp_degree = 1;
  std::uint64_t seed = 0;
};
[[nodiscard]] Routing random_routing(const RandomDispatch& random);
[[nodiscard]] QkvDispatch create_qkv_dispatch(const RandomDispatch& random,
                                              const DispatchOptions& options = {});

}  // namespace shiplap::dispatch
