// The plan follows the execution of torch's schedule runtime (`_PipelineScheduleRuntime`, torch
// 2.15), after messages are inserted (schedule_messages.cc):
//
// - A row is executed in order. Computations run one after another, on the stream `main`.
// - A send or receive is posted and does not block the row. It starts when the computations
//   before it in the row are complete, because ProcessGroupNCCL makes the stream of the
//   communicator wait for the current one, for a receive as well as for a send.
// - NCCL executes the messages of one communicator in the order in which they were posted. So
//   they are on one stream, `net`, none of them async. (Without `device_id`, torch makes a
//   communicator for each pair of ranks, which orders fewer of them, so what cannot deadlock
//   here cannot deadlock there.) Messages have no tags: they match in order.
// - A computation waits for the receives that it reads. WAIT_SEND makes the next computation wait
//   for the send; the end of the step waits for all of them.
//
// Every stage and microbatch has its own rows, so that no order is wrong only because of memory
// reuse.
#include "shiplap/strategy/import_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/plan/builder.h"
#include "shiplap/strategy/schedule_messages_internal.h"
#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy {
namespace {

using torch_schedule::Action;
using torch_schedule::Cell;
using torch_schedule::ComputationType;
using torch_schedule::Pipeline;
using References = std::vector<plan::Reference>;

constexpr auto kActivationBytes = static_cast<int>(kScheduleActivation.count);
constexpr int kWeightBytes = 1 << 22U;

// The tensors of the plan: a stage is a layer, a microbatch a sample.
struct ScheduleTensors {
  ScheduleTensors(plan::Builder& b, const Pipeline& pipeline)
      : sample{"sample", pipeline.microbatches},
        weight(b.tensor({"W", plan::kWeight, pipeline.stages, {{"shard", 1}}})),
        weight_grad(b.tensor({"G", "WeightGrad", pipeline.stages, {{"shard", 1}}, {sample}})),
        activation(b.tensor({"A", "Activation", pipeline.stages + 1, {sample}})),
        activation_grad(b.tensor({"D", "ActivationGrad", pipeline.stages + 1, {sample}})) {}

  plan::Dimension sample;
  plan::TensorRef weight, weight_grad, activation, activation_grad;
};

// The program of one rank.
class ScheduleWriter {
 public:
  ScheduleWriter(plan::Builder& b, const ScheduleTensors& tensors, const Pipeline& pipeline,
                 const ActionCosts& costs, int rank)
      : b_(b), tensors_(tensors), pipeline_(pipeline), costs_(costs), rank_(rank) {
    for (const auto& [stage, home] : pipeline.rank_of) {
      if (home == rank) slot_.emplace(stage, static_cast<std::int64_t>(slot_.size()));
    }
    for (const Action& action : pipeline.rows[rank].actions) {
      if (!makes_result(action.type)) continue;
      const bool forward = action.type == ComputationType::forward;
      result_cells_.emplace(std::tuple(forward, action.stage, action.microbatch), action.cell);
    }
  }

  void write(const plan::AxisRef& pp, const std::vector<Action>& actions) {
    b_.set_origin({rank_ + 1});
    if (slot_.empty()) return b_.spare({pp.at(rank_)});
    b_.program(fmt::format("rank_{}", rank_), {pp.at(rank_)});
    declare(actions);
    start();
    for (auto action = actions.begin(); action != actions.end();) {
      throw_if_cancelled();
      const auto end = std::find_if(action + 1, actions.end(),
                                    [](const Action& next) { return !next.batched_with_previous; });
      set_origin(*action);
      if (end - action > 1) {
        batch({action, end});
      } else {
        take(*action);
      }
      action = end;
    }
    b_.set_origin({rank_ + 1});
    finish();
  }

 private:
  // ---- rows and what is in them

  [[nodiscard]] plan::Region row(const plan::BufferRef& buffer, int stage, int microbatch) const {
    return buffer(slot_.at(stage) * pipeline_.microbatches + microbatch, 1);
  }
  // The rows of a stage's input and of its output gradient: those of the neighbour stage if it is
  // on the same rank.
  [[nodiscard]] plan::Region input(int stage, int microbatch) const {
    if (slot_.contains(stage - 1)) return row(y_, stage - 1, microbatch);
    return row(x_, stage, microbatch);
  }
  [[nodiscard]] plan::Region output_gradient(int stage, int microbatch) const {
    if (slot_.contains(stage + 1)) return row(dx_, stage + 1, microbatch);
    return row(dy_, stage, microbatch);
  }
  [[nodiscard]] bool is_sharded(int stage) const {
    return pipeline_.sharded_stages.contains(stage);
  }
  [[nodiscard]] plan::TensorRef activation(int stage, int microbatch) const {
    return tensors_.activation[stage](tensors_.sample, microbatch, 1);
  }
  [[nodiscard]] plan::TensorRef activation_grad(int stage, int microbatch) const {
    return tensors_.activation_grad[stage](tensors_.sample, microbatch, 1);
  }
  // The weights that a stage computes with.
  [[nodiscard]] plan::Access reads_weights(int stage) const {
    return reads((is_sharded(stage) ? u_ : w_)(slot_.at(stage), 1), tensors_.weight[stage]);
  }
  [[nodiscard]] plan::Access reads_gradient(int stage) const {
    return reads(g_(slot_.at(stage), 1), tensors_.weight_grad[stage]);
  }

  // ---- names and order

  void set_origin(const Action& action) {
    const Cell cell = cell_of(action);
    b_.set_origin({.line = rank_ + 1,
                   .column = cell.text.empty() ? 0 : static_cast<std::int32_t>(cell.column) + 1,
                   .length = static_cast<std::int32_t>(cell.text.size())});
  }

  // Of an inserted message: the cell of the computation that it is for.
  [[nodiscard]] Cell cell_of(const Action& action) const {
    if (!action.cell.text.empty()) return action.cell;
    const bool forward = action.type == ComputationType::send_forward ||
                         action.type == ComputationType::receive_forward;
    const auto found = result_cells_.find({forward, action.stage, action.microbatch});
    return found == result_cells_.end() ? Cell{} : found->second;
  }

  // "F[0,3]"; if that is repeated, "F[0,3,1]".
  plan::Reference name(const Action& action) {
    const int repetition = repetitions_[{action.type, action.stage, action.microbatch}]++;
    plan::Reference name{std::string(to_string(action.type)), {action.stage, action.microbatch}};
    if (repetition > 0) name.indices.emplace_back(repetition);
    return name;
  }

  // The receives that a computation needs and that are not awaited yet, and the sends of WAIT_SEND
  // actions.
  References after_messages(const Action& action) {
    References names;
    for (const ComputationType type :
         {ComputationType::receive_forward, ComputationType::receive_backward}) {
      if (type == ComputationType::receive_backward && action.type == ComputationType::forward)
        break;
      const auto posted = posted_.find({type, action.stage, action.microbatch});
      if (posted == posted_.end()) continue;
      names.push_back(posted->second);
      posted_.erase(posted);
    }
    names.insert(names.end(), waited_sends_.begin(), waited_sends_.end());
    waited_sends_.clear();
    return names;
  }

  // ---- statements

  plan::BufferRef buffer(const char* called, std::int64_t rows, int bytes,
                         DType type = DType::bf16) {
    return b_.buffer({.name = called, .rows = rows, .row_bytes = bytes, .type = type});
  }

  void declare(const std::vector<Action>& actions) {
    const auto stages = static_cast<std::int64_t>(slot_.size());
    const std::int64_t rows = stages * pipeline_.microbatches;
    w_ = buffer("w", stages, kWeightBytes);
    g_ = buffer("g", stages, 2 * kWeightBytes, DType::f32);
    x_ = buffer("x", rows, kActivationBytes);
    y_ = buffer("y", rows, kActivationBytes);
    dy_ = buffer("dy", rows, kActivationBytes);
    dx_ = buffer("dx", rows, kActivationBytes);
    if (std::ranges::any_of(slot_, [&](const auto& entry) { return is_sharded(entry.first); })) {
      u_ = buffer("u", stages, kWeightBytes);
    }
    if (std::ranges::any_of(actions, torch_schedule::is_message, &Action::type)) {
      net_ = b_.stream("net");
    }
  }

  void compute(const char* kernel, std::vector<plan::Access> accesses, References after = {}) {
    b_.add({.action = plan::Compute{kernel, std::move(accesses)}, .after = std::move(after)});
  }

  // A computation of the file: named, and with its cost.
  void compute(const Action& action, std::vector<plan::Access> accesses) {
    const auto [kernel, cost] = kernel_of(action.type);
    computed_ = {name(action)};
    b_.add({.name = computed_[0],
            .action = plan::Compute{kernel, std::move(accesses)},
            .after = after_messages(action),
            .work = plan::Work{.seconds = cost.value}});
  }

  [[nodiscard]] std::pair<const char*, Seconds> kernel_of(ComputationType type) const {
    switch (type) {
      case ComputationType::forward:
        return {"forward", costs_.forward};
      case ComputationType::backward_input:
        return {"backward_input", costs_.backward_input};
      case ComputationType::backward_weight:
        return {"backward_weight", costs_.backward_weight};
      default:
        return {"backward", costs_.backward};
    }
  }

  void start() {
    for (const auto& [stage, slot] : slot_) {
      if (pipeline_.trains) {
        b_.keep(w_(slot, 1), tensors_.weight[stage]);
      } else {
        b_.given(w_(slot, 1), tensors_.weight[stage]);
      }
    }
    if (slot_.contains(0)) b_.given(x_(0, pipeline_.microbatches), tensors_.activation[0]);
    if (!pipeline_.trains) {
      if (const auto last = slot_.find(pipeline_.stages - 1); last != slot_.end()) {
        b_.goal(y_(last->second * pipeline_.microbatches, pipeline_.microbatches),
                tensors_.activation[pipeline_.stages]);
      }
      return;
    }
    std::vector<plan::Access> zeros;
    for (const auto& [stage, slot] : slot_) {
      zeros.push_back(writes(g_(slot, 1), tensors_.weight_grad[stage].zero()));
    }
    compute("zero", std::move(zeros));
  }

  void finish() {
    for (const int stage : unsharded_) b_.add({.action = plan::Free{u_(slot_.at(stage), 1)}});
    if (!pipeline_.trains) return;
    for (const auto& [stage, slot] : slot_) {
      const plan::TensorRef weight = tensors_.weight[stage];
      // Messages are complete in order, so the last one is enough.
      compute("update",
              {reads_gradient(stage), reads(w_(slot, 1), weight),
               writes(w_(slot, 1), weight.updated())},
              std::exchange(last_message_, {}));
    }
  }

  void take(const Action& action) {
    if (is_of_stage(action.type)) {
      of_stage(action.type, action.stage);
    } else if (is_message(action.type)) {
      message(action);
    } else if (waits_for_send(action.type)) {
      const bool forward = action.type == ComputationType::wait_send_forward;
      waited_sends_.push_back(
          posted_.at({forward ? ComputationType::send_forward : ComputationType::send_backward,
                      action.stage, action.microbatch}));
    } else if (action.type == ComputationType::forward) {
      forward(action);
    } else {
      backward(action);
    }
  }

  // The mesh has no axis to gather and reduce over. The plan still states that gathered weights are
  // live when they are used, and that gradients are complete when they are reduced.
  void of_stage(ComputationType type, int stage) {
    const std::int64_t slot = slot_.at(stage);
    if (type == ComputationType::unshard) {
      b_.add({.action = plan::Allocate{u_(slot, 1)}});
      b_.add({.action = plan::Copy{w_(slot, 1), u_(slot, 1)}});
      unsharded_.insert(stage);
    } else if (type == ComputationType::reshard) {
      b_.add({.action = plan::Free{u_(slot, 1)}});
      unsharded_.erase(stage);
    } else if (type == ComputationType::reduce_gradient && pipeline_.trains) {
      compute("reduce_gradient", {reads_gradient(stage)});
    }
  }

  // An operation on the stream of messages, ordered after the last computation, unless the previous
  // message already is.
  plan::Operation on_net(plan::Reference name) {
    last_message_ = {name};
    return {.name = std::move(name), .stream = net_, .after = std::exchange(computed_, {})};
  }

  void message(const Action& action) {
    plan::Operation operation = on_net(name(action));
    posted_[{action.type, action.stage, action.microbatch}] = operation.name;
    operation.action = action_of(action);
    b_.add(std::move(operation));
  }

  // Messages that start and complete together.
  void batch(std::span<const Action> messages) {
    plan::Operation operation = on_net({"BATCH", {batches_++}});
    for (const Action& message : messages) {
      posted_[{message.type, message.stage, message.microbatch}] = operation.name;
    }
    b_.batch(std::move(operation), [&] {
      for (const Action& message : messages) {
        set_origin(message);
        b_.add({.action = action_of(message)});
      }
    });
  }

  // REQUIRES: is_message(message.type).
  [[nodiscard]] decltype(plan::Operation::action) action_of(const Action& message) const {
    const plan::Peer peer =
        plan::peer_rank(pipeline_.rank_of.at(peer_stage(message.type, message.stage)));
    const bool forward = message.type == ComputationType::send_forward ||
                         message.type == ComputationType::receive_forward;
    const auto at = [&](const plan::BufferRef& buffer) {
      return row(buffer, message.stage, message.microbatch);
    };
    if (is_send(message.type)) return plan::Send{at(forward ? y_ : dx_), peer, message.tag};
    return plan::Receive{at(forward ? x_ : dy_), peer, message.tag};
  }

  void forward(const Action& action) {
    const int stage = action.stage;
    const int microbatch = action.microbatch;
    const plan::Region output = row(y_, stage, microbatch);
    compute(action, {reads(input(stage, microbatch), activation(stage, microbatch)),
                     reads_weights(stage), writes(output, activation(stage + 1, microbatch))});
    if (stage != pipeline_.stages - 1 || !pipeline_.trains) return;
    compute("loss", {reads(output, activation(stage + 1, microbatch)),
                     writes(row(dy_, stage, microbatch), activation_grad(stage + 1, microbatch))});
  }

  void backward(const Action& action) {
    const int stage = action.stage;
    const int microbatch = action.microbatch;
    const bool for_input = action.type != ComputationType::backward_weight;
    const bool for_weight = action.type != ComputationType::backward_input;
    std::vector<plan::Access> accesses;
    if (for_weight) {
      accesses.push_back(reads(input(stage, microbatch), activation(stage, microbatch)));
    }
    accesses.push_back(
        reads(output_gradient(stage, microbatch), activation_grad(stage + 1, microbatch)));
    // torch requires unsharded weights for W, too.
    if (for_input || is_sharded(stage)) accesses.push_back(reads_weights(stage));
    if (for_input) {
      accesses.push_back(writes(row(dx_, stage, microbatch), activation_grad(stage, microbatch)));
    }
    if (for_weight) {
      accesses.push_back(adds(g_(slot_.at(stage), 1),
                              tensors_.weight_grad[stage](tensors_.sample, microbatch, 1)));
    }
    compute(action, std::move(accesses));
  }

  using Key = std::tuple<ComputationType, int, int>;  // action, stage, microbatch

  plan::Builder& b_;
  const ScheduleTensors& tensors_;
  const Pipeline& pipeline_;
  const ActionCosts& costs_;
  int rank_;
  plan::BufferRef w_, g_, x_, y_, dy_, dx_, u_;  // `u`: gathered weights
  plan::StreamId net_;
  std::map<int, std::int64_t> slot_;                         // by stage of this rank
  std::map<std::tuple<bool, int, int>, Cell> result_cells_;  // by direction, stage, microbatch
  std::set<int> unsharded_;                                  // stages
  std::map<Key, int> repetitions_;                           // so far
  std::int64_t batches_ = 0;                                 // so far
  std::map<Key, plan::Reference> posted_;  // messages, except receives already awaited
  References waited_sends_;                // by the next computation
  References computed_;                    // the last one, until a message is after it
  References last_message_;                // none or one
};

}  // namespace

plan::Plan plan_of_schedule(std::string_view csv, std::string_view file, const ActionCosts& costs) {
  const Pipeline pipeline = torch_schedule::read_schedule(csv, file);
  plan::Builder b;
  const plan::AxisRef pp = b.axis("pp", static_cast<std::int64_t>(pipeline.rows.size()));
  const ScheduleTensors tensors(b, pipeline);
  int rank = 0;
  for (const std::vector<Action>& actions : torch_schedule::with_messages(pipeline)) {
    ScheduleWriter(b, tensors, pipeline, costs, rank++).write(pp, actions);
  }
  return std::move(b).build();
}

}  // namespace shiplap::strategy
