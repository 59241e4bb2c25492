// The dispatcher on real ranks, as threads or as processes: the same checks on every transport.
//
//   run_dispatch_ranks [--ranks N] [--only NAME]    N threads, unless an MPI launcher started it
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "checks.h"
#include "shiplap/comm/ranks.h"

namespace {

struct Options {
  int threads = 4;
  std::string only;
};

Options options_of(int count, char** words) {
  Options options;
  for (int k = 1; k + 1 < count; k += 2) {
    if (std::string_view(words[k]) == "--ranks") options.threads = std::atoi(words[k + 1]);
    if (std::string_view(words[k]) == "--only") options.only = words[k + 1];
  }
  return options;
}

int run(const Options& options) {
  std::vector<shiplap::comm::Check> checks;
  shiplap::run::add_dispatch_checks(checks);
  int failed = 0;
  shiplap::comm::run_ranks(
      {.threads = options.threads, .timeout = {60}}, [&](shiplap::comm::Communicator& world) {
        shiplap::comm::Tally tally;
        const shiplap::comm::Selection selection{.only = options.only};
        for (const auto& check : checks) {
          if (selection.wants(check, world.size())) run_check(world, check, 1, tally);
        }
        if (world.rank() != 0) return;
        failed = static_cast<int>(tally.failed.size());
        std::printf("%d checks passed on %d ranks\n", tally.passed, world.size());
      });
  return failed;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(options_of(count, words)) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
