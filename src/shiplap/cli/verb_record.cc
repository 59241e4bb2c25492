// shiplap record: runs a training script on fake tensors and makes a plan of it. The Python package
// does the work; this verb finds it and replaces this process.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/verb.h"

namespace shiplap::cli {
namespace {

constexpr std::string_view kHelp =
    "`pip install 'shiplap[torch]'`, or name another interpreter: "
    "SHIPLAP_PYTHON=/opt/venv/bin/python";

// What Python runs. Arguments: the exit code and the message if there is no package, then those of
// the command.
constexpr std::string_view kProgram =
    "import sys\n"
    "from importlib.util import find_spec\n"
    "if find_spec('shiplap') is None:\n"
    "    print(sys.argv[2], end='', file=sys.stderr)\n"
    "    sys.exit(int(sys.argv[1]))\n"
    "from shiplap.record.__main__ import main\n"
    "sys.exit(main(sys.argv[3:]))\n";

std::string python() {
  const char* const named = std::getenv("SHIPLAP_PYTHON");
  return named != nullptr ? named : "python3";
}

Usage record_usage() {
  return {
      .arguments = {{.name = "COMMAND",
                     .help = "the script and its arguments, as for python or torchrun",
                     .values = Values::files}},
      .flags = {
          {.name = "--world", .value = "N", .help = "the number of ranks (that of torchrun)"},
          {.name = "--steps", .value = "N", .help = "optimizer steps; 0: all of them (2)"},
          {.name = "--ranks-per-node", .value = "N", .help = "GPUs of a node (8)"},
          {.name = "--mode",
           .value = "MODE",
           .help = "fake: shapes without data (the default); gloo: all ranks for real, on the CPU",
           .values = Values::listed,
           .choices = {"fake", "gloo"}},
          {.name = "--timeout",
           .value = "S",
           .help = "of a call with --mode gloo, in seconds (30)"},
          {.name = "--cpu", .help = "the ranks have no GPUs"},
          {.name = "--all", .help = "record every rank, also if few stand for all"},
          {.name = "--jobs",
           .value = "N",
           .help = "ranks that run at a time (the number of cores)"},
          {.name = "--output",
           .letter = "-o",
           .value = "PLAN",
           .help = "the plan (the name of the script, .plan)",
           .values = Values::files},
          {.name = "--allow", .value = "CODES", .help = "errors that are accepted: D716,D721"},
          {.name = "--json", .help = "print the answer as JSON"},
      }};
}

Diagnostic missing(std::string what) {
  return {.code = "D009", .what = std::move(what), .help = std::string(kHelp)};
}

ExitCode record(std::span<const std::string> arguments, Context& context) {
  const std::string interpreter = python();
  const Diagnostic no_package = missing(fmt::format("`{}` has no package `shiplap`", interpreter));
  std::vector<std::string> words{interpreter, "-c", std::string(kProgram),
                                 std::to_string(static_cast<int>(ExitCode::missing_dependency)),
                                 render(no_package, context.err.colour)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  throw MissingDependency(
      missing(fmt::format("cannot start `{}`: {}", interpreter,
                          std::error_code(errno, std::generic_category()).message())));
}

}  // namespace

Verb record_verb() {
  return {.info = {.name = "record",
                   .summary = "make a plan of a torch training script, and check it",
                   .examples = {{"shiplap record --world 8 -- python train.py --layers 4",
                                 "record and check 8 ranks, without a GPU"},
                                {"shiplap record -- torchrun --nproc-per-node 8 train.py",
                                 "the same, with the flags of the launcher"},
                                {"shiplap record --world 8 --mode gloo -- python train.py",
                                 "run all ranks for real, on the CPU"}},
                   .notes = "Needs the Python package; SHIPLAP_PYTHON names its interpreter."},
          .usage = record_usage,
          .run = record};
}

}  // namespace shiplap::cli
