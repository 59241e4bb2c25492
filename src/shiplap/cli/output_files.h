// Files that commands write in addition to their answer. `-` is standard output; the answer then
// goes to standard error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shiplap/cli/context.h"
#include "shiplap/trace/trace.h"

namespace shiplap::cli {

struct OutputFile {
  std::string_view flag;  // "--plan"
  std::optional<std::string> file;

  [[nodiscard]] bool is_standard_output() const { return file == "-"; }
};

// To be called before hours of work. Throws InputError: D005 if a file is not writable, D003 if two
// outputs go to standard output (with `json`, the answer does) or to one file, or if an output is
// the file `input`.
void check_outputs(std::span<const OutputFile> outputs, bool json, const std::string& input = "");

// Returns the context of the answer.
[[nodiscard]] Context answer_context(std::span<const OutputFile> outputs, const Context& context);

// Writes to standard output if no file is given; otherwise prints "wrote FILE" on standard error.
// Throws InputError D005.
void write_output(const OutputFile& output, std::string_view text, Context& context);

// For ui.perfetto.dev, or JSON if the name of the file ends in .json.
[[nodiscard]] std::string format_trace(const std::string& file, const trace::Trace& trace,
                                       const std::string& title);

}  // namespace shiplap::cli
