#include <fmt/format.h>

#include <algorithm>

#include "shiplap/sim/words_internal.h"

namespace shiplap::sim {
namespace {

// What the plan calls the group of a collective or exchange.
const plan::Group& named_group(const Step& step) {
  const auto* exchange = std::get_if<plan::Exchange>(&step.source->action);
  return exchange != nullptr ? exchange->over
                             : std::get<plan::Collective>(step.source->action).over;
}

std::string some_ranks(const plan::RankSet& ranks) {
  constexpr std::int64_t kMost = 4;
  std::string text = "ranks ";
  for (std::int64_t k = 0; k < std::min(kMost, ranks.size()); ++k) {
    text += fmt::format("{}{}", k == 0 ? "" : ", ", ranks[k].value);
  }
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

}  // namespace

std::string Words::operation(Place place) {
  auto found = programs_.find(place.rank);
  if (found == programs_.end()) {
    found = programs_.emplace(place.rank, plan::expand(*linked_.plan, Rank(place.rank))).first;
  }
  const plan::RankProgram& program = found->second;
  return program.describe(program.operations[place.operation]);
}

Where Words::where(Place place) {
  return {.line = linked_.step(place).source->origin.line,
          .rank = place.rank,
          .operation = operation(place)};
}

std::string Words::group(Place place) const {
  const plan::Group& named = named_group(linked_.step(place));
  std::string text;
  if (named.axes.empty() || !named.positions.empty()) {
    text = some_ranks(linked_.group(place).ranks);
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
