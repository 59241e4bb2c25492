#include "matching.h"

#include <algorithm>
#include <tuple>

namespace shiplap::oracle {
namespace {

using plan::Collective;
using plan::Exchange;
using plan::RankProgram;
using plan::flat::Operation;
using plan::flat::Region;

std::string text(std::int64_t number) { return std::to_string(number) + " "; }

std::string text(const std::vector<std::int64_t>& numbers) {
  std::string all = "[ ";
  for (const std::int64_t number : numbers) all += text(number);
  return all + "] ";
}

std::string type_of(const RankProgram& program, const Region& region) {
  const plan::Program& source = program.plan->programs[program.program];
  return std::string(name(source.buffers[region.buffer].type)) + " ";
}

std::string width_of(const RankProgram& program, const Region& region) {
  return text(program.buffers[region.buffer].row_bytes);
}

const Region& whole_of(const Operation& op, const Collective& collective) {
  return collective.kind == CollectiveKind::all_gather ? op.to : op.from;
}

// All that the members of one meeting must have in common.
std::string terms_of(const RankProgram& program, const Operation& op, const Collective& call) {
  std::string all = std::string(name(call.kind)) + " ";
  if (call.kind == CollectiveKind::barrier) return all;
  all += text(program.bytes_of(whole_of(op, call)));
  all += type_of(program, op.from) + type_of(program, op.to);
  if (reduces(call.kind)) {
    all += std::string(name(call.op)) + " ";
    all += text(call.scale.numerator()) + text(call.scale.denominator());
  }
  if (has_root(call.kind)) all += text(op.root);
  if (has_pieces(call.kind) && call.split.exists()) {
    all += text(program.plan->lists[call.split].values);
  }
  return all;
}

std::string terms_of(const RankProgram& program, const Operation& op, const Exchange& call) {
  return "exchange " + text(call.table.value) + (call.reversed ? "reversed " : "") +
         type_of(program, op.from) + type_of(program, op.to) + width_of(program, op.from) +
         width_of(program, op.to);
}

std::string terms_of(const RankProgram& program, const Operation& op) {
  if (const auto* call = std::get_if<Collective>(&op.source->action)) {
    return terms_of(program, op, *call);
  }
  return terms_of(program, op, std::get<Exchange>(op.source->action));
}

bool same_region(const Region& a, const Region& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.count == b.count;
}

// The two regions of a call fit each other.
bool has_shape(const RankProgram& program, const Operation& op, const Collective& call) {
  if (call.kind == CollectiveKind::barrier) return true;
  if (type_of(program, op.from) != type_of(program, op.to)) return false;
  if (!has_pieces(call.kind)) return program.bytes_of(op.from) == program.bytes_of(op.to);
  const std::vector<std::int64_t> cuts = cuts_of(program, op);
  if (cuts.empty()) return false;
  const plan::RankSet& group = program.groups[op.group].ranks;
  const auto me = static_cast<std::size_t>(group.find(program.rank));
  const Region& whole = whole_of(op, call);
  const std::int64_t width = program.buffers[whole.buffer].row_bytes;
  const std::int64_t own = (cuts[me + 1] - cuts[me]) * width;
  switch (call.kind) {
    case CollectiveKind::all_gather:
      return same_region(op.from, op.to) || program.bytes_of(op.from) == own;
    case CollectiveKind::reduce_scatter:
      return same_region(op.from, op.to) || program.bytes_of(op.to) == own;
    default:  // all_to_all: from each member as much as is mine
      return program.bytes_of(op.to) == own * group.size();
  }
}

bool has_shape(const Job& job, std::size_t node) {
  const Operation& op = job.operation(node);
  if (const auto* call = std::get_if<Collective>(&op.source->action)) {
    return has_shape(job.program(node), op, *call);
  }
  return messages_of(job, node).has_value();
}

bool agree(const Job& job, const Meeting& meeting) {
  std::optional<std::string> terms;
  for (const auto& node : meeting.nodes) {
    if (!node) return false;
    const std::string mine = terms_of(job.program(*node), job.operation(*node));
    if (terms && *terms != mine) return false;
    terms = mine;
    if (!has_shape(job, *node)) return false;
  }
  return true;
}

bool agree_as_messages(const Job& job, std::size_t send, std::size_t receive) {
  const Region& from = job.operation(send).from;
  const Region& to = job.operation(receive).to;
  return job.program(send).bytes_of(from) == job.program(receive).bytes_of(to) &&
         type_of(job.program(send), from) == type_of(job.program(receive), to);
}

void match_messages(const Job& job, Matching& matching) {
  using Key = std::tuple<std::int32_t, std::int32_t, std::string, std::int64_t>;
  std::map<Key, std::vector<std::size_t>> sends;
  std::map<Key, std::vector<std::size_t>> receives;
  for (std::size_t node = 0; node < job.nodes(); ++node) {
    const Operation& op = job.operation(node);
    const std::int32_t me = job.program(node).rank.value;
    if (const auto* send = std::get_if<plan::Send>(&op.source->action)) {
      sends[{me, op.peer.value, send->channel, op.tag}].push_back(node);
      receives[{me, op.peer.value, send->channel, op.tag}];
    }
    if (const auto* receive = std::get_if<plan::Receive>(&op.source->action)) {
      receives[{op.peer.value, me, receive->channel, op.tag}].push_back(node);
    }
  }
  for (const auto& [key, taken] : receives) {
    const std::vector<std::size_t>& sent = sends[key];
    if (sent.size() != taken.size()) matching.agrees = false;
    for (std::size_t n = 0; n < std::min(sent.size(), taken.size()); ++n) {
      matching.other_end[sent[n]] = taken[n];
      matching.other_end[taken[n]] = sent[n];
      if (!agree_as_messages(job, sent[n], taken[n])) matching.agrees = false;
    }
  }
}

void match_calls(const Job& job, Matching& matching) {
  std::map<std::pair<std::string, std::size_t>, std::size_t> known;  // by group and n
  std::map<std::pair<std::size_t, std::string>, std::size_t> calls;  // by rank and group
  for (std::size_t node = 0; node < job.nodes(); ++node) {
    const Operation& op = job.operation(node);
    if (!op.group.exists()) continue;
    const plan::RankSet& group = job.program(node).groups[op.group].ranks;
    const std::string key = key_of(job.program(node), op);
    const std::size_t n = calls[{job.rank_of(node), key}]++;
    const auto [found, is_new] = known.try_emplace({key, n}, matching.meetings.size());
    if (is_new) {
      matching.meetings.emplace_back().nodes.resize(group.size());
    }
    const auto me = static_cast<std::size_t>(group.find(job.program(node).rank));
    matching.meetings[found->second].nodes[me] = node;
    matching.meeting_of[node] = found->second;
  }
  for (const Meeting& meeting : matching.meetings) {
    if (!agree(job, meeting)) matching.agrees = false;
  }
}

// What streams, `after` and batches say.
std::vector<Node> nodes_of(const RankProgram& program, std::size_t first) {
  std::vector<Node> nodes(program.operations.size());
  std::map<std::int32_t, std::size_t> last;  // by stream
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const Operation& op = program.operations[k];
    for (const std::int32_t before : program.after(op)) {
      nodes[k].complete_before_start.push_back(first + static_cast<std::size_t>(before));
    }
    if (op.batch >= 0) {
      nodes[k].is_member = true;
      nodes[op.batch].members.push_back(first + k);
      continue;
    }
    if (const auto before = last.find(op.stream.value); before != last.end()) {
      const bool async = program.operations[before->second].source->async;
      auto& list = async ? nodes[k].started_before_start : nodes[k].complete_before_start;
      list.push_back(first + before->second);
    }
    last[op.stream.value] = k;
  }
  return nodes;
}

}  // namespace

Job::Job(const plan::Plan& plan) {
  first.push_back(0);
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    ranks.push_back(expand(plan, Rank(rank)));
    first.push_back(first.back() + ranks.back().operations.size());
  }
}

std::size_t Job::rank_of(std::size_t node) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(first, node) - first.begin()) - 1;
}

Matching match(const Job& job) {
  Matching matching;
  match_messages(job, matching);
  match_calls(job, matching);
  return matching;
}

std::string key_of(const RankProgram& program, const Operation& op) {
  if (const auto* send = std::get_if<plan::Send>(&op.source->action)) {
    return "send " + text(op.peer.value) + text(op.tag) + send->channel;
  }
  if (const auto* receive = std::get_if<plan::Receive>(&op.source->action)) {
    return "receive " + text(op.peer.value) + text(op.tag) + receive->channel;
  }
  if (!op.group.exists()) return "";
  const plan::flat::Group& group = program.groups[op.group];
  std::string key = "group ";
  for (std::int64_t k = 0; k < group.ranks.size(); ++k) key += text(group.ranks[k].value);
  return key + group.channel;
}

std::vector<Node> nodes_of(const Job& job, const Matching& matching, Sends sends) {
  std::vector<Node> nodes;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const std::vector<Node> more = nodes_of(job.ranks[rank], job.first[rank]);
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const plan::Action& action = job.operation(k).source->action;
    const bool send = std::holds_alternative<plan::Send>(action);
    if ((send && sends == Sends::rendezvous) || std::holds_alternative<plan::Receive>(action)) {
      const auto other = matching.other_end.find(k);
      nodes[k].never_completes = other == matching.other_end.end();
      if (!nodes[k].never_completes) nodes[k].started_before_complete.push_back(other->second);
    }
    if (const auto meeting = matching.meeting_of.find(k); meeting != matching.meeting_of.end()) {
      for (const auto& member : matching.meetings[meeting->second].nodes) {
        if (!member) nodes[k].never_completes = true;
        if (member) nodes[k].started_before_complete.push_back(*member);
      }
    }
  }
  return nodes;
}

Machine machine_of(const RankProgram& program) { return Machine(nodes_of(program, 0)); }

std::vector<std::int64_t> rows_of(const RankProgram& program, const Region& region) {
  std::vector<std::int64_t> rows;
  if (!region.buffer.exists()) return rows;
  for (std::int64_t k = 0; k < region.count; ++k) {
    rows.push_back(region.listed < 0 ? region.begin + k : program.listed_rows[region.listed + k]);
  }
  return rows;
}

namespace {

// Whether this rank's `to` changes. The root of a broadcast has what it would get, if that is where
// it gives it from; a reduce leaves a result at its root alone, but may use the others' rows if
// they gave them as the place for it.
bool writes_result(const RankProgram& program, const Operation& op) {
  const auto* call = std::get_if<Collective>(&op.source->action);
  if (call == nullptr) return true;
  const bool same = op.from.buffer == op.to.buffer && op.from.begin == op.to.begin;
  const bool root = program.groups[op.group].ranks.find(program.rank) == op.root;
  if (call->kind == CollectiveKind::broadcast) return !(root && same);
  if (call->kind == CollectiveKind::reduce) return root || same;
  return true;
}

}  // namespace

bool clobbers_input(const RankProgram& program, const Operation& op) {
  const auto* call = std::get_if<Collective>(&op.source->action);
  if (call == nullptr || op.from.buffer != op.to.buffer) return false;
  const bool root = program.groups[op.group].ranks.find(program.rank) == op.root;
  if (call->kind == CollectiveKind::reduce) return !root && op.from.begin == op.to.begin;
  if (call->kind != CollectiveKind::reduce_scatter) return false;
  const std::vector<std::int64_t> given = rows_of(program, op.from);
  return std::ranges::any_of(rows_of(program, op.to), [&](std::int64_t row) {
    return std::ranges::find(given, row) != given.end();
  });
}

std::vector<Touch> touches(const RankProgram& program, const Operation& op) {
  std::vector<Touch> all;
  const auto touch = [&](const Region& region, bool writes) {
    for (const std::int64_t row : rows_of(program, region)) {
      all.push_back({.buffer = region.buffer.value, .row = row, .writes = writes});
    }
  };
  const plan::Action& action = op.source->action;
  const bool lives =
      std::holds_alternative<plan::Allocate>(action) || std::holds_alternative<plan::Free>(action);
  touch(op.from, lives || clobbers_input(program, op));
  if (writes_result(program, op)) touch(op.to, true);
  for (const plan::flat::Access& access : program.accesses_of(op)) {
    touch(access.region, access.kind != plan::Access::Kind::reads);
  }
  return all;
}

std::vector<std::int64_t> cuts_of(const RankProgram& program, const Operation& op) {
  const auto& call = std::get<Collective>(op.source->action);
  const std::int64_t rows = whole_of(op, call).count;
  const std::int64_t ranks = program.groups[op.group].ranks.size();
  std::vector<std::int64_t> cuts;
  if (call.split.exists()) {
    cuts = program.plan->lists[call.split].values;
    const bool fits = std::ssize(cuts) == ranks + 1 && std::ranges::is_sorted(cuts) &&
                      cuts.front() == 0 && cuts.back() == rows;
    return fits ? cuts : std::vector<std::int64_t>{};
  }
  if (rows % ranks != 0) return {};
  for (std::int64_t k = 0; k <= ranks; ++k) cuts.push_back(rows / ranks * k);
  return cuts;
}

std::optional<std::vector<Message>> messages_of(const Job& job, std::size_t node) {
  const RankProgram& program = job.program(node);
  const Operation& op = job.operation(node);
  const auto& exchange = std::get<Exchange>(op.source->action);
  const plan::ExchangeTable& table = program.plan->tables[exchange.table];
  const plan::RankSet& group = program.groups[op.group].ranks;
  const auto sends = exchange.reversed ? table.receives() : table.sends();
  const auto receives = exchange.reversed ? table.sends() : table.receives();
  const auto me = static_cast<std::int32_t>(job.rank_of(node));
  const auto inside = [&](const plan::TableRow& row, const Region& region) {
    return group.find(Rank(row.peer)) >= 0 && row.first >= 0 && row.count <= region.count &&
           row.first <= region.count - row.count;
  };
  std::map<std::int32_t, std::vector<plan::TableRow>> sent;  // to me, by source
  for (const plan::TableRow& row : sends) {
    if (row.rank == me && !inside(row, op.from)) return std::nullopt;
    if (row.peer == me && group.find(Rank(row.rank)) >= 0) sent[row.rank].push_back(row);
  }
  std::map<std::int32_t, std::vector<plan::TableRow>> taken;
  for (const plan::TableRow& row : receives) {
    if (row.rank != me) continue;
    if (!inside(row, op.to)) return std::nullopt;
    taken[row.peer].push_back(row);
  }
  std::vector<Message> messages;
  for (std::int64_t k = 0; k < group.size(); ++k) {
    const std::int32_t source = group[k].value;
    if (sent[source].size() != taken[source].size()) return std::nullopt;
    for (std::size_t n = 0; n < sent[source].size(); ++n) {
      const plan::TableRow& a = sent[source][n];
      const plan::TableRow& b = taken[source][n];
      if (a.count != b.count) return std::nullopt;
      messages.push_back({static_cast<std::size_t>(source), static_cast<std::size_t>(me), a.first,
                          b.first, a.count});
    }
  }
  return messages;
}

}  // namespace shiplap::oracle
