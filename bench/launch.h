// Starts a worker on ranks with tools/ranks and reads its output.
#pragma once

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "shiplap/base/json.h"

namespace shiplap {

inline std::string output_of(const std::string& command) {
  const auto close = [](FILE* pipe) { return pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(popen(command.c_str(), "r"),  // NOLINT
                                                    close);
  if (pipe == nullptr) throw std::runtime_error("cannot start: " + command);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    text.append(buffer.data(), count);
  }
  return text;
}

// `program` is in the folder of this one. Returns null, after an error message of tools/ranks on
// stderr, if it failed.
inline Json worker(const std::string& launch, const std::string& program,
                   const std::string& arguments) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string text =
      output_of(std::string(SHIPLAP_SOURCE) + "/tools/ranks " + launch + " --timeout 600 " +
                (folder / program).string() + " " + arguments);
  if (text.empty()) return {};
  return parse_json(text, program);
}

}  // namespace shiplap
