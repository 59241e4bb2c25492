#include "shiplap/cli/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <new>
#include <ostream>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/base/version.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/help.h"
#include "shiplap/cli/progress.h"
#include "shiplap/cli/verbs.h"

namespace shiplap::cli {
namespace {

using Arguments = std::vector<std::string>;

// Whether the words before `--` contain a flag.
bool has_flag(std::span<const std::string> words, std::string_view name) {
  const auto end = std::ranges::find(words, "--");
  return std::find(words.begin(), end, name) != end;
}

void set_colour(const std::string& when, Context& context) {
  const std::vector<std::string>& legal = common_flags().front().choices;
  if (when.empty()) {
    throw InputError(Diagnostic{.code = "D003",
                                .where = {.flag = "--color"},
                                .what = "`--color` needs a value",
                                .help = "write for instance `--color never`"});
  }
  if (std::ranges::find(legal, when) == legal.end()) {
    throw InputError(invalid_choice_error({.flag = "--color", .found = when, .legal = legal}));
  }
  if (when == "auto") return;
  context.out.colour = context.err.colour = when == "always" ? Colour::on : Colour::off;
}

// Removes --color from the words and applies it, so that no command has to handle it.
Arguments extract_colour_flag(std::span<const std::string> words, Context& context) {
  Arguments rest;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const std::string name = word.substr(0, word.find('='));
    if (word == "--") {
      rest.insert(rest.end(), words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
      break;
    }
    if (name != "--color" && name != "--colour") {
      rest.push_back(word);
    } else if (name.size() < word.size()) {
      set_colour(word.substr(name.size() + 1), context);
    } else {
      set_colour(at + 1 < words.size() ? words[++at] : "", context);
    }
  }
  return rest;
}

std::vector<std::string> names_of(std::span<const Verb> verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.info.name);
  names.emplace_back("help");
  return names;
}

// The command for a word that other tools use; "" if there is none.
std::string synonym_of(std::string_view word) {
  constexpr auto kSynonyms = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"predict", "simulate"},
      {"estimate", "simulate"},
      {"verify", "check"},
      {"lint", "check"},
      {"train", "run"},
      {"launch", "run"},
      {"convert", "export"},
      {"print", "show"},
  });
  const auto found =
      std::ranges::find(kSynonyms, word, [](const auto& pair) { return pair.first; });
  return found == kSynonyms.end() ? "" : std::string(found->second);
}

[[noreturn]] void throw_unknown_command(const std::string& word, std::span<const Verb> verbs) {
  const std::vector<std::string> names = names_of(verbs);
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  if (word.starts_with('-')) {
    throw InputError(Diagnostic{.code = "D002",
                                .where = {.flag = word},
                                .what = fmt::format("`shiplap` has no flag `{}`", word),
                                .why = "the flags of a command come after its name",
                                .help = "`shiplap --help` lists the commands: " + all});
  }
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(word, ignored);
  const std::string synonym = synonym_of(word);
  const std::string near = synonym.empty() ? nearest(word, names) : synonym;
  std::string help = suggest(word, names);
  if (!synonym.empty()) help = fmt::format("did you mean `{}`?", synonym);
  if (is_file) help = fmt::format("to see what is in this file: `shiplap show {}`", word);
  throw InputError(Diagnostic{.code = "D001",
                              .what = fmt::format("unknown command `{}`", word),
                              .why = near.empty() && !is_file ? "" : "the commands are " + all,
                              .help = std::move(help)});
}

const Verb& find_verb_or_throw(const std::string& word, std::span<const Verb> verbs) {
  const Verb* verb = find_verb(verbs, word);
  if (verb == nullptr) throw_unknown_command(word, verbs);
  return *verb;
}

ExitCode print(std::string_view text, Context& context) {
  context.out.stream << text;
  return ExitCode::yes;
}

ExitCode dispatch(std::span<const std::string> arguments, std::span<const Verb> verbs,
                  Context& context) {
  Arguments words = extract_colour_flag(arguments, context);
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    return print(help(verbs, context), context);
  }
  const std::string first = words[0];
  words.erase(words.begin());
  if (first == "--version" || first == "-V") {
    return print(fmt::format("shiplap {}\n", version()), context);
  }
  if (first == "help" && (words.empty() || words[0].starts_with('-'))) {
    return print(help(verbs, context), context);
  }
  const Verb& verb = find_verb_or_throw(first == "help" ? words[0] : first, verbs);
  if (first == "help" || has_flag(words, "--help") || has_flag(words, "-h")) {
    return print(help(verb, context), context);
  }
  return verb.run(words, context);
}

struct Request {
  std::span<const std::string> arguments;
  bool json = false;
};

void print_json_error(const Json& diagnostics, Context& context) {
  const Json error = Json::object({{"schema", "shiplap.error/1"}, {"diagnostics", diagnostics}});
  context.out.stream << to_text(error) << '\n';
}

ExitCode report(const InputError& error, ExitCode code, const Request& request, Context& context) {
  context.err.stream << render(error.diagnostics(), context.err.colour);
  if (request.json) {
    print_json_error(to_json(error.diagnostics()), context);
  }
  return code;
}

ExitCode report_bug(std::string_view what, const Request& request, Context& context) {
  std::string command = "shiplap";
  for (const std::string& word : request.arguments) command += " " + shell_word(word);
  context.err.stream << report::styled("bug", "\033[1;31m", context.err.colour)
                     << fmt::format(
                            ": internal error in shiplap\n"
                            "  = {}\n"
                            "  help: your input is not the cause; please report this "
                            "line, version {},\n"
                            "        the files it names, and the command:\n"
                            "          {}\n",
                            what, version(), command);
  if (request.json) {
    print_json_error(Json::array({to_json(Diagnostic{.what = "bug: " + std::string(what)})}),
                     context);
  }
  return ExitCode::bug;
}

MissingDependency out_of_memory() {
  return MissingDependency(Diagnostic{.code = "D007",
                                      .what = "out of memory",
                                      .help = "try a smaller problem, or raise the limit (`ulimit "
                                              "-v`, memory limit of the container)"});
}

ExitCode report_interrupted(const Interrupted& interrupted, const Request& request,
                            Context& context) {
  context.err.stream << fmt::format("{}: no result\n", interrupted.what());
  if (request.json) {
    print_json_error(Json::array({to_json(Diagnostic{.what = interrupted.what()})}), context);
  }
  return ExitCode::interrupted;
}

ExitCode run_guarded(const Request& request, std::span<const Verb> verbs, Context& context) {
  try {
    return dispatch(request.arguments, verbs, context);
  } catch (const MissingDependency& error) {
    return report(error, ExitCode::missing_dependency, request, context);
  } catch (const InputError& error) {
    return report(error, ExitCode::wrong_input, request, context);
  } catch (const Interrupted& interrupted) {
    return report_interrupted(interrupted, request, context);
  } catch (const std::bad_alloc&) {
    return report(out_of_memory(), ExitCode::missing_dependency, request, context);
  } catch (const std::exception& error) {
    return report_bug(error.what(), request, context);
  } catch (...) {
    return report_bug("an exception of an unknown type", request, context);
  }
}

}  // namespace

ExitCode run(std::span<const std::string> arguments, std::span<const Verb> verbs,
             Context& context) {
  const Request request{.arguments = arguments, .json = has_flag(arguments, "--json")};
  const ExitCode code = run_guarded(request, verbs, context);
  context.out.stream.flush();
  const bool is_answer = code == ExitCode::yes || code == ExitCode::no;
  if (context.out.stream.good() || !is_answer) return code;
  // A full disk must not be mistaken for an answer.
  context.err.stream << render(Diagnostic{.code = "D005",
                                          .where = {.file = "standard output"},
                                          .what = "cannot write all of the output",
                                          .help = "is the disk full?"},
                               context.err.colour);
  return ExitCode::wrong_input;
}

ExitCode run(std::span<const std::string> arguments, Context& context) {
  return run(arguments, all_verbs(), context);
}

}  // namespace shiplap::cli
