#include <algorithm>
#include <variant>

#include "shiplap/plan/trace_axes_internal.h"

namespace shiplap::plan {
namespace {

constexpr std::size_t kMaxAxes = 64;

}  // namespace

TraceAxes::TraceAxes(const Mesh& mesh, std::vector<std::string>& names)
    : mesh_(mesh), names_(names) {
  for (std::size_t k = 0; k < std::min(mesh.axes.size(), kMaxAxes); ++k) {
    strides_.push_back(mesh.stride(AxisId(k)));
  }
  for (std::size_t k = 0; k < mesh.axes.size() + mesh.aliases.size(); ++k) {
    std::uint64_t& bits = bits_.emplace_back(0);
    for (const AxisId axis : mesh.axes_of(AxisId(k))) {
      if (mesh.size(axis) > 1 && axis.index() < kMaxAxes) bits |= std::uint64_t{1} << axis.index();
    }
  }
}

std::int32_t TraceAxes::of(const RankProgram& program, const flat::Operation& op,
                           const Step& step) {
  std::uint64_t along = 0;
  if (is_message(step.action)) {
    along = between(program.rank.value, op.peer.value);
  } else {
    const auto* exchange = std::get_if<Exchange>(&step.source->action);
    const Group& group =
        exchange != nullptr ? exchange->over : std::get<Collective>(step.source->action).over;
    for (const AxisId id : group.axes) along |= bits_[id];
  }
  if (along == 0) return -1;
  const auto [found, is_new] = known_.emplace(along, static_cast<std::int32_t>(names_.size()));
  if (is_new) names_.push_back(name(along));
  return found->second;
}

std::uint64_t TraceAxes::between(std::int64_t a, std::int64_t b) const {
  std::uint64_t all = 0;
  for (std::size_t k = 0; k < strides_.size(); ++k) {
    const std::int64_t size = mesh_.size(AxisId(k));
    if (a / strides_[k] % size != b / strides_[k] % size) all |= std::uint64_t{1} << k;
  }
  return all;
}

std::string TraceAxes::name(std::uint64_t along) const {
  std::string text;
  for (std::size_t k = 0; k < bits_.size(); ++k) {
    const AxisId id(k);
    if (bits_[id] == along) return mesh_.name(id);
    if (mesh_.is_alias(id) || (bits_[id] & along) == 0) continue;
    if (!text.empty()) text += ' ';
    text += mesh_.name(id);
  }
  return text;
}

}  // namespace shiplap::plan
