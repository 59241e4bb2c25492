// The flags and arguments of one command: declared once, then parsed, listed by --help, and
// completed by the shell.
//
//   Flags flags("show");
//   flags.argument({.name = "FILE", .help = "the plan"}, options.file);
//   flags.text({.name = "--rank", .value = "N", .help = "only this rank"}, options.rank);
//   flags.parse(arguments);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap::cli {

// The kind of a value, for checking and for completion.
enum class Values { any, files, listed };

struct FlagSpec {
  std::string name;    // "--rank"
  std::string letter;  // "-o", or none
  std::string value;   // placeholder in the help; empty for a switch
  std::string help;
  std::string example;  // an example of a value
  Values values = Values::any;
  std::vector<std::string> choices;      // if `values` is listed
  std::string old_name;                  // still accepted, with a note
  std::vector<std::string> suggestions;  // completed by the shell; other values are accepted too
  // The arguments may be flags of another program, in quotes: words that are not ours are arguments
  // if they have a space, or if they come right after the value of this flag.
  bool before_foreign_flags = false;
};

struct ArgumentSpec {
  std::string name;  // "FILE"
  std::string help;
  std::string example;
  Values values = Values::any;
  std::vector<std::string> choices;
  bool required = true;
  bool repeated = false;
  std::vector<std::string> suggestions;  // completed by the shell
};

struct Usage {
  std::vector<ArgumentSpec> arguments;
  std::vector<FlagSpec> flags;
};

// The flags of every command. They are removed from the arguments before the command parses them.
[[nodiscard]] const std::vector<FlagSpec>& common_flags();

// Returns nullopt unless the text is a 64-bit integer.
[[nodiscard]] std::optional<std::int64_t> parse_integer(const std::string& text);
// "10" or "2.5"; nullopt if it is not digits with at most one point.
[[nodiscard]] std::optional<double> parse_decimal(const std::string& text);
// The words between commas and blanks.
[[nodiscard]] std::vector<std::string> parse_list(std::string_view text);

// A value that is not one of the valid ones.
struct InvalidChoice {
  std::string flag;
  std::string found;
  std::vector<std::string> legal;
};
[[nodiscard]] Diagnostic invalid_choice_error(const InvalidChoice& wrong);  // D003

// Throws InputError D003 for a flag, or for a combination of several ("").
[[noreturn]] void throw_flag_error(std::string flag, std::string what, std::string help = "");

// parse() sets the targets. REQUIRES: they outlive it.
class Flags {
 public:
  explicit Flags(std::string verb) : verb_(std::move(verb)) {}

  void argument(ArgumentSpec spec, std::string& target);
  void arguments(ArgumentSpec spec, std::vector<std::string>& target);
  void toggle(FlagSpec spec, bool& target);
  // One of the choices, if there are any.
  void text(FlagSpec spec, std::optional<std::string>& target);
  // The name of a file.
  void file(FlagSpec spec, std::optional<std::string>& target);
  // A whole number, 0 or more.
  void count(FlagSpec spec, std::optional<std::int64_t>& target);

  // Throws InputError with all errors: D002 for an unknown flag, D003 for an invalid, missing or
  // unexpected value or argument. Words after `--` are not flags.
  void parse(std::span<const std::string> words);

  [[nodiscard]] const Usage& usage() const { return usage_; }
  // One line for each old name of a flag that was used.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  // Returns the name of the command and the arguments that set the targets to their current values.
  [[nodiscard]] std::vector<std::string> to_arguments() const;

 private:
  using Set = std::function<void(const std::string&)>;
  // The values of a target; an empty one for a switch that is on.
  using Get = std::function<std::vector<std::string>()>;

  // A flag of the command line.
  struct ParsedFlag {
    const FlagSpec* spec = nullptr;
    std::string spelled;
    std::optional<std::string> value;
  };

  void add(FlagSpec spec, Set set, Get get);
  void parse_flag(std::span<const std::string> words, std::size_t& at);
  [[nodiscard]] ParsedFlag match_flag(const std::string& word) const;
  // The flag before foreign flags, or null.
  [[nodiscard]] const FlagSpec* foreign_flag() const;
  [[nodiscard]] bool is_foreign(std::span<const std::string> words, std::size_t at) const;
  [[nodiscard]] bool has_flag(std::string_view name) const;
  // For a flag of another launcher; "" otherwise.
  [[nodiscard]] std::string unknown_flag_help(const std::string& spelled,
                                              std::span<const std::string> words) const;
  void add_unknown_flag(const std::string& spelled, std::span<const std::string> words);
  void set_flag(const ParsedFlag& given);
  void assign_arguments(std::span<const std::string> given);
  void add_missing_argument(const ArgumentSpec& spec);
  void add_error(std::string flag, std::string what, std::string help);

  std::string verb_;
  Usage usage_;
  std::vector<Set> flag_setters_;  // as in usage_.flags
  std::vector<Get> flag_getters_;
  std::vector<Set> argument_setters_;  // as in usage_.arguments
  std::vector<Get> argument_getters_;
  std::vector<bool> seen_;
  std::vector<Diagnostic> problems_;
  std::vector<std::string> notes_;
};

// Returns the arguments that set the options to `given`.
template <class Options>
[[nodiscard]] std::vector<std::string> to_arguments(const std::string& verb,
                                                    void (*declare)(Flags& flags, Options& options),
                                                    const Options& given) {
  Options options = given;
  Flags flags(verb);
  declare(flags, options);
  return flags.to_arguments();
}

}  // namespace shiplap::cli
