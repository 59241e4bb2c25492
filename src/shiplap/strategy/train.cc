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
    return fmt::format("rank {} sleeps after {}", model.rank(), model.last_call());
  }
  const Flight& flight = *model.waiting_for();
  const std::vector<int> missing = dist.missing_ranks(flight);
  const std::string whom =
      fmt::format("rank{} {}", missing.size() == 1 ? "" : "s",
                  to_string(IndexSet(std::vector<std::int32_t>(missing.begin(), missing.end()))));
  const char* what = "";
  if (flight.kind == trace::Kind::send) what = " to receive it";
  if (flight.kind == trace::Kind::recv) what = " to send";
  const bool is_message = flight.peer >= 0;
  const std::string& channel =
      is_message ? dist.channel_name(flight.channel) : dist.group_channel(flight.group);
  return fmt::format("rank {} waits in {}{}{} for {}{}", model.rank(), model.last_call(),
                     is_message ? fmt::format(" with tag {}", flight.tag)
                                : fmt::format(" over {}", dist.group_name(flight.group)),
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

// A rank that fails leaves others waiting: what it failed of is the cause.
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

// Whether whoever it waits for waits in turn, and so on, until somebody comes again.
bool Trainer::in_circle(const Model& model) const {
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
  constexpr std::size_t kMost = 4;
  std::string why;
  for (std::size_t i = 0; i < stuck.size() && i < kMost; ++i) {
    if (i > 0) why += "; ";
    why += wait_of(dist_, *stuck[i]);
  }
  if (stuck.size() > kMost) why += fmt::format("; and {} ranks more", stuck.size() - kMost);
  const bool cycle = in_circle(*stuck.front());
  throw InputError(Diagnostic{
      .code = "D617",
      .where = {.rank = stuck.front()->rank(), .operation = stuck.front()->last_call()},
      .what = fmt::format("{} of {} ranks wait for ever", stuck.size(), models_.size()),
      .why = why,
      .help = cycle ? "ranks that wait for each other in turn: start one of the communications "
                      "(`start_send`) and wait for it later"
                    : "the ranks they wait for have ended: let all ranks of the group make the "
                      "same calls"});
}

// Else a message that nobody receives would not be noticed.
void Trainer::report_unwaited() const {
  for (const auto& model : models_) {
    const Flight* const flight = model->unwaited();
    if (flight == nullptr) continue;
    const std::string with = flight->peer < 0
                                 ? fmt::format("over {}", dist_.group_name(flight->group))
                                 : fmt::format("with rank {}, tag {}", flight->peer, flight->tag);
    throw InputError(Diagnostic{
        .code = "D623",
        .where = {.rank = model->rank(), .operation = std::string(name(flight->kind))},
        .what =
            fmt::format("a {} {} was started, and nobody waits for it", name(flight->kind), with),
        .why = "only who waits knows that it is complete",
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
          .what = fmt::format("{} is no final weight", describe(weight)),
          .why = "at the end a weight was updated once, and all ranks hold equal shards of it",
          .help = "update it before you set it"});
    }
    if (num_shards > 0 && unite(shards).set.covers(num_shards)) continue;
    throw InputError(Diagnostic{
        .code = "D619",
        .what = shards.empty()
                    ? fmt::format("layer {} has no final weight", layer)
                    : fmt::format("of the final weight of layer {} only shards {} of {} are there",
                                  layer, to_string(unite(shards).set), num_shards),
        .why = "the ranks together must hold every layer's weight in the end",
        .help = "call `model.set_final_weight(layer, weights[layer])` after the update"});
  }
}

}  // namespace shiplap::strategy
