// The command line, from Python: what `shiplap ARGUMENTS` would print and answer.
#include <sstream>

#include "bind.h"
#include "shiplap/base/error.h"
#include "shiplap/base/version.h"
#include "shiplap/cli/verbs.h"

namespace shiplap::python {
namespace {

struct Answer {
  cli::ExitCode code = cli::ExitCode::yes;
  std::string out;
};

// Throws what the command throws, so that Python gets its diagnostics.
Answer command(const std::string& name, const std::vector<std::string>& arguments) {
  const std::vector<cli::Verb> verbs = cli::all_verbs();
  const cli::Verb* const verb = cli::find_verb(verbs, name);
  ensure(verb != nullptr, "Python asks for commands that there are");
  std::istringstream nothing;
  std::ostringstream out;
  std::ostringstream ignored;
  cli::Context context{.in = nothing, .out = {.stream = out}, .err = {.stream = ignored}};
  const cli::ExitCode code = verb->run(arguments, context);
  return {.code = code, .out = out.str()};
}

}  // namespace

void bind_command(nb::module_& m) {
  m.attr("version") = std::string(version());
  m.def("_read_file", &read_file, "path"_a);
  m.def(
      "_command",
      [](const std::string& name, const std::vector<std::string>& arguments) {
        Answer answer;
        {
          const nb::gil_scoped_release released;
          answer = command(name, arguments);
        }
        return nb::make_tuple(static_cast<int>(answer.code), answer.out);
      },
      "name"_a, "arguments"_a,
      nb::sig("def _command(name: str, arguments: Sequence[str]) -> tuple[int, str]"),
      "What a command answers and prints: the exit code and stdout.");
}

}  // namespace shiplap::python
