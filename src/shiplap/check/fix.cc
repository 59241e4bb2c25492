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

constexpr int kMostRounds = 8;
constexpr std::size_t kMostPairs = 8;                  // of a circle; they are alike
constexpr std::int64_t kMostChecks = 200;              // in all
constexpr std::int64_t kMostOperations = 100'000'000;  // looked at, in all
constexpr std::int64_t kMostUnrolled = 200'000;        // operations: nobody reads more

bool is_deadlock(const Finding& finding) {
  const std::string& code = finding.diagnostic.code;
  return code == "D720" || code == "D721" || code == "D723";
}
bool is_order(const Finding& finding) {
  return finding.diagnostic.code == "D708" || finding.diagnostic.code == "D714";
}

// Two operations of one rank that should be in the other order.
struct Pair {
  std::int32_t rank = -1;
  std::int32_t first = -1;
  std::int32_t second = -1;
};

// The ranks of a plan, expanded when they are needed.
class Ranks {
 public:
  explicit Ranks(const plan::Plan& plan) : plan_(plan) {}

  const plan::RankProgram& operator[](std::int32_t rank) {
    auto found = programs_.find(rank);
    if (found == programs_.end()) {
      found = programs_.emplace(rank, plan::expand(plan_, Rank(rank))).first;
    }
    return found->second;
  }
  const plan::flat::Operation& operation(Place place) {
    return (*this)[place.rank].operations[place.operation];
  }

  // The operation, or the batch whose member it is.
  std::int32_t whole(Place place) {
    if (place.operation < 0) return -1;
    const std::int32_t batch = operation(place).batch;
    return batch < 0 ? place.operation : batch;
  }

  // What an operation meets on another rank; -1: nothing.
  std::int32_t met_by(Place place, std::int32_t other) {
    std::int64_t n = 0;
    for (std::int32_t k = 0; k < place.operation; ++k) {
      if (counts_with({place.rank, k}, place)) ++n;
    }
    const auto& operations = (*this)[other].operations;
    for (std::int32_t k = 0; k < std::ssize(operations); ++k) {
      if (meets({other, k}, place) && n-- == 0) return k;
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
  bool same_group(Place a, Place b) {
    const plan::flat::GroupId x = operation(a).group;
    const plan::flat::GroupId y = operation(b).group;
    return x.exists() && y.exists() && (*this)[a.rank].groups[x] == (*this)[b.rank].groups[y];
  }
  bool counts_with(Place a, Place b) {
    const auto& x = operation(a);
    const auto& y = operation(b);
    if (channel(y) == nullptr) return same_group(a, b);
    return x.source->action.index() == y.source->action.index() && x.peer == y.peer &&
           x.tag == y.tag && *channel(x) == *channel(y);
  }
  bool meets(Place a, Place b) {
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

// On each rank of a circle: in what it waits, and what the rank before waits for, which comes
// later.
std::vector<Pair> pairs_of(const Finding& finding, Ranks& ranks) {
  std::vector<Pair> pairs;
  const std::vector<Place>& witness = finding.witness;
  if (is_order(finding) && witness.size() >= 2 && witness[0].rank == witness[1].rank) {
    const auto [first, second] = std::minmax(witness[0].operation, witness[1].operation);
    if (first >= 0) pairs.push_back({witness[0].rank, first, second});
  }
  if (!is_deadlock(finding)) return pairs;
  for (std::size_t k = 0; k < witness.size() && pairs.size() < kMostPairs; ++k) {
    const Place before = witness[(k + witness.size() - 1) % witness.size()];
    const std::int32_t rank = witness[k].rank;
    const std::int32_t first = ranks.whole(witness[k]);
    const std::int32_t second = ranks.whole({rank, ranks.met_by(before, rank)});
    if (first >= 0 && first < second) pairs.push_back({rank, first, second});
  }
  return pairs;
}

std::string title(const plan::Operation& operation) {
  const std::string name = operation.name.name.empty() ? "" : operation.name.name + ": ";
  const std::string line =
      operation.origin.line > 0 ? fmt::format(" (line {})", operation.origin.line) : "";
  return fmt::format("`{}{}`{}", name, plan::word(operation.action), line);
}

// All that can be done about one pair.
class Changes {
 public:
  Changes(const plan::Plan& plan, Ranks& ranks, const Pair& pair)
      : plan_(plan), ranks_(ranks), pair_(pair) {
    two_ = {.first = spot(pair.first), .second = spot(pair.second)};
    first_ = title(operation_at(plan_, two_.first));
    second_ = title(operation_at(plan_, two_.second));
    runners_ = runners();
    if (alone()) where_ = fmt::format(", on rank {}", pair.rank);
  }

  std::optional<Fix> earlier() const {
    return made(second_before_first(plan_, two_),
                fmt::format("{} before {}{}", second_, first_, where_));
  }
  std::optional<Fix> later() const {
    if (are_neighbours(two_)) return std::nullopt;
    return made(first_after_second(plan_, two_),
                fmt::format("{} after {}{}", first_, second_, where_));
  }
  std::optional<Fix> exchange() const {
    return made(exchanged(plan_, two_),
                fmt::format("{} and {} exchanged{}", first_, second_, where_));
  }
  std::optional<Fix> batch() const {
    return made(in_one_batch(plan_, two_),
                fmt::format("{} and {} in one batch{}", first_, second_, where_));
  }
  std::optional<Fix> earlier_here() const {
    if (alone()) return std::nullopt;
    const auto [only, words] = here();
    return made(second_before_first(plan_, two_, only),
                fmt::format("{} before {} where {}", second_, first_, words));
  }
  std::optional<Fix> exchange_here() const {
    if (alone()) return std::nullopt;
    const auto [only, words] = here();
    return made(exchanged(plan_, two_, only),
                fmt::format("{} and {} exchanged where {}", first_, second_, words));
  }
  std::optional<Fix> async() const {
    const plan::Operation& send = operation_at(plan_, two_.first);
    const bool indexed = !std::ranges::all_of(
        send.name.indices, [](const plan::Expr& index) { return index.is_literal(); });
    if (!std::holds_alternative<plan::Send>(send.action) || send.async || indexed ||
        is_in_loop(plan_, two_.first)) {
      return std::nullopt;
    }
    const std::optional<std::vector<Spot>> then = next_writers(send);
    if (!then) return std::nullopt;
    std::string what = fmt::format("{} async{}", first_, where_);
    for (const Spot& spot : *then) {
      what += fmt::format(", {} after it", title(operation_at(plan_, spot)));
    }
    return Fix{.plan = with_async(plan_, two_.first, *then), .what = std::move(what)};
  }

 private:
  static constexpr std::int64_t kMostRunners = 64;

  static std::optional<Fix> made(std::optional<plan::Plan> plan, std::string what) {
    if (!plan) return std::nullopt;
    return Fix{.plan = *std::move(plan), .what = std::move(what)};
  }

  [[nodiscard]] Spot spot(std::int32_t operation) const {
    return spot_of(plan_, *ranks_.operation({pair_.rank, operation}).source);
  }

  [[nodiscard]] std::vector<std::int32_t> runners() const {
    std::vector<std::int32_t> result;
    const plan::Selector& on = plan_.programs[two_.first.program].on;
    for (std::int32_t rank = 0; rank < plan_.mesh.ranks(); ++rank) {
      if (plan::selects(on, plan_.mesh, Rank(rank))) result.push_back(rank);
    }
    return result;
  }
  [[nodiscard]] bool alone() const { return runners_.size() == 1; }

  // Where it is a matter of an axis, all that stand there alike do the same.
  [[nodiscard]] std::pair<Only, std::string> here() const {
    const plan::Action& action = operation_at(plan_, two_.first).action;
    plan::AxisId axis;
    if (const auto* send = std::get_if<plan::Send>(&action)) axis = send->peer.axis;
    if (const auto* receive = std::get_if<plan::Receive>(&action)) axis = receive->peer.axis;
    if (!axis.exists()) {
      return {{.where = plan::Expr::rank(), .is = pair_.rank}, fmt::format("rank={}", pair_.rank)};
    }
    const std::int64_t at = plan_.mesh.positions(Rank(pair_.rank))[axis.index()];
    return {{.where = plan::Expr::axis(axis), .is = at},
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

  // What changes the rows of a send next, on any rank that runs it. None: too many to look.
  [[nodiscard]] std::optional<std::vector<Spot>> next_writers(const plan::Operation& send) const {
    if (std::ssize(runners_) > kMostRunners) return std::nullopt;
    std::vector<Spot> result;
    for (const std::int32_t rank : runners_) {
      const plan::RankProgram& program = ranks_[rank];
      const auto& operations = program.operations;
      const auto sent = std::ranges::find(operations, &send, &plan::flat::Operation::source);
      if (sent == operations.end()) continue;
      const auto next = std::find_if(sent + 1, operations.end(), [&](const auto& op) {
        return writes(program, op, sent->from);
      });
      if (next == operations.end()) continue;
      const auto& whole = next->batch < 0 ? *next : operations[next->batch];
      const Spot found = spot_of(plan_, *whole.source);
      if (std::ranges::find(result, found) == result.end()) result.push_back(found);
    }
    return result;
  }

  const plan::Plan& plan_;
  Ranks& ranks_;
  Pair pair_;
  Two two_;
  std::vector<std::int32_t> runners_;  // of the program
  std::string first_;
  std::string second_;
  std::string where_;
};

using FixMethod = std::optional<Fix> (Changes::*)() const;

// The least change of the text first.
std::vector<FixMethod> ways_for(const Finding& finding) {
  if (is_order(finding)) return {&Changes::exchange, &Changes::exchange_here};
  return {&Changes::earlier, &Changes::later, &Changes::batch, &Changes::earlier_here,
          &Changes::async};
}

class Search {
 public:
  explicit Search(const Options& options) : options_(options) {}

  std::optional<Fix> run(const plan::Plan& plan, const Report& report, int rounds) {
    if (report.sound() || rounds == 0) return std::nullopt;
    const Finding& finding = report.findings.front();
    if (!is_deadlock(finding) && !is_order(finding)) return std::nullopt;
    if (std::optional<Fix> fix = run(plan, finding, rounds)) return fix;
    if (report.operations > kMostUnrolled) return std::nullopt;
    const plan::Plan unrolled = plan::unrolled(plan);
    if (unrolled == plan) return std::nullopt;
    std::optional<Fix> fix = run(unrolled, finding, rounds);
    if (fix) fix->what += "; the plan is unrolled";
    return fix;
  }

 private:
  // An operation has the same place in the plan unrolled, so a finding holds for both.
  std::optional<Fix> run(const plan::Plan& plan, const Finding& finding, int rounds) {
    Ranks ranks(plan);
    std::vector<Changes> changes;
    for (const Pair& pair : pairs_of(finding, ranks)) changes.emplace_back(plan, ranks, pair);
    std::optional<Fix> nearer;
    Report left;
    for (const FixMethod way : ways_for(finding)) {
      for (const Changes& change : changes) {
        std::optional<Fix> fix = (change.*way)();
        if (!fix) continue;
        const std::optional<Report> report = judged(fix->plan);
        if (!report || !same_data_flow(plan, fix->plan)) continue;
        if (report->sound()) return fix;
        if (nearer || !is_nearer(report->findings.front(), finding)) continue;
        nearer = std::move(fix);
        left = *report;
      }
    }
    if (!nearer) return std::nullopt;
    std::optional<Fix> rest = run(nearer->plan, left, rounds - 1);
    if (rest) rest->what = nearer->what + "; " + rest->what;
    return rest;
  }

  // None: it has no meaning, or enough was tried.
  std::optional<Report> judged(const plan::Plan& plan) {
    if (checks_ >= kMostChecks || operations_ >= kMostOperations) return std::nullopt;
    ++checks_;
    try {
      Report report = check(plan, options_);
      operations_ += report.operations;
      return report;
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  // Fewer ranks are stuck, or those of the circle have come further.
  static bool is_nearer(const Finding& now, const Finding& before) {
    if (is_order(now) && is_order(before)) return now.place != before.place;
    if (!is_deadlock(now)) return false;
    if (!is_deadlock(before)) return true;
    const auto stuck = [](const Finding& finding) {
      return std::ssize(finding.witness) + finding.folded;
    };
    if (stuck(now) != stuck(before)) return stuck(now) < stuck(before);
    const auto least = [](const Finding& finding) {
      return std::ranges::min(finding.witness, {}, &Place::operation).operation;
    };
    return !now.witness.empty() && !before.witness.empty() && least(now) > least(before);
  }

  const Options& options_;
  std::int64_t checks_ = 0;
  std::int64_t operations_ = 0;
};

}  // namespace

std::optional<Fix> fix(const plan::Plan& plan, const Report& report, const Options& options) {
  return Search(options).run(plan, report, kMostRounds);
}

}  // namespace shiplap::check
