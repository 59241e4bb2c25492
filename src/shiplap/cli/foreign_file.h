// Files of other tools: recognized, so that the error says what they are and what to do.
#pragma once

#include <optional>
#include <string_view>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/error.h"
#include "shiplap/base/files.h"

namespace shiplap::cli {

// Returns D008 for a model configuration, a launch script, a dump, a trace or a pipeline schedule.
// Returns nothing for a plan with errors. Looks at the beginning of the text only. `expected` is
// what the command reads.
[[nodiscard]] std::optional<Diagnostic> foreign_file_error(const SourceText& source,
                                                           std::string_view expected = "a plan");

// The same for the file of `--schedule`, which may be a plan. Returns nothing for a schedule with
// errors.
[[nodiscard]] std::optional<Diagnostic> foreign_schedule_error(const SourceText& source);

// Returns read(). If that throws InputError and foreign() knows the file, throws D008 instead.
template <class Read, class Foreign>
auto read_or_recognize(const Read& read, const Foreign& foreign) {
  try {
    return read();
  } catch (const InputError&) {
    if (const std::optional<Diagnostic> error = foreign()) throw InputError(*error);
    throw;
  }
}

}  // namespace shiplap::cli
