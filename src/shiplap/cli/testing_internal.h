// Runs a command line inside a test.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "shiplap/cli/run.h"
#include "shiplap/cli/verbs.h"

namespace shiplap::cli {

struct Outcome {
  ExitCode code = ExitCode::bug;
  std::string out;
  std::string err;
};

struct Setting {
  std::string input;
  int columns = 100;
  Colour colour = Colour::off;
  std::vector<Verb> verbs = all_verbs();
};

inline Outcome shiplap(const std::vector<std::string>& arguments, const Setting& setting = {}) {
  std::istringstream in(setting.input);
  std::ostringstream out;
  std::ostringstream err;
  Context context{.in = in,
                  .out = {.stream = out, .colour = setting.colour},
                  .err = {.stream = err, .colour = setting.colour},
                  .columns = setting.columns};
  const ExitCode code = run(arguments, setting.verbs, context);
  return {.code = code, .out = out.str(), .err = err.str()};
}

}  // namespace shiplap::cli
