#include "shiplap/cli/completion.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace shiplap::cli {
namespace {

// The completion data of one command.
struct VerbCompletion {
  std::string name;
  std::string summary;
  Usage usage;
};

std::vector<VerbCompletion> completions_of(std::span<const Verb> verbs) {
  std::vector<VerbCompletion> all;
  std::vector<std::string> names;
  for (const Verb& verb : verbs) {
    VerbCompletion completion{
        .name = verb.info.name, .summary = verb.info.summary, .usage = verb.usage()};
    completion.usage.flags.insert(completion.usage.flags.end(), common_flags().begin(),
                                  common_flags().end());
    names.push_back(completion.name);
    all.push_back(std::move(completion));
  }
  all.push_back({.name = "help",
                 .summary = "print the help of a command",
                 .usage = {.arguments = {{.name = "COMMAND", .choices = names}}, .flags = {}}});
  return all;
}

std::string join_with_spaces(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text += (text.empty() ? "" : " ") + word;
  return text;
}

// What to complete a value or an argument with.
struct Completed {
  std::vector<std::string> words;
  bool files = false;
};

template <class Spec>
Completed completed(const Spec& spec) {
  Completed result{.words = spec.choices, .files = spec.values == Values::files};
  result.words.insert(result.words.end(), spec.suggestions.begin(), spec.suggestions.end());
  return result;
}

// Between single quotes, in any of the shells.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// ---- bash

std::string bash_reply(const Completed& completed) {
  if (completed.words.empty()) return completed.files ? "files" : "nothing";
  return (completed.files ? "words_or_files " : "words ") +
         quoted(join_with_spaces(completed.words));
}

std::string bash_case(const VerbCompletion& completion) {
  std::string flags;
  std::string values;
  for (const FlagSpec& flag : completion.usage.flags) {
    flags += (flags.empty() ? "" : " ") + flag.name;
    if (flag.value.empty()) continue;
    const std::string pattern = flag.letter.empty() ? flag.name : flag.letter + "|" + flag.name;
    values +=
        fmt::format("        {}) _shiplap_{}; return ;;\n", pattern, bash_reply(completed(flag)));
  }
  std::string text = fmt::format("    {})\n", completion.name);
  if (!values.empty()) text += "      case \"$previous\" in\n" + values + "      esac\n";
  const std::string argument = completion.usage.arguments.empty()
                                   ? "nothing"
                                   : bash_reply(completed(completion.usage.arguments[0]));
  text += fmt::format(
      "      if [[ $current == -* ]]; then _shiplap_words {}; else _shiplap_{}; fi ;;\n",
      quoted(flags), argument);
  return text;
}

constexpr std::string_view kBashStart = R"(# bash completion of shiplap; to use it in this shell:
#   source <(shiplap completion bash)
_shiplap_words() {
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current")
}
_shiplap_files() {
  compopt -o filenames 2> /dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$current")
}
_shiplap_words_or_files() {
  compopt -o filenames 2> /dev/null
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current"; compgen -f -- "$current")
}
_shiplap_nothing() {
  COMPREPLY=()
}
_shiplap() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
  local command=${COMP_WORDS[1]}
  # bash makes three words of --flag=value
  [[ $current == = ]] && current=''
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}
  if ((COMP_CWORD == 1)); then
)";

}  // namespace

std::string bash_completion(std::span<const Verb> verbs) {
  const std::vector<VerbCompletion> all = completions_of(verbs);
  std::string names;
  std::string cases;
  for (const VerbCompletion& completion : all) {
    names += completion.name + " ";
    cases += bash_case(completion);
  }
  return std::string(kBashStart) +
         fmt::format("    _shiplap_words {}\n    return\n  fi\n",
                     quoted(names + "--help --version")) +
         "  case \"$command\" in\n" + cases + "  esac\n}\ncomplete -F _shiplap shiplap\n";
}

// ---- zsh

namespace {

std::string zsh_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_action(const Completed& completed) {
  const std::string words = join_with_spaces(completed.words);
  if (completed.files) return words.empty() ? "_files" : " _shiplap_words_or_files " + words;
  return words.empty() ? " " : "(" + words + ")";
}

std::string zsh_case(const VerbCompletion& completion) {
  std::string text = fmt::format("    {})\n      _arguments -S", completion.name);
  for (const FlagSpec& flag : completion.usage.flags) {
    std::string rest = "[" + zsh_text(flag.help) + "]";
    if (!flag.value.empty()) {
      rest += fmt::format(":{}:{}", zsh_text(flag.value), zsh_action(completed(flag)));
    }
    const std::string mark = flag.value.empty() ? "" : "=";
    text += " \\\n        " + quoted(fmt::format("{}{}{}", flag.name, mark, rest));
    if (!flag.letter.empty()) text += " \\\n        " + quoted(flag.letter + rest);
  }
  for (const ArgumentSpec& argument : completion.usage.arguments) {
    text += " \\\n        " + quoted(fmt::format("{}:{}:{}", argument.repeated ? "*" : "1",
                                                 argument.name, zsh_action(completed(argument))));
  }
  return text + " ;;\n";
}

}  // namespace

std::string zsh_completion(std::span<const Verb> verbs) {
  std::string names;
  std::string cases;
  for (const VerbCompletion& completion : completions_of(verbs)) {
    const std::string name = fmt::format("{}:{}", completion.name, zsh_text(completion.summary));
    names += fmt::format("    {}\n", quoted(name));
    cases += zsh_case(completion);
  }
  return "#compdef shiplap\n"
         "# zsh completion of shiplap; to use it in this shell:\n"
         "#   source <(shiplap completion zsh)\n"
         "_shiplap_words_or_files() {\n"
         "  compadd -- \"$@\"\n"
         "  _files\n"
         "}\n"
         "_shiplap() {\n"
         "  local -a commands\n"
         "  commands=(\n" +
         names +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  local command=$words[2]\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $command in\n" +
         cases +
         "  esac\n"
         "}\n"
         // Loaded from a folder of completions this file is the function; sourced, it defines it.
         "if [[ $funcstack[1] == _shiplap ]]; then\n"
         "  _shiplap \"$@\"\n"
         "else\n"
         "  compdef _shiplap shiplap\n"
         "fi\n";
}

// ---- fish

namespace {

std::string fish_values(const Completed& completed) {
  std::string mode = completed.files ? " -r -F" : " -x";
  if (completed.words.empty()) return mode;
  return mode + " -a " + quoted(join_with_spaces(completed.words));
}

std::string fish_lines(const VerbCompletion& completion) {
  const std::string when =
      "complete -c shiplap -n " + quoted("__fish_seen_subcommand_from " + completion.name);
  std::string text = fmt::format("complete -c shiplap -n __fish_use_subcommand -a {} -d {}\n",
                                 completion.name, quoted(completion.summary));
  for (const FlagSpec& flag : completion.usage.flags) {
    text += when + " -l " + flag.name.substr(2);
    if (!flag.letter.empty()) text += " -s " + flag.letter.substr(1);
    if (!flag.value.empty()) text += fish_values(completed(flag));
    text += " -d " + quoted(flag.help) + "\n";
  }
  for (const ArgumentSpec& argument : completion.usage.arguments) {
    const Completed known = completed(argument);
    if (known.files) text += when + " -F\n";
    if (!known.words.empty()) text += when + " -a " + quoted(join_with_spaces(known.words)) + "\n";
  }
  return text;
}

}  // namespace

std::string fish_completion(std::span<const Verb> verbs) {
  std::string text =
      "# fish completion of shiplap; to use it in this shell:\n"
      "#   shiplap completion fish | source\n"
      "complete -c shiplap -f\n"
      "complete -c shiplap -n __fish_use_subcommand -l help -d 'print the help'\n"
      "complete -c shiplap -n __fish_use_subcommand -l version -d 'print the version'\n";
  for (const VerbCompletion& completion : completions_of(verbs)) text += fish_lines(completion);
  return text;
}

}  // namespace shiplap::cli
