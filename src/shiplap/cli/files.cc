#include "shiplap/cli/files.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cli/foreign_file.h"
#include "shiplap/plan/text.h"

namespace shiplap::cli {

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command = "shiplap";
  for (const std::string& word : words) command += " " + shell_word(word);
  return command;
}

void suggest_next(std::string_view command, Context& context) {
  context.err.stream << report::styled("next: ", report::kDim, context.err.colour) << command
                     << '\n';
}

LoadedPlan load_plan(const std::string& file, Context& context) {
  LoadedPlan loaded{.source = read_text(file, context.in)};
  loaded.plan =
      read_or_recognize([&] { return plan::parse_plan(loaded.source.text, loaded.source.file); },
                        [&] { return foreign_file_error(loaded.source); });
  return loaded;
}

}  // namespace shiplap::cli
