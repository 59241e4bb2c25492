#include "shiplap/cli/output_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <system_error>

#include "shiplap/base/files.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/flags.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"

namespace shiplap::cli {
namespace {

// Also if neither exists yet.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::equivalent(a, b, ignored);
}

void check_distinct(const OutputFile& output, std::span<const OutputFile> before,
                    const std::string& input) {
  if (!output.file || output.is_standard_output()) return;
  if (!input.empty() && is_same_file(*output.file, input)) {
    throw_flag_error(std::string(output.flag),
                     fmt::format("{} would overwrite the input", shell_word(*output.file)),
                     "use another name");
  }
  for (const OutputFile& other : before) {
    if (!other.file || !is_same_file(*output.file, *other.file)) continue;
    throw_flag_error(std::string(output.flag),
                     fmt::format("{} and {} write the same file", other.flag, output.flag),
                     "use two names");
  }
}

}  // namespace

void check_outputs(std::span<const OutputFile> outputs, bool json, const std::string& input) {
  std::string_view first = json ? "--json" : "";
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const OutputFile& output = outputs[k];
    check_distinct(output, outputs.first(k), input);
    check_writable(output.file, output.flag);
    if (!output.is_standard_output()) continue;
    if (!first.empty()) {
      throw_flag_error(std::string(output.flag),
                       fmt::format("`{} -` and `{}` both write to standard output", output.flag,
                                   first == "--json" ? "--json" : fmt::format("{} -", first)),
                       fmt::format("name a file after {}", output.flag));
    }
    first = output.flag;
  }
}

Context answer_context(std::span<const OutputFile> outputs, const Context& context) {
  const bool is_used = std::ranges::any_of(outputs, &OutputFile::is_standard_output);
  return {.in = context.in,
          .out = is_used ? context.err : context.out,
          .err = context.err,
          .columns = context.columns,
          .progress = context.progress};
}

void write_output(const OutputFile& output, std::string_view text, Context& context) {
  const std::string file = output.file.value_or("-");
  if (file == "-") {
    context.out.stream << text;
    return;
  }
  write_text(file, text, output.flag);
  context.err.stream << fmt::format("wrote {}\n", shell_word(file));
}

std::string format_trace(const std::string& file, const trace::Trace& trace,
                         const std::string& title) {
  return file.ends_with(".json") ? trace::to_json(trace)
                                 : trace::to_perfetto(trace, {.title = title});
}

}  // namespace shiplap::cli
