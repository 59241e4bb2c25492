// shiplap completion: prints the script that teaches a shell our commands.
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
       .summary = "a script that teaches the shell to complete our commands",
       .examples = {{"source <(shiplap completion bash)",
                     "let Tab complete commands, flags and files; zsh alike"},
                    {"shiplap completion fish | source", "the same in fish"}},
       .notes = "To have it in every shell, put that line into ~/.bashrc, ~/.zshrc or "
                "~/.config/fish/config.fish."},
      {.declare = declare, .run = completion});
}

}  // namespace shiplap::cli
