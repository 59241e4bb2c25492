// The process around cli::run: real streams and the properties of the terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/cli/progress.h"
#include "shiplap/cli/run.h"

namespace {

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

int columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string_view text = environment("COLUMNS");
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && number > 0 ? number : 100;
}

shiplap::cli::OutputStream output_stream(std::ostream& stream, int descriptor) {
  const bool is_terminal = isatty(descriptor) == 1;
  const bool plain = !environment("NO_COLOR").empty() || environment("TERM") == "dumb";
  return {.stream = stream,
          .is_terminal = is_terminal,
          .colour = is_terminal && !plain ? shiplap::Colour::on : shiplap::Colour::off};
}

}  // namespace

namespace {

int run_command(int count, char** words) {
  std::ios::sync_with_stdio(false);
  const std::vector<std::string> arguments(words + (count > 0 ? 1 : 0), words + count);
  shiplap::cli::Context context{.in = std::cin,
                                .out = output_stream(std::cout, STDOUT_FILENO),
                                .err = output_stream(std::cerr, STDERR_FILENO),
                                .columns = columns(),
                                .progress = shiplap::cli::process_progress()};
  return static_cast<int>(shiplap::cli::run(arguments, context));
}

}  // namespace

int main(int count, char** words) {
  try {
    return run_command(count, words);
  } catch (const std::bad_alloc&) {
    // There was not even enough memory to print the usual message.
    constexpr std::string_view kText = "error[D007]: out of memory\n";
    (void)!write(STDERR_FILENO, kText.data(), kText.size());
    return static_cast<int>(shiplap::cli::ExitCode::missing_dependency);
  }
}
