// Hand-written: messages, help and completion are our own anyway. A library would only separate
// flags from values, which is the few functions below.
#include "shiplap/cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/cli/foreign_flags.h"

namespace shiplap::cli {
namespace {

bool looks_like_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

std::string_view without_dashes(std::string_view word) {
  while (word.starts_with('-')) word.remove_prefix(1);
  return word;
}

std::string join_with_commas(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

template <class T>
std::vector<std::string> format_value(const std::optional<T>& target) {
  return target ? std::vector{fmt::format("{}", *target)} : std::vector<std::string>();
}

}  // namespace

std::vector<std::string> parse_list(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(", "), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::optional<double> parse_decimal(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos &&
                     std::ranges::count(text, '.') <= 1 && text != ".";
  if (!plain) return std::nullopt;
  return std::strtod(text.c_str(), nullptr);
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

Diagnostic invalid_choice_error(const InvalidChoice& wrong) {
  const bool near = !nearest(wrong.found, wrong.legal).empty();
  return {.code = "D003",
          .where = {.flag = wrong.flag},
          .what = fmt::format("invalid value `{}` for `{}`", wrong.found, wrong.flag),
          .why = near ? "valid values: " + join_with_commas(wrong.legal) : "",
          .help = suggest(wrong.found, wrong.legal)};
}

void throw_flag_error(std::string flag, std::string what, std::string help) {
  throw_argument_error(std::move(flag), std::move(what), std::move(help));
}

const std::vector<FlagSpec>& common_flags() {
  static const std::vector<FlagSpec> kFlags = {
      {.name = "--color",
       .value = "WHEN",
       .help = "auto, always or never; auto colours terminals only and respects NO_COLOR",
       .example = "never",
       .values = Values::listed,
       .choices = {"auto", "always", "never"}},
      {.name = "--help", .letter = "-h", .help = "print this help"},
  };
  return kFlags;
}

void Flags::argument(ArgumentSpec spec, std::string& target) {
  usage_.arguments.push_back(std::move(spec));
  argument_setters_.emplace_back([&target](const std::string& word) { target = word; });
  argument_getters_.emplace_back(
      [&target] { return target.empty() ? std::vector<std::string>() : std::vector{target}; });
}

void Flags::arguments(ArgumentSpec spec, std::vector<std::string>& target) {
  spec.repeated = true;
  usage_.arguments.push_back(std::move(spec));
  argument_setters_.emplace_back([&target](const std::string& word) { target.push_back(word); });
  argument_getters_.emplace_back([&target] { return target; });
}

void Flags::add(FlagSpec spec, Set set, Get get) {
  usage_.flags.push_back(std::move(spec));
  flag_setters_.push_back(std::move(set));
  flag_getters_.push_back(std::move(get));
  seen_.push_back(false);
}

void Flags::toggle(FlagSpec spec, bool& target) {
  add(
      std::move(spec), [&target](const std::string&) { target = true; },
      [&target] { return std::vector<std::string>(target ? 1 : 0); });
}

void Flags::file(FlagSpec spec, std::optional<std::string>& target) {
  if (spec.value.empty()) spec.value = "FILE";
  spec.values = Values::files;
  text(std::move(spec), target);
}

void Flags::text(FlagSpec spec, std::optional<std::string>& target) {
  if (!spec.choices.empty()) spec.values = Values::listed;
  add(
      std::move(spec), [&target](const std::string& value) { target = value; },
      [&target] { return format_value(target); });
}

void Flags::count(FlagSpec spec, std::optional<std::int64_t>& target) {
  if (spec.value.empty()) spec.value = "N";
  const std::string name = spec.name;
  const std::string example = spec.example;
  const auto set = [this, &target, name, example](const std::string& value) {
    target = parse_integer(value);
    if (target.value_or(-1) >= 0) return;
    add_error(name, fmt::format("expected a whole number, found `{}`", value),
              fmt::format("write for instance `{} {}`", name, example));
  };
  add(std::move(spec), set, [&target] { return format_value(target); });
}

std::vector<std::string> Flags::to_arguments() const {
  std::vector<std::string> words{verb_};
  for (const Get& get : argument_getters_) {
    for (std::string& word : get()) words.push_back(std::move(word));
  }
  for (std::size_t k = 0; k < flag_getters_.size(); ++k) {
    for (std::string& value : flag_getters_[k]()) {
      words.push_back(usage_.flags[k].name);
      if (!usage_.flags[k].value.empty()) words.push_back(std::move(value));
    }
  }
  return words;
}

void Flags::parse(std::span<const std::string> words) {
  std::vector<std::string> arguments;
  bool flags_ended = false;
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (!flags_ended && words[at] == "--") {
      flags_ended = true;
    } else if (!flags_ended && looks_like_flag(words[at]) && !is_foreign(words, at)) {
      parse_flag(words, at);
    } else {
      arguments.push_back(words[at]);
    }
  }
  // The value of an unknown flag would be taken for an argument, so report the flag only.
  const bool unknown_flag = std::ranges::any_of(
      problems_, [](const Diagnostic& problem) { return problem.code == "D002"; });
  if (!unknown_flag) assign_arguments(arguments);
  if (!problems_.empty()) throw InputError(std::exchange(problems_, {}));
}

const FlagSpec* Flags::foreign_flag() const {
  const auto found = std::ranges::find(usage_.flags, true, &FlagSpec::before_foreign_flags);
  return found == usage_.flags.end() ? nullptr : &*found;
}

bool Flags::is_foreign(std::span<const std::string> words, std::size_t at) const {
  const FlagSpec* const foreign = foreign_flag();
  if (foreign == nullptr || match_flag(words[at]).spec != nullptr) return false;
  const bool follows = (at >= 1 && words[at - 1].starts_with(foreign->name + "=")) ||
                       (at >= 2 && words[at - 2] == foreign->name);
  return follows || words[at].find_first_of(" \t\n") != std::string::npos;
}

// `--name`, `--name=value`, `-n`, `-nvalue`.
Flags::ParsedFlag Flags::match_flag(const std::string& word) const {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  for (const FlagSpec& spec : usage_.flags) {
    if (name == spec.name || (!spec.old_name.empty() && name == spec.old_name)) {
      ParsedFlag given{.spec = &spec, .spelled = name};
      if (equals != word.npos) given.value = word.substr(equals + 1);
      return given;
    }
    if (!spec.letter.empty() && word.starts_with(spec.letter)) {
      ParsedFlag given{.spec = &spec, .spelled = spec.letter};
      if (word.size() > spec.letter.size()) given.value = word.substr(spec.letter.size());
      return given;
    }
  }
  return {.spelled = name};
}

void Flags::parse_flag(std::span<const std::string> words, std::size_t& at) {
  ParsedFlag given = match_flag(words[at]);
  if (given.spec == nullptr) return add_unknown_flag(given.spelled, words);
  const FlagSpec& spec = *given.spec;
  if (given.spelled == spec.old_name) {
    notes_.push_back(fmt::format("note: `{}` is now called `{}`", spec.old_name, spec.name));
  }
  if (spec.value.empty()) {
    if (!given.value) return set_flag(given);
    return add_error(given.spelled,
                     fmt::format("`{}` takes no value, found `{}`", given.spelled, *given.value),
                     fmt::format("write `{}`", given.spelled));
  }
  const bool follows = at + 1 < words.size() && !words[at + 1].starts_with("--");
  if (!given.value && follows) given.value = words[++at];
  if (given.value && !given.value->empty()) return set_flag(given);
  add_error(given.spelled, fmt::format("`{}` needs a value", given.spelled),
            fmt::format("write for instance `{} {}`", given.spelled, spec.example));
}

bool Flags::has_flag(std::string_view name) const {
  return std::ranges::find(usage_.flags, name, &FlagSpec::name) != usage_.flags.end();
}

std::string Flags::unknown_flag_help(const std::string& spelled,
                                     std::span<const std::string> words) const {
  if (mesh_axis(spelled) && has_flag("--mesh")) {
    const std::string mesh = mesh_of_flags(words);
    const FlagSpec* const foreign = foreign_flag();
    return fmt::format(
        "one flag sets the sizes of all axes: `--mesh {}`{}",
        mesh.empty() ? "dp=2,pp=4,tp=8" : mesh,
        foreign == nullptr
            ? ""
            : fmt::format("; how a model is split is said in the words of its framework: "
                          "`--model llama3-70b {} {} '--its-flag 8 --another'`",
                          foreign->name, foreign->example));
  }
  if (const FlagSpec* foreign = foreign_flag();
      foreign != nullptr && std::ranges::find(words, foreign->name) != words.end()) {
    return fmt::format("quote the flags of the framework: {} {} '--its-flag 8 --another'",
                       foreign->name, foreign->example);
  }
  const std::optional<std::string> local = local_flag(spelled);
  return local && has_flag(*local) ? fmt::format("here it is called `{}`", *local) : "";
}

void Flags::add_unknown_flag(const std::string& spelled, std::span<const std::string> words) {
  Diagnostic problem{.code = "D002",
                     .where = {.flag = spelled},
                     .what = fmt::format("`{}` has no flag `{}`", verb_, spelled),
                     .help = unknown_flag_help(spelled, words)};
  const auto same = [&](const Diagnostic& other) { return other.help == problem.help; };
  if (!problem.help.empty()) {
    if (std::ranges::none_of(problems_, same)) problems_.push_back(std::move(problem));
    return;
  }
  std::vector<std::string> names;
  std::vector<std::string> bare;  // a dash too few must not count as a wrong letter
  const auto add_names = [&](const std::vector<FlagSpec>& flags) {
    for (const FlagSpec& spec : flags) {
      names.push_back(spec.name);
      bare.emplace_back(without_dashes(spec.name));
    }
  };
  add_names(usage_.flags);
  add_names(common_flags());
  const std::string near = nearest(without_dashes(spelled), bare);
  problem.why = near.empty() ? "" : "its flags are " + join_with_commas(names);
  problem.help = near.empty() ? suggest(spelled, names) : fmt::format("did you mean `--{}`?", near);
  problems_.push_back(std::move(problem));
}

void Flags::set_flag(const ParsedFlag& given) {
  const FlagSpec& spec = *given.spec;
  const auto index = static_cast<std::size_t>(&spec - usage_.flags.data());
  if (seen_[index]) {
    return add_error(given.spelled, fmt::format("`{}` is given twice", given.spelled),
                     "give it once");
  }
  seen_[index] = true;
  const std::string value = given.value.value_or("");
  if (spec.values == Values::listed &&
      std::ranges::find(spec.choices, value) == spec.choices.end()) {
    problems_.push_back(
        invalid_choice_error({.flag = given.spelled, .found = value, .legal = spec.choices}));
    return;
  }
  flag_setters_[index](value);
}

void Flags::assign_arguments(std::span<const std::string> given) {
  std::size_t next = 0;
  for (std::size_t k = 0; k < usage_.arguments.size(); ++k) {
    const ArgumentSpec& spec = usage_.arguments[k];
    if (next == given.size() && spec.required) add_missing_argument(spec);
    const std::size_t end = spec.repeated ? given.size() : std::min(next + 1, given.size());
    for (; next < end; ++next) {
      const bool legal = spec.values != Values::listed || spec.choices.empty() ||
                         std::ranges::find(spec.choices, given[next]) != spec.choices.end();
      if (legal) {
        argument_setters_[k](given[next]);
      } else {
        problems_.push_back(
            invalid_choice_error({.flag = spec.name, .found = given[next], .legal = spec.choices}));
      }
    }
  }
  for (; next < given.size(); ++next) {
    const std::string takes =
        usage_.arguments.empty() ? "no argument" : fmt::format("only {}", usage_.arguments[0].name);
    add_error("", fmt::format("unexpected argument `{}`: `{}` takes {}", given[next], verb_, takes),
              "remove it; quote a name that contains spaces");
  }
}

void Flags::add_missing_argument(const ArgumentSpec& spec) {
  add_error("", fmt::format("`{}` needs {}: {}", verb_, spec.name, spec.help),
            fmt::format("write for instance `shiplap {} {}`", verb_, spec.example));
}

void Flags::add_error(std::string flag, std::string what, std::string help) {
  problems_.push_back({.code = "D003",
                       .where = {.flag = std::move(flag)},
                       .what = std::move(what),
                       .help = std::move(help)});
}

}  // namespace shiplap::cli
