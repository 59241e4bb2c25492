// Where is a rank in its plan?
//
// The problem. The calls of a dump are a window: they begin wherever the recorder evicted the
// others, and a job repeats its steps thousands of times, while the plan has two of them. A job
// also does what nobody planned, such as an evaluation every thousand steps.
//
// The idea. The last calls of the rank are aligned with the operations of the plan by dynamic
// programming. The step is the longest block of operations that the plan has twice in a row; after
// it, it may begin again. A call that the plan does not have (extra), an operation that the rank
// does not make (skipped) and a call with another size or group cost little. A jump to anywhere
// else costs more than a fault, but less than a phase that was not planned. The last difference is
// the answer: the rank left its plan there.
//
// Differences that all ranks have are not faults: the plan lacks something. The caller compares
// ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "shiplap/plan/expand.h"
#include "shiplap/postmortem/call_site_internal.h"
#include "shiplap/postmortem/plan_alignment_internal.h"

namespace shiplap::postmortem {
namespace {

constexpr std::size_t kTail = 256;     // calls of the dump
constexpr std::ptrdiff_t kAnchor = 3;  // calls in order that show where in the plan a rank is
constexpr std::ptrdiff_t kPhase = 3;   // more differences in a row, and then none: not planned
constexpr std::size_t kMinTail = 16;
constexpr std::size_t kMaxLengths = 32;  // of a step, that are tried
constexpr std::size_t kMaxCells = 64'000'000;

// What kind of call it is, by any of its names.
enum class Kind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  barrier,
  exchange,  // all_to_all, gather, scatter: sizes may differ from rank to rank
  send,
  receive,
  other,
};

Kind kind_of(std::string_view operation) {
  static constexpr std::array<std::pair<std::string_view, Kind>, 14> kNames{{
      {"barrier", Kind::barrier},  // before all_reduce: "all_reduce_barrier"
      {"all_reduce", Kind::all_reduce},
      {"allreduce", Kind::all_reduce},
      {"all_gather", Kind::all_gather},
      {"allgather", Kind::all_gather},
      {"reduce_scatter", Kind::reduce_scatter},
      {"broadcast", Kind::broadcast},
      {"all_to_all", Kind::exchange},
      {"alltoall", Kind::exchange},
      {"gather", Kind::exchange},
      {"scatter", Kind::exchange},
      {"reduce", Kind::reduce},
      {"send", Kind::send},
      {"recv", Kind::receive},
  }};
  for (const auto& [name, kind] : kNames) {
    if (operation.find(name) != operation.npos) return kind;
  }
  return Kind::other;
}

Kind kind_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return Kind::all_reduce;
    case CollectiveKind::all_gather:
      return Kind::all_gather;
    case CollectiveKind::reduce_scatter:
      return Kind::reduce_scatter;
    case CollectiveKind::all_to_all:
      return Kind::exchange;
    case CollectiveKind::broadcast:
      return Kind::broadcast;
    case CollectiveKind::reduce:
      return Kind::reduce;
    case CollectiveKind::barrier:
      return Kind::barrier;
  }
  return Kind::other;
}

// Bytes of an element by the name that torch dumps; 0: unknown.
std::int64_t element_bytes(std::string_view type) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 16> kTypes{{
      {"Float8", 1},
      {"Float", 4},
      {"BFloat16", 2},
      {"Half", 2},
      {"Double", 8},
      {"Long", 8},
      {"Int", 4},
      {"Short", 2},
      {"Char", 1},
      {"Byte", 1},
      {"Bool", 1},
      {"ComplexFloat", 8},
      {"ComplexDouble", 16},
      {"UInt16", 2},
      {"UInt32", 4},
      {"UInt64", 8},
  }};
  for (const auto& [name, bytes] : kTypes) {
    if (type.starts_with(name)) return bytes;
  }
  return 0;
}

using Ranks = std::vector<std::int32_t>;

// A call, of a dump or of the plan, as far as they can be compared.
struct Token {
  Kind kind = Kind::other;
  std::int32_t peer = -1;   // of a message
  std::int32_t group = -1;  // in Alignment::groups_; -1: unknown
  std::int64_t bytes = -1;  // that the rank passes in; -1: not compared
  std::int32_t index = -1;  // of the unit, or of the operation
  [[nodiscard]] auto compared() const { return std::tuple(kind, peer, group, bytes); }
};

[[nodiscard]] bool is_message(const Token& token) {
  return token.kind == Kind::send || token.kind == Kind::receive;
}

class Alignment {
 public:
  Alignment(const plan::Plan& plan, const Progress& progress, std::int32_t rank)
      : plan_(plan), progress_(progress), rank_(rank), program_(expand(plan, Rank{rank})) {
    const bool has_messages = progress.dump(rank)->library != "gloo";  // it does not record them
    read_dump(has_messages);
    read_plan(has_messages);
  }

  std::optional<PlannedPosition> run() {
    if (calls_.empty() || planned_.empty()) return std::nullopt;
    const std::size_t tail = std::max(kMinTail, kMaxCells / (planned_.size() + 1));
    if (calls_.size() > std::min(tail, kTail)) {
      calls_.erase(calls_.begin(),
                   calls_.end() - static_cast<std::ptrdiff_t>(std::min(tail, kTail)));
    }
    find_step();
    align();
    trace_back();
    return position();
  }

 private:
  // ------------------------------------------------------------------------- tokens

  std::int32_t group_of(Ranks ranks) {
    std::ranges::sort(ranks);
    return groups_.try_emplace(std::move(ranks), static_cast<std::int32_t>(groups_.size()))
        .first->second;
  }

  void read_dump(bool has_messages) {
    const dump::RankDump& dump = *progress_.dump(rank_);
    const dump::JobDump& job = progress_.job();
    const std::vector<Unit>& units = progress_.units(rank_);
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (std::int32_t k = units[u].first; k <= units[u].last; ++k) {
        const dump::Call& call = dump.calls[at(k)];
        const dump::Signature& signature = job.signatures[call.signature];
        if (call.kind == dump::CallKind::batch) continue;
        Token token{.kind = kind_of(signature.operation),
                    .peer = call.peer,
                    .index = static_cast<std::int32_t>(u)};
        if (is_message(token) && !has_messages) continue;
        const Ranks& ranks = job.groups[call.group].ranks;
        if (!ranks.empty()) token.group = group_of(ranks);
        token.bytes = bytes_of(signature);
        if (token.kind == Kind::exchange || token.kind == Kind::barrier) token.bytes = -1;
        calls_.push_back(token);
      }
    }
  }

  // Of the tensors passed in; those of a receive are passed in as outputs.
  static std::int64_t bytes_of(const dump::Signature& signature) {
    const bool has_inputs = !signature.input_types.empty();
    const auto& types = has_inputs ? signature.input_types : signature.output_types;
    const auto& sizes = has_inputs ? signature.input_sizes : signature.output_sizes;
    const std::int64_t bytes = types.empty() ? 0 : element_bytes(types.front());
    const std::int64_t count = elements(sizes);
    return bytes == 0 || count < 0 || count > (std::int64_t{1} << 50U) ? -1 : count * bytes;
  }

  void read_plan(bool has_messages) {
    for (std::size_t k = 0; k < program_.operations.size(); ++k) {
      const plan::flat::Operation& op = program_.operations[k];
      Token token{.peer = -1, .index = static_cast<std::int32_t>(k)};
      const plan::Action& action = op.source->action;
      if (const auto* collective = std::get_if<plan::Collective>(&action)) {
        token.kind = kind_of(collective->kind);
      } else if (std::holds_alternative<plan::Exchange>(action)) {
        token.kind = Kind::exchange;
      } else if (std::holds_alternative<plan::Send>(action)) {
        token.kind = Kind::send;
      } else if (std::holds_alternative<plan::Receive>(action)) {
        token.kind = Kind::receive;
      } else {
        continue;
      }
      if (is_message(token)) {
        if (!has_messages) continue;
        token.peer = static_cast<std::int32_t>(op.peer.value);
      } else {
        token.group = group_of(members(op));
      }
      const plan::flat::Region& region =
          token.kind == Kind::receive || !op.from.buffer.exists() ? op.to : op.from;
      token.bytes = program_.bytes_of(region);
      if (token.kind == Kind::exchange || token.kind == Kind::barrier) token.bytes = -1;
      planned_.push_back(token);
    }
  }

  [[nodiscard]] Ranks members(const plan::flat::Operation& op) const {
    const plan::RankSet& set = program_.groups[op.group].ranks;
    Ranks ranks;
    for (std::int64_t k = 0; k < set.size(); ++k) {
      ranks.push_back(static_cast<std::int32_t>(set[k].value));
    }
    return ranks;
  }

  // ---------------------------------------------------------------------- alignment

  using Score = std::int32_t;
  static constexpr Score kEqual = 4;
  static constexpr Score kOtherSize = 1;
  static constexpr Score kOtherGroup = 0;
  static constexpr Score kUnrelated = -6;  // more than one of either
  static constexpr Score kOneOfEither = -2;
  static constexpr Score kJump = -12;
  static constexpr Score kLateStart = -1;

  static Score score(const Token& a, const Token& b) {
    if (a.kind != b.kind) return kUnrelated;
    const bool same_group =
        is_message(a) ? a.peer == b.peer || a.peer < 0 : a.group == b.group || a.group < 0;
    const bool same_size = a.bytes == b.bytes || a.bytes < 0 || b.bytes < 0;
    if (same_group) return same_size ? kEqual : kOtherSize;
    return same_size ? kOtherGroup : kUnrelated;
  }

  enum class Move : std::uint8_t { start, pair, extra, skip, again, jump };

  [[nodiscard]] Move& move(std::size_t i, std::size_t j) {
    return moves_[i * (planned_.size() + 1) + j];
  }

  // The step: the longest block that is repeated at once, by the distances of a call that is rare.
  void find_step() {
    std::map<decltype(Token().compared()), std::vector<std::size_t>> places;
    for (std::size_t k = 0; k < planned_.size(); ++k) {
      places[planned_[k].compared()].push_back(k);
    }
    const std::vector<std::size_t>* rarest = nullptr;
    for (const auto& [token, at] : places) {
      if (at.size() > 1 && (rarest == nullptr || at.size() < rarest->size())) rarest = &at;
    }
    if (rarest == nullptr) return;
    std::set<std::size_t> lengths;
    for (std::size_t k = 1; k < rarest->size() && lengths.size() < kMaxLengths; ++k) {
      lengths.insert((*rarest)[k] - (*rarest)[k - 1]);
    }
    for (const std::size_t length : lengths) {
      std::size_t equal = 0;
      for (std::size_t k = length; k < planned_.size(); ++k) {
        const bool same = planned_[k].compared() == planned_[k - length].compared();
        equal = same ? equal + 1 : 0;
        if (equal >= length) step_ = {.begin = k + 1 - length, .end = k + 1};
      }
    }
  }

  // Row i: after i calls; column j: after j operations.
  void align() {
    const std::size_t width = planned_.size() + 1;
    moves_.assign((calls_.size() + 1) * width, Move::start);
    jump_from_.assign(calls_.size() + 1, 0);
    // A dump with all calls begins where the plan does, unless it does not fit there.
    scores_.assign(width, progress_.dump(rank_)->evicted ? 0 : kLateStart);
    scores_[0] = 0;
    std::vector<Score> row(width);
    for (std::size_t i = 1; i <= calls_.size(); ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        row[j] = scores_[j] + kOneOfEither;
        move(i, j) = Move::extra;
        if (j == 0) continue;
        const Score paired = scores_[j - 1] + score(calls_[i - 1], planned_[j - 1]);
        if (paired >= row[j]) {
          row[j] = paired;
          move(i, j) = Move::pair;
        }
        // Of several equal operations, any may be the skipped one: the last.
        if (row[j - 1] + kOneOfEither >= row[j]) {
          row[j] = row[j - 1] + kOneOfEither;
          move(i, j) = Move::skip;
        }
      }
      begin_again(i, row);
      const auto best = std::ranges::max_element(row);
      jump_from_[i] = static_cast<std::size_t>(best - row.begin());
      const Score landed = *best + kJump;
      for (std::size_t j = 0; j < width; ++j) {
        if (row[j] >= landed) continue;
        row[j] = landed;
        move(i, j) = Move::jump;
      }
      scores_.swap(row);
    }
  }

  // From the end of the step to its beginning.
  void begin_again(std::size_t i, std::vector<Score>& row) {
    if (step_.end == 0 || row[step_.end] <= row[step_.begin]) return;
    row[step_.begin] = row[step_.end];
    move(i, step_.begin) = Move::again;
    for (std::size_t j = step_.begin + 1; row[j - 1] + kOneOfEither > row[j] && j < step_.end;
         ++j) {
      row[j] = row[j - 1] + kOneOfEither;
      move(i, j) = Move::skip;
    }
  }

  // A call, an operation, or both.
  struct Pair {
    std::int32_t call = -1;
    std::int32_t operation = -1;  // in planned_
    std::int32_t next = 0;        // the operation after it
  };

  // Equal scores are of equal steps of the plan: the last one is the steady state.
  void trace_back() {
    std::size_t j = 0;
    for (std::size_t k = 0; k < scores_.size(); ++k) {
      if (scores_[k] >= scores_[j]) j = k;
    }
    for (std::size_t i = calls_.size(); i > 0;) {
      const auto next = static_cast<std::int32_t>(j);
      switch (move(i, j)) {
        case Move::start:
          return;
        case Move::pair:
          --i;
          --j;
          pairs_.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(j), next});
          break;
        case Move::extra:
          --i;
          pairs_.push_back({static_cast<std::int32_t>(i), -1, next});
          break;
        case Move::skip:
          --j;
          pairs_.push_back({-1, static_cast<std::int32_t>(j), next});
          break;
        case Move::again:
          j = step_.end;
          break;
        case Move::jump:
          j = jump_from_[i];
          break;
      }
    }
  }

  // ------------------------------------------------------------------------- answer

  [[nodiscard]] bool is_equal(const Pair& pair) const {
    return pair.call >= 0 && pair.operation >= 0 &&
           score(calls_[at(pair.call)], planned_[at(pair.operation)]) == kEqual;
  }
  [[nodiscard]] bool is_complete(const Pair& pair) const {
    return pair.call >= 0 && progress_.units(rank_)[at(calls_[at(pair.call)].index)].complete;
  }

  // pairs_ has the last step first.
  PlannedPosition position() {
    PlannedPosition position{.rank = rank_};
    const auto equal = std::ranges::count_if(pairs_, [&](const Pair& p) { return is_equal(p); });
    position.fit = static_cast<double>(equal) / static_cast<double>(calls_.size());
    const auto differs = [&](const Pair& p) { return !is_equal(p); };
    auto here = std::ranges::find_if(pairs_, differs);
    const auto last = here;
    while (here != pairs_.end() && std::next(here) != pairs_.end() && differs(*std::next(here))) {
      ++here;  // the first of several in a row
    }
    const auto before = std::count_if(here, pairs_.end(), std::not_fn(differs));
    const bool is_phase = last != pairs_.begin() && here - last >= kPhase;
    if (before < kAnchor || is_phase) return follows(std::move(position));
    position.relation = here->call < 0        ? PlannedPosition::Relation::skips
                        : here->operation < 0 ? PlannedPosition::Relation::adds
                                              : PlannedPosition::Relation::changes;
    auto call = here;
    while (call->call < 0 && call != pairs_.begin()) --call;  // what it does instead
    if (call->call >= 0) position.call = site(call->call);
    position.next = here->operation >= 0 ? planned_call(here->operation) : call_after(here->next);
    if (std::next(here) != pairs_.end()) position.done = planned_call(std::next(here)->operation);
    return position;
  }

  PlannedPosition follows(PlannedPosition position) {
    const auto complete =
        std::ranges::find_if(pairs_, [&](const Pair& p) { return is_complete(p); });
    if (complete != pairs_.end()) position.done = planned_call(complete->operation);
    if (complete == pairs_.begin()) {
      position.next = call_after(complete->next);
    } else {
      const Pair& pending = *std::prev(complete);
      position.next = next_of(pending);
      if (pending.call >= 0) position.call = site(pending.call);
    }
    return position;
  }

  [[nodiscard]] CallSite site(std::int32_t call) const {
    return call_site(progress_, rank_, calls_[at(call)].index);
  }

  // What the plan has there.
  [[nodiscard]] PlannedCall next_of(const Pair& pair) const {
    return pair.operation >= 0 ? planned_call(pair.operation) : call_after(pair.next);
  }
  // After a step comes the next one.
  [[nodiscard]] PlannedCall call_after(std::int32_t index) const {
    const bool ends_step = step_.end > 0 && at(index) == step_.end;
    return planned_call(ends_step ? static_cast<std::int32_t>(step_.begin) : index);
  }

  // None after the last operation.
  [[nodiscard]] PlannedCall planned_call(std::int32_t index) const {
    if (index < 0 || index >= std::ssize(planned_)) return {};
    const Token& token = planned_[at(index)];
    const plan::flat::Operation& op = program_.operations[at(token.index)];
    PlannedCall call{.operation = token.index,
                     .what = std::string(plan::keyword(op.source->action))};
    if (!op.source->label.empty()) call.what += " " + op.source->label;
    if (token.bytes > 0) call.what += fmt::format(" of {} bytes", token.bytes);
    if (!is_message(token)) {
      Ranks ranks = members(op);
      std::ranges::sort(ranks);
      call.what += fmt::format(" over {{{}}}", format_ranks(ranks));
    } else {
      call.what += fmt::format(" {} rank {}", token.kind == Kind::send ? "to" : "from", token.peer);
    }
    const Where where = plan::where_of(plan_, *op.source);
    call.frame = {.function = where.function, .file = where.file, .line = where.line};
    return call;
  }

  const plan::Plan& plan_;
  const Progress& progress_;
  std::int32_t rank_;
  plan::RankProgram program_;
  std::map<Ranks, std::int32_t> groups_;
  std::vector<Token> calls_;
  std::vector<Token> planned_;
  struct Step {
    std::size_t begin = 0;
    std::size_t end = 0;  // 0: there is none
  } step_;                // in planned_
  std::vector<Move> moves_;
  std::vector<std::size_t> jump_from_;  // by row
  std::vector<Score> scores_;           // of the last row
  std::vector<Pair> pairs_;
};

}  // namespace

std::optional<PlannedPosition> planned_position(const plan::Plan& plan, const Progress& progress,
                                                std::int32_t rank) {
  if (progress.dump(rank) == nullptr || rank >= plan.mesh.ranks()) return std::nullopt;
  return Alignment(plan, progress, rank).run();
}

}  // namespace shiplap::postmortem
