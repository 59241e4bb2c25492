#include "shiplap/strategy/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string>

namespace shiplap::strategy {
namespace {

// "rank 0 waits in all_gather(layer 2) on dp for ranks 1-3".
std::string wait_of(const Dist& dist, const Model& model) {
  if (model.waiting_for() == nullptr) {
    return fmt::format("rank {} is suspended after {}", model.rank(), model.last_call());
  }
  const PendingOp& op = *model.waiting_for();
  const std::vector<int> missing = dist.missing_ranks(op);
  const std::string whom =
      fmt::format("rank{} {}", missing.size() == 1 ? "" : "s",
                  to_string(IndexSet(std::vector<std::int32_t>(missing.begin(), missing.end()))));
  const char* what = "";
  if (op.kind == trace::EventKind::send) what = " to receive it";
  if (op.kind == trace::EventKind::recv) what = " to send";
  const bool is_message = op.peer >= 0;
  const std::string& channel =
      is_message ? dist.channel_name(op.channel) : dist.group_channel(op.group);
  return fmt::format("rank {} waits in {}{}{} for {}{}", model.rank(), model.last_call(),
                     is_message ? fmt::format(" with tag {}", op.tag)
                                : fmt::format(" over {}", dist.group_name(op.group)),
                     channel.empty() ? "" : fmt::format(" on `{}`", channel), whom, what);
}

}  // namespace

Trainer::Trainer(const World& world, const Training& training) : training_(training), dist_(world) {
  models_.reserve(dist_.size());
  for (int rank = 0; rank < dist_.size(); ++rank) {
    models_.push_back(std::make_unique<Model>(rank, dist_, training));
  }
}

void Trainer::run(const Strategy& strategy) {
  engine::Scheduler& scheduler = dist_.scheduler();
  ensure(scheduler.tasks().empty(), "a trainer runs once");
  for (const auto& model : models_) scheduler.spawn(strategy(*model));
  scheduler.run(world().progress);
  report_failure();
  if (dist_.problem()) throw InputError(*dist_.problem());
  report_deadlock();
  report_unwaited();
  check_final_weights();
}

// A rank that throws leaves others waiting, so its exception is reported before a deadlock.
void Trainer::report_failure() {
  const std::vector<Task>& tasks = dist_.scheduler().tasks();
  for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
    if (!tasks[rank].failure()) continue;
    try {
      std::rethrow_exception(tasks[rank].failure());
    } catch (const InputError& error) {
      std::vector<Diagnostic> all = error.diagnostics();
      for (Diagnostic& d : all) {
        if (d.where.rank) continue;
        d.where.rank = static_cast<std::int64_t>(rank);
        d.where.operation = "after " + models_[rank]->last_call();
      }
      throw InputError(all);
    }
  }
}

// Whether following the wait-for graph from `model` leads into a cycle of waiting ranks.
bool Trainer::in_wait_cycle(const Model& model) const {
  std::vector<bool> seen(models_.size(), false);
  for (const Model* at = &model; !seen[at->rank()];) {
    seen[at->rank()] = true;
    if (at->waiting_for() == nullptr) return false;
    for (const int rank : dist_.missing_ranks(*at->waiting_for())) {
      at = models_[rank].get();
      if (at->waiting_for() == nullptr) return false;
    }
  }
  return true;
}

void Trainer::report_deadlock() {
  std::vector<const Model*> stuck;
  for (const auto& model : models_) {
    const Task& task = dist_.scheduler().tasks()[model->rank()];
    if (!task.done()) stuck.push_back(model.get());
  }
  if (stuck.empty()) return;
  constexpr std::size_t kMaxListed = 4;
  std::string why;
  for (std::size_t i = 0; i < stuck.size() && i < kMaxListed; ++i) {
    if (i > 0) why += "; ";
    why += wait_of(dist_, *stuck[i]);
  }
  if (stuck.size() > kMaxListed)
    why += fmt::format("; and {} more ranks", stuck.size() - kMaxListed);
  const bool cycle = in_wait_cycle(*stuck.front());
  throw InputError(Diagnostic{
      .code = "D617",
      .where = {.rank = stuck.front()->rank(), .operation = stuck.front()->last_call()},
      .what = fmt::format("deadlock: {} of {} ranks hang", stuck.size(), models_.size()),
      .why = why,
      .help = cycle
                  ? "break the wait cycle: start one of the communications "
                    "(`start_send`) and wait for it later"
                  : "the missing ranks have ended: make the same calls on all ranks of the group"});
}

// Otherwise a message without a receive would go unnoticed.
void Trainer::report_unwaited() const {
  for (const auto& model : models_) {
    const PendingOp* const op = model->unwaited();
    if (op == nullptr) continue;
    const std::string with = op->peer < 0 ? fmt::format("over {}", dist_.group_name(op->group))
                                          : fmt::format("with rank {}, tag {}", op->peer, op->tag);
    throw InputError(Diagnostic{
        .code = "D623",
        .where = {.rank = model->rank(), .operation = std::string(name(op->kind))},
        .what = fmt::format("a {} {} was started and never awaited", name(op->kind), with),
        .why = "a communication is complete only after a wait",
        .help = "`co_await` what the start_ call returned, before the end"});
  }
}

void Trainer::check_final_weights() const {
  std::vector<std::vector<const Model*>> holders(training_.layers);
  for (const auto& model : models_) {
    for (const auto& [layer, weight] : model->final_weights())
      holders[layer].push_back(model.get());
  }
  for (int layer = 0; layer < training_.layers; ++layer) {
    std::vector<const IndexSet*> shards;
    int num_shards = 0;
    for (const Model* model : holders[layer]) {
      const Weight& weight = model->final_weights().at(layer);
      if (shards.empty()) num_shards = weight.num_shards;
      shards.push_back(&weight.shards);
      if (weight.step == 1 && weight.num_shards == num_shards) continue;
      throw InputError(Diagnostic{
          .code = "D619",
          .where = {.rank = model->rank(),
                    .operation = fmt::format("set_final_weight(layer {})", layer)},
          .what = fmt::format("{} is not a final weight", describe(weight)),
          .why = "a final weight is updated exactly once and sharded equally on all ranks",
          .help = "update it before you set it"});
    }
    if (num_shards > 0 && unite(shards).set.covers(num_shards)) continue;
    throw InputError(Diagnostic{
        .code = "D619",
        .what =
            shards.empty()
                ? fmt::format("layer {} has no final weight", layer)
                : fmt::format("the final weight of layer {} is incomplete: only shards {} of {}",
                              layer, to_string(unite(shards).set), num_shards),
        .why = "at the end the ranks together must hold every layer's weight",
        .help = "call `model.set_final_weight(layer, weights[layer])` after the update"});
  }
}

}  // namespace shiplap::strategy
