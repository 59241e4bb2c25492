// A list schedule of the passes: of those whose inputs are known, the one that can start first is
// next. It starts no earlier than the passes before it in the sequence, because each takes some
// time, so a rank that has its message in this order has it before it is needed.
#include <algorithm>
#include <limits>
#include <tuple>

#include "shiplap/base/error.h"
#include "shiplap/step/pipeline_order_internal.h"

namespace shiplap::step {
namespace {

using schedule::Pass;
using schedule::Pipeline;
using schedule::PipelineAction;

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
constexpr int kForward = 0;
constexpr int kBackward = 1;

std::int64_t duration_of(Pass pass) { return pass == Pass::backward ? 2 : 1; }

std::vector<PipelineAction> halves_of(const std::vector<PipelineAction>& actions) {
  std::vector<PipelineAction> halves;
  for (PipelineAction action : actions) {
    const bool is_whole = action.pass == Pass::backward;
    if (is_whole) action.pass = Pass::backward_input;
    halves.push_back(action);
    if (is_whole) halves.push_back({Pass::backward_weight, action.chunk, action.microbatch});
  }
  return halves;
}

class Sequence {
 public:
  Sequence(const Pipeline& pipeline, std::vector<std::vector<PipelineAction>> actions)
      : pipeline_(pipeline),
        positions_(pipeline.stages * pipeline.chunks),
        actions_(std::move(actions)),
        next_(actions_.size()),
        free_at_(actions_.size()),
        order_(actions_.size()) {
    for (auto& ends : ends_) {
      ends.assign(static_cast<std::size_t>(positions_) * pipeline.microbatches, kUnknown);
    }
  }

  std::vector<std::vector<OrderedTurn>> run() {
    for (;;) {
      // Of passes that can start at once backwards are first, the last stage's before the others',
      // then forwards, the first stage's before the others': so more messages are ahead.
      auto best = std::tuple(kUnknown, 0, std::size_t{0});
      for (std::size_t rank = 0; rank < actions_.size(); ++rank) {
        if (next_[rank] == actions_[rank].size()) continue;
        const PipelineAction& action = actions_[rank][next_[rank]];
        const int here = position(rank, action);
        const int turn = action.pass == Pass::forward ? here : -here - 1;
        best = std::min(best, std::tuple(start_of(rank), turn, rank));
      }
      if (std::get<0>(best) == kUnknown) break;
      add(std::get<2>(best), std::get<0>(best));
    }
    for (std::size_t rank = 0; rank < actions_.size(); ++rank) {
      ensure(next_[rank] == actions_[rank].size(), "a schedule does not deadlock");
    }
    return std::move(order_);
  }

 private:
  [[nodiscard]] int position(std::size_t rank, const PipelineAction& action) const {
    return schedule::position_of(pipeline_, static_cast<int>(rank), action.chunk);
  }
  std::int64_t& end_of(int pass, int position, int microbatch) {
    return ends_[pass][static_cast<std::size_t>(position) * pipeline_.microbatches + microbatch];
  }

  // The next pass of a rank; kUnknown if it waits for one that is not in the sequence yet.
  std::int64_t start_of(std::size_t rank) {
    const PipelineAction& action = actions_[rank][next_[rank]];
    if (action.pass == Pass::backward_weight) return free_at_[rank];
    const bool is_forward = action.pass == Pass::forward;
    const int from = position(rank, action) + (is_forward ? -1 : 1);
    if (from < 0 || from == positions_) return free_at_[rank];
    const std::int64_t end = end_of(is_forward ? kForward : kBackward, from, action.microbatch);
    return end == kUnknown ? kUnknown : std::max(end, free_at_[rank]);
  }

  void add(std::size_t rank, std::int64_t start) {
    const PipelineAction action = actions_[rank][next_[rank]++];
    free_at_[rank] = start + duration_of(action.pass);
    const bool is_weight = action.pass == Pass::backward_weight;
    const bool is_forward = action.pass == Pass::forward;
    const Turn turn = is_weight    ? Turn::backward_weight
                      : is_forward ? Turn::forward
                                   : Turn::backward;
    order_[rank].push_back({turn, action.chunk, action.microbatch});
    if (is_weight) return;
    const int here = position(rank, action);
    end_of(is_forward ? kForward : kBackward, here, action.microbatch) = free_at_[rank];
    receive(rank, here + (is_forward ? 1 : -1), action.microbatch, is_forward);
  }

  // By the rank of a position, unless it is the one that computed.
  void receive(std::size_t from, int position, int microbatch, bool is_forward) {
    if (position < 0 || position == positions_) return;
    const int rank = schedule::stage_at(pipeline_, position);
    if (rank == static_cast<int>(from)) return;
    order_[rank].push_back({is_forward ? Turn::receive_forward : Turn::receive_backward,
                            position / pipeline_.stages, microbatch});
  }

  Pipeline pipeline_;
  int positions_;
  std::vector<std::vector<PipelineAction>> actions_;
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> free_at_;
  std::vector<std::int64_t> ends_[2];  // of forwards and backwards, by position and microbatch
  std::vector<std::vector<OrderedTurn>> order_;
};

}  // namespace

std::vector<std::vector<OrderedTurn>> pipeline_order(
    const Pipeline& pipeline, const std::vector<std::vector<PipelineAction>>& actions,
    bool splits) {
  if (!splits) return Sequence(pipeline, actions).run();
  std::vector<std::vector<PipelineAction>> halves;
  halves.reserve(actions.size());
  for (const auto& of_rank : actions) halves.push_back(halves_of(of_rank));
  return Sequence(pipeline, std::move(halves)).run();
}

std::int64_t gradients_at_once(const std::vector<std::vector<OrderedTurn>>& order, int chunks) {
  std::int64_t most = 2;
  for (const std::vector<OrderedTurn>& of_rank : order) {
    std::vector<std::int64_t> computed(chunks);
    for (const OrderedTurn& turn : of_rank) {
      if (turn.turn == Turn::backward) ++computed[turn.chunk];
      if (turn.turn != Turn::receive_backward) continue;
      most = std::max(most, turn.microbatch + 1 - computed[turn.chunk]);
    }
  }
  return most;
}

}  // namespace shiplap::step
