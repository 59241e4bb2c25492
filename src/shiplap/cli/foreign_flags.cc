#include "shiplap/cli/foreign_flags.h"

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "shiplap/cli/flags.h"
#include "shiplap/plan/mesh.h"

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
    {"--seq-length", "--seq-length"},
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

std::string flag_name(const std::string& word) { return word.substr(0, word.find('=')); }

// The value in `--flag=value` or `--flag value`; empty if there is none.
std::string flag_value(std::span<const std::string> words, std::size_t at) {
  const std::size_t equals = words[at].find('=');
  if (equals != std::string::npos) return words[at].substr(equals + 1);
  return at + 1 < words.size() ? words[at + 1] : "";
}

using AxisSizes = std::map<std::string, std::int64_t>;  // sorted: dp, pp, tp

AxisSizes axis_sizes(std::span<const std::string> words) {
  AxisSizes sizes;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::optional<std::string> axis = mesh_axis(flag_name(words[at]));
    const std::int64_t size = parse_integer(flag_value(words, at)).value_or(0);
    if (axis && size >= 1) sizes[*axis] = size;
  }
  return sizes;
}

// Adds the axes that `hybrid` needs, except dp, which follows from the number of ranks.
void complete_hybrid(AxisSizes& sizes) {
  if (sizes.empty()) return;
  sizes.try_emplace("pp", 1);
  sizes.try_emplace("tp", 1);
}

std::string format_sizes(const AxisSizes& sizes) {
  std::vector<plan::Axis> axes;
  for (const auto& [name, size] : sizes) axes.push_back({.name = name, .size = size});
  return format_axes(axes);
}

}  // namespace

std::optional<std::string> local_flag(std::string_view foreign) {
  return look_up(kSizeFlags, foreign);
}

std::optional<std::string> mesh_axis(std::string_view foreign) {
  return look_up(kAxisFlags, foreign);
}

std::string mesh_of_flags(std::span<const std::string> words) {
  AxisSizes sizes = axis_sizes(words);
  std::string strategy;
  bool has_ranks = false;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string name = flag_name(words[at]);
    if (name == "--strategy") strategy = flag_value(words, at);
    has_ranks |= name == "--ranks" || local_flag(name) == "--ranks";
  }
  const bool only_dp = !sizes.contains("pp") && !sizes.contains("tp");
  if (strategy == "hybrid" || (strategy.empty() && !only_dp)) {
    complete_hybrid(sizes);
    if (!sizes.empty() && !has_ranks) sizes.try_emplace("dp", 1);
  }
  return format_sizes(sizes);
}

}  // namespace shiplap::cli
