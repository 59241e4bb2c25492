// From a decision (which rank attends to what) to the four tables that carry it out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct MetadataPair {
  Metadata forward;
  Metadata reverse;
  friend bool operator==(const MetadataPair&, const MetadataPair&) = default;
};

// Queries: every token at home goes to its item, and back. A home segment is cut into one row per
// item that it meets. Throws InputError with what validate(routing) finds.
[[nodiscard]] MetadataPair compute_metadata(const Routing& routing);

// Keys and values: item i of a document needs all of it up to the item's end, in one run. So a row
// has a copy for its own item and for every later one of the document. On the way back each copy's
// gradient goes home, and they are summed there. The rows at home are those of the queries. Throws
// InputError also D410, if more keys come to a rank than 32 bits count.
[[nodiscard]] MetadataPair compute_metadata_kv(const Routing& routing);

// The simple case: whole sequences. Sequence s of rank r has length seq_lens[r][s] and goes to rank
// dst_rank[r][s]; -1 with length 0 is padding. What comes from lower ranks lies first, then by s.
// Throws InputError: D401 shapes, D402 a length with rank -1, D403 a rank that does not exist, D410
// more tokens than 32 bits count.
struct SequenceDispatch {
  std::vector<std::vector<std::uint32_t>> seq_lens;
  std::vector<std::vector<std::int32_t>> dst_rank;
};
[[nodiscard]] MetadataPair compute_metadata(const SequenceDispatch& dispatch);
[[nodiscard]] std::vector<Diagnostic> validate(const SequenceDispatch& dispatch);

// What the attention kernel of each rank must know.
class AttentionLayout {
 public:
  AttentionLayout() = default;
  // Lengths of the items by rank. Throws InputError D410 if their sums do not fit 32 bits.
  struct Item {
    std::uint32_t q_length = 0;
    std::uint32_t kv_length = 0;
  };
  explicit AttentionLayout(const std::vector<std::vector<Item>>& by_rank);

  [[nodiscard]] int world_size() const { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] int num_local_seqs(int rank) const;
  // One entry more than there are items; the first is 0.
  [[nodiscard]] std::span<const std::uint32_t> cu_seqlens_q(int rank) const;
  [[nodiscard]] std::span<const std::uint32_t> cu_seqlens_kv(int rank) const;
  [[nodiscard]] std::uint32_t max_seqlen_q(int rank) const;
  [[nodiscard]] std::uint32_t max_seqlen_kv(int rank) const;
  [[nodiscard]] Bytes bytes() const;
  friend bool operator==(const AttentionLayout&, const AttentionLayout&) = default;

 private:
  std::vector<std::uint32_t> first_{0};  // of cu_q_ and cu_kv_, by rank, and the end
  std::vector<std::uint32_t> cu_q_;
  std::vector<std::uint32_t> cu_kv_;
  std::vector<std::uint32_t> longest_q_;  // by rank
  std::vector<std::uint32_t> longest_kv_;
};
[[nodiscard]] AttentionLayout compute_attention_layout(const Routing& routing);
// The attention work of a rank: pairs of a query and a key that it sees.
[[nodiscard]] double causal_pairs(const AttentionLayout& layout, int rank);

// All five results of one dispatch.
struct QkvDispatch {
  MetadataPair q;
  MetadataPair kv;
  AttentionLayout attention;
  friend bool operator==(const QkvDispatch&, const QkvDispatch&) = default;

  [[nodiscard]] int world_size() const { return q.forward.world_size(); }
};
[[nodiscard]] QkvDispatch compute_qkv_dispatch(const Routing& routing);

// A random one, for tests and first steps: every rank has `num_seqs` documents that sum to
// `total_seq_len` tokens (gen_seq_lens); each is cut into 1 to `max_cp_degree` items, each of which
// attends on some rank. Nothing about it is balanced. Throws InputError D400.
struct RandomDispatch {
  int world_size = 1;
  std::uint32_t total_seq_len = 1;
  int num_seqs = 1;
  int max_cp_degree = 1;
  std::uint64_t seed = 0;
};
[[nodiscard]] Routing random_routing(const RandomDispatch& random);
[[nodiscard]] QkvDispatch create_qkv_dispatch(const RandomDispatch& random);

}  // namespace shiplap::dispatch
