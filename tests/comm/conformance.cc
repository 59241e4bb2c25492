// Does a transport keep what communicator.h promises? The same program asks threads and MPI
// processes:
//
//   conformance [--ranks N] [--only NAME] [--seed N] [--list]
//
// N is how many threads, where no launcher has decided it. --only takes the beginning of a name.
// The exit code is 0 if everything was as promised. The last checks make ranks fail on purpose, so
// a launcher may have its own opinion of the job then; what counts are the lines `not ok`.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "again.h"
#include "check.h"
#include "finale.h"
#include "shiplap/base/units.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::comm {
namespace {

// For the verdicts: a rank may come to them when the others have waited in vain for it.
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

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  for (std::size_t k = 0; k < words.size(); ++k) {
    if (words[k] == "--list") {
      arguments.list = true;
      continue;
    }
    if (k + 1 == words.size()) throw std::invalid_argument(words[k]);
    const std::string& value = words[k + 1];
    if (words[k] == "--ranks") {
      arguments.ranks = std::stoi(value);
    } else if (words[k] == "--only") {
      arguments.selection.only = value;
    } else if (words[k] == "--seed") {
      arguments.selection.seed = std::stoull(value);
    } else {
      throw std::invalid_argument(words[k]);
    }
    ++k;
  }
  return arguments;
}

void print_list() {
  std::vector<Check> checks = all_checks();
  for (const Check& check : finale_checks()) checks.push_back(check);
  for (const Check& check : again_checks()) checks.push_back(check);
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

// What all ranks agreed on. Where they are threads, each of them writes it here.
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

// One rank throws on purpose. That must come out here, if it is a rank of this process; other
// processes may learn that some rank failed.
bool finale_passes(const Arguments& arguments, const Outcome& outcome) {
  Finale finale;
  bool as_expected = false;
  try {
    run_ranks({.threads = arguments.ranks, .timeout = kTimeout}, [&](Communicator& world) {
      run_finale(world, arguments.selection, outcome.checks(), finale);
    });
    as_expected = !finale.threw;
  } catch (const RankFailed& error) {
    as_expected = !finale.threw && is_to_blame(error.rank(), outcome.ranks());
  } catch (const std::exception& error) {
    as_expected = finale.threw && std::string_view(error.what()) == kPlanted;
    if (!as_expected) std::fprintf(stderr, "finale: %s\n", error.what());
  }
  if (!as_expected) std::fprintf(stderr, "finale: it did not end as it should\n");
  return as_expected && finale.failures == 0;
}

int run(const Arguments& arguments) {
  Outcome outcome;
  run_ranks({.threads = arguments.ranks, .timeout = kTimeout}, [&](Communicator& world) {
    outcome.set(run_all(world, arguments.selection), world.size());
  });
  bool passes = finale_passes(arguments, outcome);
  const int before = outcome.checks() + static_cast<int>(finale_checks().size());
  passes = run_again(arguments.ranks, outcome.ranks(), arguments.selection, before) && passes;
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
