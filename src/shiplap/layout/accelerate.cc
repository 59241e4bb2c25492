// Configuration files of Hugging Face accelerate: names and defaults of commands/launch.py of July
// 2026. They have the ranks, FSDP, DeepSpeed or Megatron-LM, and precision; the batch and the
// length of sequences are arguments of the script.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "shiplap/base/json.h"
#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {
namespace {

const std::vector<std::string>& accelerate_names() {
  static const std::vector<std::string> names = {
      "command_file",
      "commands",
      "compute_environment",
      "debug",
      "deepspeed_config",
      "distributed_type",
      "downcast_bf16",
      "dynamo_config",
      "enable_cpu_affinity",
      "fp8_config",
      "fsdp_config",
      "gpu_ids",
      "gradient_accumulation_steps",
      "ipex_config",
      "machine_rank",
      "main_process_ip",
      "main_process_port",
      "main_training_function",
      "megatron_lm_config",
      "mixed_precision",
      "mpirun_config",
      "num_cpu_threads_per_process",
      "num_machines",
      "num_processes",
      "parallelism_config",
      "rdzv_backend",
      "same_network",
      "tpu_env",
      "tpu_name",
      "tpu_use_cluster",
      "tpu_use_sudo",
      "tpu_zone",
      "use_cpu",
  };
  return names;
}

bool is_command(std::string_view text) {
  return text.starts_with("#!") || text.find("accelerate launch") != std::string_view::npos ||
         text.substr(0, text.find('\n')).find(" --") != std::string_view::npos;
}

class AccelerateReader {
 public:
  AccelerateReader(std::string_view text, const workload::Model& model,
                   std::optional<std::int64_t> ranks)
      : settings_(findings_), model_(model) {
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin != std::string_view::npos && text[begin] == '{') {
      add_settings(parse_json(text, "config.json"), settings_);
    } else if (is_command(text)) {
      std::string file = file_of_command(text, ".yaml");
      if (file.empty()) file = file_of_command(text, ".yml");
      findings_.cannot_read("", "this is a command, not a configuration file",
                            file.empty() ? "pass the file that `accelerate config` wrote"
                                         : fmt::format("pass the file `{}`", file));
    } else {
      add_yaml(text, settings_);
    }
    findings_.throw_errors();
    // As accelerate does it.
    for (const std::string& name : settings_.unread()) {
      constexpr std::string_view kSection = "fsdp_config.";
      if (name.starts_with(kSection) && !name.starts_with("fsdp_config.fsdp_")) {
        settings_.move_as(name, settings_, "fsdp_config.fsdp_" + name.substr(kSection.size()));
      }
    }
    ranks_ = ranks ? ranks : settings_.integer("num_processes");
    machines_ = settings_.integer_or("num_machines", 1);
    if (!ranks && ranks_ && *ranks_ % machines_ == 0) {
      file_.ranks_per_machine = *ranks_ / machines_;
    }
  }

  LayoutFile read() {
    const std::string type = settings_.word("distributed_type").value_or("NO");
    if (type == "MEGATRON_LM") {
      read_megatron_section();
    } else {
      read_parallelism();
      if (type == "FSDP") {
        read_fsdp();
      } else if (type == "DEEPSPEED") {
        read_deepspeed_section();
      } else if (type != "NO" && !type.starts_with("MULTI_")) {
        findings_.error("distributed_type", fmt::format("`{}` cannot be planned", type),
                        "use MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM");
      }
    }
    read_batch();
    read_precision(type);
    leave_out_mtp(file_.layout, model_, Framework::accelerate, findings_);
    report_top();
    return finish_reading(std::move(file_), model_, findings_);
  }

 private:
  Layout& layout() { return file_.layout; }

  // Some versions write the members of a section beside it.
  std::string member(std::string_view section, std::string_view name) const {
    const std::string nested = fmt::format("{}.{}", section, name);
    return settings_.has(nested) || !settings_.has(name) ? nested : std::string(name);
  }
  std::string parallelism(std::string_view name) const {
    return member("parallelism_config", fmt::format("parallelism_config_{}", name));
  }

  void read_parallelism() {
    Layout& l = layout();
    l.tensor = settings_.integer_or(parallelism("tp_size"), 1);
    const std::int64_t context = settings_.integer_or(parallelism("cp_size"), 1);
    const std::int64_t sequence = settings_.integer_or(parallelism("sp_size"), 1);
    replicate_ = settings_.integer(parallelism("dp_replicate_size"));
    shard_ = settings_.integer(parallelism("dp_shard_size"));
    if (context > 1 && sequence > 1) {
      findings_.error("parallelism_config_sp_size",
                      "`parallelism_config_cp_size` and `parallelism_config_sp_size` exclude each "
                      "other",
                      "use one of them");
    }
    l.context = std::max(context, sequence);
    l.context_method = settings_.choice(
        parallelism("cp_comm_strategy"), ContextMethod::all_gather,
        {{"allgather", ContextMethod::all_gather}, {"alltoall", ContextMethod::ring}});
    if (sequence > 1) l.context_method = ContextMethod::ulysses;
    if (const auto length = settings_.integer(parallelism("sp_seq_length"))) {
      l.seq_length = *length;
      has_length_ = true;
    }
    const std::int64_t product = replicate_.value_or(1) * shard_.value_or(1);
    if (ranks_) {
      l.data = data_ranks(l, *ranks_, findings_);
      if (product > 1 && product != l.data) {
        findings_.error(
            "parallelism_config_dp_shard_size",
            fmt::format("dp_replicate {} x dp_shard {} is not the {} data parallel ranks",
                        replicate_.value_or(1), shard_.value_or(1), l.data),
            fmt::format("use `parallelism_config_dp_shard_size: {}`",
                        std::max<std::int64_t>(1, l.data / replicate_.value_or(1))));
      }
    } else if (shard_ || replicate_) {
      l.data = std::min(kMaxSetting + 1, product);
    } else {
      findings_.cannot_read("num_processes", "the number of ranks is not given",
                            "add `num_processes`");
    }
  }

  void read_fsdp() {
    Layout& l = layout();
    l.sharding = Sharding::weights;
    l.replicas = replicate_.value_or(1);
    const std::string strategy =
        settings_.word(member("fsdp_config", "fsdp_sharding_strategy")).value_or("FULL_SHARD");
    const std::string reshard =
        settings_.word(member("fsdp_config", "fsdp_reshard_after_forward")).value_or(strategy);
    read_strategy(settings_.has(member("fsdp_config", "fsdp_sharding_strategy")) ? strategy
                                                                                 : reshard);
    if (l.data / l.replicas * l.context == 1 && l.sharding != Sharding::none) {
      // Shards on one rank are none.
      l.sharding = Sharding::none;
      l.replicas = 1;
    }
    if (settings_.flag(member("fsdp_config", "fsdp_activation_checkpointing"))) {
      l.recompute = Recompute::full;
    }
    if (settings_.flag(member("fsdp_config", "fsdp_offload_params"))) {
      findings_.assume("fsdp_offload_params", "`fsdp_offload_params` is not modelled",
                       "weights are assumed to be on the GPU");
    }
  }

  // By name or, in old files, by number; true and false are those of version 2.
  void read_strategy(const std::string& strategy) {
    Layout& l = layout();
    std::string upper = strategy;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const bool hybrid = upper.starts_with("HYBRID_SHARD") || upper == "4" || upper == "5";
    if (upper == "NO_SHARD" || upper == "3") {
      l.sharding = Sharding::none;
      l.replicas = 1;
    } else if (upper == "SHARD_GRAD_OP" || upper == "2" || upper == "HYBRID_SHARD_ZERO2" ||
               upper == "5" || upper == "FALSE") {
      l.sharding = Sharding::gradients;
    } else if (!hybrid && upper != "FULL_SHARD" && upper != "1" && upper != "TRUE") {
      findings_.error("fsdp_sharding_strategy",
                      fmt::format("`fsdp_sharding_strategy` cannot be `{}`", strategy),
                      "use FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or "
                      "HYBRID_SHARD_ZERO2");
    }
    // Shards inside a machine.
    if (hybrid) l.replicas = machines_;
  }

  void read_deepspeed_section() {
    Layout& l = layout();
    if (settings_.has("deepspeed_config.deepspeed_config_file")) {
      findings_.cannot_read("deepspeed_config_file", "the configuration is in another file",
                            "pass the text of that ds_config.json, as that of deepspeed");
    }
    l.sharding = settings_.choice("deepspeed_config.zero_stage", Sharding::gradients,
                                  {{"0", Sharding::none},
                                   {"1", Sharding::optimizer},
                                   {"2", Sharding::gradients},
                                   {"3", Sharding::weights}});
    for (const std::string_view what : {"optimizer", "param"}) {
      const std::string name = fmt::format("deepspeed_config.offload_{}_device", what);
      if (settings_.has(name) && !settings_.is(name, "none")) {
        findings_.assume(name, fmt::format("`{}` is not modelled", name),
                         "everything is assumed to be on the GPU");
      }
    }
  }

  void read_megatron_section() {
    Layout& l = layout();
    const auto size = [&](std::string_view name) {
      return settings_.integer_or(member("megatron_lm_config", fmt::format("megatron_lm_{}", name)),
                                  1);
    };
    const auto flag = [&](std::string_view name, bool otherwise = false) {
      return settings_.flag(member("megatron_lm_config", fmt::format("megatron_lm_{}", name)),
                            otherwise);
    };
    l.tensor = size("tp_degree");
    l.pipeline = size("pp_degree");
    l.context = size("context_parallel_size");
    l.expert = size("expert_model_parallel_size");
    l.expert_tensor = size("expert_tensor_parallel_size");
    l.sequence_parallel = flag("sequence_parallelism") && l.tensor > 1;
    if (flag("use_distributed_optimizer")) l.sharding = Sharding::optimizer;
    if (flag("use_custom_fsdp")) l.sharding = Sharding::weights;
    if (flag("recompute_activations")) l.recompute = Recompute::selective;
    if (flag("calculate_per_token_loss")) l.loss = LossMean::tokens;
    l.recompute = settings_.choice(
        member("megatron_lm_config", "megatron_lm_recompute_granularity"), l.recompute,
        {{"full", Recompute::full}, {"selective", Recompute::selective}});
    steps_ = size("num_micro_batches");
    if (ranks_) {
      l.data = data_ranks(l, *ranks_, findings_);
    } else {
      findings_.cannot_read("num_processes", "the number of ranks is not given",
                            "add `num_processes`");
    }
  }

  void read_batch() {
    Layout& l = layout();
    for (const std::string_view name :
         {"deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"}) {
      if (settings_.has(name) && !settings_.is(name, "auto")) {
        steps_ = settings_.integer_or(name, 1);
        break;
      }
    }
    l.global_batch = std::min(kMaxSetting + 1, l.micro_batch * l.data * steps_);
    findings_.assume("micro_batch", "an accelerate file has no size of a batch",
                     fmt::format("{} sequence of a rank is assumed", l.micro_batch));
    if (!has_length_) {
      findings_.assume("seq_length", "an accelerate file has no length of sequences",
                       fmt::format("{} is assumed", l.seq_length));
    }
  }

  // FSDP reduces in the type of the products, which use a copy of the weights.
  void read_precision(const std::string& type) {
    Precision& p = layout().precision;
    const std::string precision = settings_.word("mixed_precision").value_or("no");
    if (precision == "fp16") {
      p.weights = DType::f16;
    } else if (precision == "no" || precision == "false" || precision == "False") {
      p.weights = DType::f32;
    } else if (precision == "fp8") {
      p.fp8 = settings_.is("fp8_config.backend", "TE") ? Fp8::delayed : Fp8::current;
    } else if (precision != "bf16") {
      findings_.error("mixed_precision", fmt::format("`{}` cannot be planned", precision),
                      "use no, bf16, fp16 or fp8");
    }
    const bool low = type == "FSDP" || (type == "DEEPSPEED" && layout().sharding != Sharding::none);
    p.gradients = low ? p.weights : DType::f32;
  }

  void report_top() {
    Settings top(findings_);
    for (const std::string& name : settings_.unread()) {
      if (name.find('.') == std::string::npos && !name.starts_with("fsdp_") &&
          !name.starts_with("megatron_lm_")) {
        settings_.move(name, top);
      }
    }
    report_unread(top, accelerate_names());
  }

  Findings findings_;
  Settings settings_;
  const workload::Model& model_;
  std::optional<std::int64_t> ranks_;
  std::int64_t machines_ = 1;
  std::optional<std::int64_t> replicate_;
  std::optional<std::int64_t> shard_;
  std::int64_t steps_ = 1;
  bool has_length_ = false;
  LayoutFile file_;
};

[[noreturn]] void no_accelerate_words(const std::string& what, const std::string& help) {
  throw_no_words(Framework::accelerate, what, help);
}

void check_accelerate_has_words(const Layout& l, const workload::Model& model) {
  if (l.pipeline > 1) no_accelerate_words("a pipeline of FSDP", "use pipeline 1");
  if (l.expert * l.expert_tensor > 1) no_accelerate_words("groups of experts", "use expert 1");
  if (l.sequence_parallel) no_accelerate_words("sequence parallelism of tensor ranks", "use none");
  if (l.loss == LossMean::tokens) no_accelerate_words("a loss per token", "use sequences");
  if (l.optimizer != Optimizer::adam) no_accelerate_words("an optimizer", "use adam");
  if (l.pipeline_fastest) no_accelerate_words("an order of groups", "use pipeline_fastest false");
  if (stages_of(l, model).back().mtp > 0) {
    no_accelerate_words("modules for further tokens", "write out stages without them");
  }
  if (l.recompute == Recompute::selective) {
    no_accelerate_words("selective recomputation", "use none or full");
  }
  const bool fsdp = l.sharding == Sharding::weights || l.sharding == Sharding::gradients;
  if (l.recompute == Recompute::full && !fsdp) {
    no_accelerate_words("recomputation without FSDP", "shard gradients or weights");
  }
  if (fsdp && l.data / l.replicas * l.context == 1) {
    no_accelerate_words("shards on 1 rank", "shard nothing");
  }
  if (l.sharding == Sharding::optimizer && l.replicas > 1) {
    no_accelerate_words("replicas of ZeRO-1", "use replicas 1");
  }
  const Precision& p = l.precision;
  const bool low = l.sharding != Sharding::none;
  if (p.master != DType::f32 || p.moments != DType::f32 ||
      p.gradients != (low ? p.weights : DType::f32)) {
    no_accelerate_words("these types of the optimizer and of gradients",
                        "use f32, and gradients of the type of the weights with shards");
  }
  if (p.fp8 != Fp8::none && (p.weights != DType::bf16 || p.fp8 == Fp8::block || p.fp8 == Fp8::mx)) {
    no_accelerate_words("this recipe of FP8", "use current or delayed with bf16");
  }
}

std::string_view accelerate_precision(const Precision& p) {
  if (p.fp8 != Fp8::none) return "fp8";
  if (p.weights == DType::f32) return "'no'";
  return p.weights == DType::f16 ? "fp16" : "bf16";
}

}  // namespace

LayoutFile read_accelerate(std::string_view text, const workload::Model& model,
                           std::optional<std::int64_t> ranks) {
  return AccelerateReader(text, model, ranks).read();
}

std::string write_accelerate(const Layout& layout, const workload::Model& model) {
  const Layout& l = layout;
  check_accelerate_has_words(l, model);
  const bool fsdp = l.sharding == Sharding::weights || l.sharding == Sharding::gradients;
  std::string text = fmt::format("compute_environment: LOCAL_MACHINE\ndistributed_type: {}\n",
                                 fsdp                                ? "FSDP"
                                 : l.sharding == Sharding::optimizer ? "DEEPSPEED"
                                                                     : "MULTI_GPU");
  text += fmt::format("mixed_precision: {}\n", accelerate_precision(l.precision));
  if (l.precision.fp8 != Fp8::none) {
    text +=
        fmt::format("fp8_config:\n  backend: {}\n", l.precision.fp8 == Fp8::delayed ? "TE" : "AO");
  }
  text += fmt::format("num_machines: 1\nnum_processes: {}\n", l.ranks());
  if (fsdp) {
    text += fmt::format(
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: {}\n"
        "  fsdp_activation_checkpointing: {}\n",
        l.sharding == Sharding::weights, l.recompute == Recompute::full);
  }
  if (l.sharding == Sharding::optimizer) text += "deepspeed_config:\n  zero_stage: 1\n";
  if (l.microbatches() > 1) {
    text += fmt::format("gradient_accumulation_steps: {}\n", l.microbatches());
  }
  const std::string prefix = "  parallelism_config_";
  const bool ulysses = l.context_method == ContextMethod::ulysses;
  text += "parallelism_config:\n";
  text += fmt::format("{}dp_replicate_size: {}\n", prefix, fsdp ? l.replicas : l.data);
  text += fmt::format("{}dp_shard_size: {}\n", prefix, fsdp ? l.data / l.replicas : 1);
  text += fmt::format("{}tp_size: {}\n", prefix, l.tensor);
  text += fmt::format("{}{}_size: {}\n", prefix, ulysses ? "sp" : "cp", l.context);
  if (l.context_method == ContextMethod::ring) {
    text += fmt::format("{}cp_comm_strategy: alltoall\n", prefix);
  }
  if (ulysses) text += fmt::format("{}sp_seq_length: {}\n", prefix, l.seq_length);
  return text;
}

}  // namespace shiplap::layout
