// The strategies that come with Shiplap, each in a short file of its own in library/.
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
Task pipeline_fsdp(Model& model);
Task tensor_parallel(Model& model);
Task hybrid(Model& model);

// How finely a strategy cuts what a rank has to do.
enum class Cut : std::uint8_t {
  none,
  microbatches,  // its samples
  chunks,        // its samples into microbatches, and its layers into chunks
};

struct Entry {
  std::string name;     // "1f1b"
  std::string summary;  // one line
  Task (*strategy)(Model&) = nullptr;
  std::vector<std::string> axes;  // of its mesh, in order; none: it is for one rank
  // The axis along which weights are cut into shards; "": none is.
  std::string shards;
  Cut cut = Cut::none;
  std::vector<std::string> aliases;
};

[[nodiscard]] std::span<const Entry> strategies();
// By name or alias. Throws InputError D624 with the names there are.
[[nodiscard]] const Entry& find_strategy(std::string_view name);

// What a strategy is asked to do. Zeros and an empty mesh leave it to the strategy.
struct Size {
  int ranks = 0;  // as many as the mesh has; else one
  int layers = 2;
  int batch = 1;         // samples of all ranks together
  int microbatches = 0;  // in pipelines, one sample each
  int chunks = 0;        // two, where layers are cut into chunks
  std::vector<plan::Axis> mesh;
  workload::ModelShape shape;
};

// The mesh and the training that a strategy gets for a size. Throw InputError D622 where numbers
// do not fit (layers that do not divide into stages, samples into microbatches), with the nearest
// that do.
[[nodiscard]] World world_for(const Entry& entry, const Size& size);
[[nodiscard]] Training training_for(const Entry& entry, const Size& size);

}  // namespace shiplap::strategy
