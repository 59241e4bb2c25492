#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/hardware/system.h"
#include "shiplap_embedded_systems.h"

namespace shiplap::hardware {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.good() && !file.eof()) return std::nullopt;
  return text;
}

// The built-in system of this name, or the only one whose name starts with it: "h100". Null if
// there is none, or more than one: "h".
const embedded::File* built_in(std::string_view typed) {
  const embedded::File* found = nullptr;
  int count = 0;
  for (const embedded::File& file : embedded::system_files()) {
    if (file.name == typed) return &file;
    if (typed.empty() || !std::string_view(file.name).starts_with(typed)) continue;
    found = &file;
    ++count;
  }
  return count == 1 ? found : nullptr;
}

std::string suggest_system(const std::string& typed, const std::vector<std::string>& known) {
  const std::string near = nearest(typed, known);
  return near.empty() ? "`shiplap hardware` lists the known ones, and prints one to copy and change"
                      : fmt::format("did you mean `{}`?", near);
}

[[noreturn]] void throw_unknown_system(const std::string& name, std::string_view reason) {
  const std::vector<std::string> known = known_systems();
  throw InputError({.code = "D601",
                    .what = fmt::format("unknown system `{}`{}", name, reason),
                    .why = fmt::format("known systems: {}", fmt::join(known, ", ")),
                    .help = suggest_system(name, known)});
}

}  // namespace

std::vector<std::string> known_systems() {
  std::vector<std::string> names;
  for (const embedded::File& file : embedded::system_files()) names.emplace_back(file.name);
  return names;
}

std::string_view system_file(const std::string& name) {
  if (const embedded::File* const file = built_in(name)) return file->content;
  throw_unknown_system(name, "");
}

System find_system(const std::string& name_or_path) {
  const embedded::File* file = built_in(name_or_path);
  const bool is_whole_name = file != nullptr && file->name == name_or_path;
  if (!is_whole_name) {
    if (const std::optional<std::string> text = read_file(name_or_path)) {
      return parse_system(*text, name_or_path);
    }
  }
  // "h100_80g_nvl8.json", as Calculon and the puzzles call it.
  constexpr std::string_view kEnd = ".json";
  if (file == nullptr && name_or_path.ends_with(kEnd)) {
    const std::string stem = name_or_path.substr(0, name_or_path.size() - kEnd.size());
    file = built_in(stem);
    if (file != nullptr && file->name != stem) file = nullptr;
  }
  if (file != nullptr) return parse_system(file->content, file->name);
  throw_unknown_system(name_or_path, ", and no such file can be read");
}

}  // namespace shiplap::hardware
