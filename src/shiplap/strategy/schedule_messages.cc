// List scheduling, as torch.distributed.pipelining does it when it lowers a schedule of
// computations
// (`_add_send_recv`, torch 2.15): ranks take turns in the order of their numbers, round after
// round. In its turn a rank takes its next action, if the inputs are there; otherwise it waits for
// the next round. If the result belongs on another rank, the send goes into the row of this rank,
// behind the action, and the receive at the same moment into the row of the other.
//
// So there is one sequence of all messages, and every row is a part of it. That is why the result
// cannot deadlock, even where a rank carries out its messages one at a time in the order of its
// row: the first message in the sequence that is not complete always can be.
//
// Who is in which round depends on every action that takes a turn, also on those that move nothing
// between ranks. torch lowers a schedule of computations in three passes, and messages come last:
// before, `_add_unshard_reshard` puts in the gathering and dropping of weights, and
// `_add_reduce_grad` the reduction of gradients. They are not in the plan, whose mesh has no axis
// for them, but their turns count (`turns_of`). The passes of torch have options; these are the
// defaults.
//
// If no rank can take a turn, torch refuses the schedule ("Malformed compute schedule"). Here
// messages are put in all the same, a receive before the computation and a send after it, so that
// `check` shows who waits for whom. Each of them has its own tag: which send belongs to which
// receive is not in doubt, only when they happen.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "shiplap/strategy/schedule_messages_internal.h"

namespace shiplap::strategy::torch_schedule {
namespace {

constexpr std::size_t kMaxActiveStages = 3;  // torch's `max_active_stages`

// Actions that overlap are taken together; a turn without any is of an action that torch puts in.
using Turn = std::span<const Action>;

std::vector<Turn> groups_of(const std::vector<Action>& actions) {
  std::vector<Turn> groups;
  for (auto begin = actions.begin(); begin != actions.end();) {
    const auto end = std::find_if(begin + 1, actions.end(),
                                  [](const Action& action) { return !action.overlaps_previous; });
    groups.emplace_back(begin, end);
    begin = end;
  }
  return groups;
}

// For each group, the stages whose weights are there when it is taken: those that the rank computes
// next, three of them, and what else is in the same group as the third.
std::vector<std::set<int>> active_stages(const std::vector<Turn>& groups) {
  std::vector<std::set<int>> result(groups.size());
  std::vector<int> upcoming;  // stages, that of the next computation first
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

// How many gradients are complete after `group`; `count` has the gradients that were added so far.
std::size_t reductions(const Turn& group, int microbatches, std::map<int, int>& count) {
  return static_cast<std::size_t>(std::ranges::count_if(group, [&](const Action& action) {
    const bool adds = action.act == Act::backward || action.act == Act::backward_weight;
    return adds && ++count[action.stage] == microbatches;
  }));
}

// The turns of a rank, with those of the actions that torch puts in before messages.
std::vector<Turn> turns_of(const std::vector<Action>& actions, const Pipeline& pipeline) {
  std::vector<Turn> groups = groups_of(actions);
  if (pipeline.stage_actions) return groups;
  const std::vector<std::set<int>> active = active_stages(groups);
  std::vector<Turn> turns;
  std::map<int, int> gradients;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    // UNSHARD and RESHARD before it; REDUCE_GRAD and WAIT_REDUCE_GRAD behind it.
    turns.resize(turns.size() + changes(i == 0 ? std::set<int>{} : active[i - 1], active[i]));
    turns.push_back(groups[i]);
    turns.resize(turns.size() + 2 * reductions(groups[i], pipeline.microbatches, gradients));
  }
  return turns;
}

class MessagePlacer {
 public:
  explicit MessagePlacer(const Pipeline& pipeline)
      : pipeline_(pipeline), rows_(pipeline.rows.size()), next_(pipeline.rows.size()) {
    for (const Row& row : pipeline.rows) turns_.push_back(turns_of(row.actions, pipeline));
  }

  [[nodiscard]] std::vector<std::vector<Action>> place() && {
    while (take_round()) {
    }
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) take_rest(rank);
    return std::move(rows_);
  }

 private:
  // A message from one rank to another, by its two ends.
  struct Message {
    Action send;
    Action receive;
  };

  [[nodiscard]] bool take_round() {
    bool progress = false;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      if (next_[rank] == turns_[rank].size()) continue;
      const Turn& turn = turns_[rank][next_[rank]];
      if (!std::ranges::all_of(turn, [&](const Action& action) { return is_ready(action); })) {
        continue;
      }
      take(rank, turn);
      ++next_[rank];
      progress = true;
    }
    return progress;
  }

  void take(std::size_t rank, const Turn& turn) {
    rows_[rank].insert(rows_[rank].end(), turn.begin(), turn.end());
    for (const Action& action : turn) {
      if (!makes_result(action)) continue;
      done_.insert(result_of(action));
      if (!sends_result(action)) continue;
      const Message message = message_of(action);
      rows_[rank].push_back(message.send);
      rows_[pipeline_.rank_of.at(message.receive.stage)].push_back(message.receive);
    }
  }

  // What is left when no rank can take a turn.
  void take_rest(std::size_t rank) {
    for (; next_[rank] < turns_[rank].size(); ++next_[rank]) {
      for (const Action& action : turns_[rank][next_[rank]]) {
        if (!is_ready(action)) {
          const Action source = source_of(action);
          if (sends_result(source)) rows_[rank].push_back(with_tag(message_of(source).receive));
        }
        rows_[rank].push_back(action);
        if (makes_result(action) && sends_result(action)) {
          rows_[rank].push_back(with_tag(message_of(action).send));
        }
      }
    }
  }

  // An activation, or the gradient of one: by direction, stage that makes it, and microbatch.
  using Result = std::tuple<bool, int, int>;

  static bool makes_result(const Action& action) {
    return computes(action.act) && action.act != Act::backward_weight;
  }
  static Result result_of(const Action& action) {
    return {action.act == Act::forward, action.stage, action.microbatch};
  }
  // REQUIRES: makes_result(action). The action that makes its input.
  static Action source_of(const Action& action) {
    const bool forward = action.act == Act::forward;
    return {.act = forward ? Act::forward : Act::backward,
            .stage = action.stage + (forward ? -1 : 1),
            .microbatch = action.microbatch};
  }

  [[nodiscard]] bool is_ready(const Action& action) const {
    if (!makes_result(action)) return true;
    const Action source = source_of(action);
    return source.stage < 0 || source.stage == pipeline_.stages ||
           done_.contains(result_of(source));
  }

  // REQUIRES: makes_result(action).
  [[nodiscard]] bool sends_result(const Action& action) const {
    const int next = action.stage + (action.act == Act::forward ? 1 : -1);
    return pipeline_.sends_between(action.stage, next);
  }

  // REQUIRES: sends_result(action).
  static Message message_of(const Action& action) {
    const bool forward = action.act == Act::forward;
    return {.send = {.act = forward ? Act::send_forward : Act::send_backward,
                     .stage = action.stage,
                     .microbatch = action.microbatch},
            .receive = {.act = forward ? Act::receive_forward : Act::receive_backward,
                        .stage = action.stage + (forward ? 1 : -1),
                        .microbatch = action.microbatch}};
  }

  // With a tag that no other message has.
  [[nodiscard]] Action with_tag(Action message) const {
    const bool forward = message.act == Act::send_forward || message.act == Act::receive_forward;
    const int boundary = std::min(message.stage, peer_stage(message.act, message.stage));
    const std::int64_t number =
        std::int64_t{boundary} * pipeline_.microbatches + message.microbatch;
    message.tag = 1 + 2 * number + (forward ? 0 : 1);
    return message;
  }

  const Pipeline& pipeline_;
  std::vector<std::vector<Turn>> turns_;   // by rank
  std::vector<std::vector<Action>> rows_;  // by rank: so far
  std::vector<std::size_t> next_;          // by rank: turn
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
