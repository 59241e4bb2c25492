// Who is wrong when the members of a group do not make the same calls: the one that differs from
// what most do.
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

constexpr std::size_t kMostGroups = 64;

// What one rank does otherwise than most.
struct Deviation {
  enum class Kind : std::uint8_t { missing, extra, differs, swapped };
  Kind kind = Kind::missing;
  std::int32_t group = -1;
  std::int32_t rank = -1;
  std::int32_t operation =
      -1;                    // of the rank; if missing: before which it should be, -1: at the end
  std::int32_t second = -1;  // the other one swapped
  Place model;               // what the others do there
  Misfit misfit = Misfit::none;
  std::int64_t n = 0;
  std::vector<std::int32_t> alike;  // other ranks that do the same
};

// The calls of one member, each as the number of its kind among all calls of the group.
using Sequence = std::vector<std::int32_t>;

class Group {
 public:
  // Calls that fit are the same, and, if `by_rows`, only where they also touch the same rows.
  Group(const Job& job, std::int32_t id, bool by_rows)
      : job_(job), id_(id), by_rows_(by_rows), group_(job.groups[id]) {
    for (const Member& member : group_.members) {
      Sequence sequence;
      std::vector<Place> places;
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
  // How many members do what most do.
  [[nodiscard]] std::int64_t agreeing() const {
    return std::ranges::count(sequences_, most_common());
  }
  [[nodiscard]] const CallGroup& calls() const { return group_; }

  // Members that may differ from all others, who agree.
  [[nodiscard]] const std::vector<std::size_t>& lone() const { return lone_; }

  // How a rank differs from all others, who must agree: one call too few, or one too many.
  [[nodiscard]] std::optional<Deviation> lone_deviation(std::int32_t rank) const {
    const std::int64_t me = group_.ranks().find(Rank(rank));
    if (me < 0) return std::nullopt;
    const std::size_t own = static_cast<std::size_t>(me);
    if (std::ranges::find(lone_, own) == lone_.end()) return std::nullopt;
    const std::size_t model = own == 0 ? 1 : 0;
    std::vector<Deviation> found;
    compare(sequences_[model], places_[model], own, found);
    const bool one = found.size() == 1 && (found.front().kind == Deviation::Kind::missing ||
                                           found.front().kind == Deviation::Kind::extra);
    return one ? std::optional(found.front()) : std::nullopt;
  }

  // Of ranks that deviate alike, the first tells it.
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

  std::int32_t kind_of(Place place) {
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (fit(job_, kinds_[k], place) == Misfit::none && same_place(kinds_[k], place)) {
        return static_cast<std::int32_t>(k);
      }
    }
    kinds_.push_back(place);
    return static_cast<std::int32_t>(kinds_.size()) - 1;
  }

  // Calls that fit are told apart by what they are called, where both have a name.
  bool same_place(Place a, Place b) const {
    if (by_rows_ && (job_.op(a).from != job_.op(b).from || job_.op(a).to != job_.op(b).to)) {
      return false;
    }
    const plan::Operation& x = *job_.op(a).source;
    const plan::Operation& y = *job_.op(b).source;
    if (x.name.name.empty() || y.name.name.empty()) return true;
    return x.name.name == y.name.name && name_index(a) == name_index(b);
  }
  [[nodiscard]] std::vector<std::int64_t> name_index(Place place) const {
    auto found = programs_.find(place.rank);
    if (found == programs_.end()) {
      found = programs_.emplace(place.rank, plan::expand(job_.plan, Rank(place.rank))).first;
    }
    const plan::RankProgram& program = found->second;
    const plan::flat::Slice& slice = program.operations[place.operation].name;
    const auto first = program.numbers.begin() + slice.first;
    return {first, first + slice.count};
  }

  // Longer ones win a tie: that a call was forgotten is likelier than that one was invented.
  [[nodiscard]] Sequence most_common() const {
    std::map<Sequence, std::int64_t> votes;
    for (const Sequence& sequence : sequences_) ++votes[sequence];
    const auto best = std::ranges::max_element(
        votes, {}, [](const auto& vote) { return std::tuple(vote.second, vote.first.size()); });
    return best->first;
  }

  void compare(const Sequence& model, const std::vector<Place>& places, std::size_t member,
               std::vector<Deviation>& out) const {
    const Sequence& own = sequences_[member];
    const std::vector<Place>& mine = places_[member];
    std::size_t front = 0;
    while (front < own.size() && front < model.size() && own[front] == model[front]) ++front;
    std::size_t back = 0;
    while (back + front < own.size() && back + front < model.size() &&
           own[own.size() - 1 - back] == model[model.size() - 1 - back]) {
      ++back;
    }
    Deviation base{.group = id_, .rank = group_.members[member].rank};
    const std::size_t here = own.size() - back - front;
    const std::size_t there = model.size() - back - front;
    base.n = static_cast<std::int64_t>(front);
    if (here == there && here >= 2 && own[front] == model[front + there - 1] &&
        own[front + here - 1] == model[front]) {
      base.kind = Deviation::Kind::swapped;
      base.operation = mine[front].operation;
      base.second = mine[front + here - 1].operation;
      base.model = places[front];
      out.push_back(base);
      return;
    }
    for (std::size_t k = 0; k < std::min(here, there); ++k) {
      if (own[front + k] == model[front + k]) continue;
      const Misfit misfit = fit(job_, places[front + k], mine[front + k]);
      if (misfit == Misfit::none) continue;  // only another name
      Deviation differs = base;
      differs.kind = Deviation::Kind::differs;
      differs.operation = mine[front + k].operation;
      differs.model = places[front + k];
      differs.misfit = misfit;
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
  std::vector<Place> kinds_;
  std::vector<Sequence> sequences_;         // by member
  std::vector<std::vector<Place>> places_;  // by member
  std::vector<std::size_t> lone_;
  mutable std::map<std::int32_t, plan::RankProgram> programs_;
};

class Account {
 public:
  explicit Account(const Job& job) : job_(job), words_(job) {}

  Finding of(const Deviation& deviation) {
    Finding finding = of_first(deviation);
    if (deviation.alike.empty()) return finding;
    finding.folded += std::ssize(deviation.alike);
    finding.diagnostic.why += fmt::format("; the same on rank {}", some_ranks(deviation.alike));
    return finding;
  }

  Finding of_first(const Deviation& deviation) {
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

  // The rank makes on one group the call that it owes another.
  Finding other_group(const Deviation& made, const Deviation& owed) {
    Finding finding = start(made, "D709");
    Diagnostic& said = finding.diagnostic;
    const CallGroup& wrong = group(made);
    const CallGroup& right = group(owed);
    said.what = fmt::format("rank {} calls `{}` over {}, where the others call over {}", made.rank,
                            words_.operation(place(made)), words_.group(wrong, place(made)),
                            words_.group(right, owed.model));
    std::vector<std::int32_t> lacks;
    std::vector<std::int32_t> more;
    for (std::int64_t k = 0; k < right.ranks().size(); ++k) {
      if (wrong.ranks().find(right.ranks()[k]) < 0) lacks.push_back(right.ranks()[k].value);
    }
    for (std::int64_t k = 0; k < wrong.ranks().size(); ++k) {
      if (right.ranks().find(wrong.ranks()[k]) < 0) more.push_back(wrong.ranks()[k].value);
    }
    if (!lacks.empty()) said.why = fmt::format("its group lacks rank {}", some_ranks(lacks));
    if (!more.empty()) {
      said.why += fmt::format("{}has rank {} too many", lacks.empty() ? "its group " : " and ",
                              some_ranks(more));
    }
    if (lacks.empty() && more.empty()) {
      said.why = wrong.linked->channel != right.linked->channel
                     ? "the channels differ"
                     : "they list the same ranks in another order: whose piece is whose differs";
    }
    said.help = fmt::format("call it over {}", words_.group(right, owed.model));
    finding.witness = {place(made), owed.model};
    return finding;
  }

 private:
  [[nodiscard]] const CallGroup& group(const Deviation& deviation) const {
    return job_.groups[deviation.group];
  }
  [[nodiscard]] static Place place(const Deviation& deviation) {
    return {deviation.rank, deviation.operation};
  }
  [[nodiscard]] bool known(const Deviation& deviation) const {
    return job_.script_of[deviation.rank] >= 0;
  }

  Finding start(const Deviation& deviation, std::string code) {
    Finding finding;
    finding.place = place(deviation);
    if (known(deviation)) finding.diagnostic.where = words_.where(finding.place);
    finding.diagnostic.where.rank = deviation.rank;
    finding.diagnostic.code = std::move(code);
    return finding;
  }

  Finding missing(const Deviation& deviation) {
    Finding finding = start(deviation, "D701");
    Diagnostic& said = finding.diagnostic;
    const std::int64_t size = group(deviation).ranks().size();
    const std::string call = words_.operation(deviation.model);
    said.what = fmt::format("rank {} does not make call {} on {}: `{}`", deviation.rank,
                            deviation.n, words_.group(group(deviation), deviation.model), call);
    const std::string rest = deviation.operation < 0
                                 ? "has finished its calls on this group"
                                 : fmt::format("is at `{}`", words_.operation(place(deviation)));
    said.why = fmt::format(
        "{} of {} ranks wait at `{}`; rank {} {}: that call is where it stops, rank {} is where "
        "to look",
        with_separators(size - 1 - std::ssize(deviation.alike)), with_separators(size), call,
        deviation.rank, rest, deviation.rank);
    said.help = fmt::format("let rank {} call `{}` too{}", deviation.rank, call,
                            deviation.operation < 0 ? "" : ", before that");
    finding.witness = {deviation.model};
    return finding;
  }

  Finding extra(const Deviation& deviation) {
    Finding finding = start(deviation, "D702");
    Diagnostic& said = finding.diagnostic;
    const CallGroup& calls = group(deviation);
    said.what = fmt::format("rank {} makes a call that no other of {} makes: `{}`", deviation.rank,
                            words_.group(calls, place(deviation)), said.where.operation);
    said.why = fmt::format("it is call {} of this rank on the group", deviation.n);
    said.help = "leave it out, or let all ranks of the group make it";
    finding.witness = {place(deviation)};
    return finding;
  }

  Finding differs(const Deviation& deviation) {
    static const std::map<Misfit, const char*> codes{
        {Misfit::kind, "D703"}, {Misfit::size, "D704"}, {Misfit::type, "D705"},
        {Misfit::op, "D706"},   {Misfit::root, "D707"}, {Misfit::split, "D710"},
        {Misfit::table, "D710"}};
    static const std::map<Misfit, const char*> things{
        {Misfit::kind, "another collective"},   {Misfit::size, "another size"},
        {Misfit::type, "another element type"}, {Misfit::op, "another operator or scale"},
        {Misfit::root, "another root"},         {Misfit::split, "other pieces"},
        {Misfit::table, "another table"}};
    Finding finding = start(deviation, codes.at(deviation.misfit));
    Diagnostic& said = finding.diagnostic;
    const std::string theirs = words_.operation(deviation.model);
    said.what = fmt::format("`{}` of rank {} has {} than `{}` of rank {}, which it meets",
                            said.where.operation, deviation.rank, things.at(deviation.misfit),
                            theirs, deviation.model.rank);
    said.why =
        fmt::format("{} against {}; call {} on {}", detail(place(deviation), deviation.misfit),
                    detail(deviation.model, deviation.misfit), deviation.n,
                    words_.group(group(deviation), deviation.model));
    said.help = fmt::format("make rank {} do as the others", deviation.rank);
    finding.witness = {deviation.model, place(deviation)};
    return finding;
  }

  std::string detail(Place place, Misfit misfit) {
    const Op& op = job_.op(place);
    const Script& script = job_.script(place.rank);
    const auto* collective = std::get_if<plan::Collective>(&op.source->action);
    if (misfit == Misfit::size) {
      return fmt::format("{} rows of {} bytes to {} rows", op.from.count,
                         script.row_bytes[op.from.buffer], op.to.count);
    }
    if (misfit == Misfit::type) {
      return std::string(
          shiplap::name(job_.plan.programs[script.program].buffers[op.from.buffer].type));
    }
    if (misfit == Misfit::root) return fmt::format("root {}", op.root);
    if (misfit == Misfit::op && collective != nullptr) {
      return fmt::format("{} at scale {}/{}", shiplap::name(collective->op),
                         collective->scale.numerator(), collective->scale.denominator());
    }
    return std::string(plan::word(op.source->action));
  }

  Finding swapped(const Deviation& deviation) {
    Finding finding = start(deviation, "D708");
    Diagnostic& said = finding.diagnostic;
    const std::string second = words_.operation({deviation.rank, deviation.second});
    said.what = fmt::format("rank {} calls `{}` before `{}`, the others the other way round",
                            deviation.rank, said.where.operation, second);
    said.why = fmt::format("on {} equal numbers meet: call {} of all ranks",
                           words_.group(group(deviation), deviation.model), deviation.n);
    said.help = "exchange the two";
    finding.witness = {place(deviation), {deviation.rank, deviation.second}};
    return finding;
  }

  const Job& job_;
  Words words_;
};

// A rank that makes on one group a call that it owes another.
struct Stray {
  Deviation made;
  Deviation owed;
  bool rising = true;  // the group that it calls lists its ranks in order
  bool alone = true;   // nobody else calls on that group
};

bool is_rising(const plan::RankSet& ranks) {
  for (std::int64_t k = 1; k < ranks.size(); ++k) {
    if (ranks[k] < ranks[k - 1]) return false;
  }
  return true;
}

std::vector<Stray> strays_among(const std::vector<Group>& groups) {
  std::vector<Stray> result;
  for (const Group& a : groups) {
    for (const std::size_t member : a.lone()) {
      const std::int32_t rank = a.calls().members[member].rank;
      const std::optional<Deviation> made = a.lone_deviation(rank);
      if (!made || made->kind != Deviation::Kind::extra) continue;
      for (const Group& b : groups) {
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
  std::ranges::sort(result, {}, [](const Stray& stray) {
    return std::tuple(stray.rising, !stray.alone, stray.made.rank, stray.made.operation,
                      stray.made.group, stray.owed.group);
  });
  return result;
}

// The call that all members but one make instead, without that one.
Place call_without(const Job& job, const CallGroup& group, Place extra) {
  for (const CallGroup& other : job.groups) {
    if (other.ranks().size() != group.ranks().size() - 1) continue;
    bool same = other.ranks().find(Rank(extra.rank)) < 0;
    for (std::int64_t k = 0; k < other.ranks().size() && same; ++k) {
      same = group.ranks().find(other.ranks()[k]) >= 0;
    }
    if (!same) continue;
    const std::int32_t rank = job.scripts[other.scripts.front()].rank;
    for (const std::int32_t call : other.calls(0)) {
      if (fit(job, {rank, call}, extra) == Misfit::none) return {rank, call};
    }
  }
  return {};
}

}  // namespace

std::vector<Finding> diagnose_calls(const Job& job, const Mismatches& mismatches) {
  if (mismatches.groups.empty()) return {};
  std::vector<Group> groups;
  for (const std::int32_t id : mismatches.groups) {
    if (groups.size() == kMostGroups) break;  // one mistake in a program shows in many groups
    // By rows, repeated calls are told apart; but ranks may well use rows of their own.
    Group loose(job, id, false);
    Group strict(job, id, true);
    const bool tells = strict.agreeing() == loose.agreeing() &&
                       strict.deviations().size() <= loose.deviations().size();
    groups.push_back(tells ? strict : loose);
  }
  Account account(job);
  std::vector<Finding> findings;
  std::set<std::int32_t> explained;
  for (const Stray& stray : strays_among(groups)) {
    if (explained.contains(stray.made.group) || explained.contains(stray.owed.group)) continue;
    findings.push_back(account.other_group(stray.made, stray.owed));
    explained.insert({stray.made.group, stray.owed.group});
  }
  for (Group& group : groups) {
    if (explained.contains(group.id())) continue;
    for (const Deviation& deviation : group.deviations()) {
      const Place call =
          deviation.kind == Deviation::Kind::extra
              ? call_without(job, group.calls(), {deviation.rank, deviation.operation})
              : Place{};
      if (!call.exists()) {
        findings.push_back(account.of(deviation));
        continue;
      }
      Deviation owed = deviation;
      owed.group = job.op(call).match.with;
      owed.model = call;
      findings.push_back(account.other_group(deviation, owed));
    }
  }
  if (!findings.empty()) {
    findings.front().folded += std::ssize(mismatches.groups) - std::ssize(groups);
  }
  return findings;
}

}  // namespace shiplap::check
