// Flags of Megatron-LM: names, defaults and rules of megatron/training/arguments.py,
// transformer_config.py and pipeline_parallel_layer_layout.py of August 2026.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <tuple>

#include "shiplap/layout/reading_internal.h"
#include "shiplap/layout/sizes_internal.h"
#include "shiplap_embedded_frameworks.h"

namespace shiplap::layout {
namespace {

using workload::Model;

constexpr std::size_t kMaxStages = 10'000;
constexpr std::size_t kMaxUnrolled = 1'000'000;

// Known flags that change what a rank holds or does in ways that a layout cannot say.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kNotModelled = {{
    {"--cpu-offloading", "activations are assumed to stay on the GPU"},
    {"--cpu-offloading-num-layers", "activations are assumed to stay on the GPU"},
    {"--encoder-tensor-model-parallel-size", "only a decoder is assumed"},
    {"--encoder-pipeline-model-parallel-size", "only a decoder is assumed"},
    {"--fine-grained-activation-offloading", "activations are assumed to stay on the GPU"},
    {"--fp4-format", "products are assumed not to be in FP4"},
    {"--fp8-param-gather", "weights are assumed to be stored in the type of the model"},
    {"--hierarchical-context-parallel-sizes", "one level of context parallelism is assumed"},
    {"--hybrid-context-parallel", "all sequences are assumed to be divided equally"},
    {"--hybrid-layer-pattern", "the layers are assumed to be those of the model"},
    {"--hybrid-override-pattern", "the layers are assumed to be those of the model"},
    {"--microbatch-group-size-per-virtual-pipeline-stage",
     "groups of as many microbatches as the pipeline has ranks are assumed"},
    {"--optimizer-cpu-offload", "the optimizer is assumed to be on the GPU"},
    {"--rampup-batch-size", "the batch is assumed to have one size"},
    {"--recompute-modules", "selective recomputation is assumed to be that of attention"},
    {"--standalone-embedding-stage", "the embedding is assumed to be on the first stage"},
    {"--step-batch-size-schedule", "the batch is assumed to have one size"},
    {"--tensor-parallel-num-weight-shards", "weights are assumed not to be sharded further"},
}};

// Flags of earlier versions that are refused now.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kRemoved = {{
    {"--batch-size", "--micro-batch-size"},
    {"--checkpoint-activations", "--recompute-activations"},
    {"--model-parallel-size", "--tensor-model-parallel-size"},
}};

const std::vector<std::string>& megatron_flags() {
  static const std::vector<std::string> flags = [] {
    std::vector<std::string> names;
    for (const embedded::File& file : embedded::framework_files()) {
      if (file.name != "megatron_flags") continue;
      std::string_view rest = file.content;
      while (!rest.empty()) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        names.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
    }
    std::ranges::sort(names);
    return names;
  }();
  return flags;
}

// `x*3` and `(ab|)*3` written out. Parentheses do not nest.
std::optional<std::string> unroll(std::string_view text) {
  std::string result;
  std::string last;  // what a `*` repeats
  std::size_t k = 0;
  while (k < text.size()) {
    const char c = text[k];
    if (c == ',' || std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++k;
    } else if (c == '(') {
      const std::size_t end = text.find(')', k);
      if (end == std::string_view::npos) return {};
      const std::optional<std::string> inside = unroll(text.substr(k + 1, end - k - 1));
      if (!inside) return {};
      result += last;
      last = *inside;
      k = end + 1;
    } else if (c == '*') {
      std::size_t times = 0;
      const std::size_t begin = ++k;
      while (k < text.size() && std::isdigit(static_cast<unsigned char>(text[k])) != 0) {
        times = std::min(times * 10 + static_cast<std::size_t>(text[k++] - '0'), kMaxUnrolled);
      }
      if (k == begin || result.size() + times * last.size() > kMaxUnrolled) return {};
      for (std::size_t n = 0; n < times; ++n) result += last;
      last.clear();
    } else {
      result += last;
      last = c;
      ++k;
    }
  }
  return result + last;
}

class MegatronReader {
 public:
  MegatronReader(std::string_view text, const Model& model, std::optional<std::int64_t> ranks)
      : line_(command_line(text, findings_)), model_(model), sizes_(sizes_of(model)) {
    findings_.throw_errors();
    read_underscores();
    const LaunchedRanks launched = launched_ranks(line_.launcher, !ranks);
    file_.ranks_per_machine = launched.per_machine;
    says_ranks_ = launched.reported;
    ranks_ = ranks ? ranks : launched.ranks;
  }

  LayoutFile read() {
    check_architecture();
    read_groups();
    read_batch();
    read_pipeline();
    read_sharding();
    read_precision();
    read_recompute();
    check_flags();
    return finish_reading(std::move(file_), model_, findings_);
  }

 private:
  Settings& flags() { return line_.flags; }
  Layout& layout() { return file_.layout; }

  // Frameworks on top of Megatron-LM have its flags with underscores.
  void read_underscores() {
    for (const std::string& name : flags().unread()) {
      if (name.find('_') == std::string::npos) continue;
      std::string dashed = name;
      std::ranges::replace(dashed, '_', '-');
      if (flags().has(dashed) || !std::ranges::binary_search(megatron_flags(), dashed)) continue;
      findings_.unwise(name, fmt::format("`{}` is read as `{}`", name, dashed),
                       "Megatron-LM itself does not know it");
      flags().move_as(name, flags(), dashed);
    }
  }

  // The model comes from elsewhere: its flags may be left out, but not contradict it.
  void check_architecture() {
    const auto layers = std::ssize(model_.layers);
    // Without dense layers it is the default of the experts' width, and else without effect.
    const bool has_ffn = sizes_.width > 0 || !flags().has("--moe-ffn-hidden-size");
    const std::int64_t ffn = sizes_.width > 0 ? sizes_.width : sizes_.expert_width;
    const std::tuple<std::string_view, std::int64_t, std::string_view> known[] = {
        {"--num-layers", layers, "layers"},
        {"--hidden-size", model_.hidden, "features"},
        {"--num-attention-heads", sizes_.heads, "heads of attention"},
        {"--ffn-hidden-size", ffn, "features of the MLP"},
        {"--num-experts", sizes_.experts, "experts"},
        {"--moe-ffn-hidden-size", sizes_.expert_width, "features of an expert"},
        {"--moe-router-topk", sizes_.top_k, "experts of a token"},
    };
    for (const auto& [flag, size, what] : known) {
      const auto given = flags().integer(flag, 0);
      if (!has_ffn && flag == "--ffn-hidden-size") continue;
      if (given && *given != size) contradiction(flag, *given, size, what);
    }
    const auto groups = flags().integer("--num-query-groups");
    if (groups && flags().flag("--group-query-attention", true) && *groups != sizes_.kv_heads) {
      contradiction("--num-query-groups", *groups, sizes_.kv_heads, "heads of keys and values");
    }
    const auto vocabulary = flags().integer("--vocab-size");
    if (vocabulary && *vocabulary != model_.vocabulary) {
      findings_.unwise(
          "--vocab-size",
          fmt::format("`--vocab-size {}`, but the model has {}", *vocabulary, model_.vocabulary),
          fmt::format("{} is used", model_.vocabulary));
    }
  }

  void contradiction(std::string_view flag, std::int64_t given, std::int64_t size,
                     std::string_view what) {
    findings_.error(flag, fmt::format("`{} {}`, but the model has {} {}", flag, given, size, what),
                    fmt::format("use `{} {}`, or another model", flag, size));
  }

  void read_groups() {
    Layout& l = layout();
    l.tensor = flags().integer_or("--tensor-model-parallel-size", 1);
    l.context = flags().integer_or("--context-parallel-size", 1);
    l.pipeline = flags().integer_or("--pipeline-model-parallel-size", 1);
    l.expert = flags().integer_or("--expert-model-parallel-size", 1);
    l.expert_tensor =
        flags().integer_or("--expert-tensor-parallel-size", sizes_.experts > 0 ? l.tensor : 1);
    l.sequence_parallel = flags().flag("--sequence-parallel");
    if (l.sequence_parallel && l.tensor == 1) {
      findings_.unwise("--sequence-parallel", "`--sequence-parallel` with tensor 1",
                       "Megatron-LM turns it off");
      l.sequence_parallel = false;
    }
    l.pipeline_fastest = flags().flag("--use-tp-pp-dp-mapping");
    read_context_method();
    if (ranks_) {
      l.data = data_ranks(l, *ranks_, findings_);
    } else if (!says_ranks_) {
      findings_.cannot_read("--nproc-per-node", "the number of ranks is not given",
                            "add `--nnodes` and `--nproc-per-node`, or give the ranks");
    }
  }

  void read_context_method() {
    const std::vector<std::string> methods = flags().words("--cp-comm-type");
    if (methods.empty()) return;
    const std::string& first = methods[0];
    if (std::ranges::any_of(methods, [&](const std::string& m) { return m != first; })) {
      findings_.assume("--cp-comm-type", "layers differ in `--cp-comm-type`",
                       fmt::format("all layers are assumed to use {}", first));
    }
    if (first == "a2a") {
      layout().context_method = ContextMethod::ulysses;
    } else if (first == "all_gather" || first == "allgather") {
      layout().context_method = ContextMethod::all_gather;
    } else if (first == "a2a+p2p") {
      findings_.assume("--cp-comm-type", "`a2a+p2p` is not understood", "a ring is assumed");
    } else if (first != "p2p") {
      findings_.error("--cp-comm-type", fmt::format("`--cp-comm-type` cannot be `{}`", first),
                      "use p2p, all_gather, a2a or a2a+p2p");
    }
  }

  void read_batch() {
    Layout& l = layout();
    l.micro_batch = flags().integer_assumed("--micro-batch-size", 1);
    l.global_batch =
        flags().integer_or("--global-batch-size", std::min(kMaxSetting, l.micro_batch * l.data));
    if (flags().has("--encoder-seq-length") && !flags().has("--seq-length")) {
      l.seq_length = flags().integer_or("--encoder-seq-length", l.seq_length);
    } else {
      l.seq_length = flags().integer_assumed("--seq-length", l.seq_length);
    }
    const auto positions = flags().integer("--max-position-embeddings");
    if (positions && *positions < l.seq_length) {
      findings_.error("--max-position-embeddings",
                      fmt::format("`--max-position-embeddings {}` is less than `--seq-length {}`",
                                  *positions, l.seq_length),
                      fmt::format("use `--max-position-embeddings {}`", l.seq_length));
    }
    if (l.context > 1 && l.context_method == ContextMethod::ulysses &&
        l.seq_length % (2 * l.context) != 0) {
      findings_.error("--seq-length",
                      fmt::format("`--seq-length {}` is not a multiple of 2 x context {}",
                                  l.seq_length, l.context),
                      "use one that is",
                      "Megatron-LM divides the batch before it knows the method");
    }
    if (flags().flag("--calculate-per-token-loss")) l.loss = LossMean::tokens;
  }

  void read_pipeline() {
    check_one_of({"--num-layers-per-virtual-pipeline-stage",
                  "--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout"});
    const auto written = flags().word("--pipeline-model-parallel-layout");
    if (written) {
      for (const std::string_view other :
           {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
            "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"}) {
        if (flags().has(other)) check_one_of({"--pipeline-model-parallel-layout", other});
      }
      read_written_stages(*written);
    } else {
      read_split();
    }
    if (layout().chunks > 1) layout().schedule = PipelineSchedule::interleaved;
    // Of the fork with zero-bubble pipelines.
    if (flags().flag("--enable-zero-bubble")) layout().schedule = PipelineSchedule::zero_bubble;
    read_mtp(written.has_value());
  }

  void check_one_of(std::initializer_list<std::string_view> names) {
    std::vector<std::string_view> given;
    for (const std::string_view name : names) {
      if (flags().has(name)) given.push_back(name);
    }
    if (given.size() < 2) return;
    findings_.error(given[1], fmt::format("{} exclude each other", fmt::join(given, " and ")),
                    fmt::format("use {} only", given[0]));
  }

  void read_written_stages(std::string_view text) {
    constexpr std::string_view kFlag = "--pipeline-model-parallel-layout";
    const std::optional<std::string> letters = unroll(text);
    if (!letters) {
      findings_.cannot_read(kFlag, fmt::format("`{}` cannot be read", text),
                            "write `*` and a number after a letter or `(..)`");
      return;
    }
    Layout& l = layout();
    l.stages = {Stage{}};
    for (const char c : *letters) {
      if (c == '|') {
        l.stages.emplace_back();
      } else if (!add_letter(c, l.stages.back())) {
        findings_.cannot_read(kFlag, fmt::format("`{}` is no kind of layer", printable_letter(c)),
                              "use E (embedding), t (layer), m (further tokens), L (loss) and |");
        return;
      }
    }
    const auto count = std::ssize(l.stages);
    if (l.stages.size() > kMaxStages || count % l.pipeline != 0) {
      findings_.error(kFlag,
                      fmt::format("the layout has {} stages, which pipeline {} does not divide",
                                  count, l.pipeline),
                      fmt::format("write out {} or {} stages", l.pipeline, 2 * l.pipeline));
      return;
    }
    l.chunks = count / l.pipeline;
  }

  static std::string printable_letter(char c) {
    return std::isprint(static_cast<unsigned char>(c)) != 0 ? std::string(1, c) : "?";
  }

  // False if there is no such kind of layer. Repetitions and order are checked with the layout.
  static bool add_letter(char c, Stage& stage) {
    switch (c) {
      case 'E':
        stage.embedding = true;
        return true;
      case 't':
        ++stage.layers;
        return true;
      case 'm':
        ++stage.mtp;
        return true;
      case 'L':
        stage.head = true;
        return true;
      default:
        return false;
    }
  }

  // By how many layers, chunks or first and last layers.
  void read_split() {
    Layout& l = layout();
    const bool embedding = flags().flag("--account-for-embedding-in-pipeline-split");
    const bool loss = flags().flag("--account-for-loss-in-pipeline-split");
    const auto first = flags().integer("--decoder-first-pipeline-num-layers");
    const auto last = flags().integer("--decoder-last-pipeline-num-layers");
    const std::int64_t layers = std::ssize(model_.layers) + (embedding ? 1 : 0) + (loss ? 1 : 0);
    l.chunks = flags().integer_or("--num-virtual-stages-per-pipeline-rank", 1);
    if (const auto per_chunk = flags().integer("--num-layers-per-virtual-pipeline-stage")) {
      if (first || last) {
        findings_.error("--num-layers-per-virtual-pipeline-stage",
                        "a first or last stage of another size excludes "
                        "`--num-layers-per-virtual-pipeline-stage`",
                        "use `--num-virtual-stages-per-pipeline-rank`");
        return;
      }
      read_chunks(layers, *per_chunk);
    }
    if ((embedding || loss) && (first || last)) {
      findings_.error("--decoder-first-pipeline-num-layers",
                      "a first or last stage of another size excludes `--account-for-..`",
                      "use one of them");
    } else if (first || last) {
      write_uneven(first, last);
    } else if (embedding || loss) {
      write_accounted(layers, {.embedding = embedding, .head = loss});
    }
  }

  void read_chunks(std::int64_t layers, std::int64_t per_chunk) {
    Layout& l = layout();
    if (layers % (l.pipeline * per_chunk) == 0) {
      l.chunks = layers / (l.pipeline * per_chunk);
      return;
    }
    const bool even = layers % l.pipeline == 0;
    findings_.error(
        "--num-layers-per-virtual-pipeline-stage",
        fmt::format("pipeline {} x {} layers of a virtual stage must divide the {} layers",
                    l.pipeline, per_chunk, layers),
        even ? fmt::format("use `--num-layers-per-virtual-pipeline-stage {}`",
                           nearest_choices(divisors(layers / l.pipeline), per_chunk))
             : fmt::format("use `--pipeline-model-parallel-size {}`",
                           nearest_choices(divisors(layers), l.pipeline)));
  }

  // The layers of each rank of the pipeline, in equal chunks.
  bool write_ranks(const std::vector<std::int64_t>& layers_of_ranks) {
    Layout& l = layout();
    if (l.chunks * l.pipeline > static_cast<std::int64_t>(kMaxStages)) return false;
    for (const std::int64_t layers : layers_of_ranks) {
      if (layers % l.chunks != 0) return false;
    }
    l.stages.assign(static_cast<std::size_t>(l.chunks * l.pipeline), {});
    for (std::size_t k = 0; k < l.stages.size(); ++k) {
      l.stages[k].layers = layers_of_ranks[k % layers_of_ranks.size()] / l.chunks;
    }
    l.stages.front().embedding = true;
    l.stages.back().head = true;
    return true;
  }

  void write_uneven(std::optional<std::int64_t> first, std::optional<std::int64_t> last) {
    Layout& l = layout();
    const std::int64_t ends = (first ? 1 : 0) + (last ? 1 : 0);
    const std::int64_t ranks = l.pipeline - ends;
    const std::int64_t layers = std::ssize(model_.layers) - first.value_or(0) - last.value_or(0);
    const bool divides = ranks == 0 ? layers == 0 : ranks > 0 && layers > 0 && layers % ranks == 0;
    if (divides && l.pipeline <= static_cast<std::int64_t>(kMaxStages)) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(l.pipeline),
                                    ranks == 0 ? 0 : layers / ranks);
      if (first) all.front() = *first;
      if (last) all.back() = *last;
      if (write_ranks(all)) return;
    }
    findings_.error(
        first ? "--decoder-first-pipeline-num-layers" : "--decoder-last-pipeline-num-layers",
        fmt::format("{} layers are left for {} ranks of {} chunks", layers, ranks, l.chunks),
        "use numbers whose rest they divide");
  }

  // Of `layers`, those that are `counted` are an embedding and a head.
  void write_accounted(std::int64_t layers, Stage counted) {
    Layout& l = layout();
    if (layers % (l.pipeline * l.chunks) == 0 &&
        l.pipeline <= static_cast<std::int64_t>(kMaxStages) &&
        write_ranks(
            std::vector<std::int64_t>(static_cast<std::size_t>(l.pipeline), layers / l.pipeline))) {
      l.stages.front().layers -= counted.embedding ? 1 : 0;
      l.stages.back().layers -= counted.head ? 1 : 0;
      return;
    }
    findings_.error(counted.embedding ? "--account-for-embedding-in-pipeline-split"
                                      : "--account-for-loss-in-pipeline-split",
                    fmt::format("pipeline {} x chunks {} must divide {} layers, embedding and "
                                "loss included",
                                l.pipeline, l.chunks, layers),
                    fmt::format("use `--pipeline-model-parallel-size {}`",
                                nearest_choices(divisors(layers), l.pipeline)));
  }

  // Megatron-LM has no module for further tokens unless it is told so.
  void read_mtp(bool written) {
    Layout& l = layout();
    const std::int64_t has = std::ssize(model_.mtp);
    const auto given = flags().integer("--mtp-num-layers", 0);
    const std::int64_t modules = given.value_or(0);
    if (written) {
      std::int64_t sum = 0;
      for (const Stage& stage : l.stages) sum += stage.mtp;
      if (given && *given != sum) {
        contradiction_of_stages(*given, sum);
      }
      return;
    }
    if (modules > has) {
      contradiction("--mtp-num-layers", modules, has, "modules for further tokens");
      return;
    }
    if (!given && has > 0) {
      findings_.assume("--mtp-num-layers", "`--mtp-num-layers` is missing",
                       fmt::format("the {} modules for further tokens are assumed not to be "
                                   "trained",
                                   has));
    }
    if (modules == has) {
      if (!l.stages.empty()) l.stages.back().mtp = modules;
      return;
    }
    if (l.stages.empty()) {
      const std::int64_t count = l.pipeline * l.chunks;
      if (std::ssize(model_.layers) % count != 0) return;  // check_layout says so
      l.stages = stages_of(l, model_);
    }
    l.stages.back().mtp = modules;
  }

  void contradiction_of_stages(std::int64_t given, std::int64_t sum) {
    findings_.error("--mtp-num-layers",
                    fmt::format("`--mtp-num-layers {}`, but the layout has {} of them", given, sum),
                    fmt::format("use `--mtp-num-layers {}`", sum));
  }

  void read_sharding() {
    Layout& l = layout();
    const Sharding fsdp = flags().choice("--data-parallel-sharding-strategy", Sharding::weights,
                                         {{"no_shard", Sharding::none},
                                          {"optim", Sharding::optimizer},
                                          {"optim_grads", Sharding::gradients},
                                          {"optim_grads_params", Sharding::weights}});
    const bool distributed = flags().flag("--use-distributed-optimizer");
    const bool megatron = flags().flag("--use-megatron-fsdp") || flags().flag("--use-custom-fsdp");
    const bool torch = flags().flag("--use-torch-fsdp2");
    const std::string optimizer = flags().word("--optimizer").value_or("adam");
    l.optimizer = flags().choice("--optimizer", Optimizer::adam,
                                 {{"adam", Optimizer::adam},
                                  {"sgd", Optimizer::sgd},
                                  {"muon", Optimizer::muon},
                                  {"dist_muon", Optimizer::muon}});
    has_megatron_fsdp_ = megatron;
    if (megatron) {
      l.sharding = fsdp;
    } else if (torch) {
      l.sharding = Sharding::weights;
      for (const auto& [flag, used] : {std::pair{"--use-distributed-optimizer", distributed},
                                       std::pair{"--pipeline-model-parallel-size", l.pipeline > 1},
                                       std::pair{"--expert-model-parallel-size", l.expert > 1}}) {
        if (used) check_one_of({"--use-torch-fsdp2", flag});
      }
    } else if (distributed || optimizer == "dist_muon") {
      l.sharding = Sharding::optimizer;
    }
    l.replicas = flags().integer_or("--num-distributed-optimizer-instances", 1);
    if (flags().flag("--overlap-param-gather")) {
      check_needs("--overlap-param-gather", l.sharding != Sharding::none,
                  "--use-distributed-optimizer");
      check_needs("--overlap-param-gather", flags().flag("--overlap-grad-reduce"),
                  "--overlap-grad-reduce");
    }
  }

  void check_needs(std::string_view flag, bool there, std::string_view needed) {
    if (there) return;
    findings_.error(flag, fmt::format("`{}` needs `{}`", flag, needed),
                    fmt::format("add `{}`", needed));
  }

  void read_precision() {
    Precision& p = layout().precision;
    const bool bf16 = flags().flag("--bf16");
    const bool fp16 = flags().flag("--fp16");
    if (bf16 && fp16) check_one_of({"--bf16", "--fp16"});
    p.weights = bf16 ? DType::bf16 : fp16 ? DType::f16 : DType::f32;
    p.gradients =
        fp16 && !flags().flag("--accumulate-allreduce-grads-in-fp32") ? DType::f16 : DType::f32;
    if (flags().flag("--grad-reduce-in-bf16") && bf16) p.gradients = DType::bf16;
    read_optimizer_precision(p);
    if (has_megatron_fsdp_) read_fsdp_precision(p);
    read_fp8(p);
  }

  // Its own buffers: gradients have the type of the weights unless they are told otherwise.
  void read_fsdp_precision(Precision& p) {
    const auto type = [&](std::string_view flag, DType otherwise) {
      return flags().choice(
          flag, otherwise,
          {{"fp32", DType::f32}, {"fp16", DType::f16}, {"bf16", DType::bf16}, {"auto", p.weights}});
    };
    p.gradients = type("--megatron-fsdp-main-grads-dtype", p.weights);
    p.master = type("--megatron-fsdp-main-params-dtype", p.master);
  }

  void read_optimizer_precision(Precision& p) {
    const std::initializer_list<std::pair<std::string_view, DType>> kTypes = {
        {"fp32", DType::f32},
        {"fp16", DType::f16},
        {"bf16", DType::bf16},
        {"fp8", DType::fp8_e4m3}};
    const auto type = [&](std::string_view flag) {
      const DType found = flags().choice(flag, DType::f32, kTypes);
      if (found != DType::f32) {
        check_needs(flag, flags().flag("--use-precision-aware-optimizer"),
                    "--use-precision-aware-optimizer");
      }
      return found;
    };
    const DType gradients = type("--main-grads-dtype");
    if (gradients != DType::f32) p.gradients = gradients;
    p.master = type("--main-params-dtype");
    p.moments = type("--exp-avg-dtype");
    const DType second = type("--exp-avg-sq-dtype");
    if (second == p.moments) return;
    if (bytes_of(second) > bytes_of(p.moments)) p.moments = second;
    findings_.assume("--exp-avg-sq-dtype", "the moments differ in their types",
                     fmt::format("both are assumed to be {}", name(p.moments)));
  }

  void read_fp8(Precision& p) {
    const std::string format =
        flags().word("--fp8-format").value_or(flags().word("--fp8").value_or(""));
    const Fp8 recipe = flags().choice("--fp8-recipe", Fp8::delayed,
                                      {{"delayed", Fp8::delayed},
                                       {"tensorwise", Fp8::current},
                                       {"blockwise", Fp8::block},
                                       {"mxfp8", Fp8::mx}});
    if (!format.empty()) p.fp8 = recipe;
  }

  void read_recompute() {
    Layout& l = layout();
    l.recompute = flags().choice("--recompute-granularity", Recompute::none,
                                 {{"full", Recompute::full}, {"selective", Recompute::selective}});
    if (flags().flag("--recompute-activations")) l.recompute = Recompute::selective;
    const auto method = flags().word("--recompute-method");
    const auto layers = flags().integer("--recompute-num-layers");
    if (l.recompute == Recompute::selective && (method || layers)) {
      findings_.error("--recompute-method",
                      "selective recomputation has no `--recompute-method` or "
                      "`--recompute-num-layers`",
                      "use `--recompute-granularity full`, or leave them out");
    }
    if (l.recompute != Recompute::full) return;
    if (!method || !layers) {
      findings_.unwise("--recompute-granularity",
                       "full recomputation without `--recompute-method` and "
                       "`--recompute-num-layers`",
                       "Megatron-LM does not start without them");
    }
    if (layers && (method.value_or("") == "block" || *layers > 1)) {
      findings_.assume("--recompute-num-layers",
                       fmt::format("`--recompute-num-layers {}` is not understood", *layers),
                       "every layer is assumed to be recomputed on its own");
    }
  }

  void check_flags() {
    for (const auto& [flag, assumed] : kNotModelled) {
      if (flags().has(flag)) {
        findings_.assume(flag, fmt::format("`{}` is not modelled", flag), std::string(assumed));
      }
    }
    for (const auto& [flag, instead] : kRemoved) {
      if (flags().has(flag)) {
        findings_.error(flag, fmt::format("Megatron-LM has no `{}` any more", flag),
                        fmt::format("use `{}`", instead));
      }
    }
    report_unread(flags(), megatron_flags());
  }

  Findings findings_;
  CommandLine line_;
  const Model& model_;
  ModelSizes sizes_;
  std::optional<std::int64_t> ranks_;
  bool says_ranks_ = false;  // but not how many
  bool has_megatron_fsdp_ = false;
  LayoutFile file_;
};

std::string_view short_type(DType type) {
  switch (type) {
    case DType::f32:
      return "fp32";
    case DType::f16:
      return "fp16";
    case DType::bf16:
      return "bf16";
    default:
      return "fp8";
  }
}

// "Et*3|t*4|t*3mL"
std::string megatron_stages(const std::vector<Stage>& stages) {
  std::string text;
  for (const Stage& stage : stages) {
    if (&stage != stages.data()) text += '|';
    if (stage.embedding) text += 'E';
    for (const auto& [letter, count] : {std::pair{'t', stage.layers}, std::pair{'m', stage.mtp}}) {
      if (count == 1) text += letter;
      if (count > 1) text += fmt::format("{}*{}", letter, count);
    }
    if (stage.head) text += 'L';
  }
  return text;
}

class MegatronWriter {
 public:
  MegatronWriter(const Layout& layout, const Model& model) : l_(layout), model_(model) {}

  std::string write() {
    text_ = torchrun(l_.ranks()) + " pretrain_gpt.py";
    write_groups();
    write_pipeline();
    write_batch();
    write_sharding();
    write_precision();
    if (l_.recompute == Recompute::selective) add("--recompute-granularity selective");
    if (l_.recompute == Recompute::full) {
      add("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
    }
    return text_;
  }

 private:
  void add(const std::string& flags) { text_ += " " + flags; }
  void add(std::string_view flag, std::int64_t value) { add(fmt::format("{} {}", flag, value)); }
  void add_unless(std::string_view flag, std::int64_t value, std::int64_t usual) {
    if (value != usual) add(flag, value);
  }
  [[noreturn]] static void no_words(const std::string& what, const std::string& help) {
    throw_no_words(Framework::megatron, what, help);
  }

  void write_groups() {
    add_unless("--tensor-model-parallel-size", l_.tensor, 1);
    if (l_.sequence_parallel) add("--sequence-parallel");
    add_unless("--context-parallel-size", l_.context, 1);
    if (l_.context_method == ContextMethod::ulysses) add("--cp-comm-type a2a");
    if (l_.context_method == ContextMethod::all_gather) add("--cp-comm-type all_gather");
    add_unless("--expert-model-parallel-size", l_.expert, 1);
    add_unless("--expert-tensor-parallel-size", l_.expert_tensor,
               sizes_of(model_).experts > 0 ? l_.tensor : 1);
    if (l_.pipeline_fastest) add("--use-tp-pp-dp-mapping");
  }

  void write_pipeline() {
    if (l_.schedule == PipelineSchedule::gpipe || l_.schedule == PipelineSchedule::dual_pipe_v) {
      no_words(fmt::format("the schedule {}", name(l_.schedule)),
               "use 1F1B, interleaved or zero bubble");
    }
    add_unless("--pipeline-model-parallel-size", l_.pipeline, 1);
    if (l_.schedule == PipelineSchedule::zero_bubble) add("--enable-zero-bubble");
    std::int64_t mtp = 0;
    for (const Stage& stage : stages_of(l_, model_)) mtp += stage.mtp;
    add_unless("--mtp-num-layers", mtp, 0);
    if (l_.stages.empty()) {
      add_unless("--num-virtual-stages-per-pipeline-rank", l_.chunks, 1);
    } else {
      add(fmt::format("--pipeline-model-parallel-layout '{}'", megatron_stages(l_.stages)));
    }
  }

  void write_batch() {
    add("--micro-batch-size", l_.micro_batch);
    add("--global-batch-size", l_.global_batch);
    add("--seq-length", l_.seq_length);
    if (l_.loss == LossMean::tokens) add("--calculate-per-token-loss");
  }

  void write_sharding() {
    switch (l_.sharding) {
      case Sharding::none:
        break;
      case Sharding::optimizer:
        add("--use-distributed-optimizer");
        break;
      case Sharding::gradients:
        add("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads");
        break;
      case Sharding::weights:
        add("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params");
        break;
    }
    add_unless("--num-distributed-optimizer-instances", l_.replicas, 1);
    if (l_.optimizer == Optimizer::sgd) add("--optimizer sgd");
    if (l_.optimizer == Optimizer::muon) add("--optimizer muon");
  }

  void write_precision() {
    const Precision& p = l_.precision;
    if (p.weights != DType::f32) add(fmt::format("--{}", short_type(p.weights)));
    write_gradients(p);
    if (p.master != DType::f32 || p.moments != DType::f32) {
      if (p.master == DType::bf16) no_words("a master copy in bf16", "use f32 or f16");
      if (p.moments == DType::fp8_e5m2) no_words("moments in fp8_e5m2", "use fp8_e4m3");
      add(
          fmt::format("--use-precision-aware-optimizer --main-params-dtype {} --exp-avg-dtype {} "
                      "--exp-avg-sq-dtype {}",
                      short_type(p.master), short_type(p.moments), short_type(p.moments)));
    }
    switch (p.fp8) {
      case Fp8::none:
        break;
      case Fp8::delayed:
        add("--fp8-format hybrid --fp8-recipe delayed");
        break;
      case Fp8::current:
        add("--fp8-format hybrid --fp8-recipe tensorwise");
        break;
      case Fp8::block:
        add("--fp8-format hybrid --fp8-recipe blockwise");
        break;
      case Fp8::mx:
        add("--fp8-format hybrid --fp8-recipe mxfp8");
        break;
    }
  }

  void write_gradients(const Precision& p) {
    if (l_.sharding == Sharding::gradients || l_.sharding == Sharding::weights) {
      if (p.gradients == p.weights) return;
      add(fmt::format("--megatron-fsdp-main-grads-dtype {}", short_type(p.gradients)));
    } else if (p.gradients == DType::f32) {
      if (p.weights == DType::f16) add("--accumulate-allreduce-grads-in-fp32");
    } else if (p.gradients != p.weights) {
      no_words(fmt::format("gradients in {} of weights in {}", shiplap::name(p.gradients),
                           shiplap::name(p.weights)),
               "use gradients in f32, or of the type of the weights");
    } else if (p.gradients == DType::bf16) {
      add("--grad-reduce-in-bf16");
    }
  }

  const Layout& l_;
  const Model& model_;
  std::string text_;
};

}  // namespace

LayoutFile read_megatron(std::string_view text, const Model& model,
                         std::optional<std::int64_t> ranks) {
  return MegatronReader(text, model, ranks).read();
}

std::string write_megatron(const Layout& layout, const Model& model) {
  return MegatronWriter(layout, model).write();
}

}  // namespace shiplap::layout
