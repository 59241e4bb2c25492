#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "shiplap/layout/sizes_internal.h"

namespace shiplap::layout {
namespace {

using workload::Part;
using workload::PartKind;

constexpr std::size_t kMaxChoices = 6;

void add_sizes(const Part& part, ModelSizes& sizes) {
  if (part.kind == PartKind::attention) {
    sizes.heads = part.attention.heads;
    sizes.kv_heads = part.attention.kv_heads;
  }
  if (part.kind != PartKind::activation) return;
  if (part.experts > 1) {
    sizes.experts = part.experts;
    sizes.top_k = part.top_k;
    sizes.expert_width = part.out;
  } else if (sizes.width == 0 || part.name.starts_with("mlp")) {
    sizes.width = part.out;
  }
}

}  // namespace

ModelSizes sizes_of(const workload::Model& model) {
  ModelSizes sizes;
  for (const workload::Layer& layer : model.kinds) {
    for (const Part& part : layer.parts) add_sizes(part, sizes);
  }
  return sizes;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small;
  std::vector<std::int64_t> large;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d * d != n) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::string nearest_choices(std::vector<std::int64_t> choices, std::int64_t value) {
  const auto distance = [&](std::int64_t choice) {
    const auto [smaller, larger] = std::minmax(choice, value);
    return static_cast<double>(larger) / static_cast<double>(smaller);
  };
  std::ranges::stable_sort(choices, {}, distance);
  if (choices.size() > kMaxChoices) choices.resize(kMaxChoices);
  std::ranges::sort(choices);
  if (choices.size() == 1) return fmt::to_string(choices[0]);
  const std::int64_t last = choices.back();
  choices.pop_back();
  return fmt::format("{} or {}", fmt::join(choices, ", "), last);
}

std::string nearest_multiples(std::int64_t unit, std::int64_t value) {
  const std::int64_t below = value / unit * unit;
  if (below == 0) return fmt::to_string(unit);
  return fmt::format("{} or {}", below, below + unit);
}

}  // namespace shiplap::layout
