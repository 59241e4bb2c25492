// One command of the program: a small value. To add one, write cli/verb_NAME.cc with a function
// that returns it, and name that function in cli/verbs.cc.
#pragma once

#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "shiplap/cli/context.h"
#include "shiplap/cli/flags.h"

namespace shiplap::cli {

struct Example {
  std::string command;      // "shiplap show step.plan"
  std::string description;  // its purpose
};

struct VerbInfo {
  std::string name;
  std::string summary;  // one line
  std::vector<Example> examples;
  std::string notes;  // printed at the end of --help; may be empty
};

struct Verb {
  VerbInfo info;
  std::function<Usage()> usage;
  // Throws InputError if the arguments or the files they name are invalid.
  std::function<ExitCode(std::span<const std::string> arguments, Context& context)> run;
};

// `declare` binds flags to fields of Options; `run` gets the parsed options.
template <class Options>
struct VerbFunctions {
  void (*declare)(Flags& flags, Options& options);
  ExitCode (*run)(const Options& options, Context& context);
};

template <class Options>
[[nodiscard]] Verb make_verb(const VerbInfo& info, VerbFunctions<Options> functions) {
  const std::string name = info.name;
  return {.info = info,
          .usage =
              [name, functions] {
                Options options;
                Flags flags(name);
                functions.declare(flags, options);
                return flags.usage();
              },
          .run =
              [name, functions](std::span<const std::string> arguments, Context& context) {
                Options options;
                Flags flags(name);
                functions.declare(flags, options);
                flags.parse(arguments);
                for (const std::string& note : flags.notes()) context.err.stream << note << '\n';
                return functions.run(options, context);
              }};
}

}  // namespace shiplap::cli
