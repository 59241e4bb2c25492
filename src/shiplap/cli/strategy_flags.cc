#include "shiplap/cli/strategy_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/report/model.h"

namespace shiplap::cli {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;

int number(const char* flag, const std::optional<std::int64_t>& value, std::int64_t default_value) {
  if (value && (*value < 1 || *value > kMaxSize)) {
    throw_flag_error(flag, fmt::format("expected 1 to {}, found {}", kMaxSize, *value));
  }
  return static_cast<int>(value.value_or(default_value));
}

int zero_stage(const StrategyFlags& options) {
  const std::int64_t stage = options.zero_stage.value_or(0);
  if (stage >= 0 && stage <= 3) return static_cast<int>(stage);
  throw_flag_error("--zero-stage", fmt::format("expected 0 to 3, found {}", stage));
}

// "dp=2,pp=4" or "dp=2 pp=4".
std::vector<plan::Axis> parse_mesh(const std::string& text) {
  std::vector<plan::Axis> axes;
  for (const std::string& word : parse_list(text)) {
    const std::size_t equals = word.find('=');
    const std::optional<std::int64_t> size =
        equals == std::string::npos ? std::nullopt : parse_integer(word.substr(equals + 1));
    if (!size || *size < 1 || equals == 0) {
      throw_flag_error("--mesh", fmt::format("expected an axis and its size, found `{}`", word),
                       "write it as dp=2,pp=4");
    }
    axes.push_back({.name = word.substr(0, equals), .size = *size});
  }
  if (axes.empty())
    throw_flag_error("--mesh", "expected axes and their sizes", "write it as dp=2,pp=4");
  return axes;
}

// Whether a flag sets the size of a strategy.
bool any_size(const StrategyFlags* options) {
  return options != nullptr &&
         (options->ranks || options->mesh || options->model || options->layers ||
          options->global_batch || options->microbatches || options->chunks ||
          options->zero_stage || options->hidden || options->seq_length);
}

[[noreturn]] void throw_no_subject(const SubjectFlags& subject) {
  std::string help = "give a plan file";
  if (subject.strategy != nullptr && subject.strategy->model) {
    throw_flag_error(
        "--model", "how the model is split is not said",
        fmt::format("add the flags of your framework, --from megatron "
                    "'--tensor-model-parallel-size 8 ..'{}",
                    subject.for_example.empty() ? "" : ", or a strategy: --strategy hybrid"));
  }
  if (!subject.for_example.empty()) {
    help += fmt::format(", or a strategy: --strategy {}", subject.for_example);
  } else if (subject.strategy != nullptr) {
    help += ", or a model and its layout: --model llama3-70b --from megatron train.sh";
  }
  if (subject.schedule != nullptr) help += ", or a pipeline schedule: --schedule schedule.csv";
  throw_flag_error("", fmt::format("nothing to {}", subject.verb), help);
}

// The layout says all sizes but the number of ranks.
void check_step(const SubjectFlags& subject) {
  const StrategyFlags& flags = *subject.strategy;
  if (!flags.model) {
    throw_flag_error("--from", "a layout needs the model that it splits",
                     "add --model, such as llama3-70b or config.json");
  }
  if (subject.file.empty()) {
    throw_flag_error("--from", "there is no layout",
                     "add it in quotes: 'torchrun --nnodes 8 ..', or the name of its file");
  }
  const bool other = subject.is_strategy() || subject.is_schedule() || flags.mesh || flags.layers ||
                     flags.global_batch || flags.microbatches || flags.chunks || flags.zero_stage ||
                     flags.hidden || flags.seq_length;
  if (other) {
    throw_flag_error("--from", "the layout already defines the whole plan",
                     "remove the flags of strategies and schedules");
  }
}

}  // namespace

void check_subject(const SubjectFlags& subject) {
  const bool strategy = subject.is_strategy();
  if (subject.is_step()) {
    check_step(subject);
    return;
  }
  if (subject.is_schedule()) {
    if (subject.file.empty() && !strategy && !any_size(subject.strategy)) return;
    throw_flag_error("--schedule", "a schedule already defines the whole plan",
                     subject.strategy == nullptr
                         ? "remove FILE"
                         : "remove FILE, --strategy and the flags that set the size of a strategy");
  }
  if (subject.schedule != nullptr && subject.schedule->costs) {
    throw_flag_error("--costs", "there is no schedule", "add --schedule, or remove --costs");
  }
  if (subject.file.empty() && !strategy) throw_no_subject(subject);
  if (!subject.file.empty() && strategy) {
    throw_flag_error("--strategy", "both a plan and a strategy are given", "remove one of them");
  }
  if (!strategy && any_size(subject.strategy)) {
    throw_flag_error("", "the size of a plan is fixed",
                     "remove the flags that set the size of a strategy");
  }
  if (subject.keeps_plan && !strategy) {
    throw_flag_error("--plan", "the input is already a plan",
                     "`shiplap export` converts it to other formats");
  }
}

void declare_from(Flags& flags, std::optional<std::string>& from) {
  flags.text({.name = "--from",
              .value = "FRAMEWORK",
              .help = "FILE is the layout of --model, in the words of megatron, torchtitan, "
                      "deepspeed or accelerate: flags in quotes, or their file",
              .example = "megatron",
              .choices = {"megatron", "torchtitan", "deepspeed", "accelerate"},
              .before_foreign_flags = true},
             from);
}

void declare_step(Flags& flags, StrategyFlags& options) {
  flags.text({.name = "--model",
              .value = "MODEL",
              .help = "a known model (`shiplap model`) or a config.json",
              .example = "llama3-70b",
              .suggestions = workload::known_models()},
             options.model);
  declare_from(flags, options.from);
  flags.count({.name = "--ranks", .help = "ranks, if the layout does not say it", .example = "512"},
              options.ranks);
}

void declare_strategy(Flags& flags, StrategyFlags& options, const StrategyDefaults& defaults) {
  std::vector<std::string> names;
  for (const strategy::StrategyInfo& entry : strategy::strategies()) names.push_back(entry.name);
  flags.text({.name = "--strategy",
              .value = "NAME",
              .help = fmt::format("one of {}", fmt::join(names, ", ")),
              .example = "1f1b",
              .suggestions = names},
             options.strategy);
  flags.count(
      {.name = "--ranks", .help = fmt::format("ranks ({})", defaults.ranks), .example = "8"},
      options.ranks);
  flags.text(
      {.name = "--mesh",
       .value = "AXES",
       .help = "mesh of the ranks, such as dp=2,tp=8; the last axis varies fastest (consecutive "
               "ranks), so put tp last; one axis may be left out if --ranks is given (chosen by "
               "the strategy)",
       .example = "dp=2,pp=4"},
      options.mesh);
  if (defaults.takes_models) {
    flags.text(
        {.name = "--model",
         .value = "MODEL",
         .help = "layers of a known model (`shiplap model`) or a config.json, instead of square "
                 "ones",
         .example = "llama3-8b",
         .suggestions = workload::known_models()},
        options.model);
    declare_from(flags, options.from);
  }
  flags.count({.name = "--layers",
               .help = fmt::format("layers ({}, or more so that they divide among the stages)",
                                   defaults.layers),
               .example = "16"},
              options.layers);
  flags.count({.name = "--global-batch",
               .help = "global batch size in samples (4 per rank)",
               .example = "32",
               .old_name = "--batches"},
              options.global_batch);
  flags.count({.name = "--microbatches",
               .help = "microbatches of a pipeline (one per sample)",
               .example = "8"},
              options.microbatches);
  flags.count({.name = "--chunks",
               .help = "model chunks per rank in an interleaved pipeline (2)",
               .example = "2"},
              options.chunks);
  flags.count({.name = "--zero-stage",
               .help = "stage of ZeRO of `hybrid`: along dp it shards optimizer states (1), also "
                       "gradients (2), also weights (3) (0)",
               .example = "1"},
              options.zero_stage);
  flags.count(
      {.name = "--hidden",
       .help = fmt::format("hidden size; a weight is hidden x hidden ({})", defaults.shape.hidden),
       .example = "4096"},
      options.hidden);
  flags.count({.name = "--seq-length",
               .help = fmt::format("tokens per sample ({})", defaults.shape.block),
               .example = "1024",
               .old_name = "--block"},
              options.seq_length);
}

strategy::TrainingSize size_of(const StrategyFlags& options, const StrategyDefaults& defaults) {
  strategy::TrainingSize size;
  if (options.mesh) size.mesh = parse_mesh(*options.mesh);
  if (options.ranks || !options.mesh) {
    size.ranks = number("--ranks", options.ranks, defaults.ranks);
  }
  std::int64_t ranks = size.ranks;
  if (ranks == 0) {
    ranks = 1;
    for (const plan::Axis& axis : size.mesh) ranks = std::min(kMaxSize, ranks * axis.size);
  }
  size.shape = defaults.shape;
  if (options.model) {
    for (const auto& [flag, value] :
         {std::pair("--layers", options.layers), std::pair("--hidden", options.hidden)}) {
      if (value) throw_flag_error(flag, "the model has its own size", "leave it out");
    }
    const workload::Model model = workload::find_model(*options.model).model;
    size.shape = workload::shape_of(model, defaults.shape.block);
  }
  size.layers = options.model ? static_cast<int>(size.shape.layers.size())
                              : number("--layers", options.layers, defaults.layers);
  size.batch = number("--global-batch", options.global_batch, 4 * ranks);
  size.microbatches = options.microbatches ? number("--microbatches", options.microbatches, 1) : 0;
  size.chunks = options.chunks ? number("--chunks", options.chunks, 1) : 0;
  size.zero_stage = zero_stage(options);
  size.shape.hidden = number("--hidden", options.hidden, size.shape.hidden);
  size.shape.block = number("--seq-length", options.seq_length, defaults.shape.block);
  double flops = 4.0 * static_cast<double>(size.shape.hidden) *
                 static_cast<double>(size.shape.hidden) * static_cast<double>(size.shape.block) *
                 size.batch;
  for (const workload::Layer& layer : size.shape.layers) {
    for (const workload::Part& part : layer.parts) {
      const workload::Tokens all{.sequences = size.batch, .length = size.shape.block};
      flops = std::max(flops, 2 * forward(part, all, size.shape.datatype).flop);
    }
  }
  if (flops > 0x1p60) {
    throw_flag_error("--hidden", "the number of operations of a layer overflows",
                     "use fewer or shorter samples, or a smaller hidden size");
  }
  return size;
}

strategy::TrainingSize size_for(const strategy::StrategyInfo& entry, const StrategyFlags& options,
                                const StrategyDefaults& defaults) {
  StrategyDefaults adjusted = defaults;
  const bool is_single_rank = entry.axes.empty();
  if (is_single_rank) adjusted.ranks = 1;
  strategy::TrainingSize size = size_of(options, adjusted);
  if (!options.layers && !options.model)
    size.layers = strategy::default_layers(entry, size, size.layers);
  return size;
}

PreparedStrategy prepare(const StrategyFlags& options, const StrategyDefaults& defaults,
                         const strategy::World& world) {
  const strategy::StrategyInfo& entry = strategy::find_strategy(options.strategy.value_or(""));
  const strategy::TrainingSize size = size_for(entry, options, defaults);
  strategy::World where = strategy::world_for(entry, size);
  where.system = world.system;
  where.eager_limit = world.eager_limit;
  strategy::Training training = strategy::training_for(entry, size);
  return {.entry = &entry, .trainer = std::make_unique<strategy::Trainer>(where, training)};
}

std::string describe_training(const strategy::Trainer& trainer) {
  const strategy::Training& training = trainer.training();
  const workload::ModelShape& shape = trainer.world().shape;
  if (!shape.layers.empty()) {
    std::int64_t parameters = 0;
    for (const workload::Layer& layer : shape.layers) parameters += layer.parameters();
    return fmt::format("{} with {} parameters in {}, {} of {} tokens",
                       report::counted(training.layers, "layer"),
                       report::parameter_count(parameters), long_name(shape.datatype),
                       report::counted(training.batch, "sample"), shape.block);
  }
  return fmt::format("{} layer{} of {} x {} in {}, {} sample{} of {} tokens", training.layers,
                     training.layers == 1 ? "" : "s", shape.hidden, shape.hidden,
                     long_name(shape.datatype), training.batch, training.batch == 1 ? "" : "s",
                     shape.block);
}

}  // namespace shiplap::cli
