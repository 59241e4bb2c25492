#include <algorithm>
#include <array>

#include "shiplap/check/columns_internal.h"
#include "shiplap/check/values_internal.h"

namespace shiplap::check {
namespace {

// Walks two lists of pieces that have as many rows, piece by piece of equal length.
template <class Do>
void side_by_side(Contents& contents, std::span<const Piece> a, std::span<const Piece> b,
                  const Do& act) {
  if (a.size() == 1 && b.size() == 1 && a[0].rows == b[0].rows) {
    act(a[0], b[0], 0);
    return;
  }
  const std::array lists{a, b};
  for (Columns columns(contents, lists); columns.next();) {
    act(columns.pieces()[0], columns.pieces()[1], columns.row());
  }
}

std::int64_t rows_of(const Pieces& pieces) {
  std::int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows;
  return rows;
}

}  // namespace

Values::Values(Job& job, std::vector<Trouble>& troubles)
    : job_(job), troubles_(troubles), posts_(job.linked.matching.messages) {
  memories_.resize(job.scripts.size());
  for (std::size_t k = 0; k < job.scripts.size(); ++k) {
    start(k);
    dead_at_start_.push_back(dead_rows(k));
  }
}

void Values::get(std::int32_t script, const Zone& zone, Pieces& out) {
  out.clear();
  const Buffer& rows = buffer(script, zone.buffer);
  const auto take = [&](std::int32_t begin, std::int32_t end) {
    rows.for_each(begin, end, [&](const Buffer::Range& range) {
      const std::int32_t first = std::max(begin, range.begin);
      const Piece whole{range.value.content, range.value.rows, range.value.nature,
                        range.value.writer};
      job_.contents.slice(whole, range.value.offset + (first - range.begin),
                          std::min(end, range.end) - first, out);
    });
  };
  if (zone.listed < 0) return take(zone.begin, zone.end());
  const Script& here = job_.scripts[script];
  for (const std::int32_t row : here.rows_of(zone)) take(row, row + 1);
}

void Values::watch(std::vector<Watch> watches) {
  watches_ = std::move(watches);
  for (std::size_t k = 0; k < job_.scripts.size(); ++k) {
    for (const Claim& claim : job_.scripts[k].given) {
      look_after({static_cast<std::int32_t>(k), -1}, claim.zone);
    }
  }
}

void Values::look_after(Actor actor, const Zone& zone) {
  for (Watch& watch : watches_) {
    if (watch.script != actor.script || watch.zone.buffer != zone.buffer ||
        watch.zone.listed >= 0 || watch.closed) {
      continue;
    }
    Zone rows = watch.zone;
    rows.begin += watch.first_row;
    rows.count = static_cast<std::int32_t>(watch.wanted.rows);
    Pieces held;
    get(actor.script, rows, held);
    const bool there = held.size() == 1 && job_.contents.same(held.front(), watch.wanted);
    if (there) {
      watch.made_by = actor.op;
      watch.lost_by = -1;
    } else if (watch.made_by >= -1 && watch.lost_by < 0) {
      watch.lost_by = actor.op;
    }
  }
}

void Values::put(Actor actor, const Zone& zone, std::span<const Piece> pieces) {
  Buffer& rows = buffer(actor.script, zone.buffer);
  if (zone.listed >= 0) {
    const Script& here = job_.scripts[actor.script];
    std::size_t k = 0;
    std::int32_t in_piece = 0;
    for (const std::int32_t row : here.rows_of(zone)) {
      one_.clear();
      job_.contents.slice(pieces[k], in_piece, 1, one_);
      const Piece& piece = one_.front();
      const Buffer::Range range{row, row + 1, {piece.content, piece.nature, actor.op, 0, 1}};
      rows.put(row, row + 1, std::span(&range, 1));
      if (++in_piece == pieces[k].rows) {
        ++k;
        in_piece = 0;
      }
    }
    return;
  }
  made_.clear();
  std::int32_t at = zone.begin;
  for (const Piece& piece : pieces) {
    const std::int32_t end = at + piece.rows;
    made_.push_back({at, end, {piece.content, piece.nature, actor.op, 0, piece.rows}});
    at = end;
  }
  rows.put(zone.begin, zone.end(), made_);
  if (!watches_.empty()) look_after(actor, zone);
}

void Values::demand_alive(Actor actor, const Zone& zone, const Pieces& held) {
  const auto dead = std::ranges::find(held, Nature::dead, &Piece::nature);
  if (dead == held.end()) return;
  report({.symptom = Symptom::read_dead,
          .place = place(actor),
          .other = {place(actor).rank, dead->writer},
          .zone = zone,
          .held = *dead});
}

Pieces Values::united(const Pieces& a, const Pieces& b, Actor actor, Place other,
                      const Zone& zone) {
  Pieces result;
  bool told = false;
  side_by_side(job_.contents, a, b, [&](const Piece& x, const Piece& y, std::int32_t row) {
    ++unions_;
    const Contents::Union both = job_.contents.unite(x, y);
    result.push_back(both.piece);
    if (both.trouble == Contents::Trouble::none || told) return;
    // Of a plan without tensors nobody can say that something is written.
    if (both.trouble == Contents::Trouble::nothing && job_.plan.tensors.empty()) return;
    told = true;
    Symptom symptom = Symptom::unite_twice;
    if (both.trouble == Contents::Trouble::nothing) symptom = Symptom::unite_nothing;
    if (both.trouble == Contents::Trouble::dead) symptom = Symptom::read_dead;
    if (both.trouble == Contents::Trouble::other_cells) symptom = Symptom::unite_other;
    if (both.trouble == Contents::Trouble::other_scale) symptom = Symptom::unite_scale;
    report({.symptom = symptom,
            .place = place(actor),
            .other = other,
            .zone = zone,
            .first_row = row,
            .wanted = x,
            .held = y});
  });
  if (result.size() > 1) job_.contents.join(result);
  return result;
}

void Values::add(Actor actor, const Zone& zone, const Pieces& pieces) {
  if (zone.listed >= 0) return add_by_list(actor, zone, pieces);
  Pieces held;
  get(actor.script, zone, held);
  Pieces both = united(held, pieces, actor, {}, zone);
  put(actor, zone, both);
}

// Row by row: a list may name a row twice, and then both arrive there.
void Values::add_by_list(Actor actor, const Zone& zone, const Pieces& pieces) {
  const Script& here = job_.scripts[actor.script];
  std::size_t k = 0;
  std::int32_t in_piece = 0;
  for (const std::int32_t row : here.rows_of(zone)) {
    Pieces arriving;
    job_.contents.slice(pieces[k], in_piece, 1, arriving);
    add(actor, {.buffer = zone.buffer, .begin = row, .count = 1}, arriving);
    if (++in_piece == pieces[k].rows) {
      ++k;
      in_piece = 0;
    }
  }
}

void Values::expect(Actor actor, const Claim& claim) {
  if (claim.zone.count == 0) return;
  ++statements_;
  const Script& script = job_.scripts[actor.script];
  get(actor.script, claim.zone, held_);
  bool told = false;
  side_by_side(job_.contents, script.pieces_of(claim), held_,
               [&](const Piece& wanted, const Piece& held, std::int32_t row) {
                 if (told || job_.contents.same(wanted, held)) return;
                 told = true;
                 Symptom symptom = Symptom::read_other;
                 if (held.nature == Nature::nothing) symptom = Symptom::read_nothing;
                 if (held.nature == Nature::dead) symptom = Symptom::read_dead;
                 report({.symptom = symptom,
                         .place = place(actor),
                         .other = {script.rank, held.writer},
                         .zone = claim.zone,
                         .first_row = row,
                         .wanted = wanted,
                         .held = held});
               });
}

void Values::compute(Actor actor, const Op& op) {
  const Script& script = job_.scripts[actor.script];
  for (const Claim& claim : script.claims_of(op)) {
    if (claim.kind == plan::Access::Kind::reads) expect(actor, claim);
  }
  for (const Claim& claim : script.claims_of(op)) {
    if (claim.kind == plan::Access::Kind::reads || claim.zone.count == 0) continue;
    const std::span<const Piece> stated = script.pieces_of(claim);
    if (claim.kind == plan::Access::Kind::adds) {
      add(actor, claim.zone, Pieces(stated.begin(), stated.end()));
      continue;
    }
    get(actor.script, claim.zone, held_);
    demand_alive(actor, claim.zone, held_);
    put(actor, claim.zone, stated);
  }
}

void Values::copy(Actor actor, const Op& op) {
  Pieces moved;
  get(actor.script, op.from, moved);
  demand_alive(actor, op.from, moved);
  if (op.add) {
    add(actor, op.to, moved);
    return;
  }
  get(actor.script, op.to, held_);
  demand_alive(actor, op.to, held_);
  put(actor, op.to, moved);
}

void Values::perform(Place here) {
  const Op& op = job_.op(here);
  const Actor actor = actor_at(here);
  for (Watch& watch : watches_) {
    watch.closed = watch.closed || (watch.script == actor.script && watch.until == here.operation);
  }
  if (op.act == Act::compute) return compute(actor, op);
  if (op.act == Act::copy) return copy(actor, op);
  const Nature nature = op.act == Act::allocate ? Nature::nothing : Nature::dead;
  get(actor.script, op.from, held_);
  if (op.act == Act::free) demand_alive(actor, op.from, held_);
  if (op.act == Act::allocate) {
    const auto living = [](const Piece& piece) { return piece.nature != Nature::dead; };
    const auto found = std::ranges::find_if(held_, living);
    if (found != held_.end()) {
      report({.symptom = Symptom::read_dead,
              .place = place(actor),
              .other = {place(actor).rank, found->writer},
              .zone = op.from,
              .held = *found});
    }
  }
  if (op.from.count == 0) return;
  one_ = {{.rows = op.from.count, .nature = nature}};
  put(actor, op.from, one_);
}

void Values::post(Place send) {
  const Op& op = job_.op(send);
  const Actor actor = actor_at(send);
  Pieces& pieces = posted(send);
  get(actor.script, op.from, pieces);
  demand_alive(actor, op.from, pieces);
  for (Piece& piece : pieces) piece.writer = -1;  // elsewhere it means nothing
}

void Values::deliver(Place send, Place receive) {
  Pieces& pieces = posted(send);
  received(actor_at(receive), pieces);
  if (!keep_) pieces = {};
}

void Values::received(Actor actor, const Pieces& pieces) {
  const Op& op = job_.scripts[actor.script][actor.op];
  if (op.add) return add(actor, op.to, pieces);
  get(actor.script, op.to, held_);
  demand_alive(actor, op.to, held_);
  put(actor, op.to, pieces);
}

void Values::finish() {
  for (std::size_t k = 0; k < job_.scripts.size(); ++k) {
    for (const Claim& claim : job_.scripts[k].goal)
      expect({static_cast<std::int32_t>(k), -1}, claim);
  }
  for (std::size_t k = 0; k < job_.scripts.size(); ++k) find_leak(k);
}

Values::Actor Values::actor_of(const CallGroup& group, std::size_t slot, std::int64_t n) const {
  return {group.scripts[slot], group.calls(slot)[n]};
}

Pieces Values::input(const CallGroup& group, const Member& member, std::int64_t n) {
  const Actor actor = actor_of(group, static_cast<std::size_t>(member.slot), n);
  const Op& op = job_.scripts[actor.script][actor.op];
  Pieces pieces;
  get(actor.script, op.from, pieces);
  demand_alive(actor, op.from, pieces);
  for (Piece& piece : pieces) {
    piece = job_.contents.bind(piece, member.positions);
    piece.writer = -1;
  }
  return pieces;
}

// All members at once, without steps in between; empty if any two cannot be united.
Pieces Values::at_once(const std::vector<Pieces>& inputs) {
  const std::int64_t rows = rows_of(inputs.front());
  for (const Pieces& input : inputs) {
    if (rows_of(input) != rows) return {};
  }
  const std::vector<std::span<const Piece>> lists(inputs.begin(), inputs.end());
  Pieces result;
  for (Columns columns(job_.contents, lists); columns.next();) {
    const std::optional<Piece> all = job_.contents.unite(columns.pieces());
    if (!all) return {};
    result.push_back(*all);
  }
  unions_ += (std::ssize(inputs) - 1) * std::ssize(result);
  if (result.size() > 1) job_.contents.join(result);
  return result;
}

// The last trouble is told at the first member with which the k-th is in conflict.
void Values::blame(const CallGroup& group, std::int64_t n, std::size_t k) {
  Trouble trouble = troubles_.back();
  const Pieces theirs = input(group, group.members[k], n);
  for (std::size_t j = 0; j < k; ++j) {
    const Actor actor = actor_of(group, static_cast<std::size_t>(group.members[j].slot), n);
    const std::size_t known = troubles_.size();
    static_cast<void>(united(input(group, group.members[j], n), theirs, actor, {}, trouble.zone));
    const bool conflict = troubles_.size() > known;
    troubles_.resize(known);
    if (!conflict) continue;
    trouble.other = {group.members[k].rank, trouble.place.operation};
    trouble.place = place(actor);
    break;
  }
  troubles_.back() = trouble;
}

Pieces Values::reduced(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const auto& collective =
      std::get<plan::Collective>(job_.scripts[first.script][first.op].source->action);
  std::vector<Pieces> inputs;
  inputs.reserve(group.members.size());
  for (const Member& member : group.members) inputs.push_back(input(group, member, n));
  Pieces all = inputs.front();
  if (collective.op != ReduceOp::sum) {
    return {{.rows = static_cast<std::int32_t>(rows_of(all)), .nature = Nature::unknown}};
  }
  const Pieces whole = at_once(inputs);
  if (!whole.empty()) all = whole;
  const std::size_t known = troubles_.size();
  for (std::size_t k = 1; k < group.members.size() && whole.empty(); ++k) {
    const Pieces& more = inputs[k];
    const Actor actor = actor_of(group, static_cast<std::size_t>(group.members[k].slot), n);
    const Op& op = job_.scripts[actor.script][actor.op];
    if (rows_of(more) != rows_of(all)) continue;
    all = united(all, more, actor, {}, op.from);
    if (troubles_.size() == known + 1 && !troubles_.back().other.exists()) blame(group, n, k);
    if (troubles_.size() > known + 1) troubles_.resize(known + 1);  // one for each call
  }
  for (Piece& piece : all) piece = job_.contents.scaled(piece, collective.scale);
  return all;
}

void Values::meet(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const Op& op = job_.scripts[first.script][first.op];
  if (op.act == Act::exchange) return meet_exchange(group, n);
  const auto& collective = std::get<plan::Collective>(op.source->action);
  switch (collective.kind) {
    case CollectiveKind::barrier:
      return;
    case CollectiveKind::all_reduce: {
      const Pieces all = reduced(group, n);
      for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
        const Actor actor = actor_of(group, slot, n);
        received(actor, all);
      }
      return;
    }
    case CollectiveKind::reduce: {
      const Pieces all = reduced(group, n);
      const Member& root = group.members[op.root];
      if (!root.positions.empty()) throw Asymmetric();
      spoil(group, n);
      const Actor actor = actor_of(group, static_cast<std::size_t>(root.slot), n);
      received(actor, all);
      return;
    }
    case CollectiveKind::broadcast: {
      const Pieces all = input(group, group.members[op.root], n);
      for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
        const Actor actor = actor_of(group, slot, n);
        received(actor, all);
      }
      return;
    }
    case CollectiveKind::reduce_scatter:
      return scatter(group, n, reduced(group, n));
    case CollectiveKind::all_gather:
      return gather(group, n);
    case CollectiveKind::all_to_all:
      return turn(group, n);
  }
}

void Values::gather(const CallGroup& group, std::int64_t n) {
  Pieces all;
  for (const Member& member : group.members) {
    const Pieces pieces = input(group, member, n);
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  job_.contents.join(all);
  for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
    const Actor actor = actor_of(group, slot, n);
    received(actor, all);
  }
}

namespace {

// Rows begin .. begin+count of pieces that follow each other.
Pieces part_of(Contents& contents, const Pieces& pieces, std::int64_t begin, std::int64_t count) {
  Pieces result;
  for (const Piece& piece : pieces) {
    const auto from = static_cast<std::int32_t>(std::clamp<std::int64_t>(begin, 0, piece.rows));
    const auto to =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(begin + count, 0, piece.rows));
    contents.slice(piece, from, to - from, result);
    begin -= piece.rows;
  }
  return result;
}

}  // namespace

void Values::deal(const CallGroup& group, std::int64_t n, const std::vector<Pieces>& parts) {
  const std::size_t axes = job_.symmetry.axes.size();
  std::vector<bool> done(group.scripts.size());
  for (std::size_t k = 0; k < group.members.size(); ++k) {
    const Member& member = group.members[k];
    const auto slot = static_cast<std::size_t>(member.slot);
    if (done[slot]) continue;
    done[slot] = true;
    const Actor actor = actor_of(group, slot, n);
    std::vector<std::size_t> same;  // members that this program stands for, in order
    for (std::size_t m = 0; m < group.members.size() && axes > 0; ++m) {
      if (group.members[m].slot == member.slot) same.push_back(m);
    }
    if (same.size() <= 1) {
      received(actor, parts[k]);
      continue;
    }
    std::size_t axis = axes;
    for (std::size_t a = 0; a < axes; ++a) {
      const bool along = std::ranges::any_of(
          same, [&](std::size_t m) { return group.members[m].positions[a] > 0; });
      if (along && axis < axes) throw Asymmetric();  // along two axes at once
      if (along) axis = a;
    }
    Pieces fitted;
    for (std::size_t p = 0; p < parts[k].size(); ++p) {
      std::vector<Piece> family;
      for (const std::size_t m : same) {
        if (parts[m].size() != parts[k].size()) throw Asymmetric();
        family.push_back(parts[m][p]);
      }
      fitted.push_back(job_.contents.fit(family, axis, axes));
    }
    received(actor, fitted);
  }
}

void Values::scatter(const CallGroup& group, std::int64_t n, const Pieces& all) {
  const Actor first = actor_of(group, 0, n);
  const auto& collective =
      std::get<plan::Collective>(job_.scripts[first.script][first.op].source->action);
  const std::int64_t each = rows_of(all) / group.ranks().size();
  std::vector<Pieces> parts;
  for (std::size_t k = 0; k < group.members.size(); ++k) {
    std::int64_t begin = static_cast<std::int64_t>(k) * each;
    std::int64_t count = each;
    if (collective.split.exists()) {
      const std::vector<std::int64_t>& cuts = job_.plan.lists[collective.split].values;
      begin = cuts[k];
      count = cuts[k + 1] - begin;
    }
    parts.push_back(part_of(job_.contents, all, begin, count));
  }
  spoil(group, n);
  deal(group, n, parts);
}

void Values::spoil(const CallGroup& group, std::int64_t n) {
  for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
    const Actor actor = actor_of(group, slot, n);
    const Op& op = job_.scripts[actor.script][actor.op];
    if (!op.spoils || op.from.count == 0) continue;
    one_ = {{.rows = op.from.count, .nature = Nature::leftover}};
    put(actor, op.from, one_);
  }
}

void Values::turn(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const Op& op = job_.scripts[first.script][first.op];
  const auto& collective = std::get<plan::Collective>(op.source->action);
  std::vector<Pieces> inputs;
  for (const Member& member : group.members) inputs.push_back(input(group, member, n));
  const std::int64_t each = op.from.count / group.ranks().size();
  std::vector<Pieces> parts(group.members.size());
  for (std::size_t k = 0; k < parts.size(); ++k) {
    std::int64_t begin = static_cast<std::int64_t>(k) * each;
    std::int64_t count = each;
    if (collective.split.exists()) {
      const std::vector<std::int64_t>& cuts = job_.plan.lists[collective.split].values;
      begin = cuts[k];
      count = cuts[k + 1] - begin;
    }
    for (const Pieces& pieces : inputs) {
      const Pieces part = part_of(job_.contents, pieces, begin, count);
      parts[k].insert(parts[k].end(), part.begin(), part.end());
    }
    job_.contents.join(parts[k]);
  }
  deal(group, n, parts);
}

void Values::meet_exchange(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const Op& op = job_.scripts[first.script][first.op];
  const auto& exchange = std::get<plan::Exchange>(op.source->action);
  const plan::ExchangeTable& table = job_.plan.tables[exchange.table];
  std::vector<Pieces> inputs;
  for (const Member& member : group.members) inputs.push_back(input(group, member, n));
  for (const Member& member : group.members) {
    const Actor actor = actor_of(group, static_cast<std::size_t>(member.slot), n);
    const Op& here = job_.scripts[actor.script][actor.op];
    const auto receives =
        exchange.reversed ? table.sends_of(member.rank) : table.receives_of(member.rank);
    Rows<Cell> written(here.to.count, Cell{});
    std::int32_t last_peer = -1;
    std::size_t nth = 0;
    for (const plan::TableRow& row : receives) {
      nth = row.peer == last_peer ? nth + 1 : 0;
      last_peer = row.peer;
      const std::int64_t position = group.ranks().find(Rank(row.peer));
      const auto sends = exchange.reversed ? table.receives_of(row.peer) : table.sends_of(row.peer);
      const auto from = std::ranges::lower_bound(sends, member.rank, {}, &plan::TableRow::peer);
      const plan::TableRow& other = *(from + static_cast<std::ptrdiff_t>(nth));
      const Pieces moved = part_of(job_.contents, inputs[position], other.first, row.count);
      const Zone zone{.buffer = here.to.buffer,
                      .begin = here.to.begin + static_cast<std::int32_t>(row.first),
                      .count = static_cast<std::int32_t>(row.count)};
      if (zone.count == 0) continue;
      const auto begin = static_cast<std::int32_t>(row.first);
      bool twice = false;
      written.change(begin, begin + zone.count, [&](Rows<Cell>::Range& range) {
        twice = twice || range.value.writer >= 0;
        range.value.writer = row.peer;
      });
      if (here.add) {
        add(actor, zone, moved);
        continue;
      }
      if (twice) {
        report({.symptom = Symptom::overlap,
                .place = place(actor),
                .other = {row.peer, -1},
                .zone = zone});
      }
      get(actor.script, zone, held_);
      demand_alive(actor, zone, held_);
      put(actor, zone, moved);
    }
  }
}

}  // namespace shiplap::check
