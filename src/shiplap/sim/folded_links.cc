// Folding of links: alike ranks have alike links.
//
// Problem: a folded replay has the flows of representatives only, but the links of a machine are
// loaded by those of all ranks: the ranks of a node share adapters, those of a leaf its uplinks.
//
// Idea: an automorphism of the program that also maps links onto links maps the rates of all flows
// onto themselves, since max-min fair rates are unique. So the links of an orbit are equally full,
// and one stands for all: a flow loads it with the sum of what it and its images load on the whole
// orbit, divided by the number of its links.
//
// Which automorphisms? Along an axis on which ranks are alike, any permutation of the positions is
// one of the program: no message goes along the axis, and groups span it whole or not at all. Those
// that also keep links are rotations of one digit of the position: within a node, of the nodes of a
// domain, of the domains of a leaf. They reach every position from every other. Whether they do
// keep links is then verified rank by rank.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "shiplap/sim/folded_links_internal.h"

namespace shiplap::sim {
namespace {

constexpr double kSameShare = 1e-9;

// Rows of numbers, one for each rank: links, or domains and leaves. Numbers of different columns
// are never equal or never compared.
class RowsOfRanks {
 public:
  template <class RowOf>
  RowsOfRanks(std::int64_t ranks, const RowOf& row_of) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto row = row_of(rank);
      columns_ = row.size();
      numbers_.insert(numbers_.end(), row.begin(), row.end());
    }
  }
  // The image of each number of a column if each rank moves; -1: there is no such number. None if
  // equal numbers have different images.
  template <class ImageOf>
  [[nodiscard]] std::optional<std::vector<std::int64_t>> images(std::size_t column,
                                                                const ImageOf& image_of) const {
    std::vector<std::int64_t> result;
    for (std::size_t row = 0; row * columns_ < numbers_.size(); ++row) {
      const auto from = static_cast<std::size_t>(numbers_[row * columns_ + column]);
      const std::int64_t to = numbers_[image_of(row) * columns_ + column];
      if (from >= result.size()) result.resize(2 * from + 1, -1);
      if (result[from] < 0) result[from] = to;
      if (result[from] != to) return std::nullopt;
    }
    return result;
  }
  [[nodiscard]] std::size_t columns() const { return columns_; }

 private:
  std::vector<std::int64_t> numbers_;
  std::size_t columns_ = 0;
};

// The positions along an axis as digits: within a node, the nodes of a domain, and so on. Returns
// the place values, 1 first, with the number of positions last.
std::vector<std::int64_t> place_values(std::vector<std::int64_t> blocks, std::int64_t stride,
                                       std::int64_t size) {
  std::ranges::sort(blocks);
  std::vector<std::int64_t> values{1};
  for (const std::int64_t block : blocks) {
    const std::int64_t positions = block / stride;
    const bool divides = positions * stride == block && positions > values.back() &&
                         positions % values.back() == 0 && positions < size &&
                         size % positions == 0;
    if (divides) values.push_back(positions);
  }
  values.push_back(size);
  return values;
}

// Whether each link and its image are equally loaded. REQUIRES: links ascend.
bool is_invariant(std::span<const LinkUse> uses, std::span<const std::int32_t> images) {
  return std::ranges::all_of(uses, [&](const LinkUse& use) {
    const auto there = std::ranges::lower_bound(uses, images[use.link], {}, &LinkUse::link);
    return there != uses.end() && there->link == images[use.link] &&
           std::abs(there->share - use.share) <= kSameShare * use.share;
  });
}

}  // namespace

FoldedLinks::FoldedLinks(const MachineLinks& links, const plan::Symmetry& symmetry)
    : symmetry_(symmetry), moves_(symmetry.axes.size()), class_of_(links.capacities().size()) {
  const RowsOfRanks places(links.ranks(), [&](std::int64_t r) { return links.places_of(r); });
  const RowsOfRanks rows(links.ranks(), [&](std::int64_t r) { return links.links_of(r); });
  for (std::size_t axis = 0; axis < symmetry.axes.size(); ++axis) {
    const std::int64_t stride = symmetry.strides[axis];
    const std::vector<std::int64_t> values =
        place_values(links.blocks(), stride, symmetry.sizes[axis]);
    for (std::size_t digit = 0; digit + 1 < values.size(); ++digit) {
      const std::int64_t step = stride * values[digit];
      const std::int64_t radix = values[digit + 1] / values[digit];
      const auto image_of = [&](std::size_t rank) {
        const bool is_last = static_cast<std::int64_t>(rank) / step % radix == radix - 1;
        return rank + static_cast<std::size_t>(is_last ? -(radix - 1) * step : step);
      };
      for (std::size_t column = 0; column < places.columns(); ++column) {
        if (!places.images(column, image_of)) throw plan::Asymmetric(symmetry.axes[axis]);
      }
      Images& images = moves_[axis].emplace_back(links.capacities().size());
      std::iota(images.begin(), images.end(), 0);
      for (std::size_t column = 0; column < rows.columns(); ++column) {
        const auto moved = rows.images(column, image_of);
        if (!moved) throw plan::Asymmetric(symmetry.axes[axis]);
        for (std::size_t link = 0; link < moved->size(); ++link) {
          const auto to = static_cast<std::int32_t>((*moved)[link]);
          if (to < 0) continue;
          images[link] = to;
          images[link + 1] = to + 1;
        }
      }
    }
  }
  unite_classes(links);
}

void FoldedLinks::unite_classes(const MachineLinks& links) {
  std::iota(class_of_.begin(), class_of_.end(), 0);
  for (const std::vector<Images>& moves : moves_) {
    for (const Images& images : moves) {
      for (std::int32_t link = 0; link < std::ssize(images); ++link) unite(link, images[link]);
    }
  }
  // Roots have the lowest link of their class, so each is numbered before the others of its class.
  std::vector<std::int32_t> numbers(class_of_.size());
  for (std::int32_t link = 0; link < std::ssize(class_of_); ++link) {
    const std::int32_t first = root(link);
    if (first == link) {
      numbers[link] = static_cast<std::int32_t>(sizes_.size());
      sizes_.push_back(0);
      capacities_.push_back(links.capacities()[link]);
    }
    numbers[link] = numbers[first];
    ++sizes_[numbers[link]];
  }
  class_of_ = std::move(numbers);
}

std::int32_t FoldedLinks::root(std::int32_t link) {
  while (class_of_[link] != link) link = class_of_[link] = class_of_[class_of_[link]];
  return link;
}

void FoldedLinks::unite(std::int32_t a, std::int32_t b) {
  const auto [low, high] =
      std::minmax({root(a), root(b)});  // values: not references to temporaries
  class_of_[high] = low;
}

void FoldedLinks::fold(Transfer& transfer, std::span<const std::size_t> across) const {
  double images = 1;
  for (std::size_t axis = 0; axis < symmetry_.axes.size(); ++axis) {
    if (std::ranges::find(across, axis) != across.end()) {
      images *= static_cast<double>(symmetry_.sizes[axis]);
    } else if (!std::ranges::all_of(moves_[axis], [&](const Images& moved) {
                 return is_invariant(transfer.uses, moved);
               })) {
      throw plan::Asymmetric(symmetry_.axes[axis]);
    }
  }
  std::map<std::int32_t, double> loads;
  for (const LinkUse& use : transfer.uses) loads[class_of_[use.link]] += use.share;
  transfer.uses.clear();
  for (const auto& [link, share] : loads) {
    transfer.uses.push_back({.link = link, .share = share * images / sizes_[link]});
  }
}

}  // namespace shiplap::sim
