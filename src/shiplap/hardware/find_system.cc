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

// Completes an abbreviated name such as `h100`; otherwise suggests a similar name.
std::string suggest_system(const std::string& typed, const std::vector<std::string>& known) {
  for (const std::string& name : known) {
    if (!typed.empty() && name.starts_with(typed)) return fmt::format("did you mean `{}`?", name);
  }
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
  for (const embedded::File& file : embedded::system_files()) {
    if (file.name == name) return file.content;
  }
  throw_unknown_system(name, "");
}

System find_system(const std::string& name_or_path) {
  for (const embedded::File& file : embedded::system_files()) {
    if (file.name == name_or_path) return parse_system(file.content, file.name);
  }
  if (const std::optional<std::string> text = read_file(name_or_path)) {
    return parse_system(*text, name_or_path);
  }
  throw_unknown_system(name_or_path, ", and no such file can be read");
}

}  // namespace shiplap::hardware
