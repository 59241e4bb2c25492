#include <algorithm>
#include <cstdint>
#include <map>
#include <variant>

#include "shiplap/base/error.h"
#include "shiplap/run/communication_partners_internal.h"

namespace shiplap::run {
namespace {

using plan::GroupCalls;
using plan::LinkedProgram;
using plan::OperationId;

using Visit = std::function<void(const Partners&)>;

void visit_messages(const plan::MessageQueue& queue, const Visit& visit) {
  for (std::size_t n = 0; n < std::min(queue.sends.size(), queue.receives.size()); ++n) {
    const OperationId send{queue.from, queue.sends[n]};
    const OperationId receive{queue.to, queue.receives[n]};
    if (send.rank == receive.rank) continue;
    visit({.own = receive, .partner = send, .needs = true});
    visit({.own = send, .partner = receive});
  }
}

// One call of a collective or an exchange, seen from its ranks.
class GroupCall {
 public:
  GroupCall(const LinkedProgram& linked, const GroupCalls& group, std::int64_t number)
      : linked_(linked), group_(group), number_(number) {}

  void visit(const Visit& visit) const {
    for (std::size_t slot = 0; slot < group_.callers.size(); ++slot) {
      const OperationId own = group_.call(slot, number_);
      if (!own.exists()) continue;
      const plan::Action& action = linked_.step(own).source->action;
      if (const auto* const exchange = std::get_if<plan::Exchange>(&action)) {
        visit_exchange(own, *exchange, visit);
      } else {
        visit_collective(own, std::get<plan::Collective>(action), visit);
      }
    }
  }

 private:
  void visit_collective(OperationId own, const plan::Collective& collective,
                        const Visit& visit) const {
    for (std::size_t slot = 0; slot < group_.callers.size(); ++slot) {
      const OperationId partner = group_.call(slot, number_);
      if (!partner.exists() || partner.rank == own.rank) continue;
      visit({.own = own, .partner = partner, .needs = needs(own, partner, collective)});
    }
  }

  void visit_exchange(OperationId own, const plan::Exchange& exchange, const Visit& visit) const {
    const plan::ExchangeTable& table = linked_.plan->tables[exchange.table];
    const auto sends = table.sends_of(own.rank);
    const auto receives = table.receives_of(own.rank);
    std::map<std::int32_t, bool> needs;  // by peer
    for (const plan::TableRow& row : exchange.reversed ? receives : sends) {
      if (row.count > 0) needs.emplace(row.peer, false);
    }
    for (const plan::TableRow& row : exchange.reversed ? sends : receives) {
      if (row.count > 0) needs[row.peer] = true;
    }
    for (const auto& [peer, is_needed] : needs) {
      const std::int32_t slot = group_.slot_of(peer);
      if (peer == own.rank || slot < 0) continue;
      const OperationId partner = group_.call(static_cast<std::size_t>(slot), number_);
      if (partner.exists()) visit({.own = own, .partner = partner, .needs = is_needed});
    }
  }

  [[nodiscard]] std::int64_t position(OperationId id) const {
    return group_.ranks.find(Rank(id.rank));
  }

  // Whether the piece of a rank has bytes.
  [[nodiscard]] bool has_piece(OperationId id, const plan::Collective& collective) const {
    if (!collective.split.exists()) return linked_.step(id).bytes > 0;
    const std::vector<std::int64_t>& cuts = linked_.plan->lists[collective.split].values;
    const auto k = static_cast<std::size_t>(position(id));
    return k + 1 < cuts.size() && cuts[k] < cuts[k + 1];
  }

  [[nodiscard]] bool needs(OperationId own, OperationId partner,
                           const plan::Collective& collective) const {
    const bool has_bytes = linked_.step(own).bytes > 0;
    const std::int64_t root = linked_.step(own).detail;
    switch (collective.kind) {
      case CollectiveKind::barrier:
        return true;
      case CollectiveKind::all_reduce:
        return has_bytes;
      case CollectiveKind::all_gather:
        return has_piece(partner, collective);
      case CollectiveKind::reduce_scatter:
      case CollectiveKind::all_to_all:
        return has_piece(own, collective);
      case CollectiveKind::broadcast:
        return has_bytes && position(partner) == root;
      case CollectiveKind::reduce:
        return has_bytes && position(own) == root;
    }
    throw InternalError("unknown collective");
  }

  const LinkedProgram& linked_;
  const GroupCalls& group_;
  std::int64_t number_;
};

}  // namespace

void for_each_partner(const LinkedProgram& linked, const Visit& visit) {
  for (const plan::MessageQueue& queue : linked.matching.queues) visit_messages(queue, visit);
  for (const GroupCalls& group : linked.matching.groups) {
    for (std::int64_t n = 0; n < group.max_calls; ++n) GroupCall(linked, group, n).visit(visit);
  }
}

}  // namespace shiplap::run
