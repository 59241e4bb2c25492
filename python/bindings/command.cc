// The command line, from Python: what `shiplap ARGUMENTS` would print and answer.
#include <sstream>

#include "bind.h"
#include "shiplap/base/catalogue.h"
#include "shiplap/cli/run.h"
#include "shiplap/cli/version.h"

namespace shiplap::python {
namespace {

struct Answer {
  int exit_code = 0;
  std::string out;
  std::string err;
};

Answer command(const std::vector<std::string>& arguments) {
  std::istringstream nothing;
  std::ostringstream out;
  std::ostringstream err;
  cli::Context context{.in = nothing, .out = {.stream = out}, .err = {.stream = err}};
  const cli::ExitCode code = cli::run(arguments, context);
  return {.exit_code = static_cast<int>(code), .out = out.str(), .err = err.str()};
}

}  // namespace

void bind_command(nb::module_& m) {
  m.attr("__version__") = std::string(cli::version());
  m.def(
      "_command",
      [](const std::vector<std::string>& arguments) {
        Answer answer;
        {
          const nb::gil_scoped_release released;
          answer = command(arguments);
        }
        return nb::make_tuple(answer.exit_code, answer.out, answer.err);
      },
      "arguments"_a, nb::sig("def _command(arguments: Sequence[str]) -> tuple[int, str, str]"),
      "What ``shiplap ARGUMENTS`` answers and prints: the exit code, stdout, stderr.");
}

}  // namespace shiplap::python
