#include "shiplap/cli/foreign_flags.h"

#include <array>
#include <map>
#include <utility>

#include "shiplap/cli/flags.h"

namespace shiplap::cli {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr auto kAxisFlags = std::to_array<NamePair>({
    {"--dp", "dp"},
    {"--data-parallel-size", "dp"},
    {"--pp", "pp"},
    {"--pipeline-model-parallel-size", "pp"},
    {"--pipeline-parallel-size", "pp"},
    {"--tp", "tp"},
    {"--tensor-model-parallel-size", "tp"},
    {"--tensor-parallel-size", "tp"},
});

constexpr auto kSizeFlags = std::to_array<NamePair>({
    {"--num-layers", "--layers"},
    {"--hidden-size", "--hidden"},
    {"--global-batch-size", "--global-batch"},
    {"--batch-size", "--global-batch"},
    {"--sequence-length", "--seq-length"},
    {"--seq-len", "--seq-length"},
    {"--num-microbatches", "--microbatches"},
    {"--world-size", "--ranks"},
    {"--gpus", "--ranks"},
    {"--np", "--ranks"},
});

std::optional<std::string> look_up(std::span<const NamePair> names, std::string_view flag) {
  for (const auto& [foreign, local] : names) {
    if (foreign == flag) return std::string(local);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> local_flag(std::string_view foreign) {
  return look_up(kSizeFlags, foreign);
}

std::optional<std::string> mesh_axis(std::string_view foreign) {
  return look_up(kAxisFlags, foreign);
}

std::string mesh_of_flags(std::span<const std::string> words) {
  std::map<std::string, std::string> sizes;  // sorted: dp, pp, tp
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::size_t equals = words[at].find('=');
    const std::optional<std::string> axis = mesh_axis(words[at].substr(0, equals));
    std::string size;
    if (equals != std::string::npos) size = words[at].substr(equals + 1);
    if (equals == std::string::npos && at + 1 < words.size()) size = words[at + 1];
    if (axis && parse_integer(size).value_or(0) >= 1) sizes[*axis] = size;
  }
  std::string mesh;
  for (const auto& [axis, size] : sizes) {
    mesh += (mesh.empty() ? "" : ",");
    mesh += axis;
    mesh += "=";
    mesh += size;
  }
  return mesh;
}

}  // namespace shiplap::cli
