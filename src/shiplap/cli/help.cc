#include "shiplap/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "shiplap/report/text.h"

namespace shiplap::cli {
namespace {

// A term and its description.
struct HelpEntry {
  std::string term;
  std::string description;
};

// Two columns; one below the other if the window is too narrow.
std::string format_entries(const std::vector<HelpEntry>& entries, const Context& context) {
  std::size_t widest = 0;
  for (const HelpEntry& entry : entries) widest = std::max(widest, entry.term.size());
  const auto width = static_cast<std::size_t>(context.width());
  const bool side_by_side = widest + 4 + 24 <= width;
  const std::size_t indent = side_by_side ? widest + 4 : 6;
  std::string result;
  for (const HelpEntry& entry : entries) {
    result += "  " + report::styled(entry.term, report::kCyan, context.out.colour);
    result += side_by_side ? std::string(indent - 2 - entry.term.size(), ' ')
                           : "\n" + std::string(indent, ' ');
    result += report::wrapped(entry.description, indent, width) + "\n";
  }
  return result;
}

std::string heading(const std::string& text, const Context& context) {
  return "\n" + report::styled(text, report::kBold, context.out.colour) + "\n";
}

std::string examples(const std::vector<Example>& examples, const Context& context) {
  std::vector<HelpEntry> entries;
  for (const Example& example : examples) entries.push_back({example.command, example.description});
  return format_entries(entries, context);
}

HelpEntry help_entry(const FlagSpec& flag) {
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
  std::vector<HelpEntry> commands;
  for (const Verb& verb : verbs) {
    if (!verb.info.examples.empty()) first.push_back(verb.info.examples.front());
    commands.push_back({verb.info.name, verb.info.summary});
  }
  commands.push_back({"help", "this page, or the help of one command"});
  std::string text = report::styled("shiplap", report::kBold, context.out.colour) +
                     ": plan, check, simulate and run the communication of LLM training\n\n";
  text += examples(first, context);
  text += heading("commands", context) + format_entries(commands, context);
  text += heading("more", context);
  text += format_entries({{"shiplap COMMAND --help", "examples and flags of a command"},
                          {"shiplap --version", "the version"}},
                         context);
  text += heading("exit codes", context);
  return text + "  " +
         report::wrapped(
             "0 success; 1 the answer is no; 2 invalid input; 3 missing dependency; 64 internal "
             "error (please report)",
             2, static_cast<std::size_t>(context.width())) +
         "\n";
}

std::string help(const Verb& verb, const Context& context) {
  const Usage usage = verb.usage();
  const auto width = static_cast<std::size_t>(context.width());
  const std::string name = "shiplap " + verb.info.name;
  const std::string title = report::wrapped(name + ": " + verb.info.summary, 0, width);
  std::string text =
      report::styled(name, report::kBold, context.out.colour) + title.substr(name.size()) + "\n\n";
  text += examples(verb.info.examples, context);
  text += heading("usage", context) + usage_line(verb, usage);
  std::vector<HelpEntry> arguments;
  for (const ArgumentSpec& argument : usage.arguments) {
    arguments.push_back({argument.name, argument.help});
  }
  if (!arguments.empty())
    text += heading("arguments", context) + format_entries(arguments, context);
  std::vector<HelpEntry> flags;
  for (const FlagSpec& flag : usage.flags) flags.push_back(help_entry(flag));
  for (const FlagSpec& flag : common_flags()) flags.push_back(help_entry(flag));
  text += heading("flags", context) + format_entries(flags, context);
  if (!verb.info.notes.empty()) {
    text += "\n" + report::wrapped(verb.info.notes, 0, width) + "\n";
  }
  return text;
}

}  // namespace shiplap::cli
