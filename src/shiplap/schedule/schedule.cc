#include "shiplap/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::schedule {
namespace {

void check_stage(const Pipeline& pipeline, int stage) {
  ensure(pipeline.stages >= 1 && pipeline.microbatches >= 1 && pipeline.chunks >= 1,
         "a pipeline has a stage, a microbatch and a chunk");
  ensure(stage >= 0 && stage < pipeline.stages, "the stage is in the pipeline");
}

// `warmup` forwards, then forwards and backwards alternately, then the remaining backwards.
std::vector<PipelineAction> alternate(const std::vector<PipelineAction>& forwards,
                                      const std::vector<PipelineAction>& backwards, int warmup) {
  const auto warmup_actions = std::min(static_cast<std::size_t>(warmup), forwards.size());
  std::vector<PipelineAction> order(forwards.begin(),
                                    forwards.begin() + static_cast<std::ptrdiff_t>(warmup_actions));
  order.reserve(2 * forwards.size());
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (warmup_actions + i < forwards.size()) order.push_back(forwards[warmup_actions + i]);
    order.push_back(backwards[i]);
  }
  return order;
}

// All actions of one pass: groups of `stages` microbatches, each through one chunk after the
// other.
std::vector<PipelineAction> all_actions(const Pipeline& pipeline, Pass pass) {
  const int together = pipeline.chunks == 1 ? pipeline.microbatches : pipeline.stages;
  std::vector<PipelineAction> actions;
  for (int begin = 0; begin < pipeline.microbatches; begin += together) {
    for (int i = 0; i < pipeline.chunks; ++i) {
      const int chunk = pass == Pass::forward ? i : pipeline.chunks - 1 - i;
      for (int m = begin; m < begin + together; ++m) {
        actions.push_back({.pass = pass, .chunk = chunk, .microbatch = m});
      }
    }
  }
  return actions;
}

std::vector<PipelineAction> with_warmup(const Pipeline& pipeline, int warmup) {
  return alternate(all_actions(pipeline, Pass::forward), all_actions(pipeline, Pass::backward),
                   warmup);
}

// Collects the actions of one stage of DualPipeV. Microbatches of a pass and chunk follow each
// other; an action whose microbatches are used up is left out, which is how a pipeline with few
// microbatches gets a valid order.
class DualPipeVOrder {
 public:
  explicit DualPipeVOrder(int microbatches) : microbatches_(microbatches) {}

  void forward(int chunk) { add(Pass::forward, chunk, forwards_); }
  void backward(int chunk) {
    complete_forwards();
    add(Pass::backward, chunk, backwards_);
  }
  void backward_input(int chunk) {
    complete_forwards();
    if (add(Pass::backward_input, chunk, backwards_)) put_off_.push_back(order_.back());
  }
  // The oldest weight half that was put off.
  void backward_weight() {
    if (put_off_.empty()) return;
    order_.push_back(put_off_.front());
    order_.back().pass = Pass::backward_weight;
    put_off_.pop_front();
  }
  std::vector<PipelineAction> finish() {
    while (!put_off_.empty()) backward_weight();
    return std::move(order_);
  }

 private:
  using Counts = std::array<int, 2>;  // by chunk

  bool add(Pass pass, int chunk, Counts& counts) {
    int& done = counts.at(static_cast<std::size_t>(chunk));
    if (done == microbatches_) return false;
    order_.push_back({.pass = pass, .chunk = chunk, .microbatch = done++});
    return true;
  }
  // With few microbatches, the last chunk's next backward may come before its forward.
  void complete_forwards() {
    while (forwards_[1] <= backwards_[1] && forwards_[1] < microbatches_) forward(1);
  }

  int microbatches_;
  Counts forwards_{};
  Counts backwards_{};
  std::deque<PipelineAction> put_off_;
  std::vector<PipelineAction> order_;
};

void repeat(int times, const std::function<void()>& actions) {
  for (int i = 0; i < times; ++i) actions();
}

}  // namespace

int position_of(const Pipeline& pipeline, int stage, int chunk) {
  const bool back = pipeline.placement == Placement::v && chunk % 2 == 1;
  return chunk * pipeline.stages + (back ? pipeline.stages - 1 - stage : stage);
}

int stage_at(const Pipeline& pipeline, int position) {
  const int chunk = position / pipeline.stages;
  return position_of(pipeline, position % pipeline.stages, chunk) - chunk * pipeline.stages;
}

std::vector<PipelineAction> gpipe(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  ensure(pipeline.chunks == 1, "the layers of a stage are one chunk");
  return with_warmup(pipeline, pipeline.microbatches);
}

std::vector<PipelineAction> one_f_one_b(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  ensure(pipeline.chunks == 1, "the layers of a stage are one chunk");
  return with_warmup(pipeline, pipeline.stages - 1 - stage);
}

std::vector<PipelineAction> interleaved(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  const auto& [stages, microbatches, chunks, placement] = pipeline;
  if (chunks == 1) return one_f_one_b(pipeline, stage);
  if (microbatches % stages != 0) {
    const int below = microbatches / stages * stages;
    const std::string nearest =
        below == 0 ? fmt::format("{}", stages) : fmt::format("{} or {}", below, below + stages);
    throw InputError(Diagnostic{
        .code = "D622",
        .what =
            fmt::format("{} microbatches cannot be interleaved on {} stages", microbatches, stages),
        .why = "microbatches pass through the chunks in groups of one per stage",
        .help = fmt::format("take {} microbatches", nearest)});
  }
  return with_warmup(pipeline, 2 * (stages - 1 - stage) + (chunks - 1) * stages);
}

std::vector<PipelineAction> zb_h1(const Pipeline& pipeline, int stage) {
  std::vector<PipelineAction> order;
  std::deque<PipelineAction> put_off;
  const auto backward_weight = [&] {
    order.push_back(put_off.front());
    order.back().pass = Pass::backward_weight;
    put_off.pop_front();
  };
  for (PipelineAction action : one_f_one_b(pipeline, stage)) {
    if (action.pass == Pass::backward) {
      action.pass = Pass::backward_input;
      put_off.push_back(action);
    }
    order.push_back(action);
    if (std::ssize(put_off) > stage) backward_weight();
  }
  while (!put_off.empty()) backward_weight();
  return order;
}

// In the order of the phases of DeepSeek's description. A stage with index s has `after` stages
// after it.
std::vector<PipelineAction> dualpipev(const Pipeline& pipeline, int stage) {
  check_stage(pipeline, stage);
  ensure(pipeline.chunks == 2 && pipeline.placement == Placement::v, "two chunks form a V");
  const int after = pipeline.stages - 1 - stage;
  DualPipeVOrder order(pipeline.microbatches);
  repeat(2 * after, [&] { order.forward(0); });
  repeat(stage + 1, [&] {
    order.forward(0);
    order.forward(1);
  });
  repeat(after, [&] {
    order.backward_input(1);
    order.backward_weight();
    order.forward(1);
  });
  repeat(pipeline.microbatches - pipeline.stages - after, [&] {
    order.forward(0);
    order.backward(1);
    order.forward(1);
    order.backward(0);
  });
  repeat(after, [&] {
    order.backward(1);
    order.forward(1);
    order.backward(0);
  });
  // The first half of these backwards is whole: what follows needs no more to fill its bubble.
  for (int i = 0; i < 2 * (stage + 1); ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    i <= stage ? order.backward(chunk) : order.backward_input(chunk);
  }
  repeat(after, [&] {
    order.backward_weight();
    order.backward_input(0);
  });
  return order.finish();
}

}  // namespace shiplap::schedule
