#include "shiplap/cli/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/cli/files.h"

namespace shiplap::cli {
namespace {

constexpr std::size_t kPrefix = 1 << 16;  // bytes
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

struct ForeignFormat {
  std::string_view what;
  std::vector<std::string_view> marks;  // one of them occurs near the beginning
  bool is_json = false;
  std::string (*help)(std::string_view file) = nullptr;
  std::string_view framework;  // in whose words it says how a model is split; then without `help`
  std::string_view why;
};

std::string layout_help(std::string_view framework, std::string_view file) {
  return fmt::format(
      "it says how a model is split: `shiplap simulate --model llama3-70b --from {} {}`; also plan "
      "and check",
      framework, file);
}

std::string recorder_help(std::string_view /*file*/) {
  return "`shiplap postmortem` says from the dumps of all ranks why a job hung";
}

std::string profiler_help(std::string_view /*file*/) { return "ui.perfetto.dev shows it"; }

std::string config_help(std::string_view file) {
  return fmt::format(
      "`shiplap model {0}` shows its layers; how long a step takes depends on how it is split: "
      "`shiplap simulate --model {0} --from megatron '--tensor-model-parallel-size 8 ..' --ranks "
      "64`",
      file);
}

const std::vector<ForeignFormat>& foreign_formats() {
  static const std::vector<ForeignFormat> kFormats = {
      {.what = "a trace of a profiler",
       .marks = {"\"traceEvents\"", "\"schemaVersion\""},
       .is_json = true,
       .help = profiler_help,
       .why = "shiplap cannot read it yet"},
      {.what = "a dump of PyTorch's flight recorder",
       .marks = {"\"pg_config\"", "\"pg_status\"", "\"nccl_version\""},
       .is_json = true,
       .help = recorder_help},
      {.what = "a model configuration of Hugging Face",
       .marks = {"\"architectures\"", "\"model_type\"", "\"num_hidden_layers\"",
                 "\"transformers_version\""},
       .is_json = true,
       .help = config_help},
      {.what = "a script with the flags of Megatron-LM",
       .marks = {"--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                 "--num-attention-heads", "--micro-batch-size"},
       .framework = "megatron"},
      {.what = "a configuration of torchtitan",
       .marks = {"[parallelism]", "--parallelism."},
       .framework = "torchtitan"},
      {.what = "a configuration of DeepSpeed",
       .marks = {"\"zero_optimization\"", "\"train_micro_batch_size_per_gpu\""},
       .is_json = true,
       .framework = "deepspeed"},
      {.what = "a configuration of accelerate",
       .marks = {"distributed_type:", "fsdp_config:"},
       .framework = "accelerate"},
  };
  return kFormats;
}

// An action of PyTorch's CSV, such as 0F0, 1B3, 2SEND_F1.
bool is_action(std::string_view cell) {
  const auto digits = [&] {
    const std::size_t count = std::min(cell.find_first_not_of("0123456789"), cell.size());
    cell.remove_prefix(count);
    return count > 0;
  };
  if (!digits()) return false;
  const std::size_t letters =
      std::min(cell.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), cell.size());
  cell.remove_prefix(letters);
  return letters > 0 && (cell.empty() || (digits() && cell.empty()));
}

bool is_schedule(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  int actions = 0;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(','), line.size());
    std::string_view cell = line.substr(0, end);
    while (!cell.empty() && (cell.back() == ' ' || cell.back() == '\r')) cell.remove_suffix(1);
    while (!cell.empty() && cell.front() == ' ') cell.remove_prefix(1);
    if (is_action(cell)) {
      ++actions;
    } else if (!cell.empty()) {
      return false;
    }
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return actions > 0;
}

}  // namespace

std::optional<Diagnostic> foreign_file_error(const SourceText& source, std::string_view expected) {
  const std::string_view text = std::string_view(source.text).substr(0, kPrefix);
  const bool is_ours = is_plan_text(text) || text.substr(0, 200).find("\"shiplap.") != text.npos;
  if (is_ours) return std::nullopt;  // its own errors are more precise
  const auto error = [&](std::string_view what, std::string_view why, std::string help) {
    return Diagnostic{.code = "D008",
                      .where = {.file = source.file},
                      .what = fmt::format("expected {}; this is {}", expected, what),
                      .why = std::string(why),
                      .help = std::move(help)};
  };
  const std::string file = source.file == "standard input" ? "-" : shell_word(source.file);
  if (text.starts_with('\x80')) {
    return error("a Python pickle, such as a dump of PyTorch's flight recorder", "",
                 recorder_help(file));
  }
  if (is_schedule(text)) {
    return error(
        "a pipeline schedule of PyTorch", "",
        fmt::format("`shiplap check --schedule {}`; also show, simulate and export", file));
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  // `[section]` of TOML is no array.
  const std::string_view start = text.substr(std::min(first, text.size()), 2);
  const bool is_json = start.starts_with('{') ||
                       (start.starts_with('[') && start.find_first_of(kLetters) == start.npos);
  for (const ForeignFormat& format : foreign_formats()) {
    const bool has_mark = std::ranges::any_of(
        format.marks, [&](std::string_view mark) { return text.find(mark) != text.npos; });
    if (format.is_json == is_json && has_mark) {
      return error(
          format.what, format.why,
          format.help != nullptr ? format.help(file) : layout_help(format.framework, file));
    }
  }
  return std::nullopt;
}

std::optional<Diagnostic> foreign_schedule_error(const SourceText& source) {
  constexpr std::string_view kExpected = "a pipeline schedule";
  const std::string_view text = std::string_view(source.text).substr(0, kPrefix);
  if (is_schedule(text)) return std::nullopt;  // its own errors are more precise
  if (is_plan_text(text)) {
    return Diagnostic{.code = "D008",
                      .where = {.file = source.file},
                      .what = fmt::format("expected {}; this is a plan", kExpected),
                      .help = "remove --schedule"};
  }
  return foreign_file_error(source, kExpected);
}

}  // namespace shiplap::cli
