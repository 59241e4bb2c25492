#include "shiplap/cli/output_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "shiplap/base/files.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/flags.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"

namespace shiplap::cli {

void check_outputs(std::span<const OutputFile> outputs, bool json) {
  std::string_view first = json ? "--json" : "";
  for (const OutputFile& output : outputs) {
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
  if (output.is_standard_output()) {
    context.out.stream << text;
    return;
  }
  const std::string& file = output.file.value();
  write_text(file, text, output.flag);
  context.err.stream << fmt::format("wrote {}\n", shell_word(file));
}

std::string format_trace(const std::string& file, const trace::Trace& trace,
                         const std::string& title) {
  return file.ends_with(".json") ? trace::to_json(trace)
                                 : trace::to_perfetto(trace, {.title = title});
}

}  // namespace shiplap::cli
