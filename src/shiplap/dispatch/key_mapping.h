// Tables of keys and values from mapping tensors, as planners give them that decide for every shard
// of a sequence: which queries attend to it. compute.h does the same from layouts of documents.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/dispatch/compute.h"

namespace shiplap::dispatch {

// Shard s of rank r is a part of a sequence: consecutive tokens, with their queries and their keys.
struct KeyMapping {
  // The lengths of the shards, and the ranks that compute their queries.
  SequenceDispatch queries;
  // The tokens of the sequence before the shard.
  std::vector<std::vector<std::uint32_t>> kv_context_size;
  // The shards whose queries attend to the keys of this one; rank -1 is none.
  struct Shard {
    std::int32_t rank = -1;
    std::int32_t seq = -1;
    friend bool operator==(const Shard&, const Shard&) = default;
  };
  std::vector<std::vector<std::vector<Shard>>> kv_to_q_mapping;
};

// The keys of a query shard lie on its rank in one piece, by kv_context_size; those of several
// shards in the order of compute_metadata(mapping.queries). Gradients of copies are summed at home.
// Throws InputError: the findings of validate(mapping), and D410 if the keys of a rank do not fit
// 32 bits.
[[nodiscard]] MetadataPair compute_metadata_kv(const KeyMapping& mapping);
[[nodiscard]] AttentionLayout compute_attention_layout(const KeyMapping& mapping,
                                                       const Mask& mask = {});

// Returns the problems of a mapping: those of its queries, a tensor of another shape (D401), a
// query shard that does not exist (D403), and keys of a query shard that overlap (D405) or have a
// gap (D408). Whether they are the keys that a mask asks for is up to validate(QkvDispatch).
[[nodiscard]] std::vector<Diagnostic> validate(const KeyMapping& mapping);

}  // namespace shiplap::dispatch
