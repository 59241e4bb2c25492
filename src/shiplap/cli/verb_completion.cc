// shiplap completion: prints a completion script for a shell.
#include <ostream>
#include <string>

#include "shiplap/cli/completion.h"
#include "shiplap/cli/verb.h"
#include "shiplap/cli/verbs.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string shell;
};

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "SHELL",
                  .help = "bash, zsh or fish",
                  .example = "bash",
                  .values = Values::listed,
                  .choices = {"bash", "zsh", "fish"}},
                 options.shell);
}

ExitCode completion(const Options& options, Context& context) {
  const std::vector<Verb> verbs = all_verbs();
  if (options.shell == "bash") context.out.stream << bash_completion(verbs);
  if (options.shell == "zsh") context.out.stream << zsh_completion(verbs);
  if (options.shell == "fish") context.out.stream << fish_completion(verbs);
  return ExitCode::yes;
}

}  // namespace

Verb completion_verb() {
  return make_verb<Options>(
      {.name = "completion",
       .summary = "print a completion script for the shell",
       .examples = {{"source <(shiplap completion bash)",
                     "complete commands, flags and files with Tab; the same in zsh"},
                    {"shiplap completion fish | source", "the same in fish"}},
       .notes = "To enable it permanently, add that line to ~/.bashrc, ~/.zshrc or "
                "~/.config/fish/config.fish."},
      {.declare = declare, .run = completion});
}

}  // namespace shiplap::cli
