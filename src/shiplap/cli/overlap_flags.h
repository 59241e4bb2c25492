// The flags of `shiplap overlap`.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/cli/flags.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/overlap/query.h"

namespace shiplap::cli {

struct OverlapOptions {
  overlap::Query query;
  std::optional<std::string> calibrate;
  std::optional<std::string> backend;
  std::optional<std::string> report;
  std::optional<std::string> trace;
  std::optional<std::string> output;
  bool list = false;
  bool json = false;
};

void declare_overlap(Flags& flags, OverlapOptions& options);
// Throws InputError D003 if flags contradict each other, D005 if a file cannot be written.
void check_overlap(const OverlapOptions& options);

// Returns the query, with the contents of the file `calibration`. Throws InputError D003, D004.
[[nodiscard]] overlap::Query query_of(const OverlapOptions& options, std::istream& in);
// Writes the requested plan, report and trace.
void write_files(const OverlapOptions& options, const overlap::Study& study, Context& context);
[[nodiscard]] std::vector<OutputFile> outputs_of(const OverlapOptions& options);

// The command line that sets these options.
[[nodiscard]] std::vector<std::string> to_arguments(const OverlapOptions& options);

}  // namespace shiplap::cli
