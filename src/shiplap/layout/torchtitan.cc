// Settings of torchtitan: `--parallelism.tensor_parallel_degree 8` or a TOML file. Names and
// defaults are those of torchtitan/config of December 2025, and, as long as they do not collide,
// those of August 2026, which counts a batch in tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {
namespace {

using workload::Model;

constexpr std::int64_t kMaxParts = 10'000;

// Of the sections that can matter: the names that have no effect on a layout. Sorted.
const std::vector<std::string>& torchtitan_names() {
  static const std::vector<std::string> names = {
      "activation_checkpoint.determinism_check",
      "activation_checkpoint.early_stop",
      "activation_checkpoint.memory_budget",
      "activation_checkpoint.mode",
      "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
      "activation_checkpoint.preserve_rng_state",
      "activation_checkpoint.selective_ac_option",
      "parallelism.context_parallel_degree",
      "parallelism.context_parallel_load_balancer",
      "parallelism.context_parallel_ptrr_mask_key",
      "parallelism.context_parallel_rotate_method",
      "parallelism.data_parallel_replicate_degree",
      "parallelism.data_parallel_shard_degree",
      "parallelism.disable_loss_parallel",
      "parallelism.enable_async_tensor_parallel",
      "parallelism.enable_compiled_autograd",
      "parallelism.enable_fsdp_symm_mem",
      "parallelism.enable_sequence_parallel",
      "parallelism.expert_parallel_degree",
      "parallelism.expert_tensor_parallel_degree",
      "parallelism.fsdp_reshard_after_forward",
      "parallelism.module_fqns_per_model_part",
      "parallelism.num_pp_microbatches",
      "parallelism.pipeline_parallel_degree",
      "parallelism.pipeline_parallel_expert_parallel_overlap",
      "parallelism.pipeline_parallel_first_stage_less_layers",
      "parallelism.pipeline_parallel_last_stage_less_layers",
      "parallelism.pipeline_parallel_layers_per_stage",
      "parallelism.pipeline_parallel_microbatch_size",
      "parallelism.pipeline_parallel_schedule",
      "parallelism.spmd_backend",
      "parallelism.tensor_parallel_degree",
      "training.dataset",
      "training.dataset_path",
      "training.debug_moe_force_load_balance",
      "training.deterministic",
      "training.disable_cuda_graphs",
      "training.dtype",
      "training.gc_debug",
      "training.gc_freq",
      "training.global_batch_size",
      "training.local_batch_size",
      "training.max_context_length",
      "training.max_norm",
      "training.mixed_precision_param",
      "training.mixed_precision_reduce",
      "training.num_tokens_per_microbatch_per_dp_rank",
      "training.num_tokens_per_train_step",
      "training.seed",
      "training.seq_len",
      "training.steps",
      "training.warmup_steps",
  };
  return names;
}

// The other sections, and names without one. Sorted.
constexpr std::array<std::string_view, 31> kOtherSections = {
    "checkpoint",  "comm",         "compile",           "config",   "dataloader",     "debug",
    "dump_folder", "experimental", "fault_tolerance",   "float8",   "hf_assets_path", "job",
    "loss",        "lr_scheduler", "memory_estimation", "metrics",  "model",          "model_spec",
    "module",      "mx",           "optimizer",         "override", "profiler",       "profiling",
    "quantize",    "renderer",     "tokenizer",         "trainer",  "validation",     "validator",
    "wandb"};

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Is this a file rather than a command line?
bool is_toml(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    return line[begin] == '[';
  }
  return false;
}

class TorchtitanReader {
 public:
  TorchtitanReader(std::string_view text, const Model& model, std::optional<std::int64_t> ranks)
      : settings_(findings_), model_(model), ranks_(ranks) {
    if (is_toml(text)) {
      add_toml(text, settings_);
    } else {
      CommandLine line = command_line(text, findings_);
      for (const std::string_view name : {"CONFIG_FILE", "CONFIG"}) {
        if (line.launcher.has(name)) report_other_file(name);
      }
      const LaunchedRanks launched = launched_ranks(line.launcher, !ranks);
      file_.ranks_per_machine = launched.per_machine;
      says_ranks_ = launched.reported;
      if (!ranks) ranks_ = launched.ranks;
      // Dashes and underscores are the same to it.
      for (const std::string& name : line.flags.unread()) {
        std::string setting = name.substr(std::min(name.find_first_not_of('-'), name.size()));
        std::ranges::replace(setting, '-', '_');
        line.flags.move_as(name, settings_, std::move(setting));
      }
    }
    findings_.throw_errors();
    for (const std::string_view name : {"job.config_file", "config"}) {
      if (settings_.has(name)) report_other_file(name);
    }
    take_old_names();
  }

  LayoutFile read() {
    read_groups();
    read_sharding();
    read_batch();
    read_pipeline();
    read_precision();
    read_others();
    return finish_reading(std::move(file_), model_, findings_);
  }

 private:
  Layout& layout() { return file_.layout; }

  // Once is enough: `CONFIG_FILE=.. torchrun .. --job.config_file $CONFIG_FILE`.
  void report_other_file(std::string_view name) {
    if (has_other_file_) return;
    has_other_file_ = true;
    findings_.assume(name, fmt::format("the configuration of `{}` is not read", name),
                     "defaults of torchtitan are assumed for what the command does not say",
                     "pass its settings: as overrides, or a TOML file itself");
  }

  // Names of 2024 and of early 2025.
  void take_old_names() {
    for (const std::string_view section : {"training", "experimental"}) {
      for (const std::string_view name :
           {"tensor_parallel_degree", "data_parallel_shard_degree",
            "data_parallel_replicate_degree", "context_parallel_degree",
            "context_parallel_rotate_method", "pipeline_parallel_degree",
            "pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage",
            "fsdp_reshard_after_forward", "disable_loss_parallel"}) {
        settings_.move_as(fmt::format("{}.{}", section, name), settings_,
                          fmt::format("parallelism.{}", name));
      }
    }
    settings_.move_as("training.batch_size", settings_, "training.local_batch_size");
  }

  void read_groups() {
    Layout& l = layout();
    l.tensor = settings_.integer_or("parallelism.tensor_parallel_degree", 1);
    l.context = settings_.integer_or("parallelism.context_parallel_degree", 1);
    l.pipeline = settings_.integer_or("parallelism.pipeline_parallel_degree", 1);
    l.expert = settings_.integer_or("parallelism.expert_parallel_degree", 1);
    l.expert_tensor = settings_.integer_or("parallelism.expert_tensor_parallel_degree", 1);
    l.sequence_parallel = settings_.flag("parallelism.enable_sequence_parallel", true) &&
                          !settings_.flag("parallelism.no_enable_sequence_parallel") &&
                          l.tensor > 1;
    l.context_method = settings_.choice(
        "parallelism.context_parallel_rotate_method", ContextMethod::all_gather,
        {{"allgather", ContextMethod::all_gather}, {"alltoall", ContextMethod::ring}});
  }

  // Shards over the context ranks too, so there are some whenever it is larger than 1.
  void read_sharding() {
    Layout& l = layout();
    const std::int64_t replicate =
        settings_.integer_or("parallelism.data_parallel_replicate_degree", 1);
    const std::int64_t shard =
        settings_.integer_or("parallelism.data_parallel_shard_degree", -1, -1);
    if (shard == 0) {
      findings_.error("parallelism.data_parallel_shard_degree",
                      "`data_parallel_shard_degree` cannot be 0", "use -1 or a positive number");
    }
    if (ranks_) {
      l.data = data_ranks(l, *ranks_, findings_);
    } else if (shard > 0) {
      l.data = std::min(kMaxSetting + 1, replicate * shard);
    } else {
      if (says_ranks_) return;
      findings_.cannot_read("parallelism.data_parallel_shard_degree",
                            "the number of ranks is not given",
                            "add `--nproc_per_node`, `NGPU=`, or `data_parallel_shard_degree`");
      return;
    }
    if (l.data % replicate != 0 || (shard > 0 && l.data != replicate * shard)) {
      findings_.error(
          "parallelism.data_parallel_replicate_degree",
          fmt::format("replicate {} x shard {} is not the {} data parallel ranks", replicate, shard,
                      l.data),
          l.data % replicate == 0
              ? fmt::format("use `data_parallel_shard_degree` -1 or {}", l.data / replicate)
              : "use `data_parallel_replicate_degree` 1");
      return;
    }
    // In a pipeline weights stay gathered after the first microbatch, unless told otherwise.
    const bool reshards =
        settings_.choice("parallelism.fsdp_reshard_after_forward", l.pipeline == 1,
                         {{"default", l.pipeline == 1}, {"always", true}, {"never", false}});
    if (l.data / replicate * l.context == 1) return;
    l.sharding = reshards ? Sharding::weights : Sharding::gradients;
    l.replicas = replicate;
  }

  void read_batch() {
    if (settings_.has("training.num_tokens_per_microbatch_per_dp_rank") ||
        settings_.has("training.max_context_length")) {
      read_batch_of_tokens();
    } else {
      read_batch_of_sequences();
    }
    layout().loss = LossMean::tokens;
  }

  void read_batch_of_sequences() {
    Layout& l = layout();
    l.seq_length = settings_.integer_assumed("training.seq_len", 2048);
    const std::int64_t local = settings_.integer_assumed("training.local_batch_size", 8);
    const std::int64_t part =
        settings_.integer_or("parallelism.pipeline_parallel_microbatch_size", 1);
    l.micro_batch = l.pipeline > 1 ? part : local;
    if (local % l.micro_batch != 0) {
      findings_.error("parallelism.pipeline_parallel_microbatch_size",
                      fmt::format("`pipeline_parallel_microbatch_size` {} does not divide "
                                  "`local_batch_size` {}",
                                  part, local),
                      "use 1");
    }
    const std::int64_t all = std::min(kMaxSetting + 1, local * l.data);
    const std::int64_t global = settings_.integer_or("training.global_batch_size", -1, -1);
    l.global_batch = global > 0 ? global : all;
    if (l.pipeline > 1 && l.global_batch > all) note_flushes();
  }

  void read_batch_of_tokens() {
    Layout& l = layout();
    l.seq_length = settings_.integer_assumed("training.max_context_length", 2048);
    const std::int64_t tokens =
        settings_.integer_assumed("training.num_tokens_per_microbatch_per_dp_rank", 16384);
    const std::int64_t all = settings_.integer_or("training.num_tokens_per_train_step", -1, -1);
    const std::int64_t passes =
        l.pipeline > 1 ? settings_.integer_or("parallelism.num_pp_microbatches", 1) : 1;
    if (tokens % l.seq_length != 0 || (all > 0 && all % l.seq_length != 0)) {
      findings_.error("training.num_tokens_per_microbatch_per_dp_rank",
                      fmt::format("`max_context_length` {} does not divide the tokens of a "
                                  "microbatch and of a step",
                                  l.seq_length),
                      fmt::format("use {} tokens",
                                  std::max<std::int64_t>(1, tokens / l.seq_length) * l.seq_length));
      return;
    }
    l.micro_batch = tokens / l.seq_length;
    const double once = static_cast<double>(l.micro_batch) * static_cast<double>(l.data) *
                        static_cast<double>(passes);
    const std::int64_t sequences =
        once > static_cast<double>(kMaxSetting) ? kMaxSetting + 1 : static_cast<std::int64_t>(once);
    l.global_batch = all > 0 ? all / l.seq_length : sequences;
    if (l.pipeline > 1 && l.global_batch > sequences) note_flushes();
  }

  void note_flushes() {
    findings_.assume("training.global_batch_size", "a step runs the pipeline several times",
                     "it is assumed to pass all microbatches at once");
  }

  void read_pipeline() {
    Layout& l = layout();
    if (l.pipeline > 1) read_schedule();
    const std::vector<std::string> parts =
        settings_.words("parallelism.module_fqns_per_model_part");
    if (!parts.empty()) {
      read_parts(fmt::format("{}", fmt::join(parts, " ")));
    } else if (l.pipeline > 1) {
      split_layers();
    }
    leave_out_mtp(l, model_, Framework::torchtitan, findings_);
  }

  void read_schedule() {
    Layout& l = layout();
    constexpr std::string_view kName = "parallelism.pipeline_parallel_schedule";
    const std::string written = settings_.word(kName).value_or("1F1B");
    const std::string schedule = lower_case(written);
    if (schedule == "1f1b") {
      l.schedule = PipelineSchedule::one_f_one_b;
    } else if (schedule == "gpipe") {
      l.schedule = PipelineSchedule::gpipe;
    } else if (schedule == "interleaved1f1b") {
      l.schedule = PipelineSchedule::interleaved;
      l.chunks = 2;
    } else if (schedule == "dualpipev") {
      l.schedule = PipelineSchedule::dual_pipe_v;
      l.chunks = 2;
    } else {
      findings_.error(kName, fmt::format("the schedule `{}` cannot be planned", written),
                      "use 1F1B, GPipe, Interleaved1F1B or DualPipeV");
    }
  }

  // [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
  void read_parts(const std::string& text) {
    constexpr std::string_view kName = "parallelism.module_fqns_per_model_part";
    const auto fail = [&](std::string what) {
      findings_.cannot_read(kName, std::move(what),
                            R"(write [["tok_embeddings", "layers.0"], ["layers.1", "output"]])");
    };
    Json parts;
    try {
      parts = parse_json(text, kName);
    } catch (const InputError&) {
      fail("the model parts are no list of lists of names");
      return;
    }
    Layout& l = layout();
    if (!parts.is_array()) {
      fail("the model parts are no list of lists of names");
      return;
    }
    std::int64_t next = 0;
    l.stages.clear();
    for (const Json& part : parts.as_array()) {
      Stage& stage = l.stages.emplace_back();
      if (!part.is_array()) {
        fail("a model part is no list of names");
        return;
      }
      for (const Json& module : part.as_array()) {
        if (!module.is_string() || !add_module(module.as_string(), next, stage)) {
          fail(fmt::format("`{}` is not the next module of the model", to_text(module)));
          return;
        }
      }
    }
    const auto count = std::ssize(l.stages);
    if (count > kMaxParts || count == 0 || count % l.pipeline != 0) {
      findings_.error(kName,
                      fmt::format("there are {} model parts, which pipeline {} does not "
                                  "divide",
                                  count, l.pipeline),
                      fmt::format("write {} of them", l.pipeline));
      return;
    }
    l.chunks = count / l.pipeline;
  }

  // Layers must come in their order, so that a stage is a range of them.
  static bool add_module(const std::string& module, std::int64_t& next, Stage& stage) {
    if (module == "tok_embeddings") {
      stage.embedding = true;
    } else if (module == "output" || module == "lm_head") {
      stage.head = true;
    } else if (module != "norm") {
      if (module != fmt::format("layers.{}", next)) return false;
      ++next;
      ++stage.layers;
    }
    return true;
  }

  // Embedding and head count as some layers; the first stages have one more of what is left.
  void split_layers() {
    Layout& l = layout();
    const std::int64_t first =
        settings_.integer_or("parallelism.pipeline_parallel_first_stage_less_layers", 1, 0);
    const std::int64_t last =
        settings_.integer_or("parallelism.pipeline_parallel_last_stage_less_layers", 1, 0);
    const std::int64_t layers = std::ssize(model_.layers);
    const std::int64_t all = layers + first + last;
    std::int64_t count = l.pipeline * l.chunks;
    if (const auto each = settings_.integer("parallelism.pipeline_parallel_layers_per_stage")) {
      count = (all + *each - 1) / *each;
      if (count % l.pipeline != 0) {
        findings_.error("parallelism.pipeline_parallel_layers_per_stage",
                        fmt::format("{} layers of a stage give {} stages, which pipeline {} does "
                                    "not divide",
                                    *each, count, l.pipeline),
                        "use another number of layers");
        return;
      }
      l.chunks = count / l.pipeline;
    }
    if (count > kMaxParts || first > all / count || last > all / count || all < count) {
      findings_.error("parallelism.pipeline_parallel_degree",
                      fmt::format("{} stages are too many for {} layers", count, layers),
                      "use fewer ranks in the pipeline");
      return;
    }
    l.stages.assign(static_cast<std::size_t>(count), {});
    for (std::int64_t k = 0; k < count; ++k) {
      l.stages[static_cast<std::size_t>(k)].layers = all / count + (k < all % count ? 1 : 0);
    }
    l.stages.front().layers -= first;
    l.stages.back().layers -= last;
    l.stages.front().embedding = true;
    l.stages.back().head = true;
    if (first == 0 && last == 0 && all % count == 0) l.stages.clear();
  }

  // The parameters of the optimizer are those that are sharded; products use a copy.
  void read_precision() {
    Precision& p = layout().precision;
    const auto type = [&](std::string_view name, DType otherwise) {
      return settings_.choice(name, otherwise,
                              {{"bfloat16", DType::bf16}, {"float32", DType::f32}});
    };
    p.weights = type("training.mixed_precision_param", DType::bf16);
    p.master = type("training.dtype", DType::f32);
    p.moments = p.master;
    p.gradients = DType::f32;
    for (const std::string_view name : {"model.converters", "model.quantize"}) {
      for (const std::string& converter : settings_.words(name)) {
        if (converter.find("mx") != std::string::npos) {
          p.fp8 = Fp8::mx;
        } else if (converter.find("float8") != std::string::npos) {
          p.fp8 = Fp8::current;
        }
      }
    }
  }

  void read_others() {
    Layout& l = layout();
    constexpr std::string_view kMode = "activation_checkpoint.mode";
    if (!settings_.has(kMode)) {
      findings_.assume(kMode, fmt::format("`{}` is missing", kMode), "selective is assumed");
    }
    l.recompute = settings_.choice(kMode, Recompute::selective,
                                   {{"none", Recompute::none},
                                    {"selective", Recompute::selective},
                                    {"full", Recompute::full},
                                    {"memory_budget", Recompute::selective}});
    const std::string optimizer = settings_.word("optimizer.name").value_or("AdamW");
    if (optimizer == "Muon") {
      l.optimizer = Optimizer::muon;
    } else if (optimizer == "SGD") {
      l.optimizer = Optimizer::sgd;
    } else if (optimizer != "Adam" && optimizer != "AdamW") {
      findings_.error("optimizer.name", fmt::format("`{}` cannot be planned", optimizer),
                      "use Adam, AdamW, SGD or Muon");
    }
    if (settings_.flag("training.enable_cpu_offload")) {
      findings_.assume("training.enable_cpu_offload", "`enable_cpu_offload` is not modelled",
                       "weights and the optimizer are assumed to be on the GPU");
    }
    if (!settings_.words("parallelism.pipeline_parallel_schedule_csv").empty()) {
      findings_.assume("parallelism.pipeline_parallel_schedule_csv",
                       "`pipeline_parallel_schedule_csv` is not read here",
                       "the schedule is assumed to be 1F1B",
                       "`shiplap check --schedule FILE` checks it");
    }
    // Settings of other sections do not change a layout.
    Settings relevant(findings_);
    for (const std::string& name : settings_.unread()) {
      const std::string_view section = std::string_view(name).substr(0, name.find('.'));
      if (!std::ranges::binary_search(kOtherSections, section)) settings_.move(name, relevant);
    }
    report_unread(relevant, torchtitan_names());
  }

  Findings findings_;
  Settings settings_;
  const Model& model_;
  std::optional<std::int64_t> ranks_;
  bool says_ranks_ = false;  // but not how many
  bool has_other_file_ = false;
  LayoutFile file_;
};

class TorchtitanWriter {
 public:
  TorchtitanWriter(const Layout& layout, const Model& model) : l_(layout), model_(model) {}

  std::string write() {
    text_ = torchrun(l_.ranks()) + " -m torchtitan.train";
    write_groups();
    write_sharding();
    write_pipeline();
    write_batch();
    write_precision();
    add("activation_checkpoint.mode", name(l_.recompute));
    if (l_.optimizer != Optimizer::adam) {
      add("optimizer.name", l_.optimizer == Optimizer::sgd ? "SGD" : "Muon");
    }
    return text_;
  }

 private:
  template <class T>
  void add(std::string_view setting, const T& value) {
    text_ += fmt::format(" --{} {}", setting, value);
  }
  [[noreturn]] static void no_words(const std::string& what, const std::string& help) {
    throw_no_words(Framework::torchtitan, what, help);
  }

  void write_groups() {
    add("parallelism.tensor_parallel_degree", l_.tensor);
    if (l_.tensor > 1 && !l_.sequence_parallel) {
      add("parallelism.enable_sequence_parallel", "False");
    }
    add("parallelism.context_parallel_degree", l_.context);
    if (l_.context_method == ContextMethod::ulysses) no_words("ulysses", "use a ring");
    if (l_.context_method == ContextMethod::ring) {
      add("parallelism.context_parallel_rotate_method", "alltoall");
    }
    add("parallelism.expert_parallel_degree", l_.expert);
    if (l_.expert_tensor > 1) add("parallelism.expert_tensor_parallel_degree", l_.expert_tensor);
    if (l_.pipeline_fastest) no_words("a pipeline inside data", "use pipeline_fastest false");
  }

  void write_sharding() {
    if (l_.sharding == Sharding::optimizer) {
      no_words("sharding of the optimizer only", "shard gradients or weights");
    }
    const bool sharded = l_.sharding != Sharding::none;
    const std::int64_t replicas = sharded ? l_.replicas : l_.data;
    if (sharded != (l_.data / replicas * l_.context > 1)) {
      no_words(sharded ? "shards on 1 rank" : "context ranks without shards",
               sharded ? "shard nothing" : "shard the weights");
    }
    add("parallelism.data_parallel_replicate_degree", replicas);
    add("parallelism.data_parallel_shard_degree", l_.data / replicas);
    if (sharded) {
      add("parallelism.fsdp_reshard_after_forward",
          l_.sharding == Sharding::weights ? "always" : "never");
    }
  }

  void write_pipeline() {
    add("parallelism.pipeline_parallel_degree", l_.pipeline);
    if (l_.pipeline > 1) add("parallelism.pipeline_parallel_schedule", schedule());
    std::int64_t mtp = 0;
    for (const Stage& stage : stages_of(l_, model_)) mtp += stage.mtp;
    if (mtp > 0) no_words("modules for further tokens", "write out stages without them");
    if (!l_.stages.empty()) {
      add("parallelism.module_fqns_per_model_part", fmt::format("'{}'", parts()));
    } else if (l_.pipeline > 1) {
      add("parallelism.pipeline_parallel_first_stage_less_layers", 0);
      add("parallelism.pipeline_parallel_last_stage_less_layers", 0);
      add("parallelism.pipeline_parallel_layers_per_stage",
          std::ssize(model_.layers) / (l_.pipeline * l_.chunks));
    }
  }

  [[nodiscard]] std::string_view schedule() const {
    switch (l_.schedule) {
      case PipelineSchedule::gpipe:
        return "GPipe";
      case PipelineSchedule::one_f_one_b:
        return "1F1B";
      case PipelineSchedule::interleaved:
        return "Interleaved1F1B";
      case PipelineSchedule::dual_pipe_v:
        return "DualPipeV";
      case PipelineSchedule::zero_bubble:
        break;
    }
    no_words("zero_bubble with one chunk", "use 1F1B or DualPipeV");
  }

  [[nodiscard]] std::string parts() const {
    Json parts = Json::array();
    std::int64_t next = 0;
    for (const Stage& stage : l_.stages) {
      Json part = Json::array();
      if (stage.embedding) part.push("tok_embeddings");
      for (std::int64_t k = 0; k < stage.layers; ++k) part.push(fmt::format("layers.{}", next++));
      if (stage.head) part.push("norm").push("output");
      parts.push(std::move(part));
    }
    return to_text(parts, shiplap::Layout::compact);
  }

  void write_batch() {
    add("training.seq_len", l_.seq_length);
    if (l_.pipeline > 1) {
      add("training.local_batch_size", l_.micro_batch * l_.microbatches());
      add("parallelism.pipeline_parallel_microbatch_size", l_.micro_batch);
    } else {
      add("training.local_batch_size", l_.micro_batch);
    }
    add("training.global_batch_size", l_.global_batch);
    if (l_.loss == LossMean::sequences) no_words("a loss per sequence", "use the mean of tokens");
  }

  void write_precision() {
    const Precision& p = l_.precision;
    const auto long_type = [](DType type) -> std::string_view {
      if (type == DType::bf16 || type == DType::f32) return long_name(type);
      no_words(fmt::format("weights in {}", shiplap::name(type)), "use bf16 or f32");
    };
    add("training.mixed_precision_param", long_type(p.weights));
    add("training.dtype", long_type(p.master));
    if (p.moments != p.master) no_words("moments of another type than weights", "use one type");
    if (p.gradients != DType::f32) no_words("gradients that are not summed in f32", "use f32");
    switch (p.fp8) {
      case Fp8::none:
        break;
      case Fp8::current:
        add("model.converters", "float8");
        break;
      case Fp8::mx:
        add("model.converters", "mx");
        break;
      case Fp8::delayed:
      case Fp8::block:
        no_words("this recipe of FP8", "use current or mx");
    }
  }

  const Layout& l_;
  const Model& model_;
  std::string text_;
};

}  // namespace

LayoutFile read_torchtitan(std::string_view text, const Model& model,
                           std::optional<std::int64_t> ranks) {
  return TorchtitanReader(text, model, ranks).read();
}

std::string write_torchtitan(const Layout& layout, const Model& model) {
  return TorchtitanWriter(layout, model).write();
}

}  // namespace shiplap::layout
