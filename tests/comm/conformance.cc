// Conformance test of a transport to the contract of communicator.h, on threads, sockets and MPI:
//
//   conformance [--ranks N] [--only NAME] [--seed N] [--list]
//
// --ranks is the number of threads if there is no launcher. --only takes the prefix of a name. The
// exit code is 0 if all checks pass. The last checks make ranks fail on purpose, so a launcher may
// report the job as failed; what counts are the lines `not ok`.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "abort_checks.h"
#include "check.h"
#include "rerun_checks.h"
#include "shiplap/base/units.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::comm {
namespace {

// For combining results: a rank may arrive after the others have timed out in the check.
constexpr Seconds kTimeout{120};

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  add_message_checks(checks);
  add_collective_checks(checks);
  add_parts_checks(checks);
  add_reduction_checks(checks);
  add_mixed_checks(checks);
  add_group_checks(checks);
  add_argument_checks(checks);
  add_mismatch_checks(checks);
  add_deadline_checks(checks);
  return checks;
}

struct Arguments {
  int ranks = 4;
  bool list = false;
  Selection selection;
};

Arguments parse(const std::vector<std::string>& args) {
  Arguments arguments;
  for (std::size_t k = 0; k < args.size(); ++k) {
    if (args[k] == "--list") {
      arguments.list = true;
      continue;
    }
    if (k + 1 == args.size()) throw std::invalid_argument(args[k]);
    const std::string& value = args[k + 1];
    if (args[k] == "--ranks") {
      arguments.ranks = std::stoi(value);
    } else if (args[k] == "--only") {
      arguments.selection.only = value;
    } else if (args[k] == "--seed") {
      arguments.selection.seed = std::stoull(value);
    } else {
      throw std::invalid_argument(args[k]);
    }
    ++k;
  }
  return arguments;
}

void print_list() {
  std::vector<Check> checks = all_checks();
  for (const Check& check : abort_checks()) checks.push_back(check);
  for (const Check& check : rerun_checks()) checks.push_back(check);
  for (const Check& check : checks) std::printf("%s\n", check.name.c_str());
}

void print_summary(const Tally& tally, int ranks, const Selection& selection) {
  if (tally.failed.empty()) {
    std::printf("%d checks passed on %d ranks\n", tally.passed, ranks);
  } else {
    std::printf("%zu checks failed on %d ranks with seed %llu:\n", tally.failed.size(), ranks,
                static_cast<unsigned long long>(selection.seed));
    for (const std::string& name : tally.failed) std::printf("  %s\n", name.c_str());
  }
  std::fflush(stdout);
}

Tally run_all(Communicator& world, const Selection& selection) {
  if (world.rank() == 0) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(selection.seed));
  }
  Tally tally;
  for (const Check& check : all_checks()) {
    if (selection.wants(check, world.size())) run_check(world, check, selection.seed, tally);
  }
  if (world.rank() == 0) print_summary(tally, world.size(), selection);
  return tally;
}

// The results, the same on all ranks. Written by every rank that is a thread of this process.
class Outcome {
 public:
  void set(const Tally& tally, int ranks) {
    const std::lock_guard lock(mutex_);
    checks_ = tally.passed + static_cast<int>(tally.failed.size());
    failed_ = static_cast<int>(tally.failed.size());
    ranks_ = ranks;
  }
  [[nodiscard]] int checks() const { return checks_; }
  [[nodiscard]] int failed() const { return failed_; }
  [[nodiscard]] int ranks() const { return ranks_; }

 private:
  std::mutex mutex_;
  int checks_ = 0;
  int failed_ = 0;
  int ranks_ = 1;
};

// One rank throws on purpose. The exception must be rethrown here if it is a rank of this process;
// other processes may get RankFailed.
bool abort_checks_pass(const Arguments& arguments, const Outcome& outcome) {
  AbortResults results;
  bool as_expected = false;
  try {
    run_ranks({.threads = arguments.ranks, .timeout = kTimeout}, [&](Communicator& world) {
      run_abort_checks(world, arguments.selection, outcome.checks(), results);
    });
    as_expected = !results.threw;
  } catch (const RankFailed& error) {
    as_expected = !results.threw && is_expected_culprit(error.rank(), outcome.ranks());
  } catch (const std::exception& error) {
    as_expected = results.threw && std::string_view(error.what()) == kPlanted;
    if (!as_expected) std::fprintf(stderr, "abort checks: %s\n", error.what());
  }
  if (!as_expected) std::fprintf(stderr, "abort checks: the run did not end as expected\n");
  return as_expected && results.failures == 0;
}

int run(const Arguments& arguments) {
  Outcome outcome;
  run_ranks({.threads = arguments.ranks, .timeout = kTimeout}, [&](Communicator& world) {
    outcome.set(run_all(world, arguments.selection), world.size());
  });
  bool passes = abort_checks_pass(arguments, outcome);
  const int before = outcome.checks() + static_cast<int>(abort_checks().size());
  passes =
      run_rerun_checks(arguments.ranks, outcome.ranks(), arguments.selection, before) && passes;
  return passes && outcome.failed() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace shiplap::comm

int main(int argc, char** argv) {
  using shiplap::comm::Arguments;
  try {
    const Arguments arguments = shiplap::comm::parse({argv + 1, argv + argc});
    if (!arguments.list) return shiplap::comm::run(arguments);
    shiplap::comm::print_list();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
