// Layouts in the spelling of training frameworks, as people paste them into issues.
//
//   torchrun --nnodes 64 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8
//     --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 4 ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/layout/layout.h"

namespace shiplap::layout {

enum class Framework : std::uint8_t {
  megatron,    // flags
  torchtitan,  // --parallelism.* overrides
  deepspeed,   // JSON
  accelerate,  // YAML: parallelism_config_*, fsdp_*, or a deepspeed section
};
[[nodiscard]] std::string_view name(Framework framework);
[[nodiscard]] std::optional<Framework> framework_named(std::string_view text);

struct LayoutFile {
  Layout layout;
  std::optional<std::int64_t> ranks_per_machine;  // of --nproc-per-node and the like
  // D608: a flag that is not understood, or what is assumed for one that is missing. D607: what the
  // framework itself makes of a flag; not those of check_layout.
  std::vector<Diagnostic> warnings;
};

// `text` is a command line, overrides or a file. `ranks`, if given, is the number of ranks; else
// the text must say it (--nnodes and --nproc-per-node), or all sizes are given and it is their
// product. Throws InputError D606: a contradiction, with the legal values; D609: `text` cannot be
// read. All errors at once.
[[nodiscard]] LayoutFile read_layout(Framework framework, std::string_view text,
                                     const workload::Model& model,
                                     std::optional<std::int64_t> ranks = {});

// What read_layout reads as the same layout. Throws InputError D606 if the framework has no words
// for it.
[[nodiscard]] std::string write_layout(Framework framework, const Layout& layout,
                                       const workload::Model& model);

}  // namespace shiplap::layout
