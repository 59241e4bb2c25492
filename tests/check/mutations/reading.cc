#include "reading.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace shiplap::mutations {

using plan::Access;
using plan::Collective;
using plan::Compute;
using plan::Exchange;
using plan::Operation;
using plan::Receive;
using plan::Region;
using plan::Send;
using plan::Value;

namespace {

const plan::Group* group_of(const Operation& operation) {
  if (const auto* call = std::get_if<Collective>(&operation.action)) return &call->over;
  if (const auto* call = std::get_if<Exchange>(&operation.action)) return &call->over;
  return nullptr;
}

void add_touches(const Operation& operation, std::vector<Touch>& all) {
  const auto read = [&](const Region& r) { all.push_back({.region = r, .reads = true}); };
  const auto write = [&](const Region& r, bool add) {
    all.push_back({.region = r, .reads = add, .writes = true});
  };
  if (const auto* compute = std::get_if<Compute>(&operation.action)) {
    for (const Access& access : compute->accesses) {
      if (access.kind == Access::Kind::reads)
        read(access.region);
      else
        write(access.region, access.kind == Access::Kind::adds);
    }
  } else if (const auto* copy = std::get_if<plan::Copy>(&operation.action)) {
    read(copy->from);
    write(copy->to, copy->add);
  } else if (const auto* send = std::get_if<Send>(&operation.action)) {
    read(send->from);
  } else if (const auto* receive = std::get_if<Receive>(&operation.action)) {
    write(receive->to, receive->add);
  } else if (const auto* call = std::get_if<Collective>(&operation.action)) {
    if (call->kind == CollectiveKind::barrier) return;
    read(call->from);
    // In place, rows outside of its own piece are undefined.
    const bool in_place = call->from.buffer == call->to.buffer;
    const bool scatters = call->kind == CollectiveKind::reduce_scatter;
    write(scatters && in_place ? call->from : call->to, false);
  } else if (const auto* exchange = std::get_if<Exchange>(&operation.action)) {
    read(exchange->from);
    write(exchange->to, exchange->add);
  } else if (const auto* allocate = std::get_if<plan::Allocate>(&operation.action)) {
    all.push_back({.region = allocate->rows, .writes = true, .lifetime = true});
  } else if (const auto* free = std::get_if<plan::Free>(&operation.action)) {
    all.push_back({.region = free->rows, .writes = true, .lifetime = true});
  }
}

}  // namespace

std::vector<std::int32_t> members_of(const plan::Group& group) {
  std::vector<std::int32_t> ranks;
  for (const plan::Expr& position : group.positions) {
    ranks.push_back(static_cast<std::int32_t>(position.literal()));
  }
  return ranks;
}

std::vector<Call> calls(const Draft& draft) {
  using Key = std::tuple<std::vector<std::int32_t>, std::string, std::int64_t>;
  std::map<Key, std::vector<Mark>> found;
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    std::map<std::pair<std::vector<std::int32_t>, std::string>, std::int64_t> counts;
    for (const Line& line : draft.lines(rank)) {
      const plan::Group* group = group_of(*line.operation);
      if (group == nullptr) continue;
      const auto ranks = members_of(*group);
      const std::int64_t n = counts[{ranks, group->channel}]++;
      auto& members = found[{ranks, group->channel, n}];
      members.resize(ranks.size());
      members[std::ranges::find(ranks, rank) - ranks.begin()] = line.mark;
    }
  }
  std::vector<Call> all;
  for (const auto& [key, members] : found) {
    all.push_back({.ranks = std::get<0>(key),
                   .channel = std::get<1>(key),
                   .n = std::get<2>(key),
                   .members = members});
  }
  return all;
}

std::vector<Call> collectives(const Draft& draft) {
  std::vector<Call> all = calls(draft);
  std::erase_if(all, [&](const Call& call) {
    return call.ranks.size() < 2 ||
           std::ranges::any_of(
               call.members,
               [&](Mark mark) {
                 return mark == 0 ||
                        !std::holds_alternative<Collective>(draft.line(mark).operation->action);
               });
  });
  return all;
}

Collective& collective(const Draft& draft, Mark mark) {
  return std::get<Collective>(draft.line(mark).operation->action);
}

std::vector<Message> messages(const Draft& draft) {
  // from, to, tag, channel
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::string>;
  std::map<Key, std::vector<Mark>> sends;
  std::map<Key, std::vector<Mark>> receives;
  for (const Line& line : draft.all_lines()) {
    if (const auto* send = std::get_if<Send>(&line.operation->action)) {
      sends[{line.rank, send->peer.where.literal(), send->tag.literal(), send->channel}].push_back(
          line.mark);
    } else if (const auto* receive = std::get_if<Receive>(&line.operation->action)) {
      receives[{receive->peer.where.literal(), line.rank, receive->tag.literal(), receive->channel}]
          .push_back(line.mark);
    }
  }
  std::vector<Message> all;
  for (const auto& [key, marks] : sends) {
    const auto& others = receives[key];
    for (std::size_t n = 0; n < std::min(marks.size(), others.size()); ++n) {
      all.push_back({.send = marks[n],
                     .receive = others[n],
                     .n = static_cast<std::int64_t>(n),
                     .count = std::ssize(marks)});
    }
  }
  return all;
}

// ---- rows

std::vector<Touch> touches(const Draft& draft, Mark mark) {
  std::vector<Touch> all;
  add_touches(*draft.line(mark).operation, all);
  for (const Line& line : draft.lines(draft.line(mark).rank)) {
    if (line.batch == mark) add_touches(*line.operation, all);
  }
  return all;
}

std::vector<std::int64_t> rows_of(const Draft& draft, const Region& region) {
  std::vector<std::int64_t> rows;
  const std::int64_t begin = region.begin.literal();
  for (std::int64_t k = 0; k < region.count.literal(); ++k) {
    rows.push_back(region.kind == Region::Kind::listed
                       ? draft.plan.lists[region.list].values[begin + k]
                       : begin + k);
  }
  return rows;
}

bool overlap(const Draft& draft, const Region& a, const Region& b) {
  if (a.buffer != b.buffer) return false;
  if (a.kind != Region::Kind::listed && b.kind != Region::Kind::listed) {
    const std::int64_t first = std::max(a.begin.literal(), b.begin.literal());
    const std::int64_t last =
        std::min(a.begin.literal() + a.count.literal(), b.begin.literal() + b.count.literal());
    return first < last;
  }
  const auto rows = rows_of(draft, a);
  return std::ranges::any_of(rows_of(draft, b), [&](std::int64_t row) {
    return std::ranges::find(rows, row) != rows.end();
  });
}

bool same_rows(const Region& a, const Region& b) {
  return a.buffer == b.buffer && a.kind == b.kind && a.begin == b.begin && a.count == b.count &&
         a.list == b.list;
}

bool touch_each_other(const Draft& draft, Mark a, Mark b) {
  const auto others = touches(draft, b);
  return std::ranges::any_of(touches(draft, a), [&](const Touch& x) {
    return std::ranges::any_of(others, [&](const Touch& y) {
      return (x.writes || y.writes) && overlap(draft, x.region, y.region);
    });
  });
}

// ---- order

namespace {

// For every operation of the rank, by index, those that are complete before it starts.
std::vector<std::vector<bool>> completed_before(const Draft& draft, std::int32_t rank) {
  const auto& lines = draft.lines(rank);
  std::vector<std::vector<bool>> before(lines.size(), std::vector<bool>(lines.size()));
  std::map<plan::StreamId, std::size_t> last;
  const auto unite = [](std::vector<bool>& to, const std::vector<bool>& from) {
    for (std::size_t k = 0; k < to.size(); ++k) to[k] = to[k] || from[k];
  };
  for (std::size_t k = 0; k < lines.size(); ++k) {
    const Operation& operation = *lines[k].operation;
    if (lines[k].batch != 0) {
      before[k] = before[draft.line(lines[k].batch).index];
      continue;
    }
    for (std::size_t j = 0; j < k; ++j) {
      const bool named =
          !lines[j].operation->name.name.empty() &&
          std::ranges::find(operation.after, lines[j].operation->name) != operation.after.end();
      if (!named) continue;
      before[k][j] = true;
      unite(before[k], before[j]);
    }
    if (const auto found = last.find(operation.stream); found != last.end()) {
      if (!lines[found->second].operation->async) before[k][found->second] = true;
      unite(before[k], before[found->second]);
    }
    last[operation.stream] = k;
  }
  return before;
}

}  // namespace

bool ordered(const Draft& draft, Mark first, Mark second) {
  const Line& a = draft.line(first);
  const Line& b = draft.line(second);
  const Mark whole = a.batch != 0 ? a.batch : a.mark;
  return completed_before(draft, a.rank)[b.index][draft.line(whole).index];
}

std::vector<Race> races(const Draft& draft, std::int32_t rank, Mark only) {
  const auto before = completed_before(draft, rank);
  const auto& lines = draft.lines(rank);
  std::vector<std::vector<Touch>> all;
  for (const Line& line : lines) all.push_back(touches(draft, line.mark));
  std::vector<Race> found;
  for (std::size_t b = 0; b < lines.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (lines[a].batch != 0 || lines[b].batch != 0 || before[b][a]) continue;
      if (only != 0 && lines[a].mark != only) continue;
      Race race{.first = lines[a].mark, .second = lines[b].mark};
      bool conflict = false;
      for (const Touch& x : all[a]) {
        for (const Touch& y : all[b]) {
          if (!(x.writes || y.writes) || !overlap(draft, x.region, y.region)) continue;
          conflict = true;
          race.both_write = race.both_write || (x.writes && y.writes);
          race.lifetime = race.lifetime || x.lifetime || y.lifetime;
        }
      }
      if (conflict) found.push_back(race);
    }
  }
  return found;
}

// ---- values

namespace {

struct Search {
  const Draft& draft;
  int steps_left = 64;

  const Value* at(Mark mark, const Region& region) {
    if (--steps_left < 0) return nullptr;
    const Line& end = draft.line(mark);
    const auto& lines = draft.lines(end.rank);
    for (std::int32_t k = end.index - 1; k >= 0; --k) {
      bool through = false;
      const Value* value = written(lines[k], region, through);
      if (value != nullptr || through) return value;
    }
    for (const plan::Fact* fact : draft.facts(end.rank, plan::Fact::Kind::given)) {
      if (overlap(draft, fact->region, region)) return &fact->value;
    }
    return nullptr;
  }

  // `through`: this wrote it, whatever it was.
  const Value* written(const Line& line, const Region& region, bool& through) {
    const auto& action = line.operation->action;
    const auto hits = [&](const Region& to) {
      return to.buffer.exists() && overlap(draft, to, region);
    };
    if (const auto* compute = std::get_if<Compute>(&action)) {
      for (const Access& access : compute->accesses) {
        if (access.kind != Access::Kind::reads && hits(access.region)) return &access.value;
      }
    } else if (const auto* copy = std::get_if<plan::Copy>(&action); copy && hits(copy->to)) {
      through = true;
      return at(line.mark, copy->from);
    } else if (const auto* exchange = std::get_if<Exchange>(&action);
               exchange && hits(exchange->to)) {
      through = true;
      return at(line.mark, exchange->from);
    } else if (const auto* call = std::get_if<Collective>(&action); call && hits(call->to)) {
      if (call->kind == CollectiveKind::broadcast) {
        through = true;
        return at_root(line.mark, *call);
      }
      if (overlap(draft, call->from, call->to)) return nullptr;
      through = true;
      return at(line.mark, call->from);
    } else if (const auto* receive = std::get_if<Receive>(&action); receive && hits(receive->to)) {
      through = true;
      return sent(line.mark);
    }
    return nullptr;
  }

  const Value* sent(Mark receive) {
    for (const Message& message : messages(draft)) {
      if (message.receive != receive) continue;
      return at(message.send, std::get<Send>(draft.line(message.send).operation->action).from);
    }
    return nullptr;
  }

  const Value* at_root(Mark mark, const Collective& call) {
    for (const Call& each : collectives(draft)) {
      if (std::ranges::find(each.members, mark) == each.members.end()) continue;
      const Mark root = each.members[call.root.literal()];
      return at(root, collective(draft, root).from);
    }
    return nullptr;
  }
};

}  // namespace

const Value* content(const Draft& draft, Mark mark, const Region& region) {
  return Search{.draft = draft}.at(mark, region);
}

const plan::Tensor& tensor_of(const Draft& draft, const Value& value) {
  return draft.plan.tensors[value.tensor];
}

bool same_tensor(const Value& a, const Value& b) {
  return a.tensor == b.tensor && a.index == b.index;
}

Readers readers(const Draft& draft, const Value& value) {
  Readers found;
  for (const Line& line : draft.all_lines()) {
    const auto reads = accesses(*line.operation, Access::Kind::reads);
    if (std::ranges::any_of(reads, [&](const Access* a) { return same_tensor(a->value, value); })) {
      found.marks.push_back(line.mark);
    }
  }
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    const auto goals = draft.facts(rank, plan::Fact::Kind::goal);
    if (std::ranges::any_of(goals, [&](const auto* f) { return same_tensor(f->value, value); })) {
      found.goals.push_back(rank);
    }
  }
  return found;
}

Readers readers_after(const Draft& draft, const Value& value, const std::vector<Mark>& marks) {
  Readers found = readers(draft, value);
  std::map<std::int32_t, std::int32_t> first;
  for (const Mark mark : marks) first[draft.line(mark).rank] = draft.line(mark).index;
  std::erase_if(found.marks, [&](Mark mark) {
    const Line& line = draft.line(mark);
    const auto at = first.find(line.rank);
    return at != first.end() && line.index <= at->second;
  });
  return found;
}

Rows rows_before(const Draft& draft, Mark mark, const Region& region) {
  const Line& end = draft.line(mark);
  std::set<std::int64_t> waiting;  // for the operation that says what they are
  for (const std::int64_t row : rows_of(draft, region)) waiting.insert(row);
  bool allocated_at_all = false;
  for (const Line& line : draft.lines(end.rank)) {
    const auto* allocate = std::get_if<plan::Allocate>(&line.operation->action);
    allocated_at_all =
        allocated_at_all || (allocate != nullptr && overlap(draft, allocate->rows, region));
  }
  for (std::int32_t k = end.index - 1; k >= 0 && !waiting.empty(); --k) {
    const Mark other = draft.lines(end.rank)[k].mark;
    const auto& action = draft.line(other).operation->action;
    for (const Touch& touch : touches(draft, other)) {
      if (!touch.writes || touch.region.buffer != region.buffer) continue;
      for (const std::int64_t row : rows_of(draft, touch.region)) {
        if (waiting.erase(row) == 0 || !touch.lifetime) continue;
        return std::holds_alternative<plan::Free>(action) ? Rows::not_alive : Rows::never_written;
      }
    }
  }
  for (const plan::Fact* fact : draft.facts(end.rank, plan::Fact::Kind::given)) {
    if (fact->region.buffer != region.buffer) continue;
    for (const std::int64_t row : rows_of(draft, fact->region)) waiting.erase(row);
  }
  if (waiting.empty()) return Rows::written;
  return allocated_at_all ? Rows::not_alive : Rows::never_written;
}

bool read_later(const Draft& draft, Mark mark, const Region& region) {
  const Line& start = draft.line(mark);
  std::set<std::int64_t> left;
  for (const std::int64_t row : rows_of(draft, region)) left.insert(row);
  const auto& lines = draft.lines(start.rank);
  for (auto k = static_cast<std::size_t>(start.index) + 1; k < lines.size(); ++k) {
    const auto all = touches(draft, lines[k].mark);
    for (const Touch& touch : all) {
      if (touch.reads && overlap(draft, touch.region, region) &&
          std::ranges::any_of(rows_of(draft, touch.region),
                              [&](std::int64_t row) { return left.contains(row); })) {
        return true;
      }
    }
    for (const Touch& touch : all) {
      if (!touch.writes || touch.region.buffer != region.buffer) continue;
      for (const std::int64_t row : rows_of(draft, touch.region)) left.erase(row);
    }
  }
  return std::ranges::any_of(draft.facts(start.rank, plan::Fact::Kind::goal), [&](const auto* f) {
    return f->region.buffer == region.buffer &&
           std::ranges::any_of(rows_of(draft, f->region),
                               [&](std::int64_t row) { return left.contains(row); });
  });
}

std::vector<const Access*> accesses(const Operation& operation, Access::Kind kind) {
  std::vector<const Access*> found;
  if (const auto* compute = std::get_if<Compute>(&operation.action)) {
    for (const Access& access : compute->accesses) {
      if (access.kind == kind) found.push_back(&access);
    }
  }
  return found;
}

bool is_kernel(const Operation& operation, std::string_view kernel) {
  const auto* compute = std::get_if<Compute>(&operation.action);
  return compute != nullptr && compute->kernel == kernel;
}

}  // namespace shiplap::mutations
