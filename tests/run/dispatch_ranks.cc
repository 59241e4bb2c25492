// The dispatcher on real ranks, as threads or as processes: the same checks on every transport.
//
//   run_dispatch_ranks [--ranks N] [--only NAME]    N threads, unless an MPI launcher started it
//   run_dispatch_ranks --once TOKENS                one dispatch and nothing else: for many ranks
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "checks.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/run/dispatch_benchmark.h"

namespace {

struct Options {
  int threads = 4;
  std::string only;
  int once = 0;
};

Options options_of(int count, char** words) {
  Options options;
  for (int k = 1; k + 1 < count; k += 2) {
    if (std::string_view(words[k]) == "--ranks")
      options.threads = static_cast<int>(std::strtol(words[k + 1], nullptr, 10));
    if (std::string_view(words[k]) == "--only") options.only = words[k + 1];
    if (std::string_view(words[k]) == "--once")
      options.once = static_cast<int>(std::strtol(words[k + 1], nullptr, 10));
  }
  return options;
}

// Q forward and reverse, KV forward and gradients in reverse, compared with the tables.
int run_once(const Options& options) {
  std::int64_t wrong = 0;
  shiplap::comm::run_ranks(
      {.threads = options.threads, .timeout = {60}}, [&](shiplap::comm::Communicator& world) {
        const auto dispatch = shiplap::dispatch::create_qkv_dispatch(
            {.world_size = world.size(),
             .total_seq_len = static_cast<std::uint32_t>(options.once),
             .num_seqs = 2,
             .max_cp_degree = 2,
             .seed = 1});
        const auto result = shiplap::run::benchmark_dispatch(
            world, dispatch, {.q_row_bytes = 16, .kv_row_bytes = 16, .steps = 1});
        if (world.rank() != 0) return;
        wrong = result.wrong_bytes + result.wrong_sums;
        std::printf("%d ranks: %lld wrong bytes, %lld wrong sums\n", world.size(),
                    static_cast<long long>(result.wrong_bytes),
                    static_cast<long long>(result.wrong_sums));
      });
  return wrong == 0 ? 0 : 1;
}

int run(const Options& options) {
  if (options.once > 0) return run_once(options);
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
