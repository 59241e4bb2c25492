#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "shiplap/step/pipeline_order_internal.h"

namespace shiplap::step {
namespace {

using schedule::Pass;
using schedule::Pipeline;
using schedule::PipelineAction;
using schedule::Placement;

struct Case {
  std::string name;
  Pipeline pipeline;
  std::vector<PipelineAction> (*actions)(const Pipeline& pipeline, int stage);
  bool splits = false;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int stages : {2, 3, 4, 8}) {
    for (const int m : {1, 2, 3, 8, 17}) {
      const Pipeline one{.stages = stages, .microbatches = m};
      const Pipeline v{.stages = stages, .microbatches = m, .chunks = 2, .placement = Placement::v};
      const std::string size = fmt::format(" of {} stages, {} microbatches", stages, m);
      all.push_back({"GPipe" + size, one, schedule::gpipe});
      all.push_back({"1F1B" + size, one, schedule::one_f_one_b});
      all.push_back({"ZB-H1" + size, one, schedule::zb_h1, true});
      all.push_back({"DualPipeV" + size, v, schedule::dualpipev, true});
      for (const int chunks : {2, 3}) {
        const Pipeline loop{.stages = stages, .microbatches = stages * m, .chunks = chunks};
        all.push_back({fmt::format("{} chunks{}", chunks, size), loop, schedule::interleaved});
      }
    }
  }
  return all;
}

std::vector<std::vector<OrderedTurn>> order_of(const Case& c) {
  std::vector<std::vector<PipelineAction>> actions;
  for (int s = 0; s < c.pipeline.stages; ++s) actions.push_back(c.actions(c.pipeline, s));
  return pipeline_order(c.pipeline, actions, c.splits);
}

// Where a pass sends its result: the rank, and the receive that is posted there.
struct Destination {
  int rank = -1;  // none
  OrderedTurn receive;
};

Destination destination_of(const Pipeline& pipeline, int rank, const OrderedTurn& turn) {
  if (turn.turn != Turn::forward && turn.turn != Turn::backward) return {};
  const bool is_forward = turn.turn == Turn::forward;
  const int to = schedule::position_of(pipeline, rank, turn.chunk) + (is_forward ? 1 : -1);
  if (to < 0 || to == pipeline.stages * pipeline.chunks) return {};
  const int peer = schedule::stage_at(pipeline, to);
  if (peer == rank) return {};
  return {peer,
          {is_forward ? Turn::receive_forward : Turn::receive_backward, to / pipeline.stages,
           turn.microbatch}};
}

// Executes the orders with one operation of a rank at a time, sends as rendezvous. Returns whether
// all ranks reach their end.
bool ends_in_one_queue(const Case& c, const std::vector<std::vector<OrderedTurn>>& order) {
  std::vector<std::size_t> at(order.size());
  std::vector<bool> is_sending(order.size());
  const auto is_at = [&](int rank, const OrderedTurn& turn) {
    return at[rank] < order[rank].size() && order[rank][at[rank]] == turn;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < std::ssize(order); ++rank) {
      if (at[rank] == order[rank].size()) continue;
      const OrderedTurn& turn = order[rank][at[rank]];
      if (turn.turn == Turn::receive_forward || turn.turn == Turn::receive_backward) continue;
      const Destination to = destination_of(c.pipeline, rank, turn);
      if (to.rank >= 0 && !is_at(to.rank, to.receive)) continue;
      if (to.rank >= 0) ++at[to.rank];
      ++at[rank];
      moved = true;
    }
  }
  return std::ranges::all_of(std::views::iota(std::size_t{0}, order.size()),
                             [&](std::size_t rank) { return at[rank] == order[rank].size(); });
}

TEST(PipelineOrder, EndsWithAllCommunicationInOneQueue) {
  for (const Case& c : cases()) EXPECT_TRUE(ends_in_one_queue(c, order_of(c))) << c.name;
}

TEST(PipelineOrder, HasEachPassOnceInTheOrderOfTheSchedule) {
  for (const Case& c : cases()) {
    const auto order = order_of(c);
    for (int rank = 0; rank < c.pipeline.stages; ++rank) {
      std::vector<OrderedTurn> wanted;
      for (const PipelineAction& action : c.actions(c.pipeline, rank)) {
        const bool is_forward = action.pass == Pass::forward;
        const bool has_input = !is_forward && action.pass != Pass::backward_weight;
        if (is_forward) wanted.push_back({Turn::forward, action.chunk, action.microbatch});
        if (has_input) wanted.push_back({Turn::backward, action.chunk, action.microbatch});
        if (!is_forward && (!has_input || (c.splits && action.pass == Pass::backward))) {
          wanted.push_back({Turn::backward_weight, action.chunk, action.microbatch});
        }
      }
      std::vector<OrderedTurn> found = order[rank];
      std::erase_if(found, [](const OrderedTurn& turn) {
        return turn.turn == Turn::receive_forward || turn.turn == Turn::receive_backward;
      });
      EXPECT_EQ(found, wanted) << c.name << ", rank " << rank;
    }
  }
}

// Of each receive, that the pass that needs it comes after it.
TEST(PipelineOrder, ReceivesWhatAPassNeedsBeforeIt) {
  for (const Case& c : cases()) {
    const auto order = order_of(c);
    for (int rank = 0; rank < c.pipeline.stages; ++rank) {
      std::set<std::tuple<Turn, int, int>> received;
      for (const auto& [turn, chunk, microbatch] : order[rank]) {
        if (turn == Turn::receive_forward) received.insert({Turn::forward, chunk, microbatch});
        if (turn == Turn::receive_backward) received.insert({Turn::backward, chunk, microbatch});
        if (turn != Turn::forward && turn != Turn::backward) continue;
        const int here = schedule::position_of(c.pipeline, rank, chunk);
        const int from = here + (turn == Turn::forward ? -1 : 1);
        const bool is_end = from < 0 || from == c.pipeline.stages * c.pipeline.chunks;
        if (is_end || schedule::stage_at(c.pipeline, from) == rank) continue;
        EXPECT_EQ(received.erase({turn, chunk, microbatch}), 1U) << c.name << ", rank " << rank;
      }
      EXPECT_TRUE(received.empty()) << c.name << ", rank " << rank;
    }
  }
}

// Microbatch m of a chunk has row m mod n: nothing is received into a row that is still in use.
TEST(PipelineOrder, HasRowsForItsGradients) {
  for (const Case& c : cases()) {
    const auto order = order_of(c);
    const std::int64_t rows = gradients_at_once(order, c.pipeline.chunks);
    EXPECT_LE(rows, 4) << c.name;
    for (const std::vector<OrderedTurn>& of_rank : order) {
      std::set<std::tuple<int, std::int64_t>> used;  // chunk and row
      for (const auto& [turn, chunk, microbatch] : of_rank) {
        const std::tuple row{chunk, microbatch % rows};
        if (turn == Turn::receive_backward) {
          EXPECT_TRUE(used.insert(row).second) << c.name;
        }
        if (turn == Turn::backward) used.erase(row);
      }
    }
  }
}

TEST(PipelineOrder, PostsAReceiveAheadOfThePassBefore) {
  const Pipeline pipeline{.stages = 2, .microbatches = 2};
  const auto order = order_of({"", pipeline, schedule::gpipe});
  using enum Turn;
  EXPECT_EQ(order[0], (std::vector<OrderedTurn>{{forward, 0, 0},
                                                {forward, 0, 1},
                                                {receive_backward, 0, 0},
                                                {receive_backward, 0, 1},
                                                {backward, 0, 0},
                                                {backward, 0, 1}}));
  EXPECT_EQ(order[1], (std::vector<OrderedTurn>{{receive_forward, 0, 0},
                                                {receive_forward, 0, 1},
                                                {forward, 0, 0},
                                                {forward, 0, 1},
                                                {backward, 0, 0},
                                                {backward, 0, 1}}));
}

}  // namespace
}  // namespace shiplap::step
