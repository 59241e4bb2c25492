// The transfers of a linked program as flows on the links of a machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "shiplap/base/collective.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/collective.h"
#include "shiplap/hardware/system.h"
#include "shiplap/sim/flows.h"
#include "shiplap/sim/folded_links_internal.h"
#include "shiplap/sim/linked_internal.h"
#include "shiplap/sim/machine_links_internal.h"
#include "shiplap/sim/replay.h"

namespace shiplap::sim {

class SharedLinks {
 public:
  // Throws plan::Asymmetric if alike ranks have unlike links. REQUIRES: `linked` and `system`
  // outlive it; no slow links on ranks that are folded.
  SharedLinks(const LinkedProgram& linked, const hardware::System& system,
              std::span<const SlowLink> slow);

  [[nodiscard]] Flows& flows() { return flows_; }
  // These stay valid.
  [[nodiscard]] const Transfer& message(Bytes bytes, std::int32_t from, std::int32_t to);
  [[nodiscard]] const Transfer& call(CollectiveKind kind, Bytes whole, std::int32_t group,
                                     const cost::RankSpan& span);

 private:
  void fold(Transfer& transfer, std::span<const std::size_t> across) const;

  const LinkedProgram& linked_;
  MachineLinks links_;
  std::optional<FoldedLinks> folded_;
  Flows flows_;
  std::map<std::tuple<std::int64_t, std::int32_t, std::int32_t>, Transfer> messages_;
  std::map<std::tuple<std::int64_t, std::int32_t, CollectiveKind>, Transfer> calls_;
};

}  // namespace shiplap::sim
