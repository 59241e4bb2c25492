// A schedule becomes a plan as torch's schedule runtime (`_PipelineScheduleRuntime`, torch 2.15)
// carries it out, once it has its messages (schedule_messages.cc):
//
// - A row is executed in order. Computations run one after another, on the stream `main`.
// - A send or receive is posted and not waited for: the row goes on. It starts when what was
//   computed before it in the row is complete, because ProcessGroupNCCL lets the stream of the
//   communicator wait for the current one, for a receive as well as for a send.
// - NCCL carries out the messages of one communicator in the order in which they were posted. So
//   they are on one stream, `net`, none of them async. (Without `device_id`, torch makes a
//   communicator for each pair of ranks, which orders fewer of them, so what cannot deadlock
//   here cannot deadlock there.) Messages have no tags: they meet in order.
// - A computation waits for the receives that it reads. WAIT_SEND makes the next computation wait
//   for the send; the end of the step waits for all of them.
//
// Every stage and microbatch has rows of its own, so that no order of the file is wrong only
// because of memory.
#include "shiplap/strategy/import_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "shiplap/plan/text.h"
#include "shiplap/strategy/schedule_messages_internal.h"
#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy {
namespace {

using torch_schedule::Act;
using torch_schedule::Action;
using torch_schedule::Pipeline;

constexpr int kActivationBytes = 1 << 20U;  // sizes are not in the file
constexpr int kWeightBytes = 1 << 22U;

// The program of one rank.
class ScheduleWriter {
 public:
  ScheduleWriter(const Pipeline& pipeline, int rank) : pipeline_(pipeline), rank_(rank) {
    for (const auto& [stage, home] : pipeline.rank_of) {
      if (home == rank) slot_.emplace(stage, static_cast<std::int64_t>(slot_.size()));
    }
  }

  [[nodiscard]] std::string program(const std::vector<Action>& actions) {
    if (slot_.empty()) return fmt::format("spare on pp={}\n", rank_);
    declare(actions);
    start();
    for (const Action& action : actions) take(action);
    finish();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> form, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), form, std::forward<Args>(args)...);
    text_ += '\n';
  }

  // ---- rows

  [[nodiscard]] std::string row(std::string_view buffer, int stage, int microbatch) const {
    return fmt::format("{}[{} +1]", buffer, slot_.at(stage) * pipeline_.microbatches + microbatch);
  }
  // Where a stage finds its input and the gradient of its output: with the neighbour, if that is
  // on the same rank.
  [[nodiscard]] std::string input(int stage, int microbatch) const {
    if (slot_.contains(stage - 1)) return row("y", stage - 1, microbatch);
    return row("x", stage, microbatch);
  }
  [[nodiscard]] std::string output_gradient(int stage, int microbatch) const {
    if (slot_.contains(stage + 1)) return row("dx", stage + 1, microbatch);
    return row("dy", stage, microbatch);
  }
  [[nodiscard]] bool is_sharded(int stage) const {
    return pipeline_.sharded_stages.contains(stage);
  }
  // The weights that a stage computes with.
  [[nodiscard]] std::string weights(int stage) const {
    return fmt::format("{}[{} +1]", is_sharded(stage) ? "u" : "w", slot_.at(stage));
  }

  // ---- names and order

  // "F[0,3]"; if that is repeated, "F[0,3,1]".
  std::string name(const Action& action) {
    const int repetition = repetitions_[{action.act, action.stage, action.microbatch}]++;
    return fmt::format("{}[{},{}{}]", to_string(action.act), action.stage, action.microbatch,
                       repetition == 0 ? "" : fmt::format(",{}", repetition));
  }

  static std::string after(const std::vector<std::string>& names) {
    return names.empty() ? "" : fmt::format(" after {}", fmt::join(names, ", "));
  }

  // The receives that a computation needs and that none has waited for, and sends that a WAIT_SEND
  // has named.
  std::string after_messages(const Action& action) {
    std::vector<std::string> names;
    for (const Act act : {Act::receive_forward, Act::receive_backward}) {
      if (act == Act::receive_backward && action.act == Act::forward) break;
      const auto posted = posted_.find({act, action.stage, action.microbatch});
      if (posted == posted_.end()) continue;
      names.push_back(posted->second);
      posted_.erase(posted);
    }
    names.insert(names.end(), waited_sends_.begin(), waited_sends_.end());
    waited_sends_.clear();
    return after(names);
  }

  // What is computed before a message; nothing if the message before it waits for that already.
  std::string after_computation() {
    const std::string computed = std::exchange(computed_, "");
    return computed.empty() ? "" : after({computed});
  }

  // ---- statements

  void declare(const std::vector<Action>& actions) {
    const std::size_t stages = slot_.size();
    const auto rows = static_cast<std::int64_t>(stages) * pipeline_.microbatches;
    line("program rank_{0} on pp={0}", rank_);
    line("  buffer w rows {} row_bytes {} bf16", stages, kWeightBytes);
    line("  buffer g rows {} row_bytes {} f32", stages, 2 * kWeightBytes);
    for (const char* buffer : {"x", "y", "dy", "dx"}) {
      line("  buffer {} rows {} row_bytes {} bf16", buffer, rows, kActivationBytes);
    }
    if (std::ranges::any_of(slot_, [&](const auto& entry) { return is_sharded(entry.first); })) {
      line("  buffer u rows {} row_bytes {} bf16", stages, kWeightBytes);
    }
    if (std::ranges::any_of(actions, torch_schedule::is_message, &Action::act)) {
      line("  streams net");
    }
  }

  void start() {
    for (const auto& [stage, slot] : slot_) {
      line("  {} w[{} +1] = W[{}]", pipeline_.trains ? "keep" : "given", slot, stage);
    }
    if (slot_.contains(0)) line("  given x[0 +{}] = A[0]", pipeline_.microbatches);
    if (!pipeline_.trains) {
      if (const auto last = slot_.find(pipeline_.stages - 1); last != slot_.end()) {
        line("  goal y[{} +{}] = A[{}]", last->second * pipeline_.microbatches,
             pipeline_.microbatches, pipeline_.stages);
      }
      return;
    }
    line("  compute zero");
    for (const auto& [stage, slot] : slot_)
      line("    writes g[{} +1] = G[{}] sum none", slot, stage);
  }

  void finish() {
    for (const int stage : unsharded_) line("  free u[{} +1]", slot_.at(stage));
    if (!pipeline_.trains) return;
    for (const auto& [stage, slot] : slot_) {
      // Messages are complete in order, so the last one is enough.
      line("  compute update{}", after(std::exchange(last_message_, {})));
      line("    reads g[{} +1] = G[{}]", slot, stage);
      line("    reads w[{} +1] = W[{}]", slot, stage);
      line("    writes w[{} +1] = new W[{}]", slot, stage);
    }
  }

  void take(const Action& action) {
    if (is_of_stage(action.act)) {
      of_stage(action.act, action.stage);
    } else if (is_message(action.act)) {
      message(action);
    } else if (waits_for_send(action.act)) {
      const bool forward = action.act == Act::wait_send_forward;
      waited_sends_.push_back(posted_.at(
          {forward ? Act::send_forward : Act::send_backward, action.stage, action.microbatch}));
    } else if (action.act == Act::forward) {
      forward(action);
    } else {
      backward(action);
    }
  }

  // The mesh has no axis to gather and reduce over. What is stated all the same: gathered weights
  // are there when they are used, and gradients are complete when they are reduced.
  void of_stage(Act act, int stage) {
    const std::int64_t slot = slot_.at(stage);
    if (act == Act::unshard) {
      line("  allocate u[{} +1]", slot);
      line("  copy w[{0} +1] to u[{0} +1]", slot);
      unsharded_.insert(stage);
    } else if (act == Act::reshard) {
      line("  free u[{} +1]", slot);
      unsharded_.erase(stage);
    } else if (act == Act::reduce_gradient && pipeline_.trains) {
      line("  compute reduce_gradient");
      line("    reads g[{} +1] = G[{}]", slot, stage);
    }
  }

  void message(const Action& action) {
    const bool sends = is_send(action.act);
    const bool forward = action.act == Act::send_forward || action.act == Act::receive_forward;
    const std::string region =
        row(forward ? (sends ? "y" : "x") : (sends ? "dx" : "dy"), action.stage, action.microbatch);
    const std::string called = name(action);
    line("  {}: @net {} {} {} rank {} tag {}{}", called, sends ? "send" : "receive", region,
         sends ? "to" : "from", pipeline_.rank_of.at(peer_stage(action.act, action.stage)),
         action.tag, after_computation());
    posted_[{action.act, action.stage, action.microbatch}] = called;
    last_message_ = {called};
  }

  void forward(const Action& action) {
    const int stage = action.stage;
    const int microbatch = action.microbatch;
    computed_ = name(action);
    line("  {}: compute forward{}", computed_, after_messages(action));
    line("    reads {} = A[{}] sample {} +1", input(stage, microbatch), stage, microbatch);
    line("    reads {} = W[{}]", weights(stage), stage);
    line("    writes {} = A[{}] sample {} +1", row("y", stage, microbatch), stage + 1, microbatch);
    if (stage != pipeline_.stages - 1 || !pipeline_.trains) return;
    line("  compute loss");
    line("    reads {} = A[{}] sample {} +1", row("y", stage, microbatch), stage + 1, microbatch);
    line("    writes {} = D[{}] sample {} +1", row("dy", stage, microbatch), stage + 1, microbatch);
  }

  void backward(const Action& action) {
    const int stage = action.stage;
    const int microbatch = action.microbatch;
    const bool for_input = action.act != Act::backward_weight;
    const bool for_weight = action.act != Act::backward_input;
    computed_ = name(action);
    line("  {}: compute backward{}{}", computed_,
         !for_weight ? "_input" : (!for_input ? "_weight" : ""), after_messages(action));
    if (for_weight) {
      line("    reads {} = A[{}] sample {} +1", input(stage, microbatch), stage, microbatch);
    }
    line("    reads {} = D[{}] sample {} +1", output_gradient(stage, microbatch), stage + 1,
         microbatch);
    // torch refuses to compute W, too, while the weights are sharded.
    if (for_input || is_sharded(stage)) line("    reads {} = W[{}]", weights(stage), stage);
    if (for_input) {
      line("    writes {} = D[{}] sample {} +1", row("dx", stage, microbatch), stage, microbatch);
    }
    if (for_weight) {
      line("    adds g[{} +1] = G[{}] sum sample {} +1", slot_.at(stage), stage, microbatch);
    }
  }

  using Key = std::tuple<Act, int, int>;  // action, stage, microbatch

  const Pipeline& pipeline_;
  int rank_;
  std::map<int, std::int64_t> slot_;   // by stage of this rank
  std::set<int> unsharded_;            // stages
  std::map<Key, int> repetitions_;     // so far
  std::map<Key, std::string> posted_;  // messages, by name; without receives that are waited for
  std::vector<std::string> waited_sends_;  // by the next computation
  std::string computed_;                   // the last computation, until a message is after it
  std::vector<std::string> last_message_;  // none or one
  std::string text_;
};

// So that findings point into the file.
void set_lines(plan::Program& program, std::int32_t line) {
  for (plan::Statement& statement : program.body) {
    if (auto* const fact = std::get_if<plan::Fact>(&statement.node)) fact->origin = {line};
    auto* const operation = std::get_if<plan::Operation>(&statement.node);
    if (operation == nullptr) continue;
    operation->origin = {line};
    auto* const compute = std::get_if<plan::Compute>(&operation->action);
    if (compute == nullptr) continue;
    for (plan::Access& access : compute->accesses) access.origin = {line};
  }
}

}  // namespace

plan::Plan plan_of_schedule(std::string_view csv, std::string_view file) {
  const Pipeline pipeline = torch_schedule::read_schedule(csv, file);
  std::string text = fmt::format(
      "shiplap-plan 1\nmesh pp={}\ntensor W[{}] Weight shard 1\ntensor G[{}] WeightGrad shard 1 "
      "sum sample {}\n"
      "tensor A[{}] Activation sample {}\ntensor D[{}] ActivationGrad sample {}\n",
      pipeline.rows.size(), pipeline.stages, pipeline.stages, pipeline.microbatches,
      pipeline.stages + 1, pipeline.microbatches, pipeline.stages + 1, pipeline.microbatches);
  int rank = 0;
  for (const std::vector<Action>& actions : torch_schedule::with_messages(pipeline)) {
    text += ScheduleWriter(pipeline, rank++).program(actions);
  }
  plan::Plan plan = plan::parse_text(text, file);
  for (plan::Program& program : plan.programs) {
    set_lines(program, static_cast<std::int32_t>(program.on.terms[0].positions[0].first) + 1);
  }
  return plan;
}

}  // namespace shiplap::strategy
