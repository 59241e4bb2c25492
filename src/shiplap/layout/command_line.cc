// The command of a text that trains, and its flags: those of the launcher, then those of the
// script.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "shiplap/layout/shell_internal.h"

namespace shiplap::layout {
namespace {

// Of torchrun, srun, mpirun and deepspeed.
constexpr std::array<std::string_view, 34> kLauncherFlags = {
    "--nproc-per-node",
    "--nproc_per_node",
    "--nnodes",
    "--num_nodes",
    "--num_gpus",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--gpus-per-node",
    "-N",
    "-n",
    "-np",
    "--np",
    "--master_addr",
    "--master-addr",
    "--master_port",
    "--master-port",
    "--node_rank",
    "--node-rank",
    "--rdzv_backend",
    "--rdzv-backend",
    "--rdzv_endpoint",
    "--rdzv-endpoint",
    "--rdzv_id",
    "--rdzv-id",
    "--standalone",
    "--max_restarts",
    "--max-restarts",
    "--tee",
    "--log_dir",
    "--log-dir",
    "--role",
    "--local-ranks-filter",
    "-m",
};

// `--name value ..` and `--name=value`.
class FlagCollector {
 public:
  FlagCollector(Settings& settings, bool launcher) : settings_(&settings), launcher_(launcher) {}
  ~FlagCollector() { finish(); }
  FlagCollector(const FlagCollector&) = delete;
  FlagCollector& operator=(const FlagCollector&) = delete;

  void begin(std::string name) {
    finish();
    name_ = std::move(name);
  }
  void value(const Word& word) {
    // A launcher's flag has one value; after it may be the program.
    if (name_.empty() || (launcher_ && !setting_.values.empty())) return;
    setting_.values.push_back(word.text);
    if (setting_.unknown.empty()) setting_.unknown = word.unknown;
  }
  void finish() {
    if (!name_.empty()) settings_->set(name_, std::move(setting_));
    name_.clear();
    setting_ = {};
  }

 private:
  Settings* settings_;
  bool launcher_;
  std::string name_;
  Setting setting_;
};

bool is_flag(std::string_view word) {
  return word.starts_with("--") || (word.size() > 1 && word[0] == '-' &&
                                    std::isalpha(static_cast<unsigned char>(word[1])) != 0);
}

// A variable that may hold flags, such as "${MODEL_ARGS[@]}".
bool may_hold_flags(const Word& word) {
  if (word.unknown.empty() || word.text != word.unknown) return false;
  std::string lower = word.unknown;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"args", "opt", "flag", "[@]"},
      [&](std::string_view part) { return lower.find(part) != std::string::npos; });
}

// `model.tensor_model_parallel_size=4`, as Hydra and Megatron-Bridge have them.
bool is_override(std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  return equals != std::string_view::npos && name.find('.') != std::string_view::npos &&
         std::ranges::all_of(name, [](char c) {
           return std::islower(static_cast<unsigned char>(c)) != 0 ||
                  std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
         });
}

void report_override(const Word& word, Findings& findings) {
  std::string flag = word.text.substr(word.text.substr(0, word.text.find('=')).rfind('.') + 1);
  const std::size_t equals = flag.find('=');
  std::replace(flag.begin(), flag.begin() + static_cast<std::ptrdiff_t>(equals), '_', '-');
  flag[equals] = ' ';
  findings.cannot_read("", fmt::format("`{}` is an override, not a flag", word.text),
                       fmt::format("write `--{}`", flag));
}

void collect(std::span<const Word> words, Settings& settings, bool launcher) {
  FlagCollector collector(settings, launcher);
  for (const Word& word : words) {
    if (may_hold_flags(word)) {
      settings.findings().cannot_read("",
                                      fmt::format("the value of `{}` is not known", word.unknown),
                                      "write the flags in its place, or assign it above");
      continue;
    }
    if (!launcher && is_override(word.text)) {
      report_override(word, settings.findings());
      continue;
    }
    if (!is_flag(word.text)) {
      if (word.first) collector.finish();  // values of a flag are on its line
      collector.value(word);
      continue;
    }
    const std::size_t equals = word.text.find('=');
    std::string name = word.text.substr(0, equals);
    if (name.ends_with(':')) name.pop_back();  // in YAML
    collector.begin(std::move(name));
    if (equals != std::string::npos) {
      collector.value({.text = word.text.substr(equals + 1), .unknown = word.unknown});
      collector.finish();
    }
  }
}

// A command of the text: its words, and where its flags begin.
struct Command {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t flags = 0;  // after the script; `end`: there is none
  bool has_script = false;
  std::int64_t flag_count = 0;
};

bool is_script(std::string_view word) {
  return word.ends_with(".py") || word.ends_with(".sh") || word.ends_with(".slurm");
}
// Modules that start others: `python -m torch.distributed.run pretrain_gpt.py`.
bool is_launcher_module(std::string_view word) {
  return word.starts_with("torch.distributed.") || word.starts_with("accelerate.") ||
         word.starts_with("deepspeed.");
}

// A line of a command goes on with a flag or its values, even without a `\` before it.
bool begins_command(const Word& word) {
  if (!word.first || is_flag(word.text)) return false;
  if (word.command || word.text == "#SBATCH" || word.text == "[" || word.text == "[[") return true;
  const bool name = std::ranges::all_of(word.text, [](char c) {
    return std::islower(static_cast<unsigned char>(c)) != 0 ||
           std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
  const bool number =
      word.text.empty() || std::isdigit(static_cast<unsigned char>(word.text[0])) != 0;
  return (name && !number) || is_script(word.text) || word.text.ends_with("/python") ||
         word.text.ends_with("/torchrun");
}

void find_flags(std::span<const Word> words, Command& command) {
  command.flags = command.end;
  for (std::size_t k = command.begin; k < command.end; ++k) {
    const std::string& text = words[k].text;
    if (command.has_script) {
      if (text.starts_with("--")) ++command.flag_count;
      continue;
    }
    if (is_flag(text)) continue;
    const bool module = k > command.begin && words[k - 1].text == "-m";
    if (is_script(text) || (module && !is_launcher_module(text))) {
      command.has_script = true;
      command.flags = k + 1;
    }
  }
}

std::vector<Command> commands_of(std::span<const Word> words) {
  std::vector<Command> commands;
  for (std::size_t k = 0; k < words.size(); ++k) {
    // A script on a line of its own, after the line of its launcher.
    const bool joins =
        !commands.empty() && !words[k].command && is_script(words[k].text) &&
        std::ranges::any_of(words.subspan(commands.back().begin, 1), [](const Word& w) {
          return w.text.find("run") != std::string::npos ||
                 w.text.find("python") != std::string::npos;
        });
    if (commands.empty() || (begins_command(words[k]) && !joins)) commands.push_back({.begin = k});
    commands.back().end = k + 1;
  }
  for (Command& command : commands) find_flags(words, command);
  return commands;
}

// The one with a script and the most flags, and the last of those; not one that is only printed.
const Command* training_command(std::span<const Word> words, std::span<const Command> commands) {
  const Command* best = nullptr;
  for (const Command& command : commands) {
    const std::string& name = words[command.begin].text;
    if (!command.has_script || name == "echo" || name == "printf" || name == "[" || name == "[[" ||
        name == "test") {
      continue;
    }
    if (best == nullptr || command.flag_count >= best->flag_count) best = &command;
  }
  return best;
}

// `bash -c`, whose words follow as commands of their own.
bool is_script_option(const Word& word) {
  return word.text.size() >= 2 && word.text[0] == '-' && word.text.back() == 'c';
}
bool is_sbatch(const Word& word) { return word.first && word.text == "#SBATCH"; }

void check_there_are_flags(const Settings& flags, const std::vector<std::string>& variables,
                           bool has_script) {
  if (!flags.unread().empty() || (has_script && variables.empty())) return;
  if (variables.empty()) {
    flags.findings().cannot_read("", "there is no flag in this text",
                                 "pass the command that trains, or its flags");
    return;
  }
  flags.findings().cannot_read(
      "",
      fmt::format("no command has flags, only the variable{} {}", variables.size() > 1 ? "s" : "",
                  fmt::join(variables, ", ")),
      fmt::format("add the command, as in `torchrun pretrain_gpt.py ${}`",
                  fmt::join(variables, " $")));
}

}  // namespace

CommandLine command_line(std::string_view text, Findings& findings) {
  CommandLine line{.launcher = Settings(findings), .flags = Settings(findings)};
  const auto [all, variables] = shell_words(text, findings, line.launcher);
  findings.throw_errors();
  const std::span<const Word> words = all;
  const std::vector<Command> commands = commands_of(words);
  const auto part = [&](std::size_t begin, std::size_t end) {
    return words.subspan(begin, end - begin);
  };
  const Command* const training = training_command(words, commands);
  for (const Command& command : commands) {
    const bool starts_training =
        &command + 1 == training && is_script_option(words[command.end - 1]);
    if (is_sbatch(words[command.begin]) || starts_training) {
      collect(part(command.begin, command.end), line.launcher, true);
    }
  }
  if (training != nullptr) {
    collect(part(training->begin, training->flags), line.launcher, true);
    collect(part(training->flags, training->end), line.flags, false);
  } else {
    for (const Command& command : commands) {
      if (!is_sbatch(words[command.begin])) {
        collect(part(command.begin, command.end), line.flags, false);
      }
    }
    for (const std::string_view flag : kLauncherFlags) line.flags.move(flag, line.launcher);
  }
  check_there_are_flags(line.flags, variables, training != nullptr);
  return line;
}

LaunchedRanks launched_ranks(Settings& launcher, bool must_know) {
  LaunchedRanks found;
  const auto first =
      [&](std::initializer_list<std::string_view> names) -> std::optional<std::int64_t> {
    for (const std::string_view name : names) {
      if (const auto value = launcher.plain_integer(name)) return value;
    }
    for (const std::string_view name : names) {
      if (!must_know || !launcher.has(name)) continue;
      found.reported = true;
      return launcher.integer(name);
    }
    return {};
  };
  // A launcher on each machine, which starts its ranks; else the tasks of the scheduler are ranks.
  found.per_machine = first({"--nproc-per-node", "--nproc_per_node", "--num_gpus"});
  auto machines = first({"--nnodes", "--num_nodes", "--nodes", "-N"});
  if (!machines) machines = launcher.plain_integer("NNODES");
  if (!found.per_machine) {
    found.ranks = first({"--ntasks", "-n", "-np", "--np"});
    found.per_machine = first({"--ntasks-per-node", "--gpus-per-node", "NGPU", "NPROC_PER_NODE"});
  }
  // Of the environment, if the launcher says nothing.
  if (!found.ranks && !found.per_machine) found.ranks = first({"WORLD_SIZE"});
  if (found.per_machine && !found.ranks) {
    found.ranks = std::min(kMaxSetting + 1, machines.value_or(1) * *found.per_machine);
  }
  if (!found.per_machine && found.ranks && machines && *found.ranks % *machines == 0) {
    found.per_machine = *found.ranks / *machines;
  }
  return found;
}

std::string torchrun(std::int64_t ranks) {
  std::int64_t per_machine = 8;
  while (ranks % per_machine != 0) --per_machine;
  return fmt::format("torchrun --nnodes {} --nproc-per-node {}", ranks / per_machine, per_machine);
}

}  // namespace shiplap::layout
