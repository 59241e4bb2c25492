// The weights of a step, in groups that are sharded, reduced and updated alike; and the work of
// parts on one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/layout/layout.h"
#include "shiplap/step/axes_internal.h"
#include "shiplap/workload/model.h"

namespace shiplap::step {

// How the ranks of a tensor group divide a part.
enum class Cut : std::uint8_t {
  none,     // all have the weight, each for its own tokens
  columns,  // a share of the outputs, heads, words
  rows,     // a share of the inputs
  experts,  // a share of the experts, each of which may be divided further
};
[[nodiscard]] Cut cut_of(const workload::Part& part);

// A part as one rank has it, and the tokens that it works on in a microbatch.
struct LocalPart {
  workload::Part part;
  workload::Tokens tokens;
  double share = 1;  // of the FLOPs of attention, which are those of whole sequences
};
[[nodiscard]] LocalPart local_part(const workload::Part& part, const layout::Layout& layout);

// "gemm", "attention", ..
[[nodiscard]] std::string_view class_of_kernel(workload::PartKind kind);

enum class Direction : std::uint8_t {
  forward,
  backward,  // both halves
  backward_input,
  backward_weight,
};
// "gemm 4000 flop 200 bytes bf16" of a direction; empty if there is no work.
// `steps`: of one of so many equal steps.
[[nodiscard]] std::string work_text(const LocalPart& local, Direction direction, DType type,
                                    std::int64_t steps = 1);

// Weights that one rank updates together: those of a block that are cut alike.
struct WeightGroup {
  std::string name;             // "attention": of its tensors
  std::string buffer;           // "attention1": of its buffers, which depend on the kind of layer
  std::int64_t parameters = 0;  // on a rank, all shards
  std::string dimensions;       // of its tensors, without that of the shards: "ff 8 "
  std::string at;               // this rank's: "ff tp +1"
  bool shards_first = false;    // the shards are the slowest dimension
  bool sums_tensor = false;     // each rank of the tensor group has a part of the gradient
  bool sums_features = false;   // because each has other heads, not other tokens
  bool of_experts = false;
  bool is_alone = false;    // of no layer
  bool of_modules = false;  // of each module for a further token, one: then also alone
  bool is_at_ends = false;  // on the first and on the last stage
  std::int64_t uses = 1;    // in a model: by the embedding, heads and modules
  Axes::Sharing sharing;
  layout::Sharding sharding = layout::Sharding::none;
};

}  // namespace shiplap::step
