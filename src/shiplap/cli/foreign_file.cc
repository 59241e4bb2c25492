#include "shiplap/cli/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/cli/files.h"
#include "shiplap/cli/foreign_flags.h"

namespace shiplap::cli {
namespace {

constexpr std::size_t kPrefix = 1 << 16;  // bytes

struct ForeignFormat {
  std::string_view what;
  std::vector<std::string_view> marks;  // one of them occurs near the beginning
  bool is_json = false;
  std::string (*help)(std::string_view text);
  std::string_view why = "shiplap cannot read it yet";
};

constexpr std::string_view kNoTransformers =
    "shiplap cannot read it yet: strategies train square linear layers, not transformers";

std::string_view leading_digits(std::string_view value) {
  return value.substr(0, value.find_first_not_of("0123456789"));
}

// A command with the sizes of a config.json.
std::string config_help(std::string_view text) {
  std::string command = "shiplap simulate --strategy hybrid --ranks 8";
  const auto append = [&](std::string_view flag, std::string_view member) {
    const std::size_t at = text.find(member);
    if (at == text.npos) return;
    const std::string_view rest = text.substr(at + member.size());
    const std::string_view digits =
        leading_digits(rest.substr(std::min(rest.find_first_not_of(" :"), rest.size())));
    if (!digits.empty()) command += fmt::format(" {} {}", flag, digits);
  };
  append("--layers", "\"num_hidden_layers\"");
  append("--hidden", "\"hidden_size\"");
  return fmt::format("describe its size with flags: `{}`", command);
}

// The words of a launch script; `--flag=value` is two.
std::vector<std::string> script_words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n\\="), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// The sizes that a launch script sets, by our flags, without the number of ranks: the flags of a
// launcher often give that of one node.
std::map<std::string, std::string> script_sizes(const std::vector<std::string>& words) {
  std::map<std::string, std::string> sizes;
  for (std::size_t at = 0; at + 1 < words.size(); ++at) {
    const std::string flag = local_flag(words[at]).value_or("");
    const std::string number(leading_digits(words[at + 1]));
    if (flag.empty() || flag == "--ranks" || number.empty()) continue;
    if (words[at] == "--batch-size") {
      sizes.try_emplace(flag, number);  // --global-batch-size wins
    } else {
      sizes[flag] = number;
    }
  }
  return sizes;
}

// A command with the sizes of a launch script.
std::string script_help(std::string_view text) {
  const std::vector<std::string> words = script_words(text);
  std::string command = "shiplap simulate --strategy hybrid";
  for (const auto& [flag, size] : script_sizes(words)) command += fmt::format(" {} {}", flag, size);
  const std::string mesh = hybrid_mesh(words);
  if (!mesh.empty()) command += " --mesh " + mesh;
  return fmt::format("describe its size with flags: `{} --ranks N`", command);
}

std::string recorder_help(std::string_view /*text*/) {
  return "torchfrtrace, which comes with torch, compares the dumps of all ranks";
}

std::string profiler_help(std::string_view /*text*/) { return "ui.perfetto.dev shows it"; }

const std::vector<ForeignFormat>& foreign_formats() {
  static const std::vector<ForeignFormat> kFormats = {
      {.what = "a trace of a profiler",
       .marks = {"\"traceEvents\"", "\"schemaVersion\""},
       .is_json = true,
       .help = profiler_help},
      {.what = "a dump of PyTorch's flight recorder",
       .marks = {"\"pg_config\"", "\"pg_status\"", "\"nccl_version\""},
       .is_json = true,
       .help = recorder_help},
      {.what = "a model configuration of Hugging Face",
       .marks = {"\"architectures\"", "\"model_type\"", "\"num_hidden_layers\"",
                 "\"transformers_version\""},
       .is_json = true,
       .help = config_help,
       .why = kNoTransformers},
      {.what = "a script with the flags of Megatron-LM",
       .marks = {"--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                 "--num-attention-heads", "--micro-batch-size"},
       .help = script_help,
       .why = kNoTransformers},
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
  if (text.starts_with('\x80')) {
    return error("a Python pickle, such as a dump of PyTorch's flight recorder",
                 "shiplap cannot read it yet", recorder_help(text));
  }
  if (is_schedule(text)) {
    const std::string file = source.file == "standard input" ? "-" : shell_word(source.file);
    return error(
        "a pipeline schedule of PyTorch", "",
        fmt::format("`shiplap check --schedule {}`; also show, simulate and export", file));
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != text.npos && (text[first] == '{' || text[first] == '[');
  for (const ForeignFormat& format : foreign_formats()) {
    const bool has_mark = std::ranges::any_of(
        format.marks, [&](std::string_view mark) { return text.find(mark) != text.npos; });
    if (format.is_json == is_json && has_mark) {
      return error(format.what, format.why, format.help(text));
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
