// Calls on a group that do not match: which rank deviates, and how.
//
// The members of a group must make the same calls in the same order. If they do not, call n of one
// rank meets call n of another, and every call after the first difference mismatches too. So the
// first mismatching call is seldom the cause ("sizes differ in call 12" when rank 3 left out call
// 7). Instead the whole sequences are compared:
//
//   - Calls that match each other (mismatch_between) get the same number, so that a rank's calls
//     are a sequence of numbers. Named calls match only calls of that name.
//   - The sequence that most members share is the model. On a tie the longer one wins: a forgotten
//     call is likelier than an invented one.
//   - Each other sequence is stripped of the prefix and the suffix that it shares with the model.
//     The rest is classified: a missing call, an extra call, two swapped calls, or calls that
//     differ in one property (kind, size, type, operator, root, split).
//
// A call that is extra on one group and missing on another is one finding: it was made on the wrong
// group. Ranks that deviate in the same way are one finding, too.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "shiplap/base/units.h"
#include "shiplap/check/diagnosis_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMaxGroups = 64;

// How the calls of one rank differ from those of most ranks.
struct Deviation {
  enum class Kind : std::uint8_t { missing, extra, differs, swapped };
  Kind kind = Kind::missing;
  std::int32_t group = -1;
  std::int32_t rank = -1;
  std::int32_t operation = -1;  // if missing: the operation that it should precede; -1: the end
  std::int32_t second = -1;     // if swapped: the other one
  OperationId model;            // the call that the other ranks make
  MismatchKind mismatch = MismatchKind::none;
  std::int64_t n = 0;
  std::vector<std::int32_t> alike;  // other ranks that deviate in the same way
};

// The calls of one member. Calls of the group that match have the same number.
using Sequence = std::vector<std::int32_t>;

class GroupComparison {
 public:
  // Matching calls are equal; if `by_rows`, only if they also use the same rows.
  GroupComparison(const Job& job, std::int32_t id, bool by_rows)
      : job_(job), id_(id), by_rows_(by_rows), group_(job.groups[id]) {
    for (const Member& member : group_.members) {
      Sequence sequence;
      std::vector<OperationId> places;
      if (member.slot >= 0) {
        const auto slot = static_cast<std::size_t>(member.slot);
        const std::int32_t rank = job.scripts[group_.scripts[slot]].rank;
        for (const std::int32_t call : group_.calls(slot)) {
          places.push_back({rank, call});
          sequence.push_back(kind_of(places.back()));
        }
      }
      sequences_.push_back(std::move(sequence));
      places_.push_back(std::move(places));
    }
    find_lone();
  }

  [[nodiscard]] std::int32_t id() const { return id_; }
  // How many members follow the model.
  [[nodiscard]] std::int64_t agreeing() const {
    return std::ranges::count(sequences_, most_common());
  }
  [[nodiscard]] const CallGroup& calls() const { return group_; }

  // Members that differ from all others, where the others agree.
  [[nodiscard]] const std::vector<std::size_t>& lone() const { return lone_; }

  // How a rank differs from all others, if the others agree: one missing call, or one extra call.
  [[nodiscard]] std::optional<Deviation> lone_deviation(std::int32_t rank) const {
    const std::int64_t me = group_.ranks().find(Rank(rank));
    if (me < 0) return std::nullopt;
    const std::size_t local = static_cast<std::size_t>(me);
    if (std::ranges::find(lone_, local) == lone_.end()) return std::nullopt;
    const std::size_t model = local == 0 ? 1 : 0;
    std::vector<Deviation> found;
    compare(sequences_[model], places_[model], local, found);
    const bool one = found.size() == 1 && (found.front().kind == Deviation::Kind::missing ||
                                           found.front().kind == Deviation::Kind::extra);
    return one ? std::optional(found.front()) : std::nullopt;
  }

  // Ranks that deviate in the same way are reported by the first of them.
  std::vector<Deviation> deviations() {
    const Sequence model = most_common();
    const auto at = std::ranges::find(sequences_, model) - sequences_.begin();
    std::map<Sequence, std::vector<std::size_t>> alike;
    for (std::size_t k = 0; k < sequences_.size(); ++k) {
      if (sequences_[k] != model) alike[sequences_[k]].push_back(k);
    }
    std::vector<const std::vector<std::size_t>*> sets;
    for (const auto& [sequence, members] : alike) sets.push_back(&members);
    std::ranges::sort(sets, {}, [](const auto* members) { return members->front(); });
    std::vector<Deviation> result;
    for (const std::vector<std::size_t>* members : sets) {
      std::vector<Deviation> found;
      compare(model, places_[at], members->front(), found);
      for (std::size_t k = 1; k < members->size() && !found.empty(); ++k) {
        found.front().alike.push_back(group_.members[(*members)[k]].rank);
      }
      std::ranges::move(found, std::back_inserter(result));
    }
    return result;
  }

 private:
  void find_lone() {
    std::map<Sequence, std::vector<std::size_t>> members;
    for (std::size_t k = 0; k < sequences_.size(); ++k) members[sequences_[k]].push_back(k);
    if (members.size() != 2) return;
    for (const auto& [sequence, some] : members) {
      if (some.size() == 1) lone_.push_back(some.front());
    }
    std::ranges::sort(lone_);
  }

  std::int32_t kind_of(OperationId place) {
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (mismatch_between(job_, kinds_[k], place) == MismatchKind::none &&
          same_place(kinds_[k], place)) {
        return static_cast<std::int32_t>(k);
      }
    }
    kinds_.push_back(place);
    return static_cast<std::int32_t>(kinds_.size()) - 1;
  }

  // Matching calls are distinguished by their names, if both have one.
  bool same_place(OperationId a, OperationId b) const {
    if (by_rows_ && (job_.op(a).from != job_.op(b).from || job_.op(a).to != job_.op(b).to)) {
      return false;
    }
    const plan::Operation& x = *job_.op(a).source;
    const plan::Operation& y = *job_.op(b).source;
    if (x.name.name.empty() || y.name.name.empty()) return true;
    return x.name.name == y.name.name && name_index(a) == name_index(b);
  }
  [[nodiscard]] std::vector<std::int64_t> name_index(OperationId place) const {
    auto found = programs_.find(place.rank);
    if (found == programs_.end()) {
      found = programs_.emplace(place.rank, plan::expand(job_.plan, Rank(place.rank))).first;
    }
    const plan::RankProgram& program = found->second;
    const plan::flat::Slice& slice = program.operations[place.operation].name;
    const auto first = program.numbers.begin() + slice.first;
    return {first, first + slice.count};
  }

  // A longer sequence wins a tie: a forgotten call is likelier than an invented one.
  [[nodiscard]] Sequence most_common() const {
    std::map<Sequence, std::int64_t> votes;
    for (const Sequence& sequence : sequences_) ++votes[sequence];
    const auto best = std::ranges::max_element(
        votes, {}, [](const auto& vote) { return std::tuple(vote.second, vote.first.size()); });
    return best->first;
  }

  void compare(const Sequence& model, const std::vector<OperationId>& places, std::size_t member,
               std::vector<Deviation>& out) const {
    const Sequence& local = sequences_[member];
    const std::vector<OperationId>& mine = places_[member];
    std::size_t front = 0;
    while (front < local.size() && front < model.size() && local[front] == model[front]) ++front;
    std::size_t back = 0;
    while (back + front < local.size() && back + front < model.size() &&
           local[local.size() - 1 - back] == model[model.size() - 1 - back]) {
      ++back;
    }
    Deviation base{.group = id_, .rank = group_.members[member].rank};
    const std::size_t here = local.size() - back - front;
    const std::size_t there = model.size() - back - front;
    base.n = static_cast<std::int64_t>(front);
    if (here == there && here >= 2 && local[front] == model[front + there - 1] &&
        local[front + here - 1] == model[front]) {
      base.kind = Deviation::Kind::swapped;
      base.operation = mine[front].operation;
      base.second = mine[front + here - 1].operation;
      base.model = places[front];
      out.push_back(base);
      return;
    }
    for (std::size_t k = 0; k < std::min(here, there); ++k) {
      if (local[front + k] == model[front + k]) continue;
      const MismatchKind mismatch = mismatch_between(job_, places[front + k], mine[front + k]);
      if (mismatch == MismatchKind::none) continue;  // only another name
      Deviation differs = base;
      differs.kind = Deviation::Kind::differs;
      differs.operation = mine[front + k].operation;
      differs.model = places[front + k];
      differs.mismatch = mismatch;
      differs.n += static_cast<std::int64_t>(k);
      out.push_back(differs);
    }
    const std::size_t both = std::min(here, there);
    for (std::size_t k = both; k < here; ++k) {
      Deviation extra = base;
      extra.kind = Deviation::Kind::extra;
      extra.operation = mine[front + k].operation;
      extra.n += static_cast<std::int64_t>(k);
      out.push_back(extra);
    }
    for (std::size_t k = both; k < there; ++k) {
      Deviation missing = base;
      missing.model = places[front + k];
      missing.n += static_cast<std::int64_t>(k);
      if (front + k < mine.size()) missing.operation = mine[front + k].operation;
      out.push_back(missing);
    }
  }

  const Job& job_;
  std::int32_t id_;
  bool by_rows_;
  const CallGroup& group_;
  std::vector<OperationId> kinds_;
  std::vector<Sequence> sequences_;               // by member
  std::vector<std::vector<OperationId>> places_;  // by member
  std::vector<std::size_t> lone_;
  mutable std::map<std::int32_t, plan::RankProgram> programs_;
};

class CallReporter {
 public:
  explicit CallReporter(const Job& job) : job_(job), formatter_(job) {}

  Finding report(const Deviation& deviation) {
    Finding finding = report_first(deviation);
    if (deviation.alike.empty()) return finding;
    finding.folded += std::ssize(deviation.alike);
    finding.diagnostic.why += fmt::format("; the same on rank {}", format_ranks(deviation.alike));
    return finding;
  }

  Finding report_first(const Deviation& deviation) {
    switch (deviation.kind) {
      case Deviation::Kind::missing:
        return missing(deviation);
      case Deviation::Kind::extra:
        return extra(deviation);
      case Deviation::Kind::differs:
        return differs(deviation);
      case Deviation::Kind::swapped:
        return swapped(deviation);
    }
    return {};
  }

  // The rank makes a call on one group that is missing on another.
  Finding other_group(const Deviation& made, const Deviation& owed) {
    Finding finding = start(made, "D709");
    Diagnostic& diagnostic = finding.diagnostic;
    const CallGroup& wrong = group(made);
    const CallGroup& right = group(owed);
    diagnostic.what =
        fmt::format("rank {} calls `{}` over {}, where the others call over {}", made.rank,
                    formatter_.operation(place(made)), formatter_.group(wrong, place(made)),
                    formatter_.group(right, owed.model));
    std::vector<std::int32_t> missing_ranks;
    std::vector<std::int32_t> more;
    for (std::int64_t k = 0; k < right.ranks().size(); ++k) {
      if (wrong.ranks().find(right.ranks()[k]) < 0) missing_ranks.push_back(right.ranks()[k].value);
    }
    for (std::int64_t k = 0; k < wrong.ranks().size(); ++k) {
      if (right.ranks().find(wrong.ranks()[k]) < 0) more.push_back(wrong.ranks()[k].value);
    }
    if (!missing_ranks.empty())
      diagnostic.why = fmt::format("its group is missing rank {}", format_ranks(missing_ranks));
    if (!more.empty()) {
      diagnostic.why +=
          fmt::format("{}has extra rank {}", missing_ranks.empty() ? "its group " : " and ",
                      format_ranks(more));
    }
    if (missing_ranks.empty() && more.empty()) {
      diagnostic.why =
          wrong.linked->channel != right.linked->channel
              ? "the channels differ"
              : "the groups list the same ranks in a different order, so the pieces differ";
    }
    diagnostic.help = fmt::format("call it over {}", formatter_.group(right, owed.model));
    finding.witness = {place(made), owed.model};
    return finding;
  }

 private:
  [[nodiscard]] const CallGroup& group(const Deviation& deviation) const {
    return job_.groups[deviation.group];
  }
  [[nodiscard]] static OperationId place(const Deviation& deviation) {
    return {deviation.rank, deviation.operation};
  }
  [[nodiscard]] bool known(const Deviation& deviation) const {
    return job_.script_of[deviation.rank] >= 0;
  }

  Finding start(const Deviation& deviation, std::string code) {
    Finding finding;
    finding.place = place(deviation);
    if (known(deviation)) finding.diagnostic.where = formatter_.where(finding.place);
    finding.diagnostic.where.rank = deviation.rank;
    finding.diagnostic.code = std::move(code);
    return finding;
  }

  Finding missing(const Deviation& deviation) {
    Finding finding = start(deviation, "D701");
    Diagnostic& diagnostic = finding.diagnostic;
    if (const Where made = formatter_.where(deviation.model); !made.file.empty()) {
      diagnostic.where.file = made.file;  // the line that the rank does not reach
      diagnostic.where.line = made.line;
      diagnostic.where.function = made.function;
    }
    const std::int64_t size = group(deviation).ranks().size();
    const std::string call = formatter_.operation(deviation.model);
    diagnostic.what =
        fmt::format("rank {} does not make call {} on {}: `{}`", deviation.rank, deviation.n,
                    formatter_.group(group(deviation), deviation.model), call);
    const std::string rest =
        deviation.operation < 0 ? "has finished its calls on this group"
                                : fmt::format("is at `{}`", formatter_.operation(place(deviation)));
    diagnostic.why = fmt::format(
        "{} of {} ranks hang in `{}`; rank {} {}: the job stops in that call, but the cause is on "
        "rank {}",
        with_separators(size - 1 - std::ssize(deviation.alike)), with_separators(size), call,
        deviation.rank, rest, deviation.rank);
    diagnostic.help = fmt::format("let rank {} call `{}` too{}", deviation.rank, call,
                                  deviation.operation < 0 ? "" : ", before that");
    finding.witness = {deviation.model};
    return finding;
  }

  Finding extra(const Deviation& deviation) {
    Finding finding = start(deviation, "D702");
    Diagnostic& diagnostic = finding.diagnostic;
    const CallGroup& calls = group(deviation);
    diagnostic.what =
        fmt::format("rank {} makes a call that no other rank of {} makes: `{}`", deviation.rank,
                    formatter_.group(calls, place(deviation)), diagnostic.where.operation);
    diagnostic.why = fmt::format("it is call {} of this rank on the group", deviation.n);
    diagnostic.help = "remove it, or make it on all ranks of the group";
    finding.witness = {place(deviation)};
    return finding;
  }

  Finding differs(const Deviation& deviation) {
    static const std::map<MismatchKind, const char*> codes{
        {MismatchKind::kind, "D703"}, {MismatchKind::size, "D704"}, {MismatchKind::type, "D705"},
        {MismatchKind::op, "D706"},   {MismatchKind::root, "D707"}, {MismatchKind::split, "D710"},
        {MismatchKind::table, "D710"}};
    static const std::map<MismatchKind, const char*> things{
        {MismatchKind::kind, "a different collective"},
        {MismatchKind::size, "a different size"},
        {MismatchKind::type, "a different element type"},
        {MismatchKind::op, "a different operator or scale"},
        {MismatchKind::root, "a different root"},
        {MismatchKind::split, "different pieces"},
        {MismatchKind::table, "a different table"}};
    Finding finding = start(deviation, codes.at(deviation.mismatch));
    Diagnostic& diagnostic = finding.diagnostic;
    const std::string theirs = formatter_.operation(deviation.model);
    diagnostic.what = fmt::format("mismatch: `{}` of rank {} has {} than its match `{}` of rank {}",
                                  diagnostic.where.operation, deviation.rank,
                                  things.at(deviation.mismatch), theirs, deviation.model.rank);
    diagnostic.why =
        fmt::format("{} against {}; call {} on {}", detail(place(deviation), deviation.mismatch),
                    detail(deviation.model, deviation.mismatch), deviation.n,
                    formatter_.group(group(deviation), deviation.model));
    diagnostic.help = fmt::format("make the call of rank {} match the others", deviation.rank);
    if (job_.op(deviation.model).source->at.source.exists()) {
      // One of the two lines of the script is wrong; nobody knows which.
      finding.notes.push_back({.severity = Severity::note,
                               .where = formatter_.where(deviation.model),
                               .what = "its match"});
    }
    finding.witness = {deviation.model, place(deviation)};
    return finding;
  }

  std::string detail(OperationId place, MismatchKind mismatch) {
    const ScriptOp& op = job_.op(place);
    const Script& script = job_.script(place.rank);
    const auto* collective = std::get_if<plan::Collective>(&op.source->action);
    if (mismatch == MismatchKind::size) {
      return fmt::format("{} rows of {} bytes to {} rows", op.from.count,
                         script.row_bytes[op.from.buffer], op.to.count);
    }
    if (mismatch == MismatchKind::type) {
      return std::string(
          shiplap::name(job_.plan.programs[script.program].buffers[op.from.buffer].type));
    }
    if (mismatch == MismatchKind::root) return fmt::format("root {}", op.root);
    if (mismatch == MismatchKind::op && collective != nullptr) {
      return fmt::format("{} at scale {}", shiplap::name(collective->op),
                         plan::format_ratio(collective->scale));
    }
    return std::string(plan::keyword(op.source->action));
  }

  Finding swapped(const Deviation& deviation) {
    Finding finding = start(deviation, "D708");
    Diagnostic& diagnostic = finding.diagnostic;
    const std::string second = formatter_.operation({deviation.rank, deviation.second});
    diagnostic.what =
        fmt::format("rank {} calls `{}` before `{}`, the other ranks in the opposite order",
                    deviation.rank, diagnostic.where.operation, second);
    diagnostic.why = fmt::format("calls on {} are matched by number: this is call {} of all ranks",
                                 formatter_.group(group(deviation), deviation.model), deviation.n);
    diagnostic.help = "swap the two";
    finding.witness = {place(deviation), {deviation.rank, deviation.second}};
    return finding;
  }

  const Job& job_;
  Formatter formatter_;
};

// A call that a rank makes on one group and that is missing on another.
struct MisdirectedCall {
  Deviation made;
  Deviation owed;
  bool rising = true;  // the group that it calls lists its ranks in ascending order
  bool alone = true;   // no other rank calls on that group
};

bool is_rising(const plan::RankSet& ranks) {
  for (std::int64_t k = 1; k < ranks.size(); ++k) {
    if (ranks[k] < ranks[k - 1]) return false;
  }
  return true;
}

std::vector<MisdirectedCall> find_misdirected_calls(const std::vector<GroupComparison>& groups) {
  std::vector<MisdirectedCall> result;
  for (const GroupComparison& a : groups) {
    for (const std::size_t member : a.lone()) {
      const std::int32_t rank = a.calls().members[member].rank;
      const std::optional<Deviation> made = a.lone_deviation(rank);
      if (!made || made->kind != Deviation::Kind::extra) continue;
      for (const GroupComparison& b : groups) {
        const std::optional<Deviation> owed =
            b.id() == a.id() ? std::nullopt : b.lone_deviation(rank);
        if (!owed || owed->kind != Deviation::Kind::missing) continue;
        result.push_back({.made = *made,
                          .owed = *owed,
                          .rising = is_rising(a.calls().ranks()),
                          .alone = a.calls().scripts.size() == 1});
      }
    }
  }
  std::ranges::sort(result, {}, [](const MisdirectedCall& misdirected) {
    return std::tuple(misdirected.rising, !misdirected.alone, misdirected.made.rank,
                      misdirected.made.operation, misdirected.made.group, misdirected.owed.group);
  });
  return result;
}

// The matching call on the group without the rank of `extra`; none if there is no such group.
OperationId call_without(const Job& job, const CallGroup& group, OperationId extra) {
  for (const CallGroup& other : job.groups) {
    if (other.ranks().size() != group.ranks().size() - 1) continue;
    bool same = other.ranks().find(Rank(extra.rank)) < 0;
    for (std::int64_t k = 0; k < other.ranks().size() && same; ++k) {
      same = group.ranks().find(other.ranks()[k]) >= 0;
    }
    if (!same) continue;
    const std::int32_t rank = job.scripts[other.scripts.front()].rank;
    for (const std::int32_t call : other.calls(0)) {
      if (mismatch_between(job, {rank, call}, extra) == MismatchKind::none) return {rank, call};
    }
  }
  return {};
}

}  // namespace

std::vector<Finding> diagnose_calls(const Job& job, const Mismatches& mismatches) {
  if (mismatches.groups.empty()) return {};
  std::vector<GroupComparison> groups;
  for (const std::int32_t id : mismatches.groups) {
    if (groups.size() == kMaxGroups) break;  // one mistake in a program shows in many groups
    // Rows distinguish repeated calls, but ranks may legitimately use different rows.
    GroupComparison loose(job, id, false);
    GroupComparison strict(job, id, true);
    const bool use_rows = strict.agreeing() == loose.agreeing() &&
                          strict.deviations().size() <= loose.deviations().size();
    groups.push_back(use_rows ? strict : loose);
  }
  CallReporter reporter(job);
  std::vector<Finding> findings;
  std::set<std::int32_t> explained;
  for (const MisdirectedCall& misdirected : find_misdirected_calls(groups)) {
    if (explained.contains(misdirected.made.group) || explained.contains(misdirected.owed.group))
      continue;
    findings.push_back(reporter.other_group(misdirected.made, misdirected.owed));
    explained.insert({misdirected.made.group, misdirected.owed.group});
  }
  for (GroupComparison& group : groups) {
    if (explained.contains(group.id())) continue;
    for (const Deviation& deviation : group.deviations()) {
      const OperationId call =
          deviation.kind == Deviation::Kind::extra
              ? call_without(job, group.calls(), {deviation.rank, deviation.operation})
              : OperationId{};
      if (!call.exists()) {
        findings.push_back(reporter.report(deviation));
        continue;
      }
      Deviation owed = deviation;
      owed.group = job.op(call).match.with;
      owed.model = call;
      findings.push_back(reporter.other_group(deviation, owed));
    }
  }
  if (!findings.empty()) {
    findings.front().folded += std::ssize(mismatches.groups) - std::ssize(groups);
  }
  return findings;
}

}  // namespace shiplap::check
