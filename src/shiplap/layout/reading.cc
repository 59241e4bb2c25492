#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {
namespace {

Diagnostic about(std::string_view code, std::string_view setting, std::string what,
                 std::string help, std::string why = "") {
  return {.code = std::string(code),
          .where = {.flag = std::string(setting)},
          .what = std::move(what),
          .why = std::move(why),
          .help = std::move(help)};
}

bool is_true(std::string_view text) {
  return text == "true" || text == "True" || text == "yes" || text == "1";
}
bool is_false(std::string_view text) {
  return text == "false" || text == "False" || text == "no" || text == "0";
}

std::string scalar_text(const Json& json) {
  return json.is_string() ? json.as_string() : to_text(json, shiplap::Layout::compact);
}

void add_members(const Json& json, const std::string& prefix, Settings& settings) {
  for (const auto& [key, value] : json.as_object()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) {
      add_members(value, name, settings);
      continue;
    }
    if (value.is_null()) continue;
    Setting setting;
    if (value.is_array()) {
      for (const Json& item : value.as_array()) setting.values.push_back(scalar_text(item));
    } else {
      setting.values.push_back(scalar_text(value));
    }
    settings.set(name, std::move(setting));
  }
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

Diagnostic diagnostic_at(std::string_view text, std::size_t offset, std::string what,
                         std::string help) {
  const std::string_view before = text.substr(0, offset);
  const std::size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const std::size_t end = std::min(text.find('\n', offset), text.size());
  Diagnostic diagnostic{.where = {}, .what = std::move(what), .help = std::move(help)};
  diagnostic.where.line = 1 + static_cast<int>(std::ranges::count(before, '\n'));
  diagnostic.where.column = 1 + static_cast<int>(offset - begin);
  diagnostic.where.excerpt = text.substr(begin, end - begin);
  return diagnostic;
}

void Findings::error(std::string_view setting, std::string what, std::string help,
                     std::string why) {
  errors_.push_back(about("D606", setting, std::move(what), std::move(help), std::move(why)));
}

void Findings::cannot_read(std::string_view setting, std::string what, std::string help) {
  errors_.push_back(about("D609", setting, std::move(what), std::move(help)));
}

void Findings::cannot_read(Diagnostic diagnostic) {
  diagnostic.code = "D609";
  errors_.push_back(std::move(diagnostic));
}

void Findings::unwise(std::string_view setting, std::string what, std::string why,
                      std::string help) {
  warnings_.push_back(about("D607", setting, std::move(what), std::move(help), std::move(why)));
  warnings_.back().severity = Severity::warning;
}

void Findings::assume(std::string_view setting, std::string what, std::string why,
                      std::string help) {
  warnings_.push_back(about("D608", setting, std::move(what), std::move(help), std::move(why)));
  warnings_.back().severity = Severity::warning;
}

void Findings::add(const Findings& others) {
  errors_.insert(errors_.end(), others.errors_.begin(), others.errors_.end());
  warnings_.insert(warnings_.end(), others.warnings_.begin(), others.warnings_.end());
}

void Findings::throw_errors() const {
  if (!errors_.empty()) throw InputError(errors_);
}

void Settings::set(std::string name, Setting setting) {
  settings_.insert_or_assign(std::move(name), std::move(setting));
}

void Settings::move_as(std::string_view name, Settings& to, std::string new_name) {
  const auto found = settings_.find(name);
  if (found == settings_.end()) return;
  to.settings_.insert_or_assign(std::move(new_name), std::move(found->second));
  settings_.erase(found);
}

bool Settings::has(std::string_view name) const { return settings_.contains(name); }

bool Settings::is(std::string_view name, std::string_view value) const {
  const auto found = settings_.find(name);
  return found != settings_.end() && found->second.values.size() == 1 &&
         found->second.values[0] == value;
}

std::optional<std::int64_t> Settings::plain_integer(std::string_view name) const {
  const auto found = settings_.find(name);
  if (found == settings_.end() || found->second.values.size() != 1) return {};
  const std::optional<std::int64_t> value = parse_integer(found->second.values[0]);
  return value && *value >= 1 && *value <= kMaxSetting ? value : std::nullopt;
}

const Setting* Settings::find(std::string_view name) {
  read_.emplace(name);
  const auto found = settings_.find(name);
  if (found == settings_.end()) return nullptr;
  if (found->second.unknown.empty()) return &found->second;
  findings_->cannot_read(name, fmt::format("the value of `{}` is not known", found->second.unknown),
                         "write the value in its place, or assign it above");
  return nullptr;
}

std::optional<std::int64_t> Settings::integer(std::string_view name, std::int64_t lowest) {
  const Setting* const found = find(name);
  if (found == nullptr) return {};
  if (found->values.size() != 1) {
    findings_->cannot_read(name, fmt::format("`{}` has {} values", name, found->values.size()),
                           "give it one");
    return {};
  }
  const std::optional<std::int64_t> value = parse_integer(found->values[0]);
  if (!value || *value < lowest || *value > kMaxSetting) {
    findings_->cannot_read(
        name, fmt::format("`{}` must be {} to 2^24, not `{}`", name, lowest, found->values[0]),
        "give it a number");
    return {};
  }
  return value;
}

std::int64_t Settings::integer_or(std::string_view name, std::int64_t otherwise,
                                  std::int64_t lowest) {
  return integer(name, lowest).value_or(otherwise);
}

std::int64_t Settings::integer_assumed(std::string_view name, std::int64_t otherwise) {
  if (!has(name)) {
    findings_->assume(name, fmt::format("`{}` is missing", name),
                      fmt::format("{} is assumed", otherwise));
  }
  return integer_or(name, otherwise);
}

bool Settings::flag(std::string_view name, bool otherwise) {
  const Setting* const found = find(name);
  if (found == nullptr) return otherwise;
  if (found->values.empty() || is_true(found->values[0])) return true;
  if (is_false(found->values[0])) return false;
  findings_->cannot_read(
      name, fmt::format("`{}` must be true or false, not `{}`", name, found->values[0]),
      "use true or false");
  return otherwise;
}

std::optional<std::string> Settings::word(std::string_view name) {
  const Setting* const found = find(name);
  if (found == nullptr) return {};
  if (found->values.size() == 1) return found->values[0];
  findings_->cannot_read(name, fmt::format("`{}` has {} values", name, found->values.size()),
                         "give it one");
  return {};
}

std::vector<std::string> Settings::words(std::string_view name) {
  const Setting* const found = find(name);
  return found == nullptr ? std::vector<std::string>() : found->values;
}

void Settings::wrong_choice(std::string_view name, const std::string& found,
                            std::span<const std::string> choices) {
  findings_->error(name, fmt::format("`{}` cannot be `{}` here", name, found),
                   suggest(found, choices));
}

std::vector<std::string> Settings::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, setting] : settings_) {
    if (!read_.contains(name)) names.push_back(name);
  }
  return names;
}

std::string file_of_command(std::string_view text, std::string_view suffix) {
  constexpr std::string_view kEnds = " \t\r\n=\"'";
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(kEnds), text.size());
    const std::string_view word = text.substr(0, end);
    if (word.ends_with(suffix) && word.size() <= 200) return std::string(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return "";
}

void add_settings(const Json& json, Settings& settings) { add_members(json, "", settings); }

void report_unread(const Settings& settings, std::span<const std::string> known) {
  for (const std::string& name : settings.unread()) {
    if (std::ranges::binary_search(known, name)) continue;
    const std::string near = name.size() > 80 ? "" : nearest(name, known);
    settings.findings().assume(name, fmt::format("`{}` is not understood", name),
                               "it is assumed not to change the layout",
                               near.empty() ? "" : fmt::format("did you mean `{}`?", near));
  }
}

std::int64_t data_ranks(const Layout& layout, std::int64_t ranks, Findings& findings) {
  const double others = static_cast<double>(layout.tensor) * static_cast<double>(layout.context) *
                        static_cast<double>(layout.pipeline);
  if (others <= static_cast<double>(ranks)) {
    const std::int64_t product = layout.tensor * layout.context * layout.pipeline;
    if (ranks % product == 0) return ranks / product;
  }
  findings.error(
      "",
      fmt::format("tensor {} x context {} x pipeline {} must divide the {} ranks", layout.tensor,
                  layout.context, layout.pipeline, ranks),
      fmt::format("use {} ranks, or other sizes", others <= static_cast<double>(kMaxSetting)
                                                      ? fmt::format("{:.0f}", others)
                                                      : "more"));
  return 1;
}

LayoutFile finish_reading(LayoutFile file, const workload::Model& model, Findings& findings) {
  findings.throw_errors();
  std::vector<Diagnostic> errors = check_layout(file.layout, model);
  std::erase_if(errors, [](const Diagnostic& d) { return d.severity != Severity::error; });
  if (!errors.empty()) throw InputError(std::move(errors));
  file.warnings = findings.warnings();
  return file;
}

void leave_out_mtp(Layout& layout, const workload::Model& model, Framework framework,
                   Findings& findings) {
  if (model.mtp.empty()) return;
  findings.assume("",
                  fmt::format("{} does not train the {} modules for further tokens",
                              name(framework), model.mtp.size()),
                  "they are left out");
  const std::int64_t count = layout.pipeline * layout.chunks;
  if (layout.stages.empty() && std::ssize(model.layers) % count == 0) {
    layout.stages = stages_of(layout, model);
  }
  if (!layout.stages.empty()) layout.stages.back().mtp = 0;
}

void throw_no_words(Framework framework, const std::string& what, const std::string& help) {
  throw InputError(Diagnostic{.code = "D606",
                              .where = {},
                              .what = fmt::format("{} has no words for {}", name(framework), what),
                              .help = help});
}

}  // namespace shiplap::layout
