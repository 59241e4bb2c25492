// The links of a machine, and which of them messages and collectives cross.
#pragma once

#include <cstdint>
#include <span>
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

// Each rank has a link into and out of the innermost network, each adapter of a node into and out
// of the others, and each leaf switch to and from the spine.
class MachineLinks {
 public:
  // REQUIRES: `system` outlives it.
  MachineLinks(const hardware::System& system, std::int64_t ranks);
  [[nodiscard]] const std::vector<double>& capacities() const { return capacities_; }  // bytes/s

  [[nodiscard]] Transfer message(Bytes bytes, Rank from, Rank to) const;
  [[nodiscard]] Transfer collective(CollectiveKind kind, Bytes whole, const plan::RankSet& ranks,
                                    const cost::RankSpan& span) const;

 private:
  enum Direction : std::int32_t { kOut, kIn };
  struct Shares {
    double inner = 0;  // of a rank on its link, for each byte of the buffer
    double outer = 0;  // of a rank on its adapter
    bool ring = false;
  };

  void add_links(std::int64_t count, double capacity);
  [[nodiscard]] std::int32_t inner(std::int64_t rank, Direction direction) const;
  [[nodiscard]] std::int32_t adapter(std::int64_t rank, Direction direction) const;
  [[nodiscard]] std::int64_t adapter_of(std::int64_t rank) const;
  [[nodiscard]] std::int32_t spine(std::int64_t rank, Direction direction) const;
  [[nodiscard]] std::int64_t leaf_of(std::int64_t rank) const;
  [[nodiscard]] Shares shares(CollectiveKind kind, Bytes whole, const cost::RankSpan& span) const;
  void add_spine(Transfer& transfer, const plan::RankSet& ranks, const Shares& shares) const;
  // The link carries no more than its capacity if the flow is alone.
  void add_use(Transfer& transfer, std::int32_t link, double share) const;

  const hardware::System& system_;
  std::vector<double> capacities_;
  std::int64_t per_node_ = 1;  // devices
  std::int64_t adapters_ = 1;  // of a node
  std::int32_t first_adapter_ = 0;
  std::int32_t first_spine_ = -1;  // -1: there are no leaves
  std::int64_t per_leaf_ = 1;      // ranks
};

}  // namespace shiplap::sim
