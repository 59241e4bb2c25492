#include <algorithm>
#include <utility>
#include <vector>

#include "shiplap/cost/cost_model.h"
#include "shiplap/sim/operation_cost_internal.h"

namespace shiplap::sim {
namespace {

using plan::flat::Operation;
using plan::flat::Region;

// The rows that a rank sends, or receives, by an exchange table: within its group, not to itself.
struct Direction {
  std::span<const plan::TableRow> rows;
  std::int64_t row_bytes = 0;
};

std::vector<cost::ExchangeLoad::Traffic> loads(const hardware::System& system, const Direction& way,
                                               const plan::RankSet& group) {
  std::vector<cost::ExchangeLoad::Traffic> by_network(system.networks.size());
  for (const plan::TableRow& row : way.rows) {
    if (row.rank == row.peer || group.find(Rank(row.peer)) < 0) continue;
    const auto [lowest, highest] = std::minmax(row.rank, row.peer);
    const hardware::Network& network =
        cost::network_for(system, {.ranks = 2, .lowest = lowest, .highest = highest});
    auto& load = by_network[&network - system.networks.data()];
    ++load.messages;
    load.bytes += {row.count * way.row_bytes};  // link() has checked that the sum fits in 64 bits
  }
  return by_network;
}

class Cost {
 public:
  Cost(const hardware::System& system, const plan::RankProgram& program, const Operation& op)
      : system_(system), program_(program), op_(op) {}

  // Without `work`, a computation is memory bound: it reads and writes all regions that it names.
  // A time that the plan states includes the launch.
  Seconds operator()(const plan::Compute& /*compute*/) const {
    const auto accesses = program_.accesses_of(op_);
    const std::optional<plan::Work>& work = op_.source->work;
    if (work && work->kernel_class.empty()) return {op_.work.seconds};
    cost::ComputeWork todo;
    if (work) {
      todo = {.kernel_class = work->kernel_class, .flop = op_.work.flop, .bytes = op_.work.bytes};
    } else {
      for (const plan::flat::Access& access : accesses) {
        todo.bytes += static_cast<double>(program_.bytes_of(access.region));
      }
    }
    if (work && work->type) {
      todo.type = *work->type;
    } else if (!accesses.empty()) {
      const auto written = std::ranges::find_if(accesses, [](const plan::flat::Access& access) {
        return access.kind != plan::Access::Kind::reads;
      });
      const auto& access = written == accesses.end() ? accesses.front() : *written;
      todo.type = buffer(access.region).type;
    }
    const Seconds time = cost::compute_time(system_, todo);
    return op_.continues_call ? time : time + system_.launch;
  }

  Seconds operator()(const plan::Copy& /*copy*/) const {
    return cost::copy_time(system_, {program_.bytes_of(op_.from)}, buffer(op_.from).memory,
                           buffer(op_.to).memory);
  }

  Seconds operator()(const plan::Exchange& exchange) const {
    const plan::ExchangeTable& table = program_.plan->tables[exchange.table];
    const plan::RankSet& group = program_.groups[op_.group].ranks;
    const std::int64_t rank = program_.rank.value;
    Direction out{table.sends_of(rank), program_.buffers[op_.from.buffer].row_bytes};
    Direction in{table.receives_of(rank), program_.buffers[op_.to.buffer].row_bytes};
    if (exchange.reversed) std::swap(out.rows, in.rows);
    return cost::exchange_time(
        system_, {.out = loads(system_, out, group), .in = loads(system_, in, group)});
  }

  template <class Other>
  Seconds operator()(const Other& /*other*/) const {
    return {};
  }

 private:
  [[nodiscard]] const plan::Buffer& buffer(const Region& region) const {
    return program_.plan->programs[program_.program].buffers[region.buffer];
  }

  const hardware::System& system_;
  const plan::RankProgram& program_;
  const Operation& op_;
};

}  // namespace

double operation_cost(const hardware::System& system, const plan::RankProgram& program,
                      const Operation& op) {
  return std::visit(Cost(system, program, op), op.source->action).value;
}

}  // namespace shiplap::sim
