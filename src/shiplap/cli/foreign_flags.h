// Flags that other launchers have, such as Megatron-LM, and what they are called here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shiplap::cli {

// Returns the flag of Shiplap with the same meaning: "--layers" for "--num-layers".
[[nodiscard]] std::optional<std::string> local_flag(std::string_view foreign);

// Returns the axis of `--mesh` that a flag sets: "tp" for "--tensor-model-parallel-size".
[[nodiscard]] std::optional<std::string> mesh_axis(std::string_view foreign);

// Returns the mesh that the flags of a command line of ours mean, with tp last so that it stays
// within nodes: "pp=4,tp=8" for "--tp 8 --pp=4 --ranks 512". Flags without a value are left out. If
// the strategy is `hybrid`, or not given with pp or tp, missing axes have size 1, except a dp that
// follows from --ranks; other strategies do not have all three axes.
[[nodiscard]] std::string mesh_of_flags(std::span<const std::string> words);

}  // namespace shiplap::cli
