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
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return schedule::gpipe(pipeline, rank);
    case PipelineSchedule::one_f_one_b:
    case PipelineSchedule::interleaved:
      return schedule::interleaved(pipeline, rank);
    case PipelineSchedule::zero_bubble:
      return schedule::zb_h1(pipeline, rank);
    case PipelineSchedule::dual_pipe_v:
      return schedule::dualpipev(pipeline, rank);
  }
  throw InternalError("unknown pipeline schedule");
}

}  // namespace

schedule::Pipeline StepWriter::pipeline() const {
  return {.stages = static_cast<int>(pipeline_),
          .microbatches = static_cast<int>(microbatches_),
          .chunks = static_cast<int>(chunks_),
          .placement = is_v_ ? schedule::Placement::v : schedule::Placement::loop};
}

std::int64_t StepWriter::stage_index(std::int64_t rank, std::int64_t chunk) const {
  return schedule::position_of(pipeline(), static_cast<int>(rank), static_cast<int>(chunk));
}

void StepWriter::order_pipeline() {
  std::vector<std::vector<schedule::PipelineAction>> actions;
  for (int rank = 0; rank < pipeline().stages; ++rank) {
    actions.push_back(actions_of(layout_.schedule, pipeline(), rank));
  }
  order_ = pipeline_order(pipeline(), actions, splits_);
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
        return backward_weight_pass();
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
    const Turn last = splits_ ? Turn::backward_weight : Turn::backward;
    block(fmt::format("when turn[{}]={} and m={}", at, static_cast<int>(last), microbatches_ - 1),
          [&] { last_reductions(); });
  });
}

std::vector<StepWriter::Link> StepWriter::links(bool next, std::string_view pass) const {
  if (pipeline_ == 1) return {};
  if (is_v_) return links_of_v(next, pass);
  const bool is_end = next ? is_last_ : is_first_;
  const std::string peer = next ? "pp+1" : "pp-1";
  if (!is_end) return {{.when = "", .peer = peer, .channel = std::string(pass)}};
  if (chunks_ == 1) return {};
  // After the last rank comes the first one, with the next chunk.
  return {{.when = next ? fmt::format("when c<{}", chunks_ - 1) : "when c>0",
           .peer = peer + " wrap",
           .channel = fmt::format("{}_wrap", pass)}};
}

// The first chunks go up the ranks, the second ones down. The last rank has two in a row.
std::vector<StepWriter::Link> StepWriter::links_of_v(bool next, std::string_view pass) const {
  std::vector<Link> all;
  for (int c = 0; c < 2; ++c) {
    const bool up = (c == 0) == next;
    if (up ? is_last_ : is_first_) continue;
    all.push_back({.when = fmt::format("when c={}", c),
                   .peer = up ? "pp+1" : "pp-1",
                   .channel = std::string(pass)});
  }
  return all;
}

void StepWriter::receive_activations() {
  allocate_h();
  for (const Link& link : links(false, "forward")) {
    block_if(!link.when.empty(), link.when, [&] {
      line("rf[slot]: receive {} from {} tag {}*{}+m channel {} async", h_row("0"), link.peer,
           stage(), microbatches_, link.channel);
    });
  }
}

void StepWriter::receive_gradient() {
  if (splits_) allocate_dh();
  for (const Link& link : links(true, "backward")) {
    block_if(!link.when.empty(), link.when, [&] {
      line("rb[slot]: receive {} from {} tag {}*{}+m channel {}{} async", dh_row(layers_in_chunk()),
           link.peer, stage(), microbatches_, link.channel, after_gradient_sent());
    });
  }
}

void StepWriter::send_activations() {
  for (const Link& link : links(true, "forward")) {
    block_if(!link.when.empty(), link.when, [&] {
      line("f[slot]: send {} to {} tag ({}+1)*{}+m channel {} async", h_row(layers_in_chunk()),
           link.peer, stage(), microbatches_, link.channel);
    });
  }
  if (is_v_ && is_last_) block("when c=0", [&] { hand_over("h", h_row(layers_in_chunk()), 1); });
}

void StepWriter::send_gradient() {
  for (const Link& link : links(false, "backward")) {
    block_if(!link.when.empty(), link.when, [&] {
      line("b[{},m]: send {} to {} tag ({}-1)*{}+m channel {} async", chunk(), dh_row("0"),
           link.peer, stage(), microbatches_, link.channel);
    });
  }
  if (is_v_ && is_last_) block("when c=1", [&] { hand_over("dh", dh_row("0"), 0); });
}

void StepWriter::hand_over(std::string_view buffer, const std::string& row, std::int64_t to_chunk) {
  const std::int64_t layers = stage_at(pipeline_ - 1, to_chunk).layers;
  const std::string rows =
      times(plus(std::to_string(to_chunk * microbatches_), "m"), hidden_rows());
  const std::string at = plus(rows, std::to_string(to_chunk == 1 ? 0 : layers));
  line("allocate {}[{} +{}]", buffer, rows, layers + 1);
  line("copy {} to {}[{} +1]", row, buffer, at);
}

}  // namespace shiplap::step
