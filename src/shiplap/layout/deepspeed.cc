// ds_config.json of DeepSpeed: names and defaults of deepspeed/runtime of August 2026. It has the
// batch, ZeRO and precision; the model, the length of sequences and recomputation are elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "shiplap/base/json.h"
#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {
namespace {

// At the top level: other names are not understood.
const std::vector<std::string>& deepspeed_names() {
  static const std::vector<std::string> names = {
      "activation_checkpointing",
      "aio",
      "amp",
      "autotuning",
      "bf16",
      "bfloat16",
      "checkpoint",
      "comms_logger",
      "communication_data_type",
      "compile",
      "compression_training",
      "csv_monitor",
      "curriculum_learning",
      "data_efficiency",
      "data_types",
      "dataloader_drop_last",
      "disable_allgather",
      "dump_state",
      "eigenvalue",
      "elasticity",
      "flops_profiler",
      "fp16",
      "gradient_accumulation_steps",
      "gradient_clipping",
      "gradient_predivide_factor",
      "hybrid_engine",
      "memory_breakdown",
      "nebula",
      "optimizer",
      "pipeline",
      "pld",
      "prescale_gradients",
      "progressive_layer_drop",
      "scheduler",
      "seq_parallel_communication_data_type",
      "sequence_parallel_size",
      "sparse_attention",
      "sparse_gradients",
      "steps_per_print",
      "tensor_parallel",
      "tensorboard",
      "torch_autocast",
      "train_batch_size",
      "train_micro_batch_size_per_gpu",
      "use_data_before_expert_parallelism",
      "wall_clock_breakdown",
      "wandb",
      "weight_quantization",
      "zero_allow_untested_optimizer",
      "zero_force_ds_cpu_optimizer",
      "zero_optimization",
  };
  return names;
}

// Values of ZeRO that change what a rank holds in ways that a layout cannot say.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kZeroNotModelled = {{
    {"cpu_offload", "the optimizer is assumed to be on the GPU"},
    {"offload_optimizer.device", "the optimizer is assumed to be on the GPU"},
    {"offload_param.device", "weights are assumed to be on the GPU"},
    {"zero_hpz_partition_size", "weights are assumed to be gathered from all ranks"},
    {"zero_quantized_gradients", "gradients are assumed to be sent as they are"},
    {"zero_quantized_weights", "weights are assumed to be sent as they are"},
}};

class DeepspeedReader {
 public:
  DeepspeedReader(std::string_view text, const workload::Model& model,
                  std::optional<std::int64_t> ranks)
      : settings_(findings_), model_(model), ranks_(ranks) {
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos || text[begin] != '{') {
      const std::string file = file_of_command(text, ".json");
      findings_.cannot_read("", "this is no ds_config.json",
                            file.empty() ? "pass the file of --deepspeed_config or --deepspeed"
                                         : fmt::format("pass the file `{}`", file));
      findings_.throw_errors();
    }
    const Json json = parse_json(text, "ds_config.json");
    add_settings(json, settings_);
    for (const auto& [key, value] : json.as_object()) top_.push_back(key);
  }

  LayoutFile read() {
    read_groups();
    read_batch();
    read_zero();
    read_precision();
    read_optimizer();
    leave_out_mtp(file_.layout, model_, Framework::deepspeed, findings_);
    findings_.assume("seq_length", "a ds_config.json has no length of sequences",
                     fmt::format("{} is assumed", file_.layout.seq_length));
    findings_.assume("recompute", "a ds_config.json does not turn recomputation on",
                     "none is assumed");
    report_top();
    return finish_reading(std::move(file_), model_, findings_);
  }

 private:
  Layout& layout() { return file_.layout; }

  // None if it is not there, or "auto".
  std::optional<std::int64_t> size(std::string_view name, std::int64_t lowest = 1) {
    if (is_auto(name)) return {};
    return settings_.integer(name, lowest);
  }
  bool is_auto(std::string_view name) { return settings_.is(name, "auto"); }
  bool enabled(std::string_view section) {
    const std::string name = fmt::format("{}.enabled", section);
    if (!is_auto(name)) return settings_.flag(name);
    findings_.assume(name, fmt::format("`{}` is auto", name),
                     fmt::format("{} is assumed", section == "bf16" ? "true" : "false"));
    return section == "bf16";
  }

  void read_groups() {
    Layout& l = layout();
    l.tensor = std::max<std::int64_t>(1, size("tensor_parallel.autotp_size", 0).value_or(1));
    l.context = size("sequence_parallel_size").value_or(1);
    if (l.context > 1) l.context_method = ContextMethod::ulysses;
    l.pipeline = size("pipeline.stages").value_or(1);
    if (ranks_) l.data = data_ranks(l, *ranks_, findings_);
  }

  // train_batch_size = micro x accumulation x data: two of them give the third.
  void read_batch() {
    Layout& l = layout();
    const auto all = size("train_batch_size");
    auto micro = size("train_micro_batch_size_per_gpu");
    auto steps = size("gradient_accumulation_steps");
    if (!ranks_) {
      const std::int64_t unit = micro.value_or(1) * steps.value_or(1);
      if (!all || !micro || !steps || *all % unit != 0) {
        findings_.cannot_read("train_batch_size", "the number of ranks is not given",
                              "give the ranks, or train_batch_size, train_micro_batch_size_per_gpu "
                              "and gradient_accumulation_steps");
        return;
      }
      l.data = *all / unit;
    }
    if (all && *all % l.data == 0) {
      const std::int64_t each = *all / l.data;
      if (!micro && steps && each % *steps == 0) micro = each / *steps;
      if (micro && !steps && each % *micro == 0) steps = each / *micro;
      if (!micro && !steps) micro = each;
    }
    if (!micro) assume_one("train_micro_batch_size_per_gpu");
    if (!steps && !all) assume_one("gradient_accumulation_steps");
    l.micro_batch = micro.value_or(1);
    const double product = static_cast<double>(l.micro_batch) *
                           static_cast<double>(steps.value_or(1)) * static_cast<double>(l.data);
    l.global_batch = all.value_or(
        static_cast<std::int64_t>(std::min(product, static_cast<double>(kMaxSetting + 1))));
    if (all && micro && steps && product != static_cast<double>(*all)) {
      findings_.error("train_batch_size",
                      fmt::format("train_batch_size {} is not micro batch {} x accumulation {} x "
                                  "data {}",
                                  *all, *micro, *steps, l.data),
                      fmt::format("use train_batch_size {:.0f}", product));
    }
  }

  void assume_one(std::string_view name) {
    findings_.assume(name, fmt::format("`{}` is {}", name, is_auto(name) ? "auto" : "missing"),
                     "1 is assumed");
  }

  void read_zero() {
    Layout& l = layout();
    l.sharding = settings_.choice("zero_optimization.stage", Sharding::none,
                                  {{"0", Sharding::none},
                                   {"1", Sharding::optimizer},
                                   {"2", Sharding::gradients},
                                   {"3", Sharding::weights}});
    if (l.pipeline > 1 && l.sharding != Sharding::none && l.sharding != Sharding::optimizer) {
      findings_.error("zero_optimization.stage", "DeepSpeed has no pipelines with ZeRO-2 or ZeRO-3",
                      "use `stage` 0 or 1, or no pipeline");
    }
    const auto shard = size("zero_optimization.mics_shard_size", -1);
    if (shard && *shard > 0) {
      if (l.data % *shard == 0) {
        l.replicas = l.data / *shard;
      } else {
        findings_.error("zero_optimization.mics_shard_size",
                        fmt::format("mics_shard_size {} does not divide the {} data parallel ranks",
                                    *shard, l.data),
                        fmt::format("use {}", l.data));
      }
    }
    for (const auto& [name, assumed] : kZeroNotModelled) {
      const std::string full = fmt::format("zero_optimization.{}", name);
      if (!settings_.has(full) || settings_.is(full, "none") || settings_.is(full, "false") ||
          settings_.is(full, "1")) {
        continue;
      }
      findings_.assume(full, fmt::format("`{}` is not modelled", full), std::string(assumed));
    }
  }

  void read_precision() {
    Precision& p = layout().precision;
    const bool bf16 = enabled(settings_.has("bfloat16.enabled") ? "bfloat16" : "bf16");
    const bool fp16 = enabled("fp16");
    if (bf16 && fp16) {
      findings_.error("fp16.enabled", "bf16 and fp16 exclude each other", "enable one of them");
    }
    p.weights = bf16 ? DType::bf16 : fp16 ? DType::f16 : DType::f32;
    // Only without ZeRO are gradients of bf16 weights summed in f32.
    const DType usual = bf16 && layout().sharding == Sharding::none ? DType::f32 : p.weights;
    p.gradients = settings_.choice(
        "data_types.grad_accum_dtype", usual,
        {{"fp32", DType::f32}, {"fp16", DType::f16}, {"bf16", DType::bf16}, {"auto", usual}});
    if (fp16 && settings_.flag("fp16.fp16_master_weights_and_grads")) p.master = DType::f16;
    if (bf16 && settings_.flag("bf16.bf16_master_weights_and_grads")) p.master = DType::bf16;
    if (bf16 && settings_.flag("bf16.bf16_optimizer_states")) p.moments = DType::bf16;
  }

  void read_optimizer() {
    std::string type = settings_.word("optimizer.type").value_or("adamw");
    for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (type == "sgd") {
      layout().optimizer = Optimizer::sgd;
    } else if (type == "muon") {
      layout().optimizer = Optimizer::muon;
    } else if (type != "auto" && type.find("adam") == std::string::npos) {
      findings_.error("optimizer.type", fmt::format("the optimizer `{}` cannot be planned", type),
                      "use Adam, AdamW, SGD or Muon");
    }
  }

  void report_top() {
    Settings top(findings_);
    for (const std::string& key : top_) top.set(key, {});
    report_unread(top, deepspeed_names());
  }

  Findings findings_;
  Settings settings_;
  const workload::Model& model_;
  std::optional<std::int64_t> ranks_;
  std::vector<std::string> top_;  // names at the top level
  LayoutFile file_;
};

[[noreturn]] void no_deepspeed_words(const std::string& what, const std::string& help) {
  throw_no_words(Framework::deepspeed, what, help);
}

int zero_stage(Sharding sharding) {
  switch (sharding) {
    case Sharding::none:
      return 0;
    case Sharding::optimizer:
      return 1;
    case Sharding::gradients:
      return 2;
    case Sharding::weights:
      return 3;
  }
  return 0;
}

std::string_view deepspeed_type(DType type) {
  if (type == DType::f32) return "fp32";
  return type == DType::f16 ? "fp16" : "bf16";
}

void write_deepspeed_precision(const Precision& p, Json& json) {
  Json half = Json::object({{"enabled", true}});
  const bool low = p.master != DType::f32;
  if (low && (p.master != p.weights || p.gradients != p.weights)) {
    no_deepspeed_words("a master copy of another type than weights and gradients",
                       "use master f32");
  }
  if (p.weights == DType::bf16) {
    if (low) half.set("bf16_master_weights_and_grads", true);
    if (p.moments == DType::bf16 && low) half.set("bf16_optimizer_states", true);
    json.set("bf16", half);
  } else if (p.weights == DType::f16) {
    if (low) half.set("fp16_master_weights_and_grads", true);
    json.set("fp16", half);
  }
  if (p.moments != DType::f32 && !(p.moments == DType::bf16 && p.weights == DType::bf16 && low)) {
    no_deepspeed_words("moments of this type", "use f32");
  }
  if (p.fp8 != Fp8::none) no_deepspeed_words("FP8", "use no FP8");
  json.set("data_types", Json::object({{"grad_accum_dtype", deepspeed_type(p.gradients)}}));
}

}  // namespace

LayoutFile read_deepspeed(std::string_view text, const workload::Model& model,
                          std::optional<std::int64_t> ranks) {
  return DeepspeedReader(text, model, ranks).read();
}

std::string write_deepspeed(const Layout& layout, const workload::Model& model) {
  const Layout& l = layout;
  if (l.pipeline > 1) no_deepspeed_words("a pipeline in its file", "use pipeline 1");
  if (l.expert * l.expert_tensor > 1) no_deepspeed_words("experts in its file", "use expert 1");
  if (l.sequence_parallel) no_deepspeed_words("sequence parallelism of tensor ranks", "use none");
  if (l.context > 1 && l.context_method != ContextMethod::ulysses) {
    no_deepspeed_words(fmt::format("the context method {}", name(l.context_method)), "use ulysses");
  }
  if (l.loss == LossMean::tokens) no_deepspeed_words("a loss per token", "use that of sequences");
  if (stages_of(l, model).back().mtp > 0) {
    no_deepspeed_words("modules for further tokens", "write out stages without them");
  }
  Json json = Json::object({
      {"train_batch_size", l.global_batch},
      {"train_micro_batch_size_per_gpu", l.micro_batch},
      {"gradient_accumulation_steps", l.microbatches()},
  });
  Json zero = Json::object({{"stage", zero_stage(l.sharding)}});
  if (l.replicas > 1) zero.set("mics_shard_size", l.data / l.replicas);
  json.set("zero_optimization", zero);
  if (l.context > 1) json.set("sequence_parallel_size", l.context);
  if (l.tensor > 1) {
    json.set("tensor_parallel", Json::object({{"autotp_size", l.tensor}}));
  }
  write_deepspeed_precision(l.precision, json);
  if (l.optimizer != Optimizer::adam) {
    json.set("optimizer", Json::object({{"type", l.optimizer == Optimizer::sgd ? "SGD" : "Muon"}}));
  }
  return to_text(json) + "\n";
}

}  // namespace shiplap::layout
