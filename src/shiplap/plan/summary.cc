#include "shiplap/plan/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "shiplap/plan/intervals_internal.h"
#include "shiplap/plan/rank_classes_internal.h"

namespace shiplap::plan {
namespace {

__extension__ using Wide = __int128;  // bytes times ranks

std::int64_t saturated(Wide value) {
  constexpr Wide kMax = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(value, kMax));
}

void add_to(Bytes& total, std::int64_t bytes, std::int64_t times = 1) {
  total.count = saturated(Wide{total.count} + Wide{bytes} * times);
}

// The operations of one kind over the same axes, on one rank.
struct Amount {
  std::int64_t operations = 0;
  Bytes payload;
  Bytes sent;
};

// The number of loop iterations that take as long to expand as one operation to count.
constexpr std::int64_t kIterationsForOperation = 16;

using TrafficKey = std::pair<std::string, std::string>;  // axes, kind
using Amounts = std::map<TrafficKey, Amount>;

// The rows that each rank sends to others by a table, forward or reversed.
class TableTotals {
 public:
  explicit TableTotals(const Plan& plan) : plan_(plan) {}

  std::int64_t rows_sent(const Exchange& exchange, Rank rank) {
    const auto key = std::pair(exchange.table, exchange.reversed);
    auto found = totals_.find(key);
    if (found == totals_.end()) found = totals_.emplace(key, count(exchange)).first;
    return found->second[rank.index()];
  }

 private:
  std::vector<std::int64_t> count(const Exchange& exchange) const {
    std::vector<std::int64_t> rows(plan_.mesh.ranks());
    const ExchangeTable& table = plan_.tables[exchange.table];
    for (const TableRow& row : exchange.reversed ? table.receives() : table.sends()) {
      if (row.rank == row.peer) continue;
      std::int64_t& total = rows[row.rank];
      total = saturated(Wide{total} + row.count);
    }
    return rows;
  }

  const Plan& plan_;
  std::map<std::pair<TableId, bool>, std::vector<std::int64_t>> totals_;
};

std::string axes_between(const Mesh& mesh, Rank a, Rank b) {
  const auto from = mesh.positions(a);
  const auto to = mesh.positions(b);
  std::string names;
  for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
    if (from[k] != to[k]) names += (names.empty() ? "" : " ") + mesh.axes[k].name;
  }
  return names.empty() ? "self" : names;
}

std::string axes_of(const Mesh& mesh, const Group& group) {
  if (group.axes.empty()) return "listed ranks";
  std::string names;
  for (const AxisId axis : group.axes) names += (names.empty() ? "" : " ") + mesh.name(axis);
  return names;
}

// The bytes that one rank sends in the ring algorithm: see TrafficSummary.
std::int64_t ring_bytes(CollectiveKind kind, std::int64_t bytes, std::int64_t ranks) {
  const std::int64_t passes = kind == CollectiveKind::all_reduce ? 2 : 1;
  return saturated(Wide{passes} * (ranks - 1) * bytes / ranks);
}

// Sums up the operations of one rank.
class Counter {
 public:
  Counter(const RankProgram& program, TableTotals& tables)
      : program_(program), mesh_(program.plan->mesh), tables_(tables) {}

  Amounts count() {
    for (const flat::Operation& op : program_.operations) {
      std::visit([&](const auto& action) { count(op, action); }, op.source->action);
    }
    return std::move(amounts_);
  }

 private:
  template <class Quiet>
  void count(const flat::Operation&, const Quiet&) {}  // moves nothing between ranks

  void add(std::string axes, std::string_view kind, std::int64_t payload, std::int64_t sent) {
    Amount& amount = amounts_[{std::move(axes), std::string(kind)}];
    ++amount.operations;
    add_to(amount.payload, payload);
    add_to(amount.sent, sent);
  }

  void count(const flat::Operation& op, const Send& send) {
    const std::int64_t bytes = program_.bytes_of(op.from);
    const std::string axes = send.peer.axis.exists() ? mesh_.name(send.peer.axis)
                                                     : axes_between(mesh_, program_.rank, op.peer);
    add(axes, "send", bytes, op.peer == program_.rank ? 0 : bytes);
  }

  void count(const flat::Operation& op, const Collective& collective) {
    const std::int64_t bytes = std::max(program_.bytes_of(op.from), program_.bytes_of(op.to));
    const std::int64_t ranks = program_.groups[op.group].ranks.size();
    add(axes_of(mesh_, collective.over), name(collective.kind), bytes,
        ring_bytes(collective.kind, bytes, ranks));
  }

  void count(const flat::Operation& op, const Exchange& exchange) {
    const std::int64_t row_bytes = program_.buffers[op.from.buffer].row_bytes;
    const Wide sent = Wide{tables_.rows_sent(exchange, program_.rank)} * row_bytes;
    add(axes_of(mesh_, exchange.over), "exchange", program_.bytes_of(op.from), saturated(sent));
  }

  const RankProgram& program_;
  const Mesh& mesh_;
  TableTotals& tables_;
  Amounts amounts_;
};

void widen(MinMax& spread, std::int64_t value, Rank rank, bool first) {
  if (first || value > spread.max) {
    spread.max = value;
    spread.max_rank = rank;
  }
  spread.min = first ? value : std::min(spread.min, value);
}

class Summarizer {
 public:
  Summarizer(const Plan& plan, std::int64_t budget) : plan_(plan), budget_(budget), tables_(plan) {}

  Summary summarize() && {
    summary_.ranks = plan_.mesh.ranks();
    const Assignment assignment = assign_programs(plan_);
    summary_.spares = std::ranges::count(assignment.program_of, ProgramId());
    std::vector<std::vector<Rank>> members(plan_.programs.size());
    for (std::size_t rank = 0; rank < assignment.program_of.size(); ++rank) {
      const ProgramId program = assignment.program_of[rank];
      if (program.exists()) members[program.index()].emplace_back(rank);
    }
    for (std::size_t k = 0; k < members.size(); ++k) count_program(ProgramId(k), members[k]);
    finish();
    return std::move(summary_);
  }

 private:
  void count_program(ProgramId id, const std::vector<Rank>& ranks) {
    ProgramSummary program{.program = id, .ranks = std::ssize(ranks)};
    if (!ranks.empty()) program.first = ranks.front();
    const Program& source = plan_.programs[id];
    for (const std::vector<Rank>& ranks_of_class : rank_classes(plan_, source, ranks)) {
      if (program.classes > 0 && budget_ <= 0) break;
      count_class(program, ranks_of_class);
      ++program.classes;
    }
    summary_.programs.push_back(program);
  }

  // Counts the first rank of a class.
  void count_class(ProgramSummary& program, const std::vector<Rank>& ranks_of_class) {
    const RankProgram expanded = expand(plan_, ranks_of_class.front(), program.program);
    const std::int64_t operations = std::ssize(expanded.operations);
    budget_ -= operations + expanded.iterations / kIterationsForOperation + 100;
    const bool first = program.classes == 0;
    widen(program.operations, operations, ranks_of_class.front(), first);
    widen(program.peak_bytes, peak_bytes(expanded), ranks_of_class.front(), first);
    for (const auto& [key, amount] : Counter(expanded, tables_).count()) {
      add(key, amount, ranks_of_class);
    }
    summary_.ranks_counted += std::ssize(ranks_of_class);
  }

  void add(const TrafficKey& key, const Amount& amount, const std::vector<Rank>& ranks_of_class) {
    const bool first = !traffic_.contains(key);
    auto& [traffic, ranks] = traffic_[key];
    const std::int64_t count = std::ssize(ranks_of_class);
    traffic.operations += amount.operations * count;
    add_to(traffic.payload, amount.payload.count, count);
    add_to(traffic.sent, amount.sent.count, count);
    widen(traffic.sent_per_rank, amount.sent.count, ranks_of_class.front(), first);
    ranks += count;
  }

  void finish() {
    for (auto& [key, entry] : traffic_) {
      auto& [traffic, ranks] = entry;
      traffic.axes = key.first;
      traffic.kind = key.second;
      if (ranks < summary_.ranks_counted) traffic.sent_per_rank.min = 0;
      summary_.traffic.push_back(std::move(traffic));
    }
    std::ranges::stable_sort(summary_.traffic,
                             [](const auto& a, const auto& b) { return a.sent > b.sent; });
  }

  const Plan& plan_;
  std::int64_t budget_;
  TableTotals tables_;
  Summary summary_;
  std::map<TrafficKey, std::pair<TrafficSummary, std::int64_t>>
      traffic_;  // and the number of ranks with it
};

}  // namespace

std::int64_t peak_bytes(const RankProgram& program) {
  std::vector<Interval> allocated;
  for (const flat::Operation& op : program.operations) {
    if (!std::holds_alternative<Allocate>(op.source->action)) continue;
    allocated.push_back({op.from.buffer, op.from.begin, op.from.begin + op.from.count});
  }
  Wide alive = 0;
  for (const flat::Buffer& buffer : program.buffers) alive += Wide{buffer.rows} * buffer.row_bytes;
  for (const auto& [buffer, rows] : rows_covered(std::move(allocated))) {
    alive -= Wide{rows} * program.buffers[buffer].row_bytes;
  }
  Wide peak = alive;
  for (const flat::Operation& op : program.operations) {
    if (std::holds_alternative<Allocate>(op.source->action)) alive += program.bytes_of(op.from);
    if (std::holds_alternative<Free>(op.source->action)) alive -= program.bytes_of(op.from);
    peak = std::max(peak, alive);
  }
  return saturated(peak);
}

Summary summarize(const Plan& plan, std::int64_t operations) {
  return Summarizer(plan, operations).summarize();
}

}  // namespace shiplap::plan
