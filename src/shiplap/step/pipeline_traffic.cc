// The order of a pipeline, and the messages between its stages.
//
// Receives are posted where `pipeline_order` has them, and their stream goes on; a pass waits for
// its message with `after`. So messages move while a rank computes, and all ranks use all
// communicators in one order.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::PipelineSchedule;

std::vector<schedule::PipelineAction> actions_of(PipelineSchedule schedule,
                                                 const schedule::Pipeline& pipeline, int rank) {
  return schedule == PipelineSchedule::gpipe ? schedule::gpipe(pipeline, rank)
                                             : schedule::interleaved(pipeline, rank);
}

}  // namespace

schedule::Pipeline StepWriter::pipeline() const {
  return {.stages = static_cast<int>(pipeline_),
          .microbatches = static_cast<int>(microbatches_),
          .chunks = static_cast<int>(chunks_)};
}

void StepWriter::order_pipeline() {
  std::vector<std::vector<schedule::PipelineAction>> actions;
  for (int rank = 0; rank < pipeline().stages; ++rank) {
    actions.push_back(actions_of(layout_.schedule, pipeline(), rank));
  }
  order_ = pipeline_order(pipeline(), actions, false);
  gradients_ = gradients_at_once(order_, static_cast<int>(chunks_));
}

std::int64_t StepWriter::max_turns() const {
  std::size_t most = 0;
  for (const std::vector<OrderedTurn>& order : order_) most = std::max(most, order.size());
  return static_cast<std::int64_t>(most);
}

void StepWriter::pipeline_lists() {
  std::vector<int> turn;
  std::vector<int> chunk;
  std::vector<int> microbatch;
  for (std::vector<OrderedTurn> order : order_) {
    order.resize(max_turns());
    for (const OrderedTurn& entry : order) {
      turn.push_back(static_cast<int>(entry.turn));
      chunk.push_back(entry.chunk);
      microbatch.push_back(entry.microbatch);
    }
  }
  list("turn", turn);
  if (chunks_ > 1) list("chunk", chunk);
  list("microbatch", microbatch);
}

void StepWriter::turns(const std::vector<OrderedTurn>& order) {
  const auto pass_of = [&](Turn turn) {
    switch (turn) {
      case Turn::forward:
        return forward_pass();
      case Turn::backward:
        return backward_pass();
      case Turn::backward_weight:
        return;
      case Turn::receive_forward:
        return receive_activations();
      case Turn::receive_backward:
        return receive_gradient();
    }
  };
  block(fmt::format("repeat t {}", order.size()), [&] {
    const std::string at = plus(times("pp", max_turns()), "t");
    if (chunks_ > 1) line("let c = chunk[{}]", at);
    line("let m = microbatch[{}]", at);
    let_stage();
    line("let slot = {}", plus(chunks_ == 1 ? "0" : times("c", microbatches_), "m"));
    for (const Turn turn : {Turn::receive_forward, Turn::forward, Turn::receive_backward,
                            Turn::backward, Turn::backward_weight}) {
      if (std::ranges::find(order, turn, &OrderedTurn::turn) == order.end()) continue;
      block(fmt::format("when turn[{}]={}", at, static_cast<int>(turn)), [&] { pass_of(turn); });
    }
    block(fmt::format("when turn[{}]={} and m={}", at, static_cast<int>(Turn::backward),
                      microbatches_ - 1),
          [&] { last_reductions(); });
  });
}

std::vector<StepWriter::Link> StepWriter::links(bool next, std::string_view pass) const {
  if (pipeline_ == 1) return {};
  const bool is_end = next ? is_last_ : is_first_;
  const std::string peer = next ? "pp+1" : "pp-1";
  if (!is_end) return {{.when = "", .peer = peer, .channel = std::string(pass)}};
  if (chunks_ == 1) return {};
  // After the last rank comes the first one, with the next chunk.
  return {{.when = next ? fmt::format("when c<{}", chunks_ - 1) : "when c>0",
           .peer = peer + " wrap",
           .channel = fmt::format("{}_wrap", pass)}};
}

void StepWriter::receive_activations() {
  allocate_h();
  for (const Link& link : links(false, "forward")) {
    line("rf[slot]: receive {} from {} tag {}*{}+m channel {} async", h_row("0"), link.peer,
         stage(), microbatches_, link.channel);
  }
}

void StepWriter::receive_gradient() {
  for (const Link& link : links(true, "backward")) {
    line("rb[slot]: receive {} from {} tag {}*{}+m channel {}{} async", d_row(), link.peer, stage(),
         microbatches_, link.channel, after_gradient_sent());
  }
}

void StepWriter::send_activations() {
  for (const Link& link : links(true, "forward")) {
    block_if(!link.when.empty(), link.when, [&] {
      line("f[slot]: send {} to {} tag ({}+1)*{}+m channel {} async", h_row(layers_in_chunk()),
           link.peer, stage(), microbatches_, link.channel);
    });
  }
}

void StepWriter::send_gradient() {
  for (const Link& link : links(false, "backward")) {
    block_if(!link.when.empty(), link.when, [&] {
      line("b[{},m]: send {} to {} tag ({}-1)*{}+m channel {} async", chunk(), d_row(), link.peer,
           stage(), microbatches_, link.channel);
    });
  }
}

}  // namespace shiplap::step
