// What the readers of all frameworks share: named settings whose values are text, and the
// diagnostics about them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/json.h"
#include "shiplap/layout/framework.h"

namespace shiplap::layout {

inline constexpr std::int64_t kMaxSetting = std::int64_t{1} << 24;

// None if it is not all of the text.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text);

// The diagnostics of one text.
class Findings {
 public:
  // D606: `setting` contradicts another one, or the model.
  void error(std::string_view setting, std::string what, std::string help, std::string why = "");
  // D609.
  void cannot_read(std::string_view setting, std::string what, std::string help);
  void cannot_read(Diagnostic diagnostic);
  // D607.
  void unwise(std::string_view setting, std::string what, std::string why, std::string help = "");
  // D608: `setting` is not understood, or missing.
  void assume(std::string_view setting, std::string what, std::string why, std::string help = "");

  void add(const Findings& others);

  // Throws the errors, if there are any.
  void throw_errors() const;
  [[nodiscard]] std::vector<Diagnostic> warnings() const { return warnings_; }

 private:
  std::vector<Diagnostic> errors_;
  std::vector<Diagnostic> warnings_;
};

// A diagnostic with the line of `text` that has `offset`.
[[nodiscard]] Diagnostic diagnostic_at(std::string_view text, std::size_t offset, std::string what,
                                       std::string help);

struct Setting {
  std::vector<std::string> values;
  std::string unknown;  // a variable of the shell whose value the text does not have: "$TP"
};

// Named settings. Remembers which were read.
class Settings {
 public:
  explicit Settings(Findings& findings) : findings_(&findings) {}

  // The last of several settings of one name counts.
  void set(std::string name, Setting setting);
  [[nodiscard]] bool has(std::string_view name) const;
  // That it is there, with this value.
  [[nodiscard]] bool is(std::string_view name, std::string_view value) const;
  // Does nothing if there is none.
  void move(std::string_view name, Settings& to) { move_as(name, to, std::string(name)); }
  void move_as(std::string_view name, Settings& to, std::string new_name);

  // None if there is no such setting, or one that is no positive integer.
  [[nodiscard]] std::optional<std::int64_t> plain_integer(std::string_view name) const;

  // The functions below report a value that they cannot read, and then give `otherwise`.

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, std::int64_t lowest = 1);
  [[nodiscard]] std::int64_t integer_or(std::string_view name, std::int64_t otherwise,
                                        std::int64_t lowest = 1);
  // Warns if there is none.
  [[nodiscard]] std::int64_t integer_assumed(std::string_view name, std::int64_t otherwise);
  // One that is there without a value is true.
  [[nodiscard]] bool flag(std::string_view name, bool otherwise = false);
  // None if there is no such setting.
  [[nodiscard]] std::optional<std::string> word(std::string_view name);
  // One of `choices`, each with what it means.
  template <class T>
  [[nodiscard]] T choice(std::string_view name, T otherwise,
                         std::initializer_list<std::pair<std::string_view, T>> choices) {
    const std::optional<std::string> found = word(name);
    if (!found) return otherwise;
    std::vector<std::string> names;
    for (const auto& [spelling, value] : choices) {
      if (*found == spelling) return value;
      names.emplace_back(spelling);
    }
    wrong_choice(name, *found, names);
    return otherwise;
  }
  [[nodiscard]] std::vector<std::string> words(std::string_view name);

  // The names of all settings that nobody asked for.
  [[nodiscard]] std::vector<std::string> unread() const;
  [[nodiscard]] Findings& findings() const { return *findings_; }

 private:
  // Null if there is none, or none that can be read.
  const Setting* find(std::string_view name);
  void wrong_choice(std::string_view name, const std::string& found,
                    std::span<const std::string> choices);

  std::map<std::string, Setting, std::less<>> settings_;
  std::set<std::string, std::less<>> read_;
  Findings* findings_;
};

// Flags, `--name value ..` or `--name=value`: those before the script, and assigned variables, are
// the launcher's.
struct CommandLine {
  Settings launcher;
  Settings flags;
};
[[nodiscard]] CommandLine command_line(std::string_view text, Findings& findings);

// Ranks and ranks of a machine as the launcher has them.
struct LaunchedRanks {
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> per_machine;
  bool reported = false;  // a value that cannot be read
};
// Reports values that it cannot read only if it `must_know`.
[[nodiscard]] LaunchedRanks launched_ranks(Settings& launcher, bool must_know);
// A launcher of so many ranks, on machines of at most 8: "torchrun --nnodes 2 --nproc-per-node 8".
[[nodiscard]] std::string torchrun(std::int64_t ranks);

// The first word of a command that ends with `suffix`, as of a file; "" if there is none.
[[nodiscard]] std::string file_of_command(std::string_view text, std::string_view suffix);

// Members of nested objects as settings: "zero_optimization.stage".
void add_settings(const Json& json, Settings& settings);

// Mappings and lists of YAML and TOML as settings, named in the same way. Only what configuration
// files have: scalars, lists of scalars, mappings by indentation, `[section]`s. Reports the rest.
void add_yaml(std::string_view text, Settings& settings);
void add_toml(std::string_view text, Settings& settings);

// The unread settings: `known` ones have no effect on a layout, others are not understood.
void report_unread(const Settings& settings, std::span<const std::string> known);

// The data parallel ranks that the other sizes leave of `ranks`; 1 if there is an error.
[[nodiscard]] std::int64_t data_ranks(const Layout& layout, std::int64_t ranks, Findings& findings);

// The findings about a whole layout. Throws all errors.
[[nodiscard]] LayoutFile finish_reading(LayoutFile file, const workload::Model& model,
                                        Findings& findings);

// Writes out the stages without modules for further tokens, if the model has some: the framework
// cannot train them.
void leave_out_mtp(Layout& layout, const workload::Model& model, Framework framework,
                   Findings& findings);

// Throws D606: the framework has no words for this.
[[noreturn]] void throw_no_words(Framework framework, const std::string& what,
                                 const std::string& help);

[[nodiscard]] LayoutFile read_megatron(std::string_view text, const workload::Model& model,
                                       std::optional<std::int64_t> ranks);
[[nodiscard]] std::string write_megatron(const Layout& layout, const workload::Model& model);
[[nodiscard]] LayoutFile read_torchtitan(std::string_view text, const workload::Model& model,
                                         std::optional<std::int64_t> ranks);
[[nodiscard]] std::string write_torchtitan(const Layout& layout, const workload::Model& model);
[[nodiscard]] LayoutFile read_deepspeed(std::string_view text, const workload::Model& model,
                                        std::optional<std::int64_t> ranks);
[[nodiscard]] std::string write_deepspeed(const Layout& layout, const workload::Model& model);
[[nodiscard]] LayoutFile read_accelerate(std::string_view text, const workload::Model& model,
                                         std::optional<std::int64_t> ranks);
[[nodiscard]] std::string write_accelerate(const Layout& layout, const workload::Model& model);

}  // namespace shiplap::layout
