#include <fmt/format.h>

#include <algorithm>

#include "shiplap/sim/format_internal.h"

namespace shiplap::sim {
namespace {

// The group of a collective or exchange, as the plan names it.
const plan::Group& named_group(const Step& step) {
  const auto* exchange = std::get_if<plan::Exchange>(&step.source->action);
  return exchange != nullptr ? exchange->over
                             : std::get<plan::Collective>(step.source->action).over;
}

std::string some_ranks(const plan::RankSet& ranks) {
  constexpr std::int64_t kMax = 4;
  std::string text = "ranks ";
  for (std::int64_t k = 0; k < std::min(kMax, ranks.size()); ++k) {
    text += fmt::format("{}{}", k == 0 ? "" : ", ", ranks[k].value);
  }
  if (ranks.size() > kMax) text += fmt::format(" and {} more", ranks.size() - kMax);
  return text;
}

}  // namespace

std::string Formatter::operation(OperationId id) { return where(id).operation; }

Where Formatter::where(OperationId id) {
  auto found = programs_.find(id.rank);
  if (found == programs_.end()) {
    found = programs_.emplace(id.rank, plan::expand(*linked_.plan, Rank(id.rank))).first;
  }
  const plan::RankProgram& program = found->second;
  return program.where(program.operations[id.operation]);
}

std::string Formatter::group(OperationId id) const {
  const plan::Group& named = named_group(linked_.step(id));
  std::string text;
  if (named.axes.empty() || !named.positions.empty()) {
    text = some_ranks(linked_.group(id).ranks);
  } else {
    for (const plan::AxisId axis : named.axes) {
      text += (text.empty() ? "" : ", ") + linked_.plan->mesh.name(axis);
    }
    if (named.axes.size() > 1) text = "(" + text + ")";
  }
  if (!named.channel.empty()) text += "/" + named.channel;
  return text;
}

}  // namespace shiplap::sim
