// The library of strategies. Each is a short coroutine in library/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "shiplap/strategy/model.h"
#include "shiplap/strategy/train.h"

namespace shiplap::strategy {

Task single(Model& model);
Task gradient_accumulation(Model& model);
Task ddp(Model& model);
Task ddp_overlap(Model& model);
Task weight_sharded(Model& model);
Task zero1(Model& model);
Task zero2(Model& model);
Task fsdp(Model& model);
Task gpipe(Model& model);
Task one_f_one_b(Model& model);
Task interleaved(Model& model);
Task zb_h1(Model& model);
Task dualpipev(Model& model);
Task pipeline_fsdp(Model& model);
Task tensor_parallel(Model& model);
Task tensor_parallel_fsdp(Model& model);
Task hybrid(Model& model);

// How a strategy splits the work of a rank.
enum class WorkSplit : std::uint8_t {
  none,
  microbatches,  // samples into microbatches
  chunks,        // also layers into chunks (virtual pipeline stages)
  two_chunks,    // the same, always two
};

struct StrategyInfo {
  std::string name;     // "1f1b"
  std::string summary;  // one line
  Task (*strategy)(Model&) = nullptr;
  std::vector<std::string> axes;  // of its mesh, in order; empty: single rank
  // The axes along which weights are sharded, from the outermost to the innermost.
  std::vector<std::string> shards;
  WorkSplit split = WorkSplit::none;
  bool zero_stages = false;  // with a stage of ZeRO, weights are also sharded along `dp`
  std::vector<std::string> aliases;
};

[[nodiscard]] std::span<const StrategyInfo> strategies();
// By name or alias. Throws InputError D624, with the available names, if it is unknown.
[[nodiscard]] const StrategyInfo& find_strategy(std::string_view name);

// The requested size of a training. Zeros and an empty mesh select the default of the strategy.
struct TrainingSize {
  int ranks = 0;  // default: those of the mesh, or 1
  int layers = 2;
  int batch = 1;         // samples of all ranks together
  int microbatches = 0;  // default in pipelines: one sample each
  int chunks = 0;        // default: 2 if the strategy uses chunks
  int zero_stage = 0;
  std::vector<plan::Axis> mesh;
  workload::ModelShape shape;
};

// The mesh and the training of a strategy for a size. Throw InputError D622 if numbers do not
// divide (layers into stages, samples into microbatches), with the nearest numbers that do, or if
// the strategy has no such stage of ZeRO.
[[nodiscard]] World world_for(const StrategyInfo& entry, const TrainingSize& size);
[[nodiscard]] Training training_for(const StrategyInfo& entry, const TrainingSize& size);
// Returns the smallest number of layers, at least `layers`, that divides among the stages and
// chunks of a strategy on this mesh. Ignores size.layers. Throws InputError D622.
[[nodiscard]] int default_layers(const StrategyInfo& entry, const TrainingSize& size, int layers);

}  // namespace shiplap::strategy
