// Inserts sends and receives by list scheduling, as torch.distributed.pipelining does when it
// lowers a schedule of computations (`_add_send_recv`, torch 2.15). Ranks take turns in the order
// of their numbers, round after round. In its turn a rank takes its next action if the inputs are
// available; otherwise it waits for the next round. If another rank needs the result, the send is
// appended to the row of this rank, after the action, and the receive at the same time to the row
// of the other.
//
// So there is one global sequence of messages, and every row is a subsequence of it. This is why
// the result cannot deadlock, even if a rank executes its messages one at a time in the order of
// its row: the first incomplete message of the sequence can always be executed.
//
// The rounds depend on every action that takes a turn, including those without communication
// between stages. torch lowers a schedule of computations in three passes, and messages come last:
// before, `_add_unshard_reshard` inserts gathering and freeing of weights, and `_add_reduce_grad`
// the reduction of gradients. They are not in the plan, whose mesh has no axis for them, but their
// turns count (`groups_with_inserted`). torch's passes have options; these are the defaults.
//
// If no rank can take a turn, torch rejects the schedule ("Malformed compute schedule"). Here the
// messages are inserted anyway, a receive before the computation and a send after it, so that
// `check` can report the deadlock. Each of them has its own tag, so that the matching is
// unambiguous.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/strategy/schedule_messages_internal.h"

namespace shiplap::strategy::torch_schedule {
namespace {

constexpr std::size_t kMaxActiveStages = 3;  // torch's `max_active_stages`

// Actions that overlap form one group. An empty group is an action that torch inserts.
using ActionGroup = std::span<const Action>;

std::vector<ActionGroup> groups_of(const std::vector<Action>& actions) {
  std::vector<ActionGroup> groups;
  for (auto begin = actions.begin(); begin != actions.end();) {
    const auto end = std::find_if(begin + 1, actions.end(),
                                  [](const Action& action) { return !action.overlaps_previous; });
    groups.emplace_back(begin, end);
    begin = end;
  }
  return groups;
}

// For each group, the stages whose weights are gathered when it runs: the next three that the rank
// computes, and those in the same group as the third.
std::vector<std::set<int>> active_stages(const std::vector<ActionGroup>& groups) {
  std::vector<std::set<int>> result(groups.size());
  std::vector<int> upcoming;  // stages, in the order of their next use
  std::map<int, std::size_t> next_use;
  for (std::size_t i = groups.size(); i-- > 0;) {
    for (auto action = groups[i].rbegin(); action != groups[i].rend(); ++action) {
      std::erase(upcoming, action->stage);
      upcoming.insert(upcoming.begin(), action->stage);
      next_use[action->stage] = i;
    }
    const std::size_t third = std::min(kMaxActiveStages, upcoming.size()) - 1;
    const std::size_t last_group = next_use[upcoming[third]];
    for (const int stage : upcoming) {
      if (next_use[stage] > last_group) break;
      result[i].insert(stage);
    }
  }
  return result;
}

std::size_t changes(const std::set<int>& before, const std::set<int>& after) {
  std::vector<int> changed;
  std::ranges::set_symmetric_difference(before, after, std::back_inserter(changed));
  return changed.size();
}

// Returns the number of gradients that `group` completes. `count` has the gradients added so far.
std::size_t reductions(const ActionGroup& group, int microbatches, std::map<int, int>& count) {
  return static_cast<std::size_t>(std::ranges::count_if(group, [&](const Action& action) {
    const bool adds =
        action.type == ComputationType::backward || action.type == ComputationType::backward_weight;
    return adds && ++count[action.stage] == microbatches;
  }));
}

// The groups of a rank, including the actions that torch inserts before messages.
std::vector<ActionGroup> groups_with_inserted(const std::vector<Action>& actions,
                                              const Pipeline& pipeline) {
  std::vector<ActionGroup> groups = groups_of(actions);
  if (pipeline.stage_actions) return groups;
  const std::vector<std::set<int>> active = active_stages(groups);
  std::vector<ActionGroup> all_groups;
  std::map<int, int> gradients;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    // UNSHARD and RESHARD before it; REDUCE_GRAD and WAIT_REDUCE_GRAD after it.
    all_groups.resize(all_groups.size() +
                      changes(i == 0 ? std::set<int>{} : active[i - 1], active[i]));
    all_groups.push_back(groups[i]);
    all_groups.resize(all_groups.size() +
                      2 * reductions(groups[i], pipeline.microbatches, gradients));
  }
  return all_groups;
}

class MessagePlacer {
 public:
  explicit MessagePlacer(const Pipeline& pipeline)
      : pipeline_(pipeline), rows_(pipeline.rows.size()), next_(pipeline.rows.size()) {
    for (const Row& row : pipeline.rows)
      groups_.push_back(groups_with_inserted(row.actions, pipeline));
  }

  [[nodiscard]] std::vector<std::vector<Action>> place() && {
    while (take_round()) {
    }
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) take_rest(rank);
    return std::move(rows_);
  }

 private:
  // Both ends of a message.
  struct Message {
    Action send;
    Action receive;
  };

  [[nodiscard]] bool take_round() {
    bool progress = false;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      throw_if_cancelled();
      if (next_[rank] == groups_[rank].size()) continue;
      const ActionGroup& turn = groups_[rank][next_[rank]];
      if (!std::ranges::all_of(turn, [&](const Action& action) { return is_ready(action); })) {
        continue;
      }
      take(rank, turn);
      ++next_[rank];
      progress = true;
    }
    return progress;
  }

  void take(std::size_t rank, const ActionGroup& turn) {
    rows_[rank].insert(rows_[rank].end(), turn.begin(), turn.end());
    for (const Action& action : turn) {
      if (!makes_result(action.type)) continue;
      done_.insert(result_of(action));
      if (!sends_result(action)) continue;
      const Message message = message_of(action);
      rows_[rank].push_back(message.send);
      rows_[pipeline_.rank_of.at(message.receive.stage)].push_back(message.receive);
    }
  }

  // Takes the remaining actions when no rank can take a turn.
  void take_rest(std::size_t rank) {
    for (; next_[rank] < groups_[rank].size(); ++next_[rank]) {
      for (const Action& action : groups_[rank][next_[rank]]) {
        if (!is_ready(action)) {
          const Action source = source_of(action);
          if (sends_result(source)) rows_[rank].push_back(with_tag(message_of(source).receive));
        }
        rows_[rank].push_back(action);
        if (makes_result(action.type) && sends_result(action)) {
          rows_[rank].push_back(with_tag(message_of(action).send));
        }
      }
    }
  }

  // An activation or its gradient: direction, stage that computes it, and microbatch.
  using Result = std::tuple<bool, int, int>;

  static Result result_of(const Action& action) {
    return {action.type == ComputationType::forward, action.stage, action.microbatch};
  }
  // REQUIRES: makes_result(action.type). Returns the action that computes its input.
  static Action source_of(const Action& action) {
    const bool forward = action.type == ComputationType::forward;
    return {.type = forward ? ComputationType::forward : ComputationType::backward,
            .stage = action.stage + (forward ? -1 : 1),
            .microbatch = action.microbatch};
  }

  [[nodiscard]] bool is_ready(const Action& action) const {
    if (!makes_result(action.type)) return true;
    const Action source = source_of(action);
    return source.stage < 0 || source.stage == pipeline_.stages ||
           done_.contains(result_of(source));
  }

  // REQUIRES: makes_result(action.type).
  [[nodiscard]] bool sends_result(const Action& action) const {
    const int next = action.stage + (action.type == ComputationType::forward ? 1 : -1);
    return pipeline_.sends_between(action.stage, next);
  }

  // REQUIRES: sends_result(action).
  static Message message_of(const Action& action) {
    const bool forward = action.type == ComputationType::forward;
    return {
        .send = {.type = forward ? ComputationType::send_forward : ComputationType::send_backward,
                 .stage = action.stage,
                 .microbatch = action.microbatch},
        .receive = {
            .type = forward ? ComputationType::receive_forward : ComputationType::receive_backward,
            .stage = action.stage + (forward ? 1 : -1),
            .microbatch = action.microbatch}};
  }

  // Adds a unique tag.
  [[nodiscard]] Action with_tag(Action message) const {
    const bool forward = message.type == ComputationType::send_forward ||
                         message.type == ComputationType::receive_forward;
    const int boundary = std::min(message.stage, peer_stage(message.type, message.stage));
    const std::int64_t number =
        std::int64_t{boundary} * pipeline_.microbatches + message.microbatch;
    message.tag = 1 + 2 * number + (forward ? 0 : 1);
    return message;
  }

  const Pipeline& pipeline_;
  std::vector<std::vector<ActionGroup>> groups_;  // by rank
  std::vector<std::vector<Action>> rows_;         // by rank: so far
  std::vector<std::size_t> next_;                 // by rank: next group
  std::set<Result> done_;
};

}  // namespace

std::vector<std::vector<Action>> with_messages(const Pipeline& pipeline) {
  if (!pipeline.messages) return MessagePlacer(pipeline).place();
  std::vector<std::vector<Action>> rows;
  for (const Row& row : pipeline.rows) rows.push_back(row.actions);
  return rows;
}

}  // namespace shiplap::strategy::torch_schedule
