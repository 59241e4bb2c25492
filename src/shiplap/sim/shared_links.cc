#include <algorithm>
#include <numeric>

#include "shiplap/sim/folding_internal.h"
#include "shiplap/sim/shared_links_internal.h"

namespace shiplap::sim {
namespace {

std::optional<FoldedLinks> folded_links(const MachineLinks& links, const plan::Symmetry& symmetry) {
  if (symmetry.axes.empty()) return std::nullopt;
  return FoldedLinks(links, symmetry);
}

std::vector<double> capacities_of(const MachineLinks& links, std::span<const SlowLink> slow) {
  std::vector<double> capacities = links.capacities();
  for (const SlowLink& link : slow) {
    const std::int32_t adapter = links.adapter_of(link.rank);
    for (const std::int32_t at : {adapter, adapter + 1}) {
      capacities[at] = std::min(capacities[at], links.capacities()[at] * link.share);
    }
  }
  return capacities;
}

}  // namespace

SharedLinks::SharedLinks(const LinkedProgram& linked, const hardware::System& system,
                         std::span<const SlowLink> slow)
    : linked_(linked),
      links_(system, std::ssize(linked.ranks)),
      folded_(folded_links(links_, linked.symmetry)),
      flows_(folded_ ? folded_->capacities() : capacities_of(links_, slow)) {}

const Transfer& SharedLinks::message(Bytes bytes, std::int32_t from, std::int32_t to) {
  const auto [place, is_new] = messages_.try_emplace({bytes.count, from, to});
  if (!is_new) return place->second;
  place->second = links_.message(bytes, Rank(from), Rank(to));
  std::vector<std::size_t> all(linked_.symmetry.axes.size());
  std::iota(all.begin(), all.end(), 0);
  fold(place->second, all);
  return place->second;
}

const Transfer& SharedLinks::call(CollectiveKind kind, Bytes whole, std::int32_t group,
                                  const cost::RankSpan& span) {
  const auto [place, is_new] = calls_.try_emplace({whole.count, group, kind});
  if (!is_new) return place->second;
  const plan::RankSet& ranks = linked_.matching.groups[group].ranks;
  place->second = links_.collective(kind, whole, ranks, span);
  fold(place->second, axes_across(ranks, linked_.symmetry));
  return place->second;
}

void SharedLinks::fold(Transfer& transfer, std::span<const std::size_t> across) const {
  if (folded_) folded_->fold(transfer, across);
}

}  // namespace shiplap::sim
