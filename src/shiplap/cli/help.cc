#include "shiplap/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "shiplap/report/text.h"

namespace shiplap::cli {
namespace {

// Something short and what it means.
struct Entry {
  std::string term;
  std::string says;
};

// Two columns; below each other where the window is too narrow for that.
std::string listed(const std::vector<Entry>& entries, const Context& context) {
  std::size_t widest = 0;
  for (const Entry& entry : entries) widest = std::max(widest, entry.term.size());
  const auto width = static_cast<std::size_t>(context.width());
  const bool beside = widest + 4 + 24 <= width;
  const std::size_t indent = beside ? widest + 4 : 6;
  std::string result;
  for (const Entry& entry : entries) {
    result += "  " + report::painted(entry.term, report::kCyan, context.out.colour);
    result +=
        beside ? std::string(indent - 2 - entry.term.size(), ' ') : "\n" + std::string(indent, ' ');
    result += report::wrapped(entry.says, indent, width) + "\n";
  }
  return result;
}

std::string heading(const std::string& text, const Context& context) {
  return "\n" + report::painted(text, report::kBold, context.out.colour) + "\n";
}

std::string examples(const std::vector<Example>& examples, const Context& context) {
  std::vector<Entry> entries;
  for (const Example& example : examples) entries.push_back({example.command, example.says});
  return listed(entries, context);
}

Entry entry_of(const FlagSpec& flag) {
  std::string term = flag.name;
  if (!flag.letter.empty()) term = flag.letter + ", " + term;
  if (!flag.value.empty()) term += " " + flag.value;
  return {term, flag.help};
}

std::string usage_line(const Verb& verb, const Usage& usage) {
  std::string line = "  shiplap " + verb.info.name;
  for (const ArgumentSpec& argument : usage.arguments) {
    const std::string name = argument.name + (argument.repeated ? "..." : "");
    line += argument.required ? " " + name : " [" + name + "]";
  }
  return line + " [FLAGS]\n";
}

}  // namespace

std::string help(std::span<const Verb> verbs, const Context& context) {
  std::vector<Example> first;
  std::vector<Entry> commands;
  for (const Verb& verb : verbs) {
    if (!verb.info.examples.empty()) first.push_back(verb.info.examples.front());
    commands.push_back({verb.info.name, verb.info.summary});
  }
  commands.push_back({"help", "this page, or with the name of a command what it can do"});
  std::string text = report::painted("shiplap", report::kBold, context.out.colour) +
                     ": the communication of LLM training, as a plan\n\n";
  text += examples(first, context);
  text += heading("commands", context) + listed(commands, context);
  text += heading("more", context);
  text += listed({{"shiplap COMMAND --help", "examples and flags of a command"},
                  {"shiplap --version", "the version"}},
                 context);
  text += heading("exit codes", context);
  return text + "  " +
         report::wrapped(
             "0 yes; 1 the answer is no; 2 wrong input; 3 a part is missing; 64 a bug of ours", 2,
             static_cast<std::size_t>(context.width())) +
         "\n";
}

std::string help(const Verb& verb, const Context& context) {
  const Usage usage = verb.usage();
  const auto width = static_cast<std::size_t>(context.width());
  const std::string name = "shiplap " + verb.info.name;
  const std::string title = report::wrapped(name + ": " + verb.info.summary, 0, width);
  std::string text =
      report::painted(name, report::kBold, context.out.colour) + title.substr(name.size()) + "\n\n";
  text += examples(verb.info.examples, context);
  text += heading("usage", context) + usage_line(verb, usage);
  std::vector<Entry> arguments;
  for (const ArgumentSpec& argument : usage.arguments) {
    arguments.push_back({argument.name, argument.help});
  }
  if (!arguments.empty()) text += heading("arguments", context) + listed(arguments, context);
  std::vector<Entry> flags;
  for (const FlagSpec& flag : usage.flags) flags.push_back(entry_of(flag));
  for (const FlagSpec& flag : common_flags()) flags.push_back(entry_of(flag));
  text += heading("flags", context) + listed(flags, context);
  if (!verb.info.notes.empty()) {
    text += "\n" + report::wrapped(verb.info.notes, 0, width) + "\n";
  }
  return text;
}

}  // namespace shiplap::cli
