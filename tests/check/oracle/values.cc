#include "values.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "kernels.h"
#include "numbers.h"
#include "shiplap/base/error.h"

namespace shiplap::oracle {
namespace {

using plan::Collective;
using plan::RankProgram;
using plan::flat::Operation;
using plan::flat::Region;

using Rows = std::vector<Row>;

class Play {
 public:
  Play(const Job& job, const Matching& matching, Rules& rules)
      : job_(job), matching_(matching), rules_(rules) {
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      const RankProgram& program = job.ranks[rank];
      for (const plan::flat::Buffer& buffer : program.buffers) {
        memory_[rank].emplace_back(static_cast<std::size_t>(buffer.rows));
      }
      for (const Operation& op : program.operations) {
        if (std::holds_alternative<plan::Allocate>(op.source->action)) set_dead(rank, op.from);
      }
      for (const plan::flat::Fact& fact : program.given) {
        put(rank, fact.region, stated(program, fact.value, fact.region.count));
        for (const std::int64_t row : rows_of(program, fact.region)) {
          dead_.erase({rank, fact.region.buffer.value, row});
        }
      }
    }
  }

  // Throws RuleBroken.
  void run() {
    const auto dead_before = dead_;
    const Machine machine(nodes_of(job_, matching_, Sends::eager));
    const auto never = [](Event) { return false; };
    const auto happened = [&](Event event) {
      event.starts ? start(event.node) : complete(event.node);
    };
    (void)machine.run(never, happened);
    for (std::size_t rank = 0; rank < job_.ranks.size(); ++rank) {
      for (const plan::flat::Fact& fact : job_.ranks[rank].goal) {
        rules_.require("goal: holds", get(rank, fact.region) ==
                                          stated(job_.ranks[rank], fact.value, fact.region.count));
      }
    }
    rules_.require("memory: freed by the end", std::ranges::includes(dead_, dead_before));
  }

 private:
  // ---- rows

  Row& at(std::size_t rank, plan::BufferId buffer, std::int64_t row) {
    return memory_[rank][buffer.index()][row];
  }

  Rows get(std::size_t rank, const Region& region) {
    Rows rows;
    for (const std::int64_t row : rows_of(job_.ranks[rank], region)) {
      rows.push_back(at(rank, region.buffer, row));
    }
    return rows;
  }

  void put(std::size_t rank, const Region& region, const Rows& rows) {
    const std::vector<std::int64_t> places = rows_of(job_.ranks[rank], region);
    ensure(places.size() == rows.size(), "as many rows come as go");
    for (std::size_t k = 0; k < rows.size(); ++k) at(rank, region.buffer, places[k]) = rows[k];
  }

  // One row after the other: a list may name a row twice, and both arrive.
  void add(std::size_t rank, const Region& region, const Rows& rows) {
    const std::vector<std::int64_t> places = rows_of(job_.ranks[rank], region);
    ensure(places.size() == rows.size(), "as many rows come as go");
    for (std::size_t k = 0; k < rows.size(); ++k) {
      Row& here = at(rank, region.buffer, places[k]);
      here = sum(here, rows[k], rules_);
    }
  }

  void set_dead(std::size_t rank, const Region& region) {
    for (const std::int64_t row : rows_of(job_.ranks[rank], region)) {
      dead_.insert({rank, region.buffer.value, row});
    }
  }

  // ---- events

  void start(std::size_t node) {
    const std::size_t rank = job_.rank_of(node);
    const RankProgram& program = job_.ranks[rank];
    const Operation& op = job_.operation(node);
    if (std::holds_alternative<plan::Allocate>(op.source->action)) {
      for (const std::int64_t row : rows_of(program, op.from)) {
        rules_.require("memory: allocated once",
                       dead_.erase({rank, op.from.buffer.value, row}) == 1);
      }
    }
    for (const Touch& touch : touches(program, op)) {
      rules_.require("memory: used while it is allocated",
                     !dead_.contains({rank, touch.buffer, touch.row}));
    }
    taken_[node] = get(rank, op.from);
    for (std::size_t k = node + 1; k < job_.first[rank + 1]; ++k) {
      const std::int32_t batch = job_.operation(k).batch;
      if (batch >= 0 && job_.first[rank] + static_cast<std::size_t>(batch) == node) start(k);
    }
  }

  void complete(std::size_t node) {
    std::visit([&](const auto& action) { act(node, job_.operation(node), action); },
               job_.operation(node).source->action);
  }

  void act(std::size_t node, const Operation& op, const plan::Compute&) {
    const std::size_t rank = job_.rank_of(node);
    const RankProgram& program = job_.ranks[rank];
    std::vector<Found> found;
    for (const plan::flat::Access& access : program.accesses_of(op)) {
      if (access.kind != plan::Access::Kind::reads) continue;
      found.push_back({.value = &access.value, .rows = get(rank, access.region)});
      rules_.require("reads: holds",
                     found.back().rows == stated(program, access.value, access.region.count));
    }
    execute(program, op, found, rules_);
    for (const plan::flat::Access& access : program.accesses_of(op)) {
      const Rows rows = stated(program, access.value, access.region.count);
      if (access.kind == plan::Access::Kind::writes) put(rank, access.region, rows);
      if (access.kind == plan::Access::Kind::adds) add(rank, access.region, rows);
    }
  }

  void act(std::size_t node, const Operation& op, const plan::Copy& copy) {
    arrive(node, op, taken_[node], copy.add);
  }

  void act(std::size_t /*node*/, const Operation& /*op*/, const plan::Send&) {}

  void act(std::size_t node, const Operation& op, const plan::Receive& receive) {
    arrive(node, op, taken_[matching_.other_end.at(node)], receive.add);
  }

  void arrive(std::size_t node, const Operation& op, const Rows& rows, bool adds) {
    const std::size_t rank = job_.rank_of(node);
    adds ? add(rank, op.to, rows) : put(rank, op.to, rows);
  }

  void act(std::size_t node, const Operation& op, const plan::Allocate&) {
    put(job_.rank_of(node), op.from, Rows(static_cast<std::size_t>(op.from.count)));
  }

  void act(std::size_t node, const Operation& op, const plan::Free&) {
    put(job_.rank_of(node), op.from, Rows(static_cast<std::size_t>(op.from.count)));
    set_dead(job_.rank_of(node), op.from);
  }

  void act(std::size_t /*node*/, const Operation& /*op*/, const plan::Batch&) {}

  void act(std::size_t node, const Operation& op, const plan::Exchange& exchange) {
    const std::size_t rank = job_.rank_of(node);
    const plan::RankSet& group = job_.ranks[rank].groups[op.group].ranks;
    const auto messages = messages_of(job_, node);
    if (!messages) throw InternalError("the two sides of the table agree");
    for (const Message& message : *messages) {
      const std::int64_t source = group.find(Rank(message.from));
      const auto first = given_by(node, static_cast<std::size_t>(source)).begin() + message.first;
      const Rows rows(first, first + message.count);
      const Region place{
          .buffer = op.to.buffer, .begin = op.to.begin + message.into, .count = message.count};
      exchange.add ? add(rank, place, rows) : put(rank, place, rows);
    }
  }

  // ---- collectives

  void act(std::size_t node, const Operation& op, const Collective& call) {
    const std::size_t rank = job_.rank_of(node);
    const RankProgram& program = job_.ranks[rank];
    const auto me = static_cast<std::size_t>(program.groups[op.group].ranks.find(program.rank));
    const auto root = static_cast<std::size_t>(op.root);
    if (clobbers_input(program, op)) {
      const Row remains{.kind = Row::Kind::unknown};
      put(rank, op.from, Rows(static_cast<std::size_t>(op.from.count), remains));
    }
    switch (call.kind) {
      case CollectiveKind::barrier:
        return;
      case CollectiveKind::all_reduce:
        return put(rank, op.to, sum_of(node, call));
      case CollectiveKind::reduce:
        if (me == root) put(rank, op.to, sum_of(node, call));
        return;
      case CollectiveKind::broadcast:
        return put(rank, op.to, given_by(node, root));
      case CollectiveKind::all_gather:
        return put(rank, op.to, gathered(node));
      case CollectiveKind::reduce_scatter: {
        const Region local = op.to.count == op.from.count ? local_piece(node, op.to) : op.to;
        return put(rank, local, piece(sum_of(node, call), cuts_of(program, op), me));
      }
      case CollectiveKind::all_to_all: {
        Rows rows;
        for (std::size_t k = 0; k < members(node).size(); ++k) {
          const Rows more = piece(given_by(node, k), cuts_of(program, op), me);
          rows.insert(rows.end(), more.begin(), more.end());
        }
        return put(rank, op.to, rows);
      }
    }
  }

  const std::vector<std::optional<std::size_t>>& members(std::size_t node) {
    return matching_.meetings[matching_.meeting_of.at(node)].nodes;
  }

  const Rows& given_by(std::size_t node, std::size_t position) {
    const auto& member = members(node)[position];
    if (!member) throw InternalError("every member makes the call");
    return taken_[*member];
  }

  static Rows piece(const Rows& rows, const std::vector<std::int64_t>& cuts, std::size_t k) {
    return {rows.begin() + cuts[k], rows.begin() + cuts[k + 1]};
  }

  Region local_piece(std::size_t node, const Region& whole) {
    const RankProgram& program = job_.program(node);
    const Operation& op = job_.operation(node);
    const auto me = static_cast<std::size_t>(program.groups[op.group].ranks.find(program.rank));
    const std::vector<std::int64_t> cuts = cuts_of(program, op);
    return {
        .buffer = whole.buffer, .begin = whole.begin + cuts[me], .count = cuts[me + 1] - cuts[me]};
  }

  // Row by row, what all members gave, added in the order of the group.
  Rows sum_of(std::size_t node, const Collective& call) {
    Rows total = given_by(node, 0);
    if (call.op != ReduceOp::sum) return Rows(total.size(), Row{.kind = Row::Kind::unknown});
    for (std::size_t k = 1; k < members(node).size(); ++k) {
      const Rows& more = given_by(node, k);
      for (std::size_t row = 0; row < total.size(); ++row)
        total[row] = sum(total[row], more[row], rules_);
    }
    for (Row& row : total) row = scaled(std::move(row), call.scale);
    return total;
  }

  // A member that works in place gives its piece of the whole, any other all it has.
  Rows gathered(std::size_t node) {
    Rows all;
    const std::vector<std::int64_t> cuts = cuts_of(job_.program(node), job_.operation(node));
    for (std::size_t k = 0; k < members(node).size(); ++k) {
      const Rows& given = given_by(node, k);
      const bool whole = std::ssize(given) == cuts.back();
      const Rows mine = whole ? piece(given, cuts, k) : given;
      all.insert(all.end(), mine.begin(), mine.end());
    }
    return all;
  }

  const Job& job_;
  const Matching& matching_;
  std::map<std::size_t, std::vector<Rows>> memory_;  // by rank, then buffer
  std::map<std::size_t, Rows> taken_;                // what an operation found when it started
  std::set<std::tuple<std::size_t, std::int32_t, std::int64_t>> dead_;
  Rules& rules_;
};

}  // namespace

std::string first_broken_rule(const Job& job, const Matching& matching, RuleCounts& counts) {
  Rules rules;
  std::string broken;
  try {
    Play(job, matching, rules).run();
  } catch (const RuleBroken& rule) {
    broken = rule.what();
  }
  counts = rules.counts();
  return broken;
}

}  // namespace shiplap::oracle
