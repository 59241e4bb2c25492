#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/axes_internal.h"

namespace shiplap::step {
namespace {

using layout::Layout;

// One axis of a refined mesh, from position `low` to `high` of the ranks of a stage.
struct Digit {
  std::int64_t low = 1;
  std::int64_t high = 1;
  std::string name;
  [[nodiscard]] std::int64_t size() const { return high / low; }
};
// From the slowest to the fastest.
using Digits = std::vector<Digit>;

[[noreturn]] void throw_not_a_mesh(const Layout& layout) {
  throw InputError(
      {.code = "D645",
       .where = {},
       .what = fmt::format("the groups of experts ({} x {}) and of dense layers ({} x {}) have no "
                           "common mesh",
                           layout.expert, layout.expert_tensor, layout.context, layout.tensor),
       .why = "this planner knows layouts in which the sizes of groups divide each other, from the "
              "fastest axis on",
       .help = "choose sizes of `expert x expert tensor` and `context x tensor` of which one "
               "divides the other"});
}

Digits digits_of(const Layout& layout, bool has_experts) {
  const std::int64_t sharing = layout.ranks() / layout.pipeline;
  const std::int64_t sequence = layout.tensor * layout.context;
  std::set<std::int64_t> cuts{1, layout.tensor, sequence, sharing / layout.replicas, sharing};
  if (has_experts) {
    cuts.insert(layout.expert_tensor);
    cuts.insert(layout.expert_tensor * layout.expert);
  }
  Digits digits;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    if (*std::next(cut) % *cut != 0) throw_not_a_mesh(layout);
    digits.push_back({.low = *cut, .high = *std::next(cut), .name = {}});
  }
  std::ranges::reverse(digits);
  return digits;
}

Digits between(const Digits& digits, std::int64_t low, std::int64_t high) {
  Digits found;
  for (const Digit& digit : digits) {
    if (digit.low >= low && digit.high <= high) found.push_back(digit);
  }
  return found;
}

std::int64_t size_of(const Digits& digits) {
  std::int64_t size = 1;
  for (const Digit& digit : digits) size *= digit.size();
  return size;
}

// The position on several axes, counted from the slowest.
std::string index_of(const Digits& digits) {
  std::string index = "0";
  for (const Digit& digit : digits) {
    if (index.find('+') != std::string::npos) index = "(" + index + ")";
    index = plus(times(index, digit.size()), digit.name);
  }
  return index;
}

std::string names_of(const Digits& digits) {
  std::vector<std::string_view> names;
  for (const Digit& digit : digits) names.push_back(digit.name);
  return fmt::format("{}", fmt::join(names, " "));
}

std::string group_of(const Digits& digits) {
  if (digits.empty()) return "";
  if (digits.size() == 1) return digits.front().name;
  std::vector<std::string_view> names;
  for (const Digit& digit : digits) names.push_back(digit.name);
  return fmt::format("({})", fmt::join(names, ", "));
}

// "pp=16 dp=8 tp=8".
std::string mesh_of(const Layout& layout, const Digits& digits, std::int64_t sequence_ranks) {
  std::string mesh;
  bool has_pipeline = layout.pipeline == 1;
  const auto add_pipeline = [&] {
    if (!has_pipeline) mesh += fmt::format("pp={} ", layout.pipeline);
    has_pipeline = true;
  };
  for (const Digit& digit : digits) {
    if (!layout.pipeline_fastest || digit.high <= sequence_ranks) add_pipeline();
    mesh += fmt::format("{}={} ", digit.name, digit.size());
  }
  add_pipeline();
  return mesh.empty() ? "dp=1" : mesh;
}

}  // namespace

std::string times(const std::string& a, std::int64_t k) {
  if (a == "0" || k == 1) return a;
  return a.find('+') != std::string::npos ? fmt::format("({})*{}", a, k)
                                          : fmt::format("{}*{}", a, k);
}

std::string plus(const std::string& a, const std::string& b) {
  if (a == "0") return b;
  return b == "0" ? a : a + "+" + b;
}

std::string run(const std::string& dimension, const std::string& begin, std::int64_t count) {
  return fmt::format("{} {} +{}", dimension, begin, count);
}

Axes::Axes(const Layout& layout, bool has_experts) {
  const std::int64_t tensor = layout.tensor;
  const std::int64_t sequence_ranks = tensor * layout.context;
  const std::int64_t sharing = layout.ranks() / layout.pipeline;
  const std::int64_t sharded = sharing / layout.replicas;
  Digits digits = digits_of(layout, has_experts);
  const auto name = [&](std::int64_t low, std::int64_t high, const std::string& dimension) {
    const std::size_t count = between(digits, low, high).size();
    std::size_t number = count;
    for (Digit& digit : digits) {
      if (digit.low < low || digit.high > high) continue;
      digit.name = count == 1 ? dimension : fmt::format("{}{}", dimension, --number);
    }
    const Digits named = between(digits, low, high);
    if (named.size() > 1) aliases.push_back(dimension + " = " + names_of(named));
    return named.empty() ? std::string("0") : dimension;
  };
  tp = name(1, tensor, "tp");
  cp = name(tensor, sequence_ranks, "cp");
  dp = name(sequence_ranks, sharded, "dp");
  name(sharded, sharing, "replica");
  const auto expert_axis = [&](std::int64_t low, std::int64_t high, const std::string& dimension) {
    const Digits found = between(digits, low, high);
    if (found.empty()) return std::string("0");
    aliases.push_back(dimension + " = " + names_of(found));
    return dimension;
  };
  const std::int64_t expert_tensor = has_experts ? layout.expert_tensor : 1;
  const std::int64_t expert_ranks = expert_tensor * (has_experts ? layout.expert : 1);
  if (tensor % expert_tensor != 0 || sharded % expert_ranks != 0) throw_not_a_mesh(layout);
  if (has_experts) {
    etp = expert_axis(1, expert_tensor, "etp");
    ep = expert_axis(expert_tensor, expert_ranks, "ep");
  }

  mesh = mesh_of(layout, digits, sequence_ranks);

  const auto sharing_of = [&](std::int64_t low) {
    const Digits shards = between(digits, low, sharded);
    return Sharing{.shards = size_of(shards),
                   .position = index_of(shards),
                   .over = group_of(shards),
                   .over_replicas = group_of(between(digits, sharded, sharing))};
  };
  dense = sharing_of(tensor);
  experts = sharing_of(expert_ranks);

  // Without sequence parallelism, all ranks of a tensor group have the same tokens.
  const std::int64_t fastest = layout.sequence_parallel ? expert_tensor : tensor;
  const Digits toks_here = between(digits, fastest, sequence_ranks);
  toks = size_of(toks_here);
  tes = layout.sequence_parallel ? expert_tensor : 1;
  te = tes == 1 ? "" : " " + run("te", etp, 1);
  block = run("tok", index_of(toks_here), 1) + te;
  const std::int64_t of_sequence = toks / layout.context;
  sequence = run("tok", times(cp, of_sequence), of_sequence);
  blocks_of_sequence = of_sequence * tes;
  const Digits samples = between(digits, sequence_ranks, sharing);
  const std::int64_t microbatches = layout.microbatches();
  sample = times(index_of(samples), microbatches);

  const std::int64_t at_experts = std::max(expert_ranks, fastest);
  const Digits toks_inside = between(digits, fastest, std::min(at_experts, sequence_ranks));
  const std::int64_t toks_together = size_of(toks_inside);
  const Digits toks_outside = between(digits, std::min(at_experts, sequence_ranks), sequence_ranks);
  toks_at_experts = run("tok", times(index_of(toks_outside), toks_together), toks_together);
  const std::int64_t from = std::max(at_experts, sequence_ranks);
  const std::int64_t samples_together = size_of(between(digits, sequence_ranks, from));
  const std::string outside = index_of(between(digits, from, sharing));
  samples_at_experts =
      run("sample", plus(times(outside, samples_together * microbatches), "m"), samples_together);
  if (samples_together > 1) samples_at_experts += fmt::format(" by {}", microbatches);
}

}  // namespace shiplap::step
