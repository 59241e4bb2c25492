// Classes of ranks, so that 16,384 of them can be shown.
//
// The problem. A job has up to 16,384 ranks, and a graph with a node for each of them shows
// nothing.
//
// The idea. Ranks that are at the same line and wait for ranks of the same classes are one class:
// the coarsest stable partition of the wait-for graph (bisimulation; Paige and Tarjan 1987), found
// by naive refinement from the lines of the ranks. Each round separates the ranks that are one step
// farther from the culprit. The last round is the one before there would be more than kMaxClasses,
// so the detail is near the culprit, and a long pipeline of waits becomes a class that waits for
// itself.
//
// Classes are the nodes of the graph and the rows of the table. In the grid, pointing at a rank
// highlights its class.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shiplap/base/index_set.h"
#include "shiplap/report/postmortem_internal.h"

namespace shiplap::report {
namespace {

using postmortem::CallSite;
using postmortem::FaultClass;
using postmortem::Position;
using postmortem::Postmortem;

constexpr std::size_t kMaxClasses = 24;
constexpr std::size_t kMaxSeparateCycle = 8;  // ranks of a cycle that are classes of their own

struct ByContent {
  bool operator()(const std::vector<std::int32_t>* a, const std::vector<std::int32_t>* b) const {
    return *a < *b;
  }
};

}  // namespace

RankClasses::RankClasses(const Postmortem& found)
    : found_(found), suspect_of_(found.positions.size(), -1) {
  for (std::size_t k = 0; k < found.suspects.size(); ++k) {
    for (const std::int32_t rank : found.suspects[k].ranks) {
      if (at(rank) < suspect_of_.size() && suspect_of_[at(rank)] < 0) {
        suspect_of_[at(rank)] = static_cast<std::int32_t>(k);
      }
    }
  }
  find_roles();
  divide();
  while (refine()) continue;
  collect();
}

void RankClasses::find_roles() {
  for (const Position& position : found_.positions) {
    const std::int32_t suspect = suspect_of_[at(position.rank)];
    const bool is_near = std::ranges::any_of(
        position.waits_for, [&](std::int32_t other) { return suspect_of_[at(other)] == 0; });
    if (suspect >= 0) {
      roles_.push_back(suspect == 0 ? RankRole::culprit : RankRole::suspect);
    } else if (position.state == Position::State::no_dump) {
      roles_.push_back(RankRole::no_dump);
    } else if (position.state == Position::State::free) {
      roles_.push_back(RankRole::free);
    } else {
      roles_.push_back(is_near ? RankRole::near : RankRole::waits);
    }
  }
}

// Ranks with the same key are at the same place.
std::string RankClasses::place_key(const Position& position) const {
  const std::int32_t suspect = suspect_of_[at(position.rank)];
  const CallSite& site = call_of(position);
  std::string key =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", suspect, static_cast<int>(role(position.rank)),
                  operation_stem(site.operation), site.frame.file, site.frame.line,
                  position.now.file, position.now.line);
  // Without a line, the arguments tell calls of the same operation apart.
  if (site.frame.file.empty()) key += "\n" + site.arguments;
  const bool separate = suspect >= 0 &&
                        found_.suspects[at(suspect)].fault == FaultClass::message_cycle &&
                        found_.suspects[at(suspect)].ranks.size() <= kMaxSeparateCycle;
  if (separate) key += fmt::format("\n{}", position.rank);
  return key;
}

void RankClasses::divide() {
  std::map<std::string, std::size_t> known;
  std::map<const RankList*, std::size_t, ByContent> lists;
  for (const Position& position : found_.positions) {
    of_.push_back(known.try_emplace(place_key(position), known.size()).first->second);
    const auto [list, is_new] = lists.try_emplace(&position.waits_for, lists.size());
    if (is_new) lists_.push_back(&position.waits_for);
    list_of_.push_back(list->second);
  }
  count_ = known.size();
}

// The classes that each list of ranks leads to.
std::vector<std::set<std::size_t>> RankClasses::targets() const {
  std::vector<std::set<std::size_t>> result;
  for (const RankList* ranks : lists_) {
    std::set<std::size_t>& classes = result.emplace_back();
    std::vector<bool> is_known(count_);
    for (const std::int32_t rank : *ranks) {
      if (!is_known[of(rank)]) classes.insert(of(rank));
      is_known[of(rank)] = true;
    }
  }
  return result;
}

// One round. Returns false if it is the last.
bool RankClasses::refine() {
  const std::vector<std::set<std::size_t>> leads_to = targets();
  std::map<std::pair<std::size_t, std::set<std::size_t>>, std::size_t> known;
  std::vector<std::size_t> next;
  for (std::size_t rank = 0; rank < of_.size(); ++rank) {
    next.push_back(
        known.try_emplace({of_[rank], leads_to[list_of_[rank]]}, known.size()).first->second);
    if (known.size() > kMaxClasses) return false;
  }
  if (known.size() == count_) return false;
  of_ = std::move(next);
  count_ = known.size();
  return true;
}

void RankClasses::collect() {
  classes_.resize(count_);
  const std::vector<std::set<std::size_t>> leads_to = targets();
  std::vector<std::set<std::size_t>> lists(count_);
  for (const Position& position : found_.positions) {
    RankClass& found = classes_[of(position.rank)];
    if (found.first == nullptr) found.first = &position;
    found.role = role(found.first->rank);
    found.ranks.push_back(position.rank);
    found.groups.insert(call_of(position).group);
    const std::size_t list = list_of_[at(position.rank)];
    found.waits_for.insert(leads_to[list].begin(), leads_to[list].end());
    lists[of(position.rank)].insert(list);
  }
  for (std::size_t k = 0; k < count_; ++k) {
    std::vector<bool> is_awaited(of_.size());
    for (const std::size_t list : lists[k]) {
      for (const std::int32_t rank : *lists_[list]) is_awaited[at(rank)] = true;
    }
    for (std::size_t rank = 0; rank < of_.size(); ++rank) {
      if (is_awaited[rank]) classes_[k].awaited.push_back(static_cast<std::int32_t>(rank));
    }
  }
}

int interest(RankRole role) {
  return std::min(static_cast<int>(role), static_cast<int>(RankRole::no_dump));
}

std::string_view css_class(RankRole role) {
  switch (role) {
    case RankRole::culprit:
      return "culprit";
    case RankRole::suspect:
      return "suspect";
    case RankRole::no_dump:
      return "absent";
    case RankRole::near:
      return "pending near";
    case RankRole::waits:
      return "pending";
    case RankRole::free:
      return "free";
  }
  return "";
}

std::string_view state_text(Position::State state) {
  return state == Position::State::free ? "no call pending" : postmortem::name(state);
}

std::string rank_set_text(const std::vector<std::int32_t>& ranks) {
  return to_string(IndexSet(ranks));
}

std::string named_ranks(const std::vector<std::int32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", rank_set_text(ranks));
}

std::string full_call_text(const CallSite& site) {
  if (site.operation.empty()) return "";
  std::string text = site.operation;
  if (!site.arguments.empty()) text += " of " + site.arguments;
  if (site.sequence >= 0) text += fmt::format(", call {} on {}", site.sequence, site.group);
  return text;
}

std::string operation_stem(const std::string& operation) {
  const std::size_t end = std::min(operation.find(" to rank "), operation.find(" from rank "));
  return operation.substr(0, end);
}

const CallSite& call_of(const Position& position) {
  return position.pending.exists() ? position.pending : position.last;
}

std::string class_line(const RankClass& found) {
  std::string now = postmortem::frame_text(found.first->now);
  if (found.first->state == Position::State::free && !now.empty()) return now;
  return postmortem::frame_text(call_of(*found.first).frame);
}

std::string class_call(const RankClass& found) {
  const CallSite& site = call_of(*found.first);
  if (site.operation.empty()) return "";
  if (found.groups.size() <= 1) return full_call_text(site);
  return fmt::format("{} on {} groups, e.g. {}", operation_stem(site.operation),
                     found.groups.size(), site.group);
}

std::string class_state(const RankClass& found) {
  if (found.first->state != Position::State::waits) {
    return std::string(state_text(found.first->state));
  }
  return "waits in " + operation_stem(found.first->pending.operation);
}

std::string class_waits_for(const RankClass& found) {
  if (!found.awaited.empty()) return rank_set_text(found.awaited);
  return found.first->state == Position::State::waits ? "none: all have entered" : "";
}

}  // namespace shiplap::report
