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
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap::cli {

// What a value may be, for checking and for completion.
enum class Values { any, files, listed };

struct FlagSpec {
  std::string name;    // "--rank"
  std::string letter;  // "-o", or none
  std::string value;   // what stands for the value in the help; a switch has none
  std::string help;
  std::string example;  // a value that one could give
  Values values = Values::any;
  std::vector<std::string> choices;  // if `values` is listed
};

struct ArgumentSpec {
  std::string name;  // "FILE"
  std::string help;
  std::string example;
  Values values = Values::any;
  std::vector<std::string> choices;
  bool required = true;
  bool repeated = false;
};

struct Usage {
  std::vector<ArgumentSpec> arguments;
  std::vector<FlagSpec> flags;
};

// The flags that every command has. They are taken out of the arguments before it sees them.
[[nodiscard]] const std::vector<FlagSpec>& common_flags();

// Nothing if it is anything else than an integer of 64 bits.
[[nodiscard]] std::optional<std::int64_t> whole_number(const std::string& text);

// A value that is none of those that are legal.
struct WrongChoice {
  std::string flag;
  std::string found;
  std::vector<std::string> legal;
};
[[nodiscard]] Diagnostic not_listed(const WrongChoice& wrong);  // D003

// Throws InputError D003, for what a verb finds wrong with a flag, or with several ("") together.
[[noreturn]] void refuse_flag(std::string flag, std::string what, std::string help = "");

// Targets are set by parse() and must live until then.
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

  // Throws InputError with all that is wrong: D002 for a flag that does not exist, D003 for a value
  // or argument that is wrong, missing or too many. What follows `--` is no flag.
  void parse(std::span<const std::string> words);

  [[nodiscard]] const Usage& usage() const { return usage_; }
  // The words that set the targets to what they are now, after the name of the command.
  [[nodiscard]] std::vector<std::string> words() const;

 private:
  using Set = std::function<void(const std::string&)>;
  // The values a target has; of a switch that is on, an empty one.
  using Get = std::function<std::vector<std::string>()>;

  // A flag as it was given.
  struct Given {
    const FlagSpec* spec = nullptr;
    std::string spelled;
    std::optional<std::string> value;
  };

  void add(FlagSpec spec, Set set, Get get);
  void flag(std::span<const std::string> words, std::size_t& at);
  [[nodiscard]] Given recognise(const std::string& word) const;
  void unknown(const std::string& spelled);
  void set_flag(const Given& given);
  void place_arguments(std::span<const std::string> given);
  void missing_argument(const ArgumentSpec& spec);
  void wrong(std::string flag, std::string what, std::string help);

  std::string verb_;
  Usage usage_;
  std::vector<Set> flag_setters_;  // as in usage_.flags
  std::vector<Get> flag_getters_;
  std::vector<Set> argument_setters_;  // as in usage_.arguments
  std::vector<Get> argument_getters_;
  std::vector<bool> seen_;
  std::vector<Diagnostic> problems_;
};

// The words that set options to these, to be given again.
template <class Options>
[[nodiscard]] std::vector<std::string> words_of(const std::string& verb,
                                                void (*declare)(Flags& flags, Options& options),
                                                const Options& given) {
  Options options = given;
  Flags flags(verb);
  declare(flags, options);
  return flags.words();
}

}  // namespace shiplap::cli
