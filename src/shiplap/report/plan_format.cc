#include "shiplap/report/plan_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace shiplap::report {
namespace {

using plan::Comparator;
using plan::Mesh;
using plan::Plan;
using plan::RankProgram;
using plan::Tensor;

constexpr std::int64_t kMaxListed = 4;

std::string side(const plan::MaskSide& mask_side, const Tensor& tensor, const Plan& plan) {
  const std::string& name = tensor.dimension(mask_side.dimension).name;
  if (!mask_side.list.exists()) return name;
  return plan.lists[mask_side.list].name + "[" + name + "]";
}

std::string sizes(const std::vector<plan::Dimension>& list) {
  std::string text;
  for (const plan::Dimension& dimension : list) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", dimension.name, dimension.size);
  }
  return text;
}

void append(std::string& text, const std::string& more) {
  if (more.empty()) return;
  if (!text.empty()) text += ' ';
  text += more;
}

std::string format_run(const plan::flat::Run& run) {
  std::string text = fmt::format("{} +{}", run.begin, run.count);
  if (run.stride != 1) text += fmt::format(" by {}", run.stride);
  return text;
}

bool is_whole(std::span<const plan::flat::Run> runs, const plan::Dimension& dimension) {
  return runs.size() == 1 && runs[0].begin == 0 && runs[0].stride == 1 &&
         runs[0].count == dimension.size;
}

// The runs of the part, or of the sum, without the dimensions that are whole.
std::string format_runs(std::span<const plan::flat::Run> runs, const Tensor& tensor, bool in_sum) {
  std::string text;
  for (std::size_t first = 0; first < runs.size();) {
    std::size_t last = first;
    while (last < runs.size() && runs[last].dimension == runs[first].dimension) ++last;
    const auto same = runs.subspan(first, last - first);
    const plan::Dimension& dimension = tensor.dimension(runs[first].dimension);
    first = last;
    if (tensor.in_sum(same[0].dimension) != in_sum || is_whole(same, dimension)) continue;
    append(text, dimension.name);
    for (std::size_t k = 0; k < same.size(); ++k) {
      if (k == 3) {
        append(text, fmt::format("| {} more", same.size() - k));
        break;
      }
      append(text, (k == 0 ? "" : "| ") + format_run(same[k]));
    }
  }
  return text;
}

std::string format_ranks(const plan::RankSet& ranks) {
  std::string text;
  for (std::int64_t k = 0; k < std::min(ranks.size(), kMaxListed); ++k) {
    text += fmt::format("{}{}", k == 0 ? "" : ", ", ranks[k].value);
  }
  if (ranks.size() > kMaxListed) text += fmt::format(" and {} more", ranks.size() - kMaxListed);
  return text;
}

const plan::Group* group_of(const plan::Action& action) {
  if (const auto* collective = std::get_if<plan::Collective>(&action)) return &collective->over;
  if (const auto* exchange = std::get_if<plan::Exchange>(&action)) return &exchange->over;
  return nullptr;
}

}  // namespace

std::string format_selector(const plan::Selector& selector, const Mesh& mesh) {
  if (selector.terms.empty()) return "all";
  std::string text;
  for (const plan::SelectorTerm& term : selector.terms) {
    append(text, term.axis.exists() ? mesh.name(term.axis) : "rank");
    for (std::size_t k = 0; k < term.positions.size(); ++k) {
      const auto [first, last] = term.positions[k];
      text += fmt::format("{}{}", k == 0 ? '=' : '|', first);
      if (last != first) text += fmt::format("..{}", last);
    }
  }
  return text;
}

std::string format_mask(const Tensor& tensor, const Plan& plan) {
  std::string text;
  for (const plan::MaskTerm& term : tensor.mask) {
    if (!text.empty()) text += " and ";
    text += side(term.left, tensor, plan);
    text += term.comparator == Comparator::equal ? "=" : "<=";
    text += side(term.right, tensor, plan);
  }
  return text;
}

std::string format_dimensions(const Tensor& tensor, const Plan& plan) {
  std::string text = sizes(tensor.part);
  if (!tensor.sum.empty()) append(text, "sum " + sizes(tensor.sum));
  if (tensor.scale != plan::Ratio()) append(text, "scale " + format_ratio(tensor.scale));
  if (!tensor.mask.empty()) append(text, "mask " + format_mask(tensor, plan));
  return text;
}

std::string format_region(const plan::flat::Region& region, const RankProgram& rank) {
  const std::size_t buffer = region.buffer.index();
  const std::string& name = rank.plan->programs[rank.program].buffers[buffer].name;
  if (region.listed >= 0) {
    std::string rows;
    for (std::int64_t k = 0; k < std::min(region.count, kMaxListed); ++k) {
      rows += fmt::format("{}{}", k == 0 ? "" : ", ", rank.listed_rows[region.listed + k]);
    }
    return fmt::format("{}[{}{}]", name, rows, region.count > kMaxListed ? ", .." : "");
  }
  if (region.begin == 0 && region.count == rank.buffers[buffer].rows) return name;
  return fmt::format("{}[{} +{}]", name, region.begin, region.count);
}

std::string format_value(const plan::flat::Value& value, const RankProgram& rank) {
  const Tensor& tensor = rank.plan->tensors[value.tensor];
  std::string text = value.is_new ? "new " + tensor.name : tensor.name;
  if (tensor.instances > 0) text += fmt::format("[{}]", value.instance);
  append(text, format_runs(rank.runs_of(value), tensor, false));
  const std::string sum = format_runs(rank.runs_of(value), tensor, true);
  if (value.zero) append(text, "sum none");
  if (!sum.empty()) append(text, "sum " + sum);
  if (value.scale != plan::Ratio()) append(text, "scale " + format_ratio(value.scale));
  return text;
}

std::string format_name(const plan::flat::Operation& op, const RankProgram& rank) {
  std::string text = op.source->name.name;
  for (std::int32_t k = 0; k < op.name.count; ++k) {
    text += fmt::format("{}{}", k == 0 ? '[' : ',', rank.numbers[op.name.first + k]);
  }
  return op.name.count > 0 ? text + "]" : text;
}

std::string format_group(const plan::flat::Operation& op, const RankProgram& rank) {
  const plan::Group* source = group_of(op.source->action);
  if (source == nullptr || !op.group.exists()) return "";
  std::string text;
  const bool is_named_by_axes = !source->axes.empty() && source->positions.empty();
  if (is_named_by_axes) {
    for (const plan::AxisId axis : source->axes) append(text, rank.plan->mesh.name(axis));
  } else {
    text = "ranks " + format_ranks(rank.groups[op.group].ranks);
  }
  text = "over " + text;
  if (!source->channel.empty()) text += " /" + source->channel;
  return text;
}

}  // namespace shiplap::report
