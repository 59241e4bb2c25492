#include "shiplap/cost/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace shiplap::cost {
namespace {

// The same mesh with this axis last, where its positions are consecutive ranks.
plan::Mesh with_axis_last(const plan::Mesh& mesh, plan::AxisId last) {
  plan::Mesh moved;
  for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
    if (plan::AxisId(k) != last) moved.axes.push_back(mesh.axes[plan::AxisId(k)]);
  }
  moved.axes.push_back(mesh.axes[last]);
  return moved;
}

std::string placement_help(const plan::Mesh& mesh, plan::AxisId axis, std::int64_t ranks_per_node) {
  const plan::Mesh last = with_axis_last(mesh, axis);
  const std::int64_t best =
      nodes_of_group(last, plan::AxisId(last.axes.size() - 1), ranks_per_node);
  if (best == nodes_of_group(mesh, axis, ranks_per_node)) {
    return fmt::format("take a `{}` that divides {}", mesh.name(axis), ranks_per_node);
  }
  return fmt::format("put `{}` last: {}{}", mesh.name(axis), format_axes(last.axes),
                     best == 1 ? "" : fmt::format("; it then spans {} nodes", best));
}

}  // namespace

std::int64_t nodes_of_group(const plan::Mesh& mesh, plan::AxisId axis,
                            std::int64_t ranks_per_node) {
  const std::int64_t stride = mesh.stride(axis);
  const std::int64_t size = mesh.size(axis);
  std::int64_t most = 1;
  for (std::int64_t first = 0; first < mesh.ranks(); ++first) {
    if (first / stride % size != 0) continue;  // not at position 0
    std::int64_t nodes = 1;
    for (std::int64_t rank = first + stride; rank < first + size * stride; rank += stride) {
      if (rank / ranks_per_node != (rank - stride) / ranks_per_node) ++nodes;
    }
    most = std::max(most, nodes);
  }
  return most;
}

std::optional<Diagnostic> tensor_parallel_warning(const plan::Mesh& mesh,
                                                  const hardware::System& system) {
  const auto found = std::ranges::find(mesh.axes, "tp", &plan::Axis::name);
  if (found == mesh.axes.end() || system.networks.size() < 2) return std::nullopt;
  const auto axis = plan::AxisId(static_cast<std::size_t>(found - mesh.axes.begin()));
  const std::int64_t ranks_per_node = system.networks.front().size;
  const std::int64_t nodes = nodes_of_group(mesh, axis, ranks_per_node);
  if (nodes == 1) return std::nullopt;
  return Diagnostic{
      .code = "D634",
      .severity = Severity::warning,
      .what = fmt::format("a `tp` group of {} ranks spans {} nodes", found->size, nodes),
      .why = fmt::format("a node of {} has {} consecutive ranks; {}", system.name, ranks_per_node,
                         mesh.stride(axis) == 1
                             ? "those of a `tp` group are consecutive"
                             : fmt::format("those of a `tp` group are {} apart, because the last "
                                           "axis of {} varies fastest",
                                           mesh.stride(axis), format_axes(mesh.axes))),
      .help = placement_help(mesh, axis, ranks_per_node)};
}

}  // namespace shiplap::cost
