// Finds actions of a pipeline schedule that are missing, repeated, or of a microbatch that does not
// exist.
//
// Without this check, the schedule would become a plan whose messages do not match, and `check`
// would report their tags: true, but no tag is in the file. A missing action makes messages of
// other ranks mismatch as well, so one mistake would give several findings.
//
// Every stage must have a forward of every microbatch and, if the schedule trains, its backward: B,
// or both halves, I and W. A typo in a cell (5B1 in place of 5B0) both repeats one action and omits
// another; the two are reported as one. A microbatch with fewer than half of its actions is taken
// for a typo, too. So the expected actions are at most twice those of the file, whatever the
// numbers in it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "shiplap/strategy/schedule_errors_internal.h"

namespace shiplap::strategy::torch_schedule {
namespace {

using enum ComputationType;

// I stands in for B: a backward has one of them.
ComputationType slot_type(ComputationType type) { return type == backward_input ? backward : type; }

// An action that must be in the file once.
struct Slot {
  int microbatch = 0;
  int stage = 0;
  ComputationType type = forward;
  friend auto operator<=>(const Slot&, const Slot&) = default;
};

class ActionCensus {
 public:
  ActionCensus(const Pipeline& pipeline, ScheduleErrors& errors)
      : pipeline_(pipeline), errors_(errors) {
    for (const Row& row : pipeline.rows) {
      for (const Action& action : row.actions) add(action);
    }
  }

  void report() {
    find_missing();
    for (const auto& [slot, actions] : actions_) {
      if (unknown_.contains(slot.microbatch)) {
        report_extra(slot, *actions.front(), "is of a microbatch that other stages do not compute");
      } else if (actions.size() > 1) {
        report_repeated(slot, actions);
      } else {
        report_order(slot, *actions.front());
      }
    }
    report_absent_microbatches();
    for (const auto& [group, slots] : missing_) report_missing(slots);
  }

 private:
  using Actions = std::vector<const Action*>;     // in the order of the row
  using Group = std::pair<int, ComputationType>;  // stage and type

  void add(const Action& action) {
    const bool counts =
        computes(action.type) || is_message(action.type) || waits_for_send(action.type);
    if (!counts) return;
    const ComputationType type = slot_type(action.type);
    actions_[{action.microbatch, action.stage, type}].push_back(&action);
    if (action.type == backward_input) split_.insert(action.stage);
    if (action.type == backward) whole_.insert(action.stage);
    if (type == forward || type == backward)
      results_[action.microbatch].insert({action.stage, type});
  }

  // ---- what must be there

  [[nodiscard]] const Action* find(const Slot& slot) const {
    const auto found = actions_.find(slot);
    return found == actions_.end() ? nullptr : found->second.front();
  }

  void find_missing() {
    const std::int64_t expected = std::int64_t{pipeline_.stages} * (pipeline_.trains ? 2 : 1);
    for (const auto& [slot, actions] : actions_) {
      if (2 * std::ssize(results_[slot.microbatch]) < expected) unknown_.insert(slot.microbatch);
    }
    for (const auto& [microbatch, results] : results_) {
      if (unknown_.contains(microbatch)) continue;
      for (int stage = 0; stage < pipeline_.stages; ++stage) find_missing(microbatch, stage);
    }
  }

  void find_missing(int microbatch, int stage) {
    expect({microbatch, stage, forward});
    if (pipeline_.trains) expect({microbatch, stage, backward});
    const Action* const half = find({microbatch, stage, backward});
    if (half != nullptr && half->type == backward_input) {
      expect({microbatch, stage, backward_weight});
    }
    if (!pipeline_.messages) return;
    if (pipeline_.sends_between(stage, stage + 1)) {
      expect_send({microbatch, stage, send_forward}, wait_send_forward);
      if (pipeline_.trains) expect({microbatch, stage, receive_backward});
    }
    if (pipeline_.sends_between(stage, stage - 1)) {
      expect({microbatch, stage, receive_forward});
      if (pipeline_.trains) {
        expect_send({microbatch, stage, send_backward}, wait_send_backward);
      }
    }
  }

  // torch fails at the end of a step if a send was not waited for.
  void expect_send(const Slot& send, ComputationType wait) {
    expect(send);
    if (pipeline_.send_waits) expect({send.microbatch, send.stage, wait});
  }

  void expect(const Slot& slot) {
    if (!actions_.contains(slot)) missing_[{slot.stage, slot.type}].push_back(slot);
  }

  // ---- words

  // As in the file: "6F1". A missing backward is written as the other backwards of its stage are.
  [[nodiscard]] std::string cell_of(const Slot& slot) const {
    const bool half =
        slot.type == backward && split_.contains(slot.stage) && !whole_.contains(slot.stage);
    return fmt::format("`{}{}{}`", slot.stage, to_string(half ? backward_input : slot.type),
                       slot.microbatch);
  }
  [[nodiscard]] int rank_of(int stage) const { return pipeline_.rank_of.at(stage); }
  [[nodiscard]] const Row& row_of(int stage) const { return pipeline_.rows[rank_of(stage)]; }

  // The slots that need this one, the most telling first.
  [[nodiscard]] static std::vector<Slot> users_of(const Slot& slot) {
    const auto [microbatch, stage, type] = slot;
    switch (type) {
      case forward:
        return {{microbatch, stage, send_forward},
                {microbatch, stage + 1, forward},
                {microbatch, stage, backward}};
      case backward:
        return {{microbatch, stage, send_backward}, {microbatch, stage - 1, backward}};
      case send_forward:
        return {{microbatch, stage + 1, receive_forward}};
      case send_backward:
        return {{microbatch, stage - 1, receive_backward}};
      case receive_forward:
        return {{microbatch, stage, forward}};
      case receive_backward:
        return {{microbatch, stage, backward}};
      default:
        return {};
    }
  }

  [[nodiscard]] static std::string_view verb(ComputationType type) {
    if (computes(type)) return "computes";
    if (waits_for_send(type)) return "executes";
    return is_send(type) ? "sends" : "receives";
  }

  // ", which rank 3 needs for `7F1`".
  [[nodiscard]] std::string needed_for(const Slot& slot) const {
    for (const Slot& user : users_of(slot)) {
      const Action* const action = find(user);
      if (action == nullptr) continue;
      const bool same = rank_of(user.stage) == rank_of(slot.stage);
      return fmt::format(", which {} needs for `{}`",
                         same ? "it" : fmt::format("rank {}", rank_of(user.stage)),
                         action->cell.text);
    }
    const bool adds = slot.type == backward || slot.type == backward_weight;
    return adds ? fmt::format(", so the gradient of stage {} lacks microbatch {}", slot.stage,
                              slot.microbatch)
                : "";
  }

  // ---- where a missing action belongs

  struct InsertionPoint {
    const Action* anchor = nullptr;
    bool before = false;  // or after the anchor
  };

  // The types of the same stage and microbatch that come before or after `type` in a row.
  [[nodiscard]] static std::vector<ComputationType> types_before(ComputationType type) {
    switch (type) {
      case forward:
        return {receive_forward};
      case backward:
        return {forward, receive_backward};
      case send_forward:
        return {forward};
      case backward_weight:
      case send_backward:
        return {backward};
      case wait_send_forward:
        return {send_forward};
      case wait_send_backward:
        return {send_backward};
      default:
        return {};
    }
  }
  [[nodiscard]] static std::vector<ComputationType> types_after(ComputationType type) {
    switch (type) {
      case forward:
        return {send_forward, backward};
      case backward:
        return {send_backward, backward_weight};
      case receive_forward:
        return {forward};
      case receive_backward:
        return {backward};
      default:
        return {};
    }
  }

  [[nodiscard]] static bool is_left_of(const Action* left, const Action* right) {
    return left == nullptr || right == nullptr || left->cell.column < right->cell.column;
  }
  [[nodiscard]] const Action* latest_before(const Slot& slot) const {
    const Action* latest = nullptr;
    for (const ComputationType type : types_before(slot.type)) {
      const Action* const action = find({slot.microbatch, slot.stage, type});
      if (action != nullptr && is_left_of(latest, action)) latest = action;
    }
    return latest;
  }
  [[nodiscard]] const Action* earliest_after(const Slot& slot) const {
    const Action* earliest = nullptr;
    for (const ComputationType type : types_after(slot.type)) {
      const Action* const action = find({slot.microbatch, slot.stage, type});
      if (action != nullptr && is_left_of(action, earliest)) earliest = action;
    }
    return earliest;
  }

  // The action of the same stage and type whose microbatch is nearest, or any of the stage.
  [[nodiscard]] const Action& neighbour_of(const Slot& slot) const {
    const Action* best = nullptr;
    const auto distance = [&slot](const Action& action) {
      const bool other = slot_type(action.type) != slot.type;
      return std::tuple(other, action.microbatch > slot.microbatch,
                        std::abs(action.microbatch - slot.microbatch));
    };
    for (const Action& action : row_of(slot.stage).actions) {
      if (action.stage != slot.stage || is_of_stage(action.type)) continue;
      if (best == nullptr || distance(action) < distance(*best)) best = &action;
    }
    return *best;  // a stage is on the rank that computes it
  }

  // Next to the same action of the nearest microbatch, if it can run there: after all actions of
  // its microbatch that it needs, and before all that need it. Otherwise next to one of these. A
  // message is next to its computation, unless it would overtake the message of the nearest
  // microbatch: a send that is too late, or a receive that is too early, can deadlock.
  [[nodiscard]] InsertionPoint insertion_point(const Slot& slot) const {
    const Action& near = neighbour_of(slot);
    const InsertionPoint at_neighbour{.anchor = &near, .before = near.microbatch > slot.microbatch};
    const Action* const previous = latest_before(slot);
    const Action* const next = earliest_after(slot);
    if (previous == nullptr && next == nullptr) return at_neighbour;
    const bool fits =
        slot_type(near.type) == slot.type && is_left_of(previous, &near) && is_left_of(&near, next);
    if (fits && (computes(slot.type) || is_send(slot.type) != at_neighbour.before))
      return at_neighbour;
    if (previous != nullptr) return {.anchor = previous, .before = false};
    return {.anchor = next, .before = true};
  }

  // ---- reports

  // Removes and returns a missing slot for which an action of this slot may be a typo.
  const Slot* take_typo(const Slot& slot) {
    const auto found = missing_.find({slot.stage, slot.type});
    if (found == missing_.end() || found->second.empty()) return nullptr;
    typo_ = found->second.front();
    found->second.erase(found->second.begin());
    return &typo_;
  }

  void report_extra(const Slot& slot, const Action& action, std::string_view problem) {
    const Slot* const typo = take_typo(slot);
    std::string what =
        fmt::format("`{}` on rank {} {}", action.cell.text, rank_of(slot.stage), problem);
    if (typo != nullptr) what += fmt::format("; {} is missing", cell_of(*typo));
    errors_.add(
        row_of(slot.stage), action.cell,
        {.code = "D628",
         .what = std::move(what),
         .help = typo == nullptr ? "remove it" : fmt::format("did you mean {}?", cell_of(*typo))});
  }

  // Microbatches are in order, as a rule: a missing one that is lower belongs before the other.
  void report_repeated(const Slot& slot, const Actions& actions) {
    const auto found = missing_.find({slot.stage, slot.type});
    const bool lower = found != missing_.end() && !found->second.empty() &&
                       found->second.front().microbatch < slot.microbatch;
    const Action& first = *actions.front();
    const Action& suspect = lower ? first : *actions.back();
    const Action& other = lower ? *actions.back() : first;
    report_extra(slot, suspect,
                 suspect.type == other.type
                     ? (actions.size() == 2 ? "occurs twice"
                                            : fmt::format("occurs {} times", actions.size()))
                     : fmt::format("repeats `{}`", other.cell.text));
  }

  void report_order(const Slot& slot, const Action& action) {
    if (slot.type != backward) return;
    const Action* const needed = find({slot.microbatch, slot.stage, forward});
    if (needed == nullptr || needed->cell.column < action.cell.column) return;
    errors_.add(row_of(slot.stage), action.cell,
                {.code = "D629",
                 .what = fmt::format("`{}` on rank {} comes before `{}`", action.cell.text,
                                     rank_of(slot.stage), needed->cell.text),
                 .why = "a backward needs the activations of its forward",
                 .help = fmt::format("put it after `{}`", needed->cell.text)});
  }

  void report_absent_microbatches() {
    int next = 0;
    for (const auto& [microbatch, results] : results_) {
      if (unknown_.contains(microbatch)) continue;
      if (microbatch > next) {
        errors_.add({.code = "D628",
                     .what = fmt::format("no rank computes microbatch {}", next),
                     .help = "microbatches are numbered from 0, without gaps"});
      }
      next = microbatch + 1;
    }
  }

  void report_missing(const std::vector<Slot>& slots) {
    if (slots.empty()) return;
    const Slot& slot = slots.front();
    const auto [anchor, before] = insertion_point(slot);
    std::string more;
    for (std::size_t k = 1; k < slots.size() && k <= kMaxListed; ++k) {
      more += (k == 1 ? "" : ", ") + cell_of(slots[k]);
    }
    if (slots.size() > kMaxListed + 1) {
      more += fmt::format(" and {} more", slots.size() - kMaxListed - 1);
    }
    errors_.add(
        row_of(slot.stage), anchor->cell,
        {.code = "D628",
         .what = fmt::format("rank {} never {} {}{}", rank_of(slot.stage), verb(slot.type),
                             cell_of(slot), needed_for(slot)),
         .why = more.empty() ? "" : "also missing: " + more,
         .help = fmt::format("add {} to line {}, {} `{}`", cell_of(slot), row_of(slot.stage).line,
                             before ? "before" : "after", anchor->cell.text)});
  }

  static constexpr std::size_t kMaxListed = 4;

  const Pipeline& pipeline_;
  ScheduleErrors& errors_;
  std::map<Slot, Actions> actions_;
  std::map<int, std::set<Group>> results_;  // forwards and backwards, by microbatch
  std::set<int> split_, whole_;             // stages with I, with B
  std::set<int> unknown_;                   // microbatches taken for typos
  std::map<Group, std::vector<Slot>> missing_;
  Slot typo_;
};

}  // namespace

void check_actions(const Pipeline& pipeline, ScheduleErrors& errors) {
  ActionCensus(pipeline, errors).report();
}

}  // namespace shiplap::strategy::torch_schedule
