// The links of a machine on which alike ranks are folded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/plan/symmetry.h"
#include "shiplap/sim/machine_links_internal.h"

namespace shiplap::sim {

// One link stands for all onto which the symmetry maps it, and a flow for all of its images.
class FoldedLinks {
 public:
  // Throws plan::Asymmetric if moving all ranks along an axis of the symmetry does not map links
  // onto links: where two devices share an adapter, the second does not take the place of the
  // third. REQUIRES: `symmetry` outlives it.
  FoldedLinks(const MachineLinks& links, const plan::Symmetry& symmetry);
  [[nodiscard]] const std::vector<double>& capacities() const { return capacities_; }
  // `across` are the axes, by index, along which the transfer has images. Throws plan::Asymmetric
  // if it loads links differently that moving along another axis maps onto each other: a ring
  // through the ranks of a leaf leaves it on one rail.
  void fold(Transfer& transfer, std::span<const std::size_t> across) const;

 private:
  // By link: the one onto which moving all ranks maps it.
  using Images = std::vector<std::int32_t>;

  void unite_classes(const MachineLinks& links);
  [[nodiscard]] std::int32_t root(std::int32_t link);
  void unite(std::int32_t a, std::int32_t b);

  const plan::Symmetry& symmetry_;
  std::vector<std::vector<Images>> moves_;  // by axis
  std::vector<std::int32_t> class_of_;  // by link of the machine; a parent, while they are united
  std::vector<double> sizes_;           // by class
  std::vector<double> capacities_;      // by class, of one link
};

}  // namespace shiplap::sim
