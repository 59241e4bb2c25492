#include "shiplap/plan/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::plan {

std::string format_axes(std::span<const Axis> axes, std::string_view separator) {
  std::string text;
  for (const Axis& axis : axes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : separator, axis.name, axis.size);
  }
  return text;
}

std::int64_t Mesh::ranks() const {
  std::int64_t product = 1;
  for (const Axis& axis : axes) product *= axis.size;
  return product;
}

std::int64_t Mesh::size(AxisId id) const {
  if (!is_alias(id)) return axes[id].size;
  std::int64_t product = 1;
  for (const AxisId axis : axes_of(id)) product *= axes[axis].size;
  return product;
}

const std::string& Mesh::name(AxisId id) const {
  return is_alias(id) ? aliases[id.index() - axes.size()].name : axes[id].name;
}

std::vector<AxisId> Mesh::axes_of(AxisId id) const {
  return is_alias(id) ? aliases[id.index() - axes.size()].axes : std::vector{id};
}

std::int64_t Mesh::stride(AxisId axis) const {
  std::int64_t product = 1;
  for (std::size_t k = axis.index() + 1; k < axes.size(); ++k) product *= axes[k].size;
  return product;
}

std::vector<std::int64_t> Mesh::positions(Rank rank) const {
  std::vector<std::int64_t> result(axes.size() + aliases.size());
  std::int64_t rest = rank.value;
  for (std::size_t k = axes.size(); k-- > 0;) {
    result[k] = rest % axes[k].size;
    rest /= axes[k].size;
  }
  for (std::size_t k = 0; k < aliases.size(); ++k) {
    std::int64_t position = 0;
    for (const AxisId axis : aliases[k].axes) {
      position = position * axes[axis].size + result[axis.index()];
    }
    result[axes.size() + k] = position;
  }
  return result;
}

Rank Mesh::moved(Rank rank, AxisId id, std::int64_t position) const {
  ensure(position >= 0 && position < size(id), "a position lies on its axis");
  const std::vector<std::int64_t> now = positions(rank);
  const std::vector<AxisId> parts = axes_of(id);
  std::int64_t result = rank.value;
  for (std::size_t k = parts.size(); k-- > 0;) {
    const Axis& axis = axes[parts[k]];
    result += (position % axis.size - now[parts[k].index()]) * stride(parts[k]);
    position /= axis.size;
  }
  return Rank(static_cast<std::int32_t>(result));
}

RankSet::RankSet(Rank first, const std::vector<Step>& steps) : first_(first), size_(1) {
  for (const Step& step : steps) {
    size_ *= step.count;
    if (step.count == 1) continue;
    if (!steps_.empty() && steps_.back().stride == step.count * step.stride) {
      steps_.back() = {steps_.back().count * step.count, step.stride};
    } else {
      steps_.push_back(step);
    }
  }
}

RankSet::RankSet(std::vector<Rank> listed)
    : listed_(std::move(listed)), size_(static_cast<std::int64_t>(listed_.size())) {
  if (listed_.empty()) return;
  // A rank that is listed twice makes no step; expand() rejects such a plan.
  const std::int64_t stride = size_ > 1 ? listed_[1].value - listed_[0].value : 1;
  for (std::size_t k = 1; k < listed_.size(); ++k) {
    if (stride == 0 || listed_[k].value - listed_[k - 1].value != stride) return;
  }
  *this = RankSet(listed_.front(), {{.count = size_, .stride = stride}});
}

Rank RankSet::operator[](std::int64_t position) const {
  ensure(position >= 0 && position < size_, "a position lies in its group");
  if (!listed_.empty()) return listed_[position];
  std::int64_t rank = first_.value;
  for (std::size_t k = steps_.size(); k-- > 0;) {
    rank += position % steps_[k].count * steps_[k].stride;
    position /= steps_[k].count;
  }
  return Rank(static_cast<std::int32_t>(rank));
}

std::int64_t RankSet::find(Rank rank) const {
  if (!listed_.empty()) {
    const auto found = std::ranges::find(listed_, rank);
    return found == listed_.end() ? -1 : found - listed_.begin();
  }
  // Steps of a mesh are in order of decreasing stride, and each spans less than the stride before.
  std::int64_t rest = rank.value - first_.value;
  std::int64_t position = 0;
  for (const Step& step : steps_) {
    const std::int64_t index = rest / step.stride;
    if (index < 0 || index >= step.count) return -1;
    position = position * step.count + index;
    rest -= index * step.stride;
  }
  return size_ > 0 && rest == 0 ? position : -1;
}

bool operator==(const RankSet& a, const RankSet& b) {
  if (a.size_ != b.size_) return false;
  if (a.listed_.empty() && b.listed_.empty()) return a.first_ == b.first_ && a.steps_ == b.steps_;
  for (std::int64_t k = 0; k < a.size_; ++k) {
    if (a[k] != b[k]) return false;
  }
  return true;
}

RankSet along(const Mesh& mesh, std::span<const AxisId> ids, Rank rank) {
  std::vector<char> chosen(mesh.axes.size());
  for (const AxisId id : ids) {
    for (const AxisId axis : mesh.axes_of(id)) chosen[axis.index()] = 1;
  }
  const std::vector<std::int64_t> positions = mesh.positions(rank);
  std::int64_t first = rank.value;
  std::vector<RankSet::Step> steps;
  for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
    if (chosen[k] == 0) continue;
    const std::int64_t stride = mesh.stride(AxisId(k));
    first -= positions[k] * stride;
    steps.push_back({.count = mesh.axes[k].size, .stride = stride});
  }
  return {Rank(static_cast<std::int32_t>(first)), steps};
}

}  // namespace shiplap::plan
