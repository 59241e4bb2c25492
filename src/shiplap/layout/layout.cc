#include "shiplap/layout/layout.h"

#include <fmt/format.h>

#include <cstddef>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/layout/sizes_internal.h"

namespace shiplap::layout {
namespace {

using workload::Model;

constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;

class LayoutChecker {
 public:
  LayoutChecker(const Layout& layout, const Model& model, std::int64_t ranks_per_machine)
      : layout_(layout),
        model_(model),
        sizes_(sizes_of(model)),
        ranks_per_machine_(ranks_per_machine) {}

  std::vector<Diagnostic> check() {
    check_sizes();
    if (!found_.empty()) return std::move(found_);
    check_tensor();
    check_context();
    check_schedule();
    check_stages();
    check_batch();
    check_sharding();
    check_experts();
    check_precision();
    if (ranks_per_machine_ > 0) check_machines();
    return std::move(found_);
  }

 private:
  void error(std::string what, std::string help, std::string why = "") {
    found_.push_back({.code = "D606",
                      .where = {},
                      .what = std::move(what),
                      .why = std::move(why),
                      .help = std::move(help)});
  }
  void warn(std::string what, std::string why, std::string help = "") {
    found_.push_back({.code = "D607",
                      .severity = Severity::warning,
                      .where = {},
                      .what = std::move(what),
                      .why = std::move(why),
                      .help = std::move(help)});
  }

  // That the size `name` divides `whole`, which is `of` the model.
  void check_divides(std::string_view name, std::int64_t size, std::int64_t whole,
                     std::string_view of) {
    if (whole % size == 0) return;
    error(fmt::format("{} {} must divide the {} {}", name, size, whole, of),
          fmt::format("use {} {}", name, nearest_choices(divisors(whole), size)));
  }

  void check_sizes() {
    const std::pair<std::string_view, std::int64_t> sizes[] = {
        {"tensor", layout_.tensor},
        {"context", layout_.context},
        {"pipeline", layout_.pipeline},
        {"chunks", layout_.chunks},
        {"data", layout_.data},
        {"replicas", layout_.replicas},
        {"expert", layout_.expert},
        {"expert_tensor", layout_.expert_tensor},
        {"micro_batch", layout_.micro_batch},
        {"global_batch", layout_.global_batch},
        {"seq_length", layout_.seq_length},
    };
    double product = 1;
    for (const auto& [name, size] : sizes) {
      if (size < 1 || size > kMaxSize) {
        error(fmt::format("{} must be 1 to 2^24, not {}", name, size),
              fmt::format("use {} 1", name));
      }
      if (name == "tensor" || name == "context" || name == "pipeline" || name == "data") {
        product *= static_cast<double>(size);
      }
    }
    if (found_.empty() && product > static_cast<double>(kMaxSize)) {
      error("the layout has more than 2^24 ranks", "use a smaller data, tensor or pipeline");
    }
    if (model_.layers.empty()) error("the model has no layers", "use a model with layers");
  }

  void check_tensor() {
    const std::int64_t tensor = layout_.tensor;
    check_divides("tensor", tensor, sizes_.heads, "heads of attention");
    check_kv_heads(tensor, fmt::format("tensor {}", tensor));
    if (sizes_.width > 0) check_divides("tensor", tensor, sizes_.width, "features of the MLP");
    if (model_.vocabulary % tensor != 0) {
      warn(fmt::format("tensor {} does not divide the vocabulary of {}", tensor, model_.vocabulary),
           fmt::format("it must be padded to {}",
                       (model_.vocabulary + tensor - 1) / tensor * tensor));
    }
    if (layout_.sequence_parallel) check_sequence_parallel();
  }

  // Of the keys and values of a rank. Fewer heads than ranks are kept by several of them.
  void check_kv_heads(std::int64_t parts, const std::string& by) {
    const std::int64_t kv_heads = sizes_.kv_heads;
    if (kv_heads == 0 || sizes_.heads % parts != 0 || kv_heads % parts == 0) return;
    if (parts % kv_heads == 0) {
      warn(fmt::format("{} is more than the {} heads of keys and values", by, kv_heads),
           fmt::format("each of these heads is repeated on {} ranks", parts / kv_heads));
      return;
    }
    error(fmt::format("{} neither divides the {} heads of keys and values nor is a multiple", by,
                      kv_heads),
          fmt::format("use {} parts", nearest_choices(divisors(kv_heads), parts)));
  }

  void check_sequence_parallel() {
    if (layout_.tensor == 1) {
      error("sequence parallelism needs tensor > 1", "use tensor 2, or no sequence parallelism");
      return;
    }
    const std::int64_t parts = layout_.tensor * layout_.context;
    if (layout_.seq_length % parts == 0) return;
    error(
        fmt::format("sequence parallelism divides the {} tokens of a sequence by tensor x context "
                    "= {}",
                    layout_.seq_length, parts),
        fmt::format("use seq_length {}", nearest_multiples(parts, layout_.seq_length)));
  }

  void check_context() {
    if (layout_.context == 1) return;
    const bool ulysses = layout_.context_method == ContextMethod::ulysses;
    if (ulysses) check_ulysses();
    const std::int64_t parts = ulysses ? layout_.context : 2 * layout_.context;
    if (layout_.seq_length % parts == 0) return;
    error(fmt::format("context {} divides the {} tokens of a sequence into {} parts",
                      layout_.context, layout_.seq_length, parts),
          fmt::format("use seq_length {}", nearest_multiples(parts, layout_.seq_length)),
          ulysses ? "" : "a rank has one part of each half, so that all have equal work");
  }

  void check_ulysses() {
    if (sizes_.heads % layout_.tensor != 0) return;
    const std::int64_t heads = sizes_.heads / layout_.tensor;
    if (heads % layout_.context != 0) {
      error(fmt::format("ulysses divides the {} heads of a tensor rank by context {}", heads,
                        layout_.context),
            fmt::format("use context {}, or another context method",
                        nearest_choices(divisors(heads), layout_.context)));
      return;
    }
    check_kv_heads(layout_.tensor * layout_.context,
                   fmt::format("tensor {} x context {}", layout_.tensor, layout_.context));
  }

  void check_schedule() {
    const std::string_view schedule = name(layout_.schedule);
    switch (layout_.schedule) {
      case PipelineSchedule::gpipe:
      case PipelineSchedule::one_f_one_b:
      case PipelineSchedule::zero_bubble:
        if (layout_.chunks != 1) {
          error(fmt::format("{} has 1 chunk on each rank, not {}", schedule, layout_.chunks),
                "use chunks 1, or the schedule interleaved");
        }
        break;
      case PipelineSchedule::interleaved:
        check_interleaved();
        break;
      case PipelineSchedule::dual_pipe_v:
        if (layout_.chunks != 2) {
          error(fmt::format("{} has 2 chunks on each rank, not {}", schedule, layout_.chunks),
                "use chunks 2");
        }
        if (layout_.pipeline == 1) {
          error(fmt::format("{} needs pipeline > 1", schedule), "use pipeline 2, or 1F1B");
        }
        break;
    }
  }

  void check_interleaved() {
    if (layout_.pipeline == 1) {
      error("interleaved needs pipeline > 1", "use pipeline 2, or 1F1B");
    }
    if (layout_.chunks == 1) {
      error("interleaved needs chunks > 1", "use chunks 2, or 1F1B");
    }
    if (!batch_divides() || layout_.microbatches() % layout_.pipeline == 0) return;
    const std::int64_t unit = layout_.micro_batch * layout_.data * layout_.pipeline;
    error(fmt::format("interleaved passes the {} microbatches in groups of pipeline = {}",
                      layout_.microbatches(), layout_.pipeline),
          fmt::format("use global_batch {}", nearest_multiples(unit, layout_.global_batch)));
  }

  void check_stages() {
    if (!layout_.stages.empty()) {
      check_written_stages();
      return;
    }
    const auto layers = std::ssize(model_.layers);
    if (layers % (layout_.pipeline * layout_.chunks) == 0) return;
    const bool by_pipeline = layers % layout_.chunks == 0;
    const std::int64_t other = by_pipeline ? layout_.chunks : 1;
    const std::string choices =
        nearest_choices(divisors(layers / other), by_pipeline ? layout_.pipeline : 1);
    const std::string with = layout_.chunks == 1 ? "" : fmt::format(" with chunks {}", other);
    error(layout_.chunks == 1
              ? fmt::format("pipeline {} must divide the {} layers", layout_.pipeline, layers)
              : fmt::format("pipeline {} x chunks {} must divide the {} layers", layout_.pipeline,
                            layout_.chunks, layers),
          fmt::format("use pipeline {}{}, or write out the stages", choices, with));
  }

  void check_written_stages() {
    const std::vector<Stage>& stages = layout_.stages;
    const std::int64_t expected = layout_.pipeline * layout_.chunks;
    if (std::ssize(stages) != expected) {
      error(fmt::format("there are {} stages, but pipeline {} x chunks {} is {}", stages.size(),
                        layout_.pipeline, layout_.chunks, expected),
            fmt::format("write out {} stages", expected));
    }
    std::int64_t layers = 0;
    std::int64_t mtp = 0;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      const Stage& stage = stages[k];
      if (stage.layers < 0 || stage.layers > kMaxSize || stage.mtp < 0 || stage.mtp > kMaxSize) {
        error(fmt::format("stage {} has {} layers and {} modules for further tokens", k,
                          stage.layers, stage.mtp),
              "use 0 or more of each");
        return;
      }
      if (mtp > 0 && stage.layers > 0) {
        error(fmt::format("stage {} has layers, but a module for further tokens is before them", k),
              "write these modules after all layers");
      }
      layers += stage.layers;
      mtp += stage.mtp;
      if (stage.layers + stage.mtp == 0 && !stage.embedding && !stage.head) {
        warn(fmt::format("stage {} is empty", k), "its rank only passes activations on");
      }
    }
    check_ends();
    if (layers != std::ssize(model_.layers)) {
      error(
          fmt::format("the stages have {} layers, the model has {}", layers, model_.layers.size()),
          fmt::format("write stages with {} layers in total", model_.layers.size()));
    }
    if (mtp > std::ssize(model_.mtp)) {
      error(fmt::format("the stages have {} modules for further tokens, the model has {}", mtp,
                        model_.mtp.size()),
            fmt::format("write stages with at most {} of them", model_.mtp.size()));
    }
  }

  void check_ends() {
    const std::vector<Stage>& stages = layout_.stages;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      if (stages[k].embedding != (k == 0)) {
        error(fmt::format("stage {} has {} embedding", k, k == 0 ? "no" : "the"),
              "write the embedding on stage 0 only");
      }
      if (stages[k].head != (k + 1 == stages.size())) {
        error(fmt::format("stage {} has {} head", k, k + 1 == stages.size() ? "no" : "the"),
              fmt::format("write the head on stage {} only", stages.size() - 1));
      }
    }
  }

  [[nodiscard]] bool batch_divides() const {
    return layout_.global_batch % (layout_.micro_batch * layout_.data) == 0;
  }

  void check_batch() {
    if (!batch_divides()) {
      const std::int64_t unit = layout_.micro_batch * layout_.data;
      error(fmt::format("global_batch {} must be a multiple of micro_batch {} x data {}",
                        layout_.global_batch, layout_.micro_batch, layout_.data),
            fmt::format("use global_batch {}", nearest_multiples(unit, layout_.global_batch)));
      return;
    }
    if (layout_.microbatches() < layout_.pipeline) {
      warn(fmt::format("{} microbatches are fewer than the {} ranks of the pipeline",
                       layout_.microbatches(), layout_.pipeline),
           "some ranks are always idle", "use a larger global_batch or a smaller micro_batch");
    }
    if (model_.positions > 0 && layout_.seq_length > model_.positions) {
      warn(fmt::format("seq_length {} is more than the {} positions of the model",
                       layout_.seq_length, model_.positions),
           "the model was not made for such sequences");
    }
  }

  void check_sharding() {
    check_divides("replicas", layout_.replicas, layout_.data, "data parallel ranks");
    const Sharding sharding = layout_.sharding;
    if (sharding == Sharding::none) {
      if (layout_.replicas > 1) {
        error(fmt::format("replicas {} repeat shards, but nothing is sharded", layout_.replicas),
              "use replicas 1, or shard the optimizer, gradients or weights");
      }
      return;
    }
    if (layout_.data * layout_.context == layout_.replicas) {
      warn(fmt::format("{} are sharded over 1 rank", name(sharding)), "this saves no memory");
    }
    if (layout_.pipeline > 1 && sharding != Sharding::optimizer) {
      warn(fmt::format("{} are sharded in a pipeline", name(sharding)),
           sharding == Sharding::weights ? "they are gathered again for every microbatch"
                                         : "they are reduced for every microbatch",
           "shard the optimizer only");
    }
  }

  void check_experts() {
    if (sizes_.experts == 0) {
      for (const auto& [name, size] : {std::pair{"expert", layout_.expert},
                                       std::pair{"expert_tensor", layout_.expert_tensor}}) {
        if (size > 1) {
          error(fmt::format("{} {} divides experts, but the model has none", name, size),
                fmt::format("use {} 1", name));
        }
      }
      return;
    }
    check_divides("expert", layout_.expert, sizes_.experts, "experts");
    check_divides("expert_tensor", layout_.expert_tensor, sizes_.expert_width,
                  "features of an expert");
    if (layout_.tensor > 1 && !layout_.sequence_parallel) {
      error(fmt::format("tensor {} with experts needs sequence parallelism", layout_.tensor),
            "use sequence parallelism or tensor 1",
            "else all tensor ranks send the same tokens to the experts");
    }
    check_expert_groups();
  }

  void check_expert_groups() {
    const std::int64_t ranks = layout_.tensor * layout_.context * layout_.data;
    if (ranks % (layout_.expert * layout_.expert_tensor) != 0) {
      error(fmt::format("expert {} x expert_tensor {} must divide tensor x context x data = {}",
                        layout_.expert, layout_.expert_tensor, ranks),
            legal_expert_groups(ranks));
      return;
    }
    check_divides("replicas", layout_.replicas, layout_.expert_data(),
                  "data parallel ranks of an expert");
  }

  [[nodiscard]] std::string legal_expert_groups(std::int64_t ranks) const {
    std::vector<std::int64_t> legal;
    if (ranks % layout_.expert_tensor == 0) {
      legal = divisors(ranks / layout_.expert_tensor);
      std::erase_if(legal, [&](std::int64_t d) { return sizes_.experts % d != 0; });
      return fmt::format("use expert {}", nearest_choices(legal, layout_.expert));
    }
    if (ranks % layout_.expert == 0) {
      legal = divisors(ranks / layout_.expert);
      return fmt::format("use expert_tensor {}", nearest_choices(legal, layout_.expert_tensor));
    }
    return "use expert 1 and expert_tensor 1";
  }

  void check_precision() {
    const Precision& p = layout_.precision;
    for (const auto& [name, type, fp8] :
         {std::tuple{"weights", p.weights, false}, std::tuple{"gradients", p.gradients, false},
          std::tuple{"master", p.master, false}, std::tuple{"moments", p.moments, true}}) {
      if (type == DType::f32 || type == DType::bf16 || type == DType::f16) continue;
      if (fp8 && is_fp8(type)) continue;
      error(fmt::format("{} cannot be {}", name, shiplap::name(type)),
            fmt::format("use {} f32, bf16 or f16", name));
    }
    if (bytes_of(p.master) < bytes_of(p.weights)) {
      error(fmt::format("master {} is less precise than weights {}", shiplap::name(p.master),
                        shiplap::name(p.weights)),
            fmt::format("use master {}", shiplap::name(p.weights)));
    }
  }

  void check_machines() {
    const std::int64_t machine = ranks_per_machine_;
    if (layout_.tensor > 1 && machine % layout_.tensor != 0) {
      warn(fmt::format("a tensor group of {} ranks spans machines of {}", layout_.tensor, machine),
           "its collectives are on the critical path of every layer",
           fmt::format("use tensor {}", nearest_choices(divisors(machine), layout_.tensor)));
    }
    if (layout_.ranks() > machine && layout_.ranks() % machine != 0) {
      warn(fmt::format("{} ranks do not fill machines of {}", layout_.ranks(), machine),
           "the last machine has idle devices");
    }
  }

  const Layout& layout_;
  const Model& model_;
  ModelSizes sizes_;
  std::int64_t ranks_per_machine_;
  std::vector<Diagnostic> found_;
};

}  // namespace

std::string_view name(ContextMethod method) {
  switch (method) {
    case ContextMethod::all_gather:
      return "all_gather";
    case ContextMethod::ring:
      return "ring";
    case ContextMethod::ulysses:
      return "ulysses";
  }
  throw InternalError("unknown context method");
}

std::string_view name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return "GPipe";
    case PipelineSchedule::one_f_one_b:
      return "1F1B";
    case PipelineSchedule::interleaved:
      return "interleaved";
    case PipelineSchedule::zero_bubble:
      return "zero bubble";
    case PipelineSchedule::dual_pipe_v:
      return "DualPipeV";
  }
  throw InternalError("unknown pipeline schedule");
}

std::string_view name(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  throw InternalError("unknown recompute");
}

std::string_view name(Sharding sharding) {
  switch (sharding) {
    case Sharding::none:
      return "none";
    case Sharding::optimizer:
      return "optimizer";
    case Sharding::gradients:
      return "gradients";
    case Sharding::weights:
      return "weights";
  }
  throw InternalError("unknown sharding");
}

std::vector<Stage> stages_of(const Layout& layout, const Model& model) {
  if (!layout.stages.empty()) return layout.stages;
  const std::int64_t count = layout.pipeline * layout.chunks;
  std::vector<Stage> stages(static_cast<std::size_t>(count),
                            {.layers = std::ssize(model.layers) / count});
  stages.front().embedding = true;
  stages.back().head = true;
  stages.back().mtp = std::ssize(model.mtp);
  return stages;
}

std::vector<Diagnostic> check_layout(const Layout& layout, const Model& model,
                                     std::int64_t ranks_per_machine) {
  return LayoutChecker(layout, model, ranks_per_machine).check();
}

std::int64_t optimizer_bytes(const Layout& layout) {
  const Precision& precision = layout.precision;
  const std::int64_t master =
      precision.master == precision.weights ? 0 : bytes_of(precision.master);
  const std::int64_t moments = layout.optimizer == Optimizer::adam ? 2 : 1;
  return master + moments * bytes_of(precision.moments);
}

}  // namespace shiplap::layout
