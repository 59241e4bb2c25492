#include "shiplap/cli/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "shiplap/base/suggest.h"
#include "shiplap/plan/text.h"

namespace shiplap::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNamesTried = 10'000;

// As the operating system says it, but as part of a sentence.
std::string reason(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  return text;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (names.size() == kMostNamesTried) break;
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);  // the order of a folder is not the same everywhere
  return names;
}

// Editors put one in front, and nobody sees it.
std::string without_byte_order_mark(std::string text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  return text;
}

// For a file that is not there: a name like it in the same folder, or the folder that is missing.
std::string missing_file_help(const fs::path& path) {
  const fs::path folder = path.parent_path();
  std::error_code ignored;
  if (!folder.empty() && !fs::exists(folder, ignored)) {
    return fmt::format("there is no folder `{}`", folder.string());
  }
  const std::string near =
      nearest(path.filename().string(), names_in(folder.empty() ? fs::path(".") : folder));
  if (near.empty()) return "names are relative to the folder in which the command runs";
  return fmt::format("did you mean `{}`?", (folder / near).string());
}

std::string directory_help(const fs::path& path) {
  for (const std::string& name : names_in(path)) {
    if (name.ends_with(".plan")) {
      return fmt::format("name a file inside it, for instance `{}`", (path / name).string());
    }
  }
  return "name a file inside it";
}

[[noreturn]] void cannot_read(const std::string& file, int error) {
  std::string help;
  if (error == ENOENT || error == ENOTDIR) help = missing_file_help(file);
  if (error == EISDIR) help = directory_help(file);
  throw InputError(Diagnostic{.code = "D004",
                              .where = {.file = file},
                              .what = "cannot read the file: " + reason(error),
                              .help = std::move(help)});
}

std::string all_of(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string line_of(std::string_view text, int line) {
  for (; line > 1; --line) {
    const std::size_t end = text.find('\n');
    if (end == text.npos) return "";
    text.remove_prefix(end + 1);
  }
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

std::string SourceText::short_name() const {
  const std::string name = fs::path(file).filename().string();
  return name.empty() ? file : name;
}

SourceText read_text(const std::string& file, Context& context) {
  if (file == "-") {
    return {.file = "standard input", .text = without_byte_order_mark(all_of(context.in))};
  }
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) cannot_read(file, EISDIR);
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) cannot_read(file, errno != 0 ? errno : EIO);
  SourceText source{.file = file, .text = without_byte_order_mark(all_of(stream))};
  if (stream.bad()) cannot_read(file, errno != 0 ? errno : EIO);
  return source;
}

void write_text(const std::string& file, std::string_view text, std::string_view flag) {
  std::error_code ignored;
  errno = fs::is_directory(file, ignored) ? EISDIR : 0;
  if (errno == 0) {
    std::ofstream stream(file, std::ios::binary);
    stream << text;
    stream.close();
    if (stream) return;
  }
  const int error = errno != 0 ? errno : EIO;
  std::string help;
  const fs::path folder = fs::path(file).parent_path();
  if (error == ENOENT && !folder.empty()) {
    help = fmt::format("create the folder: `mkdir -p {}`", folder.string());
  }
  throw InputError(Diagnostic{.code = "D005",
                              .where = {.file = file, .flag = std::string(flag)},
                              .what = "cannot write the file: " + reason(error),
                              .help = std::move(help)});
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

void declare_plan_file(Flags& flags, std::string& file) {
  flags.argument({.name = "FILE",
                  .help = "a plan, as text or as JSON; `-` is standard input",
                  .example = "step.plan",
                  .values = Values::files},
                 file);
}

void suggest_next(std::string_view command, Context& context) {
  context.err.stream << painted("next: ", kDim, context.err.colour) << command << '\n';
}

LoadedPlan load_plan(const std::string& file, Context& context) {
  LoadedPlan loaded{.source = read_text(file, context)};
  loaded.plan = plan::parse_plan(loaded.source.text, loaded.source.file);
  return loaded;
}

Diagnostic placed(Diagnostic diagnostic, const SourceText& source) {
  Where& where = diagnostic.where;
  if (where.file.empty() && where.flag.empty()) where.file = source.file;
  if (where.line > 0 && where.excerpt.empty()) where.excerpt = line_of(source.text, where.line);
  return diagnostic;
}

}  // namespace shiplap::cli
