// Abstract interpretation of a plan: the state of a buffer is a symbolic content for each range of
// rows (content_internal.h) instead of numbers.
//
// plan::Execution calls this observer with each operation in an order that the plan allows. Races
// are excluded before, so the values do not depend on that order. A computation's reads are
// compared with the state and its writes replace it; whether the writes follow from the reads is
// checked elsewhere (kernel contracts). Communication moves pieces, not rows: an all-gather of
// 1,024 members concatenates 1,024 lists of pieces and joins neighbours that continue each other.
//
// Reductions: first all inputs are united at once, which is cheap for contributions that lie next
// to each other. If that fails, they are united one by one, to find the pair that conflicts.
//
// With symmetry one script represents several members of a group. Its input is bound to each
// member's position before (Contents::bind), and the outputs of these members are fitted to one
// affine content afterwards (Contents::fit_affine), or Asymmetric is thrown.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "shiplap/check/aligned_pieces_internal.h"
#include "shiplap/check/value_tracker_internal.h"

namespace shiplap::check {
namespace {

// Visits two lists of pieces in lockstep. REQUIRES: both have the same number of rows.
template <class Visit>
void for_each_aligned(Contents& contents, std::span<const Piece> a, std::span<const Piece> b,
                      const Visit& visit) {
  if (a.size() == 1 && b.size() == 1 && a[0].rows == b[0].rows) {
    visit(a[0], b[0], 0);
    return;
  }
  const std::array lists{a, b};
  for (AlignedPieces aligned(contents, lists); aligned.next();) {
    visit(aligned.pieces()[0], aligned.pieces()[1], aligned.row());
  }
}

std::int64_t rows_of(const Pieces& pieces) {
  std::int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows;
  return rows;
}

}  // namespace

ValueTracker::ValueTracker(Job& job, std::vector<Violation>& violations)
    : job_(job),
      violations_(violations),
      posts_(job.linked.matching.messages),
      memo_(job.contents) {
  memories_.resize(job.scripts.size());
  for (std::size_t k = 0; k < job.scripts.size(); ++k) {
    start(k);
    unallocated_at_start_.push_back(unallocated_rows(k));
  }
}

void ValueTracker::get(std::int32_t script, const RowRange& row_range, Pieces& out) {
  out.clear();
  const Buffer& rows = buffer(script, row_range.buffer);
  const auto take = [&](std::int32_t begin, std::int32_t end) {
    rows.for_each(begin, end, [&](const Buffer::Range& range) {
      const std::int32_t first = std::max(begin, range.begin);
      const Piece whole{range.value.content, range.value.rows, range.value.state,
                        range.value.writer};
      job_.contents.slice(whole, range.value.offset + (first - range.begin),
                          std::min(end, range.end) - first, out);
    });
  };
  if (row_range.listed < 0) return take(row_range.begin, row_range.end());
  const Script& here = job_.scripts[script];
  for (const std::int32_t row : here.rows_of(row_range)) take(row, row + 1);
}

void ValueTracker::watch(std::vector<Watch> watches) {
  watches_ = std::move(watches);
  for (std::size_t k = 0; k < job_.scripts.size(); ++k) {
    for (const Assertion& assertion : job_.scripts[k].given) {
      update_watches({static_cast<std::int32_t>(k), -1}, assertion.row_range);
    }
  }
}

void ValueTracker::update_watches(Actor actor, const RowRange& row_range) {
  for (Watch& watch : watches_) {
    if (watch.script != actor.script || watch.row_range.buffer != row_range.buffer ||
        watch.row_range.listed >= 0 || watch.closed) {
      continue;
    }
    RowRange rows = watch.row_range;
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

void ValueTracker::put(Actor actor, const RowRange& row_range, std::span<const Piece> pieces) {
  Buffer& rows = buffer(actor.script, row_range.buffer);
  if (row_range.listed >= 0) {
    const Script& here = job_.scripts[actor.script];
    std::size_t k = 0;
    std::int32_t in_piece = 0;
    for (const std::int32_t row : here.rows_of(row_range)) {
      one_.clear();
      job_.contents.slice(pieces[k], in_piece, 1, one_);
      const Piece& piece = one_.front();
      const Buffer::Range range{row, row + 1, {piece.content, piece.state, actor.op, 0, 1}};
      rows.put(row, row + 1, std::span(&range, 1));
      if (++in_piece == pieces[k].rows) {
        ++k;
        in_piece = 0;
      }
    }
    return;
  }
  made_.clear();
  std::int32_t at = row_range.begin;
  for (const Piece& piece : pieces) {
    const std::int32_t end = at + piece.rows;
    made_.push_back({at, end, {piece.content, piece.state, actor.op, 0, piece.rows}});
    at = end;
  }
  rows.put(row_range.begin, row_range.end(), made_);
  if (!watches_.empty()) update_watches(actor, row_range);
}

void ValueTracker::check_allocated(Actor actor, const RowRange& row_range, const Pieces& held) {
  const auto unallocated = std::ranges::find(held, RowState::unallocated, &Piece::state);
  if (unallocated == held.end()) return;
  report({.symptom = Symptom::bad_lifetime,
          .place = place(actor),
          .other = {place(actor).rank, unallocated->writer},
          .row_range = row_range,
          .held = *unallocated});
}

Pieces ValueTracker::united(const Pieces& a, const Pieces& b, Actor actor, OperationId other,
                            const RowRange& row_range) {
  Pieces result;
  bool reported = false;
  for_each_aligned(job_.contents, a, b, [&](const Piece& x, const Piece& y, std::int32_t row) {
    ++unions_;
    const Contents::Union both = job_.contents.unite(x, y);
    result.push_back(both.piece);
    if (both.conflict == Contents::Conflict::none || reported) return;
    // Without tensors the plan cannot state that rows are written.
    if (both.conflict == Contents::Conflict::uninitialized && job_.plan.tensors.empty()) return;
    reported = true;
    Symptom symptom = Symptom::add_duplicate;
    if (both.conflict == Contents::Conflict::uninitialized) symptom = Symptom::add_uninitialized;
    if (both.conflict == Contents::Conflict::unallocated) symptom = Symptom::bad_lifetime;
    if (both.conflict == Contents::Conflict::other_cells) symptom = Symptom::add_different;
    if (both.conflict == Contents::Conflict::other_scale) symptom = Symptom::add_scale_mismatch;
    report({.symptom = symptom,
            .place = place(actor),
            .other = other,
            .row_range = row_range,
            .first_row = row,
            .wanted = x,
            .held = y});
  });
  if (result.size() > 1) job_.contents.join(result);
  return result;
}

void ValueTracker::add(Actor actor, const RowRange& row_range, const Pieces& pieces) {
  if (row_range.listed >= 0) return add_by_list(actor, row_range, pieces);
  Pieces held;
  get(actor.script, row_range, held);
  Pieces both = united(held, pieces, actor, {}, row_range);
  put(actor, row_range, both);
}

// Row by row: a list may name a row twice, and both are added to it.
void ValueTracker::add_by_list(Actor actor, const RowRange& row_range, const Pieces& pieces) {
  const Script& here = job_.scripts[actor.script];
  std::size_t k = 0;
  std::int32_t in_piece = 0;
  for (const std::int32_t row : here.rows_of(row_range)) {
    Pieces arriving;
    job_.contents.slice(pieces[k], in_piece, 1, arriving);
    add(actor, {.buffer = row_range.buffer, .begin = row, .count = 1}, arriving);
    if (++in_piece == pieces[k].rows) {
      ++k;
      in_piece = 0;
    }
  }
}

void ValueTracker::expect(Actor actor, const Assertion& assertion) {
  if (assertion.row_range.count == 0) return;
  ++statements_;
  const Script& script = job_.scripts[actor.script];
  get(actor.script, assertion.row_range, held_);
  bool reported = false;
  for_each_aligned(job_.contents, script.pieces_of(assertion), held_,
                   [&](const Piece& wanted, const Piece& held, std::int32_t row) {
                     if (reported || job_.contents.same(wanted, held)) return;
                     reported = true;
                     Symptom symptom = Symptom::read_mismatch;
                     if (held.state == RowState::uninitialized)
                       symptom = Symptom::read_uninitialized;
                     if (held.state == RowState::unallocated) symptom = Symptom::bad_lifetime;
                     report({.symptom = symptom,
                             .place = place(actor),
                             .other = {script.rank, held.writer},
                             .row_range = assertion.row_range,
                             .first_row = row,
                             .wanted = wanted,
                             .held = held});
                   });
}

void ValueTracker::compute(Actor actor, const ScriptOp& op) {
  const Script& script = job_.scripts[actor.script];
  for (const Assertion& assertion : script.assertions_of(op)) {
    if (assertion.kind == plan::Access::Kind::reads) expect(actor, assertion);
  }
  for (const Assertion& assertion : script.assertions_of(op)) {
    if (assertion.kind == plan::Access::Kind::reads || assertion.row_range.count == 0) continue;
    const std::span<const Piece> stated = script.pieces_of(assertion);
    if (assertion.kind == plan::Access::Kind::adds) {
      add(actor, assertion.row_range, Pieces(stated.begin(), stated.end()));
      continue;
    }
    get(actor.script, assertion.row_range, held_);
    check_allocated(actor, assertion.row_range, held_);
    put(actor, assertion.row_range, stated);
  }
}

void ValueTracker::copy(Actor actor, const ScriptOp& op) {
  Pieces moved;
  get(actor.script, op.from, moved);
  check_allocated(actor, op.from, moved);
  if (op.add) {
    add(actor, op.to, moved);
    return;
  }
  get(actor.script, op.to, held_);
  check_allocated(actor, op.to, held_);
  put(actor, op.to, moved);
}

void ValueTracker::perform(OperationId here) {
  const ScriptOp& op = job_.op(here);
  const Actor actor = actor_at(here);
  for (Watch& watch : watches_) {
    watch.closed = watch.closed || (watch.script == actor.script && watch.until == here.operation);
  }
  if (op.action == ActionKind::compute) return compute(actor, op);
  if (op.action == ActionKind::copy) return copy(actor, op);
  const RowState state =
      op.action == ActionKind::allocate ? RowState::uninitialized : RowState::unallocated;
  get(actor.script, op.from, held_);
  if (op.action == ActionKind::free) check_allocated(actor, op.from, held_);
  if (op.action == ActionKind::allocate) {
    const auto is_allocated = [](const Piece& piece) {
      return piece.state != RowState::unallocated;
    };
    const auto found = std::ranges::find_if(held_, is_allocated);
    if (found != held_.end()) {
      report({.symptom = Symptom::bad_lifetime,
              .place = place(actor),
              .other = {place(actor).rank, found->writer},
              .row_range = op.from,
              .held = *found});
    }
  }
  if (op.from.count == 0) return;
  one_ = {{.rows = op.from.count, .state = state}};
  put(actor, op.from, one_);
}

void ValueTracker::post(OperationId send) {
  const ScriptOp& op = job_.op(send);
  const Actor actor = actor_at(send);
  Pieces& pieces = posted(send);
  get(actor.script, op.from, pieces);
  check_allocated(actor, op.from, pieces);
  for (Piece& piece : pieces) piece.writer = -1;  // it is an operation of this rank only
}

void ValueTracker::deliver(OperationId send, OperationId receive) {
  Pieces& pieces = posted(send);
  store_output(actor_at(receive), pieces);
  if (!keep_) pieces = {};
}

void ValueTracker::store_output(Actor actor, const Pieces& pieces) {
  const ScriptOp& op = job_.scripts[actor.script][actor.op];
  if (op.add) return add(actor, op.to, pieces);
  get(actor.script, op.to, held_);
  check_allocated(actor, op.to, held_);
  put(actor, op.to, pieces);
}

void ValueTracker::finish() {
  for (std::size_t k = 0; k < job_.scripts.size(); ++k) {
    for (const Assertion& assertion : job_.scripts[k].goal)
      expect({static_cast<std::int32_t>(k), -1}, assertion);
  }
  for (std::size_t k = 0; k < job_.scripts.size(); ++k) find_leak(k);
}

ValueTracker::Actor ValueTracker::actor_of(const CallGroup& group, std::size_t slot,
                                           std::int64_t n) const {
  return {group.scripts[slot], group.calls(slot)[n]};
}

Pieces ValueTracker::input(const CallGroup& group, const Member& member, std::int64_t n) {
  const Actor actor = actor_of(group, static_cast<std::size_t>(member.slot), n);
  const ScriptOp& op = job_.scripts[actor.script][actor.op];
  Pieces pieces;
  get(actor.script, op.from, pieces);
  check_allocated(actor, op.from, pieces);
  for (Piece& piece : pieces) {
    piece = job_.contents.bind(piece, member.positions);
    piece.writer = -1;
  }
  return pieces;
}

// Unites the inputs of all members without intermediate results; empty if two of them conflict.
Pieces ValueTracker::unite_all(const std::vector<Pieces>& inputs) {
  const std::int64_t rows = rows_of(inputs.front());
  for (const Pieces& input : inputs) {
    if (rows_of(input) != rows) return {};
  }
  const std::vector<std::span<const Piece>> lists(inputs.begin(), inputs.end());
  Pieces result;
  for (AlignedPieces aligned(job_.contents, lists); aligned.next();) {
    const std::optional<Piece> all = job_.contents.unite(aligned.pieces());
    if (!all) return {};
    result.push_back(*all);
  }
  unions_ += (std::ssize(inputs) - 1) * std::ssize(result);
  if (result.size() > 1) job_.contents.join(result);
  return result;
}

// Moves the last violation to the first member with which the k-th conflicts.
void ValueTracker::attribute_conflict(const CallGroup& group, std::int64_t n, std::size_t k) {
  Violation violation = violations_.back();
  const Pieces theirs = input(group, group.members[k], n);
  for (std::size_t j = 0; j < k; ++j) {
    const Actor actor = actor_of(group, static_cast<std::size_t>(group.members[j].slot), n);
    const std::size_t known = violations_.size();
    static_cast<void>(
        united(input(group, group.members[j], n), theirs, actor, {}, violation.row_range));
    const bool conflict = violations_.size() > known;
    violations_.resize(known);
    if (!conflict) continue;
    violation.other = {group.members[k].rank, violation.place.operation};
    violation.place = place(actor);
    break;
  }
  violations_.back() = violation;
}

Pieces ValueTracker::reduced(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const auto& collective =
      std::get<plan::Collective>(job_.scripts[first.script][first.op].source->action);
  std::vector<Pieces> inputs;
  inputs.reserve(group.members.size());
  for (const Member& member : group.members) inputs.push_back(input(group, member, n));
  Pieces all = inputs.front();
  if (collective.op != ReduceOp::sum) {
    return {{.rows = static_cast<std::int32_t>(rows_of(all)), .state = RowState::unknown}};
  }
  const Pieces whole = unite_all(inputs);
  if (!whole.empty()) all = whole;
  const std::size_t known = violations_.size();
  for (std::size_t k = 1; k < group.members.size() && whole.empty(); ++k) {
    const Pieces& more = inputs[k];
    const Actor actor = actor_of(group, static_cast<std::size_t>(group.members[k].slot), n);
    const ScriptOp& op = job_.scripts[actor.script][actor.op];
    if (rows_of(more) != rows_of(all)) continue;
    all = united(all, more, actor, {}, op.from);
    if (violations_.size() == known + 1 && !violations_.back().other.exists())
      attribute_conflict(group, n, k);
    if (violations_.size() > known + 1) violations_.resize(known + 1);  // one for each call
  }
  for (Piece& piece : all) piece = job_.contents.scaled(piece, collective.scale);
  return all;
}

void ValueTracker::run_call(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const ScriptOp& op = job_.scripts[first.script][first.op];
  if (op.action == ActionKind::exchange) return run_exchange(group, n);
  const auto& collective = std::get<plan::Collective>(op.source->action);
  switch (collective.kind) {
    case CollectiveKind::barrier:
      return;
    case CollectiveKind::all_reduce: {
      const Pieces all = reduced(group, n);
      for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
        const Actor actor = actor_of(group, slot, n);
        store_output(actor, all);
      }
      return;
    }
    case CollectiveKind::reduce: {
      const Pieces all = reduced(group, n);
      const Member& root = group.members[op.root];
      if (!root.positions.empty()) throw Asymmetric();
      clobber_inputs(group, n);
      const Actor actor = actor_of(group, static_cast<std::size_t>(root.slot), n);
      store_output(actor, all);
      return;
    }
    case CollectiveKind::broadcast: {
      const Pieces all = input(group, group.members[op.root], n);
      for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
        const Actor actor = actor_of(group, slot, n);
        store_output(actor, all);
      }
      return;
    }
    case CollectiveKind::reduce_scatter:
      return run_reduce_scatter(group, n, reduced(group, n));
    case CollectiveKind::all_gather:
      return run_all_gather(group, n);
    case CollectiveKind::all_to_all:
      return run_all_to_all(group, n);
  }
}

void ValueTracker::run_all_gather(const CallGroup& group, std::int64_t n) {
  Pieces all;
  for (const Member& member : group.members) {
    const Pieces pieces = input(group, member, n);
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  job_.contents.join(all);
  for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
    const Actor actor = actor_of(group, slot, n);
    store_output(actor, all);
  }
}

namespace {

struct PieceRows {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// The rows of the k-th piece of a collective: those of its split, or `each` per piece.
PieceRows piece_rows(const plan::Plan& plan, const plan::Collective& collective, std::size_t k,
                     std::int64_t each) {
  if (!collective.split.exists()) return {static_cast<std::int64_t>(k) * each, each};
  const std::vector<std::int64_t>& cuts = plan.lists[collective.split].values;
  return {cuts[k], cuts[k + 1] - cuts[k]};
}

// Rows begin .. begin + count of a list of pieces.
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

void ValueTracker::store_outputs(const CallGroup& group, std::int64_t n,
                                 const std::vector<Pieces>& outputs) {
  std::vector<bool> done(group.scripts.size());
  for (const Member& member : group.members) {
    const auto slot = static_cast<std::size_t>(member.slot);
    if (done[slot]) continue;
    done[slot] = true;
    store_output(actor_of(group, slot, n), outputs[slot]);
  }
}

std::vector<Pieces> ValueTracker::fitted(const CallGroup& group, const std::vector<Pieces>& parts) {
  std::vector<std::vector<std::size_t>> represented(group.scripts.size());  // members by slot
  for (std::size_t k = 0; k < group.members.size(); ++k) {
    represented[static_cast<std::size_t>(group.members[k].slot)].push_back(k);
  }
  std::vector<Pieces> outputs;
  for (const std::vector<std::size_t>& same : represented) {
    outputs.push_back(same.size() == 1 ? parts[same.front()]
                                       : fit_family(group, parts, same, axes_along(group, same)));
  }
  return outputs;
}

std::vector<std::size_t> ValueTracker::axes_along(const CallGroup& group,
                                                  std::span<const std::size_t> members) const {
  std::vector<std::size_t> along;
  for (std::size_t axis = 0; axis < job_.symmetry.axes.size(); ++axis) {
    const bool moves = std::ranges::any_of(
        members, [&](std::size_t m) { return group.members[m].positions[axis] > 0; });
    if (moves) along.push_back(axis);
  }
  return along;
}

Pieces ValueTracker::fit_family(const CallGroup& group, const std::vector<Pieces>& parts,
                                std::span<const std::size_t> members,
                                std::span<const std::size_t> along) {
  if (along.empty()) {
    if (members.size() != 1) throw Asymmetric();
    return parts[members.front()];
  }
  const std::size_t axis = along.front();
  std::map<std::int64_t, std::vector<std::size_t>> at;  // by position on the axis
  for (const std::size_t m : members) at[group.members[m].positions[axis]].push_back(m);
  std::vector<Pieces> family;
  for (const auto& [position, here] : at) {
    if (position != std::ssize(family)) throw Asymmetric();
    family.push_back(fit_family(group, parts, here, along.subspan(1)));
  }
  return fit_pieces(family, axis);
}

Pieces ValueTracker::fit_pieces(std::span<const Pieces> family, std::size_t axis) {
  Pieces fitted;
  for (std::size_t p = 0; p < family.front().size(); ++p) {
    std::vector<Piece> pieces;
    for (const Pieces& member : family) {
      if (member.size() != family.front().size()) throw Asymmetric();
      pieces.push_back(member[p]);
    }
    fitted.push_back(job_.contents.fit_affine(pieces, axis, job_.symmetry.axes.size()));
  }
  return fitted;
}

void ValueTracker::run_reduce_scatter(const CallGroup& group, std::int64_t n, const Pieces& all) {
  const Actor first = actor_of(group, 0, n);
  const auto& collective =
      std::get<plan::Collective>(job_.scripts[first.script][first.op].source->action);
  const std::int64_t each = rows_of(all) / group.ranks().size();
  std::vector<Pieces> parts;
  for (std::size_t k = 0; k < group.members.size(); ++k) {
    const auto [begin, count] = piece_rows(job_.plan, collective, k, each);
    parts.push_back(part_of(job_.contents, all, begin, count));
  }
  clobber_inputs(group, n);
  store_outputs(group, n, fitted(group, parts));
}

void ValueTracker::clobber_inputs(const CallGroup& group, std::int64_t n) {
  for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
    const Actor actor = actor_of(group, slot, n);
    const ScriptOp& op = job_.scripts[actor.script][actor.op];
    if (!op.clobbers_input || op.from.count == 0) continue;
    one_ = {{.rows = op.from.count, .state = RowState::leftover}};
    put(actor, op.from, one_);
  }
}

std::optional<std::size_t> ValueTracker::only_axis(const CallGroup& group) const {
  std::vector<std::size_t> all(group.members.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::size_t> along = axes_along(group, all);
  if (group.scripts.size() != 1 || along.size() != 1 || all.size() <= 2) return std::nullopt;
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (group.members[k].positions[along.front()] != static_cast<std::int64_t>(k)) {
      return std::nullopt;
    }
  }
  return along.front();
}

void ValueTracker::run_all_to_all(const CallGroup& group, std::int64_t n) {
  const auto outputs = [&] { return all_to_all(group, n); };
  bool known = true;
  std::vector<Pieces> held(group.scripts.size());
  for (std::size_t slot = 0; slot < held.size(); ++slot) {
    const Actor actor = actor_of(group, slot, n);
    get(actor.script, job_.scripts[actor.script][actor.op].from, held[slot]);
    known = known && std::ranges::all_of(held[slot], [](const Piece& piece) {
              return piece.state == RowState::known;
            });
  }
  const Actor first = actor_of(group, 0, n);
  const ScriptOp& op = job_.scripts[first.script][first.op];
  const auto& collective = std::get<plan::Collective>(op.source->action);
  const std::array<std::int64_t, 2> call{shape_of(group), collective.split.value};
  store_outputs(group, n, known ? memo_.get(call, held, outputs) : outputs());
}

std::int64_t ValueTracker::shape_of(const CallGroup& group) {
  shapes_of_groups_.resize(job_.groups.size(), -1);
  std::int64_t& shape = shapes_of_groups_[static_cast<std::size_t>(&group - job_.groups.data())];
  if (shape >= 0) return shape;
  std::vector<std::int64_t> members;
  for (const Member& member : group.members) {
    members.push_back(member.slot);
    members.insert(members.end(), member.positions.begin(), member.positions.end());
  }
  shape = shapes_.try_emplace(std::move(members), std::ssize(shapes_)).first->second;
  return shape;
}

std::vector<Pieces> ValueTracker::all_to_all(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const ScriptOp& op = job_.scripts[first.script][first.op];
  const auto& collective = std::get<plan::Collective>(op.source->action);
  std::vector<Pieces> inputs;
  for (const Member& member : group.members) inputs.push_back(input(group, member, n));
  const std::int64_t each = op.from.count / group.ranks().size();
  const auto slice = [&](const Pieces& pieces, std::size_t k) {
    const auto [begin, count] = piece_rows(job_.plan, collective, k, each);
    return part_of(job_.contents, pieces, begin, count);
  };
  const auto output = [&](std::size_t k) {
    Pieces all;
    for (const Pieces& pieces : inputs) {
      const Pieces part = slice(pieces, k);
      all.insert(all.end(), part.begin(), part.end());
    }
    job_.contents.join(all);
    return all;
  };
  if (const std::optional<std::size_t> axis = only_axis(group)) {
    // All members are one script, so their inputs move evenly along the axis. If the slices of the
    // first and of the last one do so too, then all outputs do, and two of them say how.
    for (const Pieces* pieces : {&inputs.front(), &inputs.back()}) {
      std::vector<Pieces> slices;
      for (std::size_t k = 0; k < inputs.size(); ++k) slices.push_back(slice(*pieces, k));
      static_cast<void>(fit_pieces(slices, *axis));
    }
    return {fit_pieces(std::array{output(0), output(1)}, *axis)};
  }
  std::vector<Pieces> parts;
  for (std::size_t k = 0; k < inputs.size(); ++k) parts.push_back(output(k));
  return fitted(group, parts);
}

void ValueTracker::run_exchange(const CallGroup& group, std::int64_t n) {
  const Actor first = actor_of(group, 0, n);
  const ScriptOp& op = job_.scripts[first.script][first.op];
  const auto& exchange = std::get<plan::Exchange>(op.source->action);
  const plan::ExchangeTable& table = job_.plan.tables[exchange.table];
  std::vector<Pieces> inputs;
  for (const Member& member : group.members) inputs.push_back(input(group, member, n));
  for (const Member& member : group.members) {
    const Actor actor = actor_of(group, static_cast<std::size_t>(member.slot), n);
    const ScriptOp& here = job_.scripts[actor.script][actor.op];
    const auto receives =
        exchange.reversed ? table.sends_of(member.rank) : table.receives_of(member.rank);
    IntervalMap<RowValue> written(here.to.count, RowValue{});
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
      const RowRange row_range{.buffer = here.to.buffer,
                               .begin = here.to.begin + static_cast<std::int32_t>(row.first),
                               .count = static_cast<std::int32_t>(row.count)};
      if (row_range.count == 0) continue;
      const auto begin = static_cast<std::int32_t>(row.first);
      bool twice = false;
      written.change(begin, begin + row_range.count, [&](IntervalMap<RowValue>::Range& range) {
        twice = twice || range.value.writer >= 0;
        range.value.writer = row.peer;
      });
      if (here.add) {
        add(actor, row_range, moved);
        continue;
      }
      if (twice) {
        report({.symptom = Symptom::exchange_overlap,
                .place = place(actor),
                .other = {row.peer, -1},
                .row_range = row_range});
      }
      get(actor.script, row_range, held_);
      check_allocated(actor, row_range, held_);
      put(actor, row_range, moved);
    }
  }
}

// ---- lifetimes: rows that are allocated at the start of a step, and leaks at its end

namespace {

// The first rows that `a` has and `b` has not. REQUIRES: both are in order.
template <class Ranges>
std::optional<typename Ranges::value_type> first_outside(const Ranges& a, const Ranges& b) {
  auto other = b.begin();
  for (auto rows : a) {
    const auto is_before = [&] {
      return std::tie(other->buffer, other->end) <= std::tie(rows.buffer, rows.begin);
    };
    while (other != b.end() && is_before()) ++other;
    if (other == b.end() || other->buffer != rows.buffer || other->begin >= rows.end) return rows;
    if (other->begin > rows.begin) {
      rows.end = other->begin;
      return rows;
    }
    if (other->end >= rows.end) continue;
    rows.begin = other->end;
    const auto next = other + 1;
    if (next != b.end() && next->buffer == rows.buffer) rows.end = std::min(rows.end, next->begin);
    return rows;
  }
  return std::nullopt;
}

bool has_row(const Script& script, const RowRange& row_range, std::int32_t row) {
  if (row_range.listed < 0) return row_range.begin <= row && row < row_range.end();
  return std::ranges::find(script.rows_of(row_range), row) != script.rows_of(row_range).end();
}

// Whether an operation touches the row.
bool uses(const Script& script, const ScriptOp& op, const RowRange& row) {
  const auto has = [&](const RowRange& row_range) {
    return row_range.buffer == row.buffer && has_row(script, row_range, row.begin);
  };
  return has(op.from) || has(op.to) ||
         std::ranges::any_of(script.assertions_of(op), has, &Assertion::row_range);
}

}  // namespace

void ValueTracker::start(std::size_t index) {
  const Script& script = job_.scripts[index];
  std::vector<Buffer>& memory = memories_[index];
  for (const std::int32_t rows : script.rows) {
    memory.emplace_back(rows, RowValue{.state = RowState::uninitialized, .rows = rows});
  }
  // Rows that an `allocate` names are unallocated until then.
  for (const ScriptOp& op : script.ops) {
    if (op.action != ActionKind::allocate || op.from.count == 0) continue;
    const Buffer::Range unallocated{
        op.from.begin, op.from.end(), {.state = RowState::unallocated, .rows = op.from.count}};
    memory[op.from.buffer].put(op.from.begin, op.from.end(), std::span(&unallocated, 1));
  }
  for (const Assertion& assertion : script.given) {
    put({static_cast<std::int32_t>(index), -1}, assertion.row_range, script.pieces_of(assertion));
  }
}

std::vector<ValueTracker::UnallocatedRows> ValueTracker::unallocated_rows(
    std::size_t script) const {
  std::vector<UnallocatedRows> unallocated;
  for (std::size_t buffer = 0; buffer < memories_[script].size(); ++buffer) {
    memories_[script][buffer].for_each([&](const Buffer::Range& range) {
      if (range.value.state != RowState::unallocated) return;
      const auto id = static_cast<std::int32_t>(buffer);
      if (!unallocated.empty() && unallocated.back().buffer == id &&
          unallocated.back().end == range.begin) {
        unallocated.back().end = range.end;
      } else {
        unallocated.push_back({id, range.begin, range.end});
      }
    });
  }
  return unallocated;
}

// Rows that are allocated at the end of the step and were not at its start: the next step allocates
// them again.
void ValueTracker::find_leak(std::size_t index) {
  const std::optional<UnallocatedRows> leaked =
      first_outside(unallocated_at_start_[index], unallocated_rows(index));
  if (!leaked) return;
  const Script& script = job_.scripts[index];
  const RowRange row{.buffer = leaked->buffer, .begin = leaked->begin, .count = 1};
  std::int32_t allocation = -1;
  std::int32_t last_use = -1;
  for (std::int32_t k = 0; k < std::ssize(script.ops); ++k) {
    if (!uses(script, script[k], row)) continue;
    last_use = k;
    if (script[k].action == ActionKind::allocate) allocation = k;
    if (script[k].action == ActionKind::free) allocation = -1;
  }
  if (allocation < 0) return;  // it was used after it was freed
  const std::int32_t end = std::min(leaked->end, script[allocation].from.end());
  report({.symptom = Symptom::leak,
          .place = {script.rank, allocation},
          .other = {script.rank, last_use == allocation ? -1 : last_use},
          .row_range = {.buffer = row.buffer, .begin = row.begin, .count = end - row.begin}});
}

}  // namespace shiplap::check
