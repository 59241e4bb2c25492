// How a training run is split over ranks: the sizes of its parallel groups, the stages of its
// pipeline, its batch, and what is kept in which precision. A plain value; the frameworks' own
// spelling is read and written by framework.h.
//
// A rank is a position on the axes (pipeline, data, context, tensor), the last of which varies
// fastest. The experts of MoE layers have groups of their own on the same ranks: (pipeline, expert
// data, expert, expert tensor).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/dtype.h"
#include "shiplap/workload/model.h"

namespace shiplap::layout {

// How attention gets the keys and values of the other parts of a sequence.
enum class ContextMethod : std::uint8_t { all_gather, ring, ulysses };
enum class PipelineSchedule : std::uint8_t {
  gpipe,
  one_f_one_b,
  interleaved,
  zero_bubble,
  dual_pipe_v
};
enum class Recompute : std::uint8_t { none, selective, full };
// What the loss is a mean of: all tokens of the global batch, or per sequence and then all of
// those.
enum class LossMean : std::uint8_t { sequences, tokens };
// What data parallel ranks share instead of repeating: nothing, optimizer states, gradients too,
// weights too (FSDP).
enum class Sharding : std::uint8_t { none, optimizer, gradients, weights };
enum class Fp8 : std::uint8_t { none, delayed, current, block, mx };
enum class Optimizer : std::uint8_t { adam, sgd, muon };

[[nodiscard]] std::string_view name(ContextMethod method);
[[nodiscard]] std::string_view name(PipelineSchedule schedule);
[[nodiscard]] std::string_view name(Recompute recompute);
[[nodiscard]] std::string_view name(Sharding sharding);

// What a stage of the pipeline has, in the order of the model.
struct Stage {
  bool embedding = false;
  std::int64_t layers = 0;
  std::int64_t mtp = 0;  // modules for further predicted tokens
  bool head = false;     // and the loss
  friend bool operator==(const Stage&, const Stage&) = default;
};

struct Precision {
  DType weights = DType::bf16;
  DType gradients = DType::f32;  // that are accumulated and reduced
  DType master = DType::f32;  // the optimizer's copy of a weight; none if it is that of `weights`
  DType moments = DType::f32;
  Fp8 fp8 = Fp8::none;  // of the products of linear layers
  friend bool operator==(const Precision&, const Precision&) = default;
};

struct Layout {
  std::int64_t tensor = 1;
  bool sequence_parallel = false;  // norms and residuals are split over the tensor ranks
  std::int64_t context = 1;
  ContextMethod context_method = ContextMethod::ring;
  std::int64_t pipeline = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::int64_t chunks = 1;    // stages of each rank
  std::vector<Stage> stages;  // pipeline * chunks, in the order of the model; empty: even
  std::int64_t data = 1;
  std::int64_t replicas = 1;  // of `data`: the shards are repeated this often (HSDP)
  Sharding sharding = Sharding::none;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
  bool pipeline_fastest = false;  // order (data, pipeline, context, tensor)

  std::int64_t micro_batch = 1;   // sequences
  std::int64_t global_batch = 1;  // sequences
  std::int64_t seq_length = 4096;
  LossMean loss = LossMean::sequences;

  Recompute recompute = Recompute::none;
  Precision precision;
  Optimizer optimizer = Optimizer::adam;

  [[nodiscard]] std::int64_t ranks() const { return tensor * context * pipeline * data; }
  // The data parallel ranks of an expert.
  [[nodiscard]] std::int64_t expert_data() const {
    return tensor * context * data / (expert * expert_tensor);
  }
  [[nodiscard]] std::int64_t microbatches() const { return global_batch / (micro_batch * data); }
  friend bool operator==(const Layout&, const Layout&) = default;
};

// The stages written out: `layout.stages`, or an even split with the embedding on the first one and
// the head and mtp on the last one. With DualPipeV a rank has stage k and the k-th from the end.
// REQUIRES: check_layout(..) found no error.
[[nodiscard]] std::vector<Stage> stages_of(const Layout& layout, const workload::Model& model);

// What is impossible (errors, D606) or unwise (warnings, D607: a tensor group would span machines)
// about a layout, each with the legal values nearby: "pipeline 12 x chunks 4 must divide the 80
// layers" "use one of pipeline 4, 5, 8, 10, ..". `ranks_per_machine` 0: unknown.
[[nodiscard]] std::vector<Diagnostic> check_layout(const Layout& layout,
                                                   const workload::Model& model,
                                                   std::int64_t ranks_per_machine = 0);

// Bytes that the optimizer holds for each parameter, beside weight and gradient: 12 for Adam with
// bf16 weights and an f32 copy.
[[nodiscard]] std::int64_t optimizer_bytes(const Layout& layout);

}  // namespace shiplap::layout
