// The links of a machine, and which of them messages and collectives cross: see machine_links.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/collective.h"
#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/collective.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/sim/flows.h"

namespace shiplap::sim {

// A flow that alone takes as long as cost/cost_model.h says.
struct Transfer {
  std::vector<LinkUse> uses;
  FlowSize size;
};

class MachineLinks {
 public:
  // REQUIRES: `system` outlives it.
  MachineLinks(const hardware::System& system, std::int64_t ranks);
  [[nodiscard]] const std::vector<double>& capacities() const { return capacities_; }  // bytes/s
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }

  [[nodiscard]] Transfer message(Bytes bytes, Rank from, Rank to) const;
  [[nodiscard]] Transfer collective(CollectiveKind kind, Bytes whole, const plan::RankSet& ranks,
                                    const cost::RankSpan& span) const;

  // The link of a rank to the outermost network; that from it is the next.
  [[nodiscard]] std::int32_t adapter_of(std::int64_t rank) const {
    return link_of(levels_.back(), rank);
  }
  // The links out of this rank, of its adapters and of its leaf, in an order that is the same for
  // all ranks. The link in the other direction is the next number.
  [[nodiscard]] std::vector<std::int32_t> links_of(std::int64_t rank) const;
  // The numbers of the domains, blocks and leaves in which the rank lies, likewise.
  [[nodiscard]] std::vector<std::int64_t> places_of(std::int64_t rank) const;
  // The numbers of consecutive ranks that nodes, domains and leaves have.
  [[nodiscard]] std::vector<std::int64_t> blocks() const;

 private:
  friend class Traffic;
  // One network: the links of its ranks or adapters, and of its leaves.
  struct Level {
    const hardware::Network* network = nullptr;
    std::int64_t devices = 1;   // ranks of a node, if the network leaves nodes through adapters
    std::int64_t adapters = 1;  // of a node
    std::int32_t first = 0;     // link
    std::int64_t per_leaf = 0;  // ranks; 0: the network has no leaves
    std::int64_t rails = 0;
    std::int32_t first_spine = 0;  // link
  };

  void add_level(const hardware::Network& network);
  void add_links(std::int64_t count, double capacity);
  [[nodiscard]] const Level& level_between(std::int64_t a, std::int64_t b) const;
  [[nodiscard]] static std::int64_t rail_of(const Level& level, std::int64_t rank);
  [[nodiscard]] static std::int32_t link_of(const Level& level, std::int64_t rank);
  [[nodiscard]] static std::int32_t spine_of(const Level& level, std::int64_t rank);

  const hardware::System& system_;
  std::int64_t ranks_ = 0;
  std::vector<Level> levels_;  // by network
  std::vector<double> capacities_;
};

}  // namespace shiplap::sim
