// shiplap hardware: lists the built-in machines, or shows one.
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>

#include "shiplap/base/files.h"
#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/verb.h"
#include "shiplap/hardware/system.h"
#include "shiplap/report/hardware.h"
#include "shiplap/report/table.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string name;
  std::optional<std::string> output;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "NAME",
                  .help = "show this machine, or that of a file; default: list all",
                  .example = "h100",
                  .required = false,
                  .suggestions = hardware::known_systems()},
                 options.name);
  flags.file({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write the hardware file of the machine; - is standard output",
              .example = "mine.json"},
             options.output);
  flags.toggle({.name = "--json", .help = "print the list, or the hardware file, as JSON"},
               options.json);
}

std::string list_text(const report::TextStyle& style) {
  using report::Column;
  report::Table table({Column::text("name", 9), Column::text("GEMM, bf16", 9),
                       Column::text("memory", 4), Column::numbers("ranks per node", 1),
                       Column::text("within a node", 3), Column::text("between nodes", 2)});
  for (const std::string& name : hardware::known_systems()) {
    const hardware::System system = hardware::find_system(name);
    const hardware::Processor::Speed* const speed = system.matrix.usable(DType::bf16);
    const hardware::Network& inner = system.networks.front();
    table.add({name, speed == nullptr ? "" : to_string(speed->peak), system.mem1.capacity,
               fmt::format("{}", inner.size), inner.bandwidth, system.networks.back().bandwidth});
  }
  return table.text(style);
}

std::string list_json() {
  Json names = Json::array();
  for (const std::string& name : hardware::known_systems()) names.push(name);
  return to_text(Json::object({{"schema", "shiplap.hardware.list/1"}, {"systems", names}})) + "\n";
}

// Of a built-in machine or of a file.
std::string hardware_file(const std::string& name, Context& context) {
  std::error_code failure;
  if (std::filesystem::is_regular_file(name, failure))
    return read_text(name, context.in, ".json").text;
  return std::string(hardware::system_file(name));
}

ExitCode show_hardware(const Options& options, Context& context) {
  const OutputFile output{"--output", options.output.value_or("-")};
  if (options.name.empty()) {
    write_output(output, options.json ? list_json() : list_text(context.text_style()), context);
    return ExitCode::yes;
  }
  const std::string file = hardware_file(options.name, context);
  if (!options.output && !options.json) {
    context.out.stream << report::hardware_text(
        hardware::find_system(options.name), parse_json(file, options.name), context.text_style());
    return ExitCode::yes;
  }
  write_output(output, file, context);
  if (options.output && !output.is_standard_output()) {
    suggest_next(fmt::format("shiplap simulate --strategy fsdp --ranks 8 --hardware {}",
                             shell_word(*options.output)),
                 context);
  }
  return ExitCode::yes;
}

}  // namespace

Verb hardware_verb() {
  return make_verb<Options>(
      {.name = "hardware",
       .summary = "list the built-in machines, or show one: its networks, what they reach",
       .examples = {{"shiplap hardware", "the names for --hardware"},
                    {"shiplap hardware h100", "its picture and figures, with their basis"},
                    {"shiplap hardware h100 -o mine.json", "a file to change"},
                    {"shiplap simulate --strategy fsdp --ranks 8 --hardware mine.json",
                     "predict for that machine"}},
       .notes = "docs/hardware.md describes the file."},
      {.declare = declare, .run = show_hardware});
}

}  // namespace shiplap::cli
