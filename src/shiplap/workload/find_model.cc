#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/base/files.h"
#include "shiplap/base/suggest.h"
#include "shiplap/workload/model.h"
#include "shiplap_embedded_models.h"

namespace shiplap::workload {

std::vector<std::string> known_models() {
  std::vector<std::string> names;
  for (const embedded::File& file : embedded::model_files()) names.emplace_back(file.name);
  return names;
}

ModelFile find_model(const std::string& name_or_path) {
  for (const embedded::File& file : embedded::model_files()) {
    if (file.name == name_or_path) return parse_model(file.content, file.name);
  }
  std::error_code failure;
  std::filesystem::path path = name_or_path;
  if (std::filesystem::is_directory(path, failure)) path /= "config.json";
  if (std::filesystem::exists(path, failure)) {
    std::istringstream nothing;
    const SourceText source = read_text(path.string(), nothing, "config.json");
    ModelFile found = parse_model(source.text, source.file);
    // A config.json is known by its folder.
    if (path.filename() == "config.json" && path.has_parent_path()) {
      found.model.name = std::filesystem::absolute(path).parent_path().filename().string();
    }
    return found;
  }
  const std::vector<std::string> known = known_models();
  const std::string near = nearest(name_or_path, known);
  throw InputError(Diagnostic{
      .code = "D605",
      .what = fmt::format("unknown model `{}`, and no such file can be read", name_or_path),
      .why = fmt::format("known models: {}", fmt::join(known, ", ")),
      .help = near.empty() ? "give the path of a config.json" : suggest(name_or_path, known)});
}

}  // namespace shiplap::workload
