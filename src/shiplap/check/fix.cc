// A search for a small change that makes a plan sound.
//
// A wait cycle has on each of its ranks an operation that blocks and a later one that another rank
// of the cycle waits for. Swapping the two on one rank breaks the cycle. So for each such pair a
// few rewrites are tried, the smallest change of the text first: move the second operation up, move
// the first one down, put both into one batch, move it on one rank only, make the send async. Calls
// and messages in the wrong order (D708, D714) are swapped.
//
// No rewrite is trusted: the result is checked again with the same options, and must have the same
// data flow as the plan (data_flow.cc), so that a fix never changes what is computed. If no rewrite
// makes the plan sound, the first one that makes progress is kept (fewer ranks hang, or the cycle
// is later in the program) and the search continues with the next finding, up to eight times. If
// nothing helps in the plan as written, its loops are unrolled and all is tried once more.
#include "shiplap/check/fix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/check/data_flow_internal.h"
#include "shiplap/check/rewrite_internal.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::check {
namespace {

constexpr int kMaxRounds = 8;
constexpr std::size_t kMaxPairs = 8;                      // of a cycle; they are similar
constexpr std::int64_t kMaxChecks = 200;                  // in all
constexpr std::int64_t kMaxOperations = 100'000'000;      // checked, in all
constexpr std::int64_t kMaxUnrolledOperations = 200'000;  // a larger plan is unreadable

bool is_deadlock(const Finding& finding) {
  const std::string& code = finding.diagnostic.code;
  return code == "D720" || code == "D721" || code == "D723";
}
bool is_order(const Finding& finding) {
  return finding.diagnostic.code == "D708" || finding.diagnostic.code == "D714";
}

// Two operations of one rank that should be in the opposite order.
struct MisorderedPair {
  std::int32_t rank = -1;
  std::int32_t first = -1;
  std::int32_t second = -1;
};

// The ranks of a plan, expanded when they are needed.
class ExpandedRanks {
 public:
  explicit ExpandedRanks(const plan::Plan& plan) : plan_(plan) {}

  const plan::RankProgram& operator[](std::int32_t rank) {
    auto found = programs_.find(rank);
    if (found == programs_.end()) {
      found = programs_.emplace(rank, plan::expand(plan_, Rank(rank))).first;
    }
    return found->second;
  }
  const plan::flat::Operation& operation(OperationId place) {
    return (*this)[place.rank].operations[place.operation];
  }

  // The operation, or the batch whose member it is.
  std::int32_t enclosing_batch(OperationId place) {
    if (place.operation < 0) return -1;
    const std::int32_t batch = operation(place).batch;
    return batch < 0 ? place.operation : batch;
  }

  // The operation of another rank that matches; -1: none.
  std::int32_t matched_by(OperationId place, std::int32_t other) {
    std::int64_t n = 0;
    for (std::int32_t k = 0; k < place.operation; ++k) {
      if (same_sequence({place.rank, k}, place)) ++n;
    }
    const auto& operations = (*this)[other].operations;
    for (std::int32_t k = 0; k < std::ssize(operations); ++k) {
      if (matches({other, k}, place) && n-- == 0) return k;
    }
    return -1;
  }

 private:
  // Of a message; else null.
  static const std::string* channel(const plan::flat::Operation& op) {
    if (const auto* send = std::get_if<plan::Send>(&op.source->action)) return &send->channel;
    const auto* receive = std::get_if<plan::Receive>(&op.source->action);
    return receive == nullptr ? nullptr : &receive->channel;
  }
  bool same_group(OperationId a, OperationId b) {
    const plan::flat::GroupId x = operation(a).group;
    const plan::flat::GroupId y = operation(b).group;
    return x.exists() && y.exists() && (*this)[a.rank].groups[x] == (*this)[b.rank].groups[y];
  }
  bool same_sequence(OperationId a, OperationId b) {
    const auto& x = operation(a);
    const auto& y = operation(b);
    if (channel(y) == nullptr) return same_group(a, b);
    return x.source->action.index() == y.source->action.index() && x.peer == y.peer &&
           x.tag == y.tag && *channel(x) == *channel(y);
  }
  bool matches(OperationId a, OperationId b) {
    const auto& x = operation(a);
    const auto& y = operation(b);
    if (channel(y) == nullptr) return same_group(a, b);
    return channel(x) != nullptr && x.source->action.index() != y.source->action.index() &&
           x.peer.value == b.rank && y.peer.value == a.rank && x.tag == y.tag &&
           *channel(x) == *channel(y);
  }

  const plan::Plan& plan_;
  std::map<std::int32_t, plan::RankProgram> programs_;
};

// On each rank of a cycle: the operation that blocks, and the later one that the rank before waits
// for.
std::vector<MisorderedPair> pairs_of(const Finding& finding, ExpandedRanks& ranks) {
  std::vector<MisorderedPair> pairs;
  const std::vector<OperationId>& witness = finding.witness;
  if (is_order(finding) && witness.size() >= 2 && witness[0].rank == witness[1].rank) {
    const auto [first, second] = std::minmax(witness[0].operation, witness[1].operation);
    if (first >= 0) pairs.push_back({witness[0].rank, first, second});
  }
  if (!is_deadlock(finding)) return pairs;
  for (std::size_t k = 0; k < witness.size() && pairs.size() < kMaxPairs; ++k) {
    const OperationId before = witness[(k + witness.size() - 1) % witness.size()];
    const std::int32_t rank = witness[k].rank;
    const std::int32_t first = ranks.enclosing_batch(witness[k]);
    const std::int32_t second = ranks.enclosing_batch({rank, ranks.matched_by(before, rank)});
    if (first >= 0 && first < second) pairs.push_back({rank, first, second});
  }
  return pairs;
}

std::string describe(const plan::Operation& operation) {
  const std::string name = operation.name.name.empty() ? "" : operation.name.name + ": ";
  const std::string line =
      operation.origin.line > 0 ? fmt::format(" (line {})", operation.origin.line) : "";
  return fmt::format("`{}{}`{}", name, plan::keyword(operation.action), line);
}

// The candidate fixes for one pair.
class CandidateFixes {
 public:
  CandidateFixes(const plan::Plan& plan, ExpandedRanks& ranks, const MisorderedPair& pair)
      : plan_(plan), ranks_(ranks), pair_(pair) {
    paths_ = {.first = path_of(pair.first), .second = path_of(pair.second)};
    first_ = describe(operation_at(plan_, paths_.first));
    second_ = describe(operation_at(plan_, paths_.second));
    runners_ = runners();
    if (alone()) where_ = fmt::format(", on rank {}", pair.rank);
  }

  std::optional<Fix> earlier() const {
    return made(second_before_first(plan_, paths_),
                fmt::format("{} before {}{}", second_, first_, where_));
  }
  std::optional<Fix> later() const {
    if (are_adjacent(paths_)) return std::nullopt;
    return made(first_after_second(plan_, paths_),
                fmt::format("{} after {}{}", first_, second_, where_));
  }
  std::optional<Fix> swap() const {
    return made(swapped(plan_, paths_),
                fmt::format("{} and {} swapped{}", first_, second_, where_));
  }
  std::optional<Fix> batch() const {
    return made(batched(plan_, paths_),
                fmt::format("{} and {} in one batch{}", first_, second_, where_));
  }
  std::optional<Fix> earlier_here() const {
    if (alone()) return std::nullopt;
    const auto [condition, text] = here();
    return made(second_before_first(plan_, paths_, condition),
                fmt::format("{} before {} where {}", second_, first_, text));
  }
  std::optional<Fix> swap_here() const {
    if (alone()) return std::nullopt;
    const auto [condition, text] = here();
    return made(swapped(plan_, paths_, condition),
                fmt::format("{} and {} swapped where {}", first_, second_, text));
  }
  std::optional<Fix> async() const {
    const plan::Operation& send = operation_at(plan_, paths_.first);
    if (!std::holds_alternative<plan::Send>(send.action) || send.async) return std::nullopt;
    const bool indexed = !std::ranges::all_of(
        send.name.indices, [](const plan::Expr& index) { return index.is_literal(); });
    const std::optional<std::vector<StatementPath>> then = next_writers(send);
    // Which iteration of a loop a writer must wait for is not known: unrolled, it is.
    const bool repeated = indexed || is_in_loop(plan_, paths_.first);
    if (!then || (repeated && !then->empty())) return std::nullopt;
    std::string what = fmt::format("{} async{}", first_, where_);
    for (const StatementPath& path : *then) {
      what += fmt::format(", {} after it", describe(operation_at(plan_, path)));
    }
    return Fix{.plan = with_async(plan_, paths_.first, *then), .what = std::move(what)};
  }

 private:
  static constexpr std::int64_t kMaxRunners = 64;

  static std::optional<Fix> made(std::optional<plan::Plan> plan, std::string what) {
    if (!plan) return std::nullopt;
    return Fix{.plan = *std::move(plan), .what = std::move(what)};
  }

  [[nodiscard]] StatementPath path_of(std::int32_t operation) const {
    return find_statement(plan_, *ranks_.operation({pair_.rank, operation}).source);
  }

  [[nodiscard]] std::vector<std::int32_t> runners() const {
    std::vector<std::int32_t> result;
    const plan::Selector& on = plan_.programs[paths_.first.program].on;
    for (std::int32_t rank = 0; rank < plan_.mesh.ranks(); ++rank) {
      if (plan::selects(on, plan_.mesh, Rank(rank))) result.push_back(rank);
    }
    return result;
  }
  [[nodiscard]] bool alone() const { return runners_.size() == 1; }

  // For a peer on an axis, the condition holds for all ranks at that position of the axis.
  [[nodiscard]] std::pair<RankCondition, std::string> here() const {
    const plan::Action& action = operation_at(plan_, paths_.first).action;
    plan::AxisId axis;
    if (const auto* send = std::get_if<plan::Send>(&action)) axis = send->peer.axis;
    if (const auto* receive = std::get_if<plan::Receive>(&action)) axis = receive->peer.axis;
    if (!axis.exists()) {
      return {{.expression = plan::Expr::rank(), .value = pair_.rank},
              fmt::format("rank={}", pair_.rank)};
    }
    const std::int64_t at = plan_.mesh.positions(Rank(pair_.rank))[axis.index()];
    return {{.expression = plan::Expr::axis(axis), .value = at},
            fmt::format("{}={}", plan_.mesh.name(axis), at)};
  }

  static bool overlap(const plan::flat::Region& a, const plan::flat::Region& b) {
    if (!a.buffer.exists() || a.buffer != b.buffer) return false;
    if (a.listed >= 0 || b.listed >= 0) return true;
    return a.begin < b.begin + b.count && b.begin < a.begin + a.count;
  }
  static bool writes(const plan::RankProgram& program, const plan::flat::Operation& op,
                     const plan::flat::Region& rows) {
    const plan::Action& action = op.source->action;
    const bool ends = std::holds_alternative<plan::Free>(action) ||
                      std::holds_alternative<plan::Allocate>(action);
    if (overlap(op.to, rows) || (ends && overlap(op.from, rows))) return true;
    return std::ranges::any_of(program.accesses_of(op), [&](const plan::flat::Access& access) {
      return access.kind != plan::Access::Kind::reads && overlap(access.region, rows);
    });
  }

  // The next operations that write the rows of a send, in each iteration, on any rank that runs it.
  // None: too many ranks.
  [[nodiscard]] std::optional<std::vector<StatementPath>> next_writers(
      const plan::Operation& send) const {
    if (std::ssize(runners_) > kMaxRunners) return std::nullopt;
    std::vector<StatementPath> result;
    for (const std::int32_t rank : runners_) {
      const plan::RankProgram& program = ranks_[rank];
      const auto& operations = program.operations;
      for (auto sent = operations.begin(); sent != operations.end(); ++sent) {
        if (sent->source != &send) continue;
        const auto next = std::find_if(sent + 1, operations.end(), [&](const auto& op) {
          return writes(program, op, sent->from);
        });
        if (next == operations.end()) continue;
        const auto& whole = next->batch < 0 ? *next : operations[next->batch];
        const StatementPath found = find_statement(plan_, *whole.source);
        if (std::ranges::find(result, found) == result.end()) result.push_back(found);
      }
    }
    return result;
  }

  const plan::Plan& plan_;
  ExpandedRanks& ranks_;
  MisorderedPair pair_;
  OperationPair paths_;
  std::vector<std::int32_t> runners_;  // of the program
  std::string first_;
  std::string second_;
  std::string where_;
};

using FixMethod = std::optional<Fix> (CandidateFixes::*)() const;

// The smallest change of the text first.
std::vector<FixMethod> fix_methods(const Finding& finding) {
  if (is_order(finding)) return {&CandidateFixes::swap, &CandidateFixes::swap_here};
  return {&CandidateFixes::earlier, &CandidateFixes::later, &CandidateFixes::batch,
          &CandidateFixes::earlier_here, &CandidateFixes::async};
}

class FixSearch {
 public:
  explicit FixSearch(const Options& options) : options_(options) {}

  std::optional<Fix> run(const plan::Plan& plan, const Report& report, int rounds) {
    if (report.sound() || rounds == 0) return std::nullopt;
    const Finding& finding = report.findings.front();
    if (!is_deadlock(finding) && !is_order(finding)) return std::nullopt;
    if (std::optional<Fix> fix = run(plan, finding, rounds)) return fix;
    if (report.operations > kMaxUnrolledOperations) return std::nullopt;
    const plan::Plan unrolled = plan::unrolled(plan);
    if (unrolled == plan) return std::nullopt;
    std::optional<Fix> fix = run(unrolled, finding, rounds);
    if (fix) fix->what += "; the plan is unrolled";
    return fix;
  }

 private:
  // An operation has the same id in the unrolled plan, so a finding applies to both.
  std::optional<Fix> run(const plan::Plan& plan, const Finding& finding, int rounds) {
    ExpandedRanks ranks(plan);
    std::vector<CandidateFixes> changes;
    for (const MisorderedPair& pair : pairs_of(finding, ranks))
      changes.emplace_back(plan, ranks, pair);
    std::optional<Fix> partial;
    Report left;
    for (const FixMethod method : fix_methods(finding)) {
      for (const CandidateFixes& change : changes) {
        std::optional<Fix> fix = (change.*method)();
        if (!fix) continue;
        const std::optional<Report> report = check_candidate(fix->plan);
        if (!report || !same_data_flow(plan, fix->plan)) continue;
        if (report->sound()) return fix;
        if (partial || !is_progress(report->findings.front(), finding)) continue;
        partial = std::move(fix);
        left = *report;
      }
    }
    if (!partial) return std::nullopt;
    std::optional<Fix> rest = run(partial->plan, left, rounds - 1);
    if (rest) rest->what = partial->what + "; " + rest->what;
    return rest;
  }

  // None: the plan is invalid, or the budget is used up.
  std::optional<Report> check_candidate(const plan::Plan& plan) {
    if (checks_ >= kMaxChecks || operations_ >= kMaxOperations) return std::nullopt;
    ++checks_;
    try {
      Report report = check(plan, options_);
      operations_ += report.operations;
      return report;
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  // Fewer ranks hang, or the cycle is later in the program.
  static bool is_progress(const Finding& now, const Finding& before) {
    if (is_order(now) && is_order(before)) return now.place != before.place;
    if (!is_deadlock(now)) return false;
    if (!is_deadlock(before)) return true;
    const auto stuck = [](const Finding& finding) {
      return std::ssize(finding.witness) + finding.folded;
    };
    if (stuck(now) != stuck(before)) return stuck(now) < stuck(before);
    const auto least = [](const Finding& finding) {
      return std::ranges::min(finding.witness, {}, &OperationId::operation).operation;
    };
    return !now.witness.empty() && !before.witness.empty() && least(now) > least(before);
  }

  const Options& options_;
  std::int64_t checks_ = 0;
  std::int64_t operations_ = 0;
};

}  // namespace

std::optional<Fix> fix(const plan::Plan& plan, const Report& report, const Options& options) {
  return FixSearch(options).run(plan, report, kMaxRounds);
}

}  // namespace shiplap::check
