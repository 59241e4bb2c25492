// Shared by the files that make the page of a postmortem: classes of ranks, and texts about calls.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/report/page.h"

namespace shiplap::report {

// In order of interest. near: waits for the culprit itself.
enum class RankRole : std::uint8_t { culprit, suspect, no_dump, near, waits, free };
[[nodiscard]] std::string_view css_class(RankRole role);

// For sorting: suspects are first, the others equal.
[[nodiscard]] int interest(RankRole role);

// Ranks in the same place that wait for the same classes.
struct RankClass {
  std::vector<std::int32_t> ranks;
  const postmortem::Position* first = nullptr;  // of its ranks
  RankRole role = RankRole::free;
  std::set<std::size_t> waits_for;    // classes, perhaps itself
  std::vector<std::int32_t> awaited;  // the ranks of them that are waited for
  std::set<std::string> groups;       // of the pending calls
};

class RankClasses {
 public:
  // `found` must outlive it.
  explicit RankClasses(const postmortem::Postmortem& found);

  [[nodiscard]] const std::vector<RankClass>& all() const { return classes_; }
  // The class of a rank.
  [[nodiscard]] std::size_t of(std::int32_t rank) const { return of_[at(rank)]; }
  [[nodiscard]] RankRole role(std::int32_t rank) const { return roles_[at(rank)]; }

 private:
  using RankList = std::vector<std::int32_t>;

  void find_roles();
  [[nodiscard]] std::string place_key(const postmortem::Position& position) const;
  void divide();
  [[nodiscard]] std::vector<std::set<std::size_t>> targets() const;
  bool refine();
  void collect();

  const postmortem::Postmortem& found_;
  std::vector<std::int32_t> suspect_of_;  // by rank; -1: none
  std::vector<RankRole> roles_;           // by rank
  std::vector<std::size_t> of_;           // by rank
  std::vector<std::size_t> list_of_;      // by rank: whom it waits for
  std::vector<const RankList*> lists_;    // the different ones
  std::size_t count_ = 0;
  std::vector<RankClass> classes_;
};

// Where the ranks of a class are: "optim.py:77 in reduce_gradients", or "".
[[nodiscard]] std::string class_line(const RankClass& found);

// "all_reduce of Float [1], call 6 on default_pg {0 to 7}"
[[nodiscard]] std::string class_call(const RankClass& found);

// "waits in all_reduce", "no call pending", "no dump".
[[nodiscard]] std::string class_state(const RankClass& found);

// "0-3", "none: all have entered"; "" if the class does not wait.
[[nodiscard]] std::string class_waits_for(const RankClass& found);

[[nodiscard]] std::string_view state_text(postmortem::Position::State state);

// "0-3, 5 and 6"
[[nodiscard]] std::string rank_set_text(const std::vector<std::int32_t>& ranks);

// "rank 3", "ranks 0-3"
[[nodiscard]] std::string named_ranks(const std::vector<std::int32_t>& ranks);

// "all_reduce of Float [1], call 6 on default_pg {0 to 7}"
[[nodiscard]] std::string full_call_text(const postmortem::CallSite& site);

// Without the peer, which differs between ranks at the same line: "send", "all_reduce".
[[nodiscard]] std::string operation_stem(const std::string& operation);

// The first pending call, or the last one.
[[nodiscard]] const postmortem::CallSite& call_of(const postmortem::Position& position);

// The wait-for graph of the classes.
[[nodiscard]] Panel wait_graph_panel(const postmortem::Postmortem& found,
                                     const RankClasses& classes);

// The last calls, side by side. REQUIRES: a history has calls.
[[nodiscard]] Panel histories_panel(const postmortem::Postmortem& found);

}  // namespace shiplap::report
