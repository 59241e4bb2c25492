#include "shiplap/run/overlap_study.h"

#include <fmt/format.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "shiplap/base/argument_error.h"
#include "shiplap/base/units.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/run/job_consistency.h"
#include "shiplap/run/overlap_benchmark.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Measurement;
using overlap::Problem;

void check_memory(const Choice& choice, const Problem& problem) {
  const double here =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const double needed = overlap_benchmark_bytes(choice, problem);
  if (needed <= 0.8 * here) return;
  throw_argument_error("--run",
                       fmt::format("out of memory: this needs about {}, and this machine has {}",
                                   to_string(Bytes{static_cast<std::int64_t>(needed)}),
                                   to_string(Bytes{static_cast<std::int64_t>(here)})),
                       "give a smaller --m, --n or --k, or predict it by --hardware alone");
}

// Returns the measurement on rank 0, nothing on other ranks.
std::optional<Measurement> measured(const overlap::Study& study, const overlap::Query& query,
                                    const std::string& job) {
  const Problem& problem = study.problem;
  const bool on_threads = !comm::launched_by();
  if (on_threads) {
    check_threads(problem.ranks);
    check_memory(study.choice, problem);
  }
  const bool polled = overlap::is_polled(study, query);
  const OverlapBenchmarkOptions options{.rounds = overlap::int_flag("--rounds", query.rounds, 9),
                                        .traces = query.traces,
                                        .progress = polled ? Progress::polled : Progress::threads};
  std::optional<Measurement> result;
  comm::run_ranks({.threads = problem.ranks}, [&](comm::Communicator& world) {
    check_job_consistency(world, {{"the command", job}});
    check_ranks(world, problem.ranks);
    Measurement local = benchmark_overlap(world, study.choice, problem, options);
    if (world.rank() == 0) result = std::move(local);
  });
  if (!result) return result;
  result->backend = on_threads ? "threads" : "mpi";
  result->polled = polled;
  result->rounds = options.rounds;
  result->cores = static_cast<int>(std::thread::hardware_concurrency());
  return result;
}

}  // namespace

void check_threads(int ranks) {
  constexpr int kMaxThreads = 256;
  if (ranks <= kMaxThreads) return;
  throw_argument_error("--tp", fmt::format("{} ranks are too many threads", ranks),
                       fmt::format("up to {}, or --backend mpi", kMaxThreads));
}

void check_ranks(const comm::Communicator& world, int ranks) {
  if (world.size() == ranks) return;
  throw_argument_error("--tp",
                       fmt::format("mpirun started {} ranks, --tp says {}", world.size(), ranks),
                       fmt::format("mpirun -n {}", ranks));
}

std::optional<overlap::Study> study_overlap(const overlap::Query& query, const std::string& job) {
  overlap::Study study = overlap::begin_study(query);
  if (query.run) {
    study.measured = measured(study, query, job);
    if (!study.measured) return std::nullopt;
  }
  overlap::finish_study(study, query);
  return study;
}

}  // namespace shiplap::run
