// Executes a plan on real ranks with real memory: on threads, or as a process of an MPI job.
//
//   comm::run_ranks({.threads = 4}, [&](comm::Communicator& world) {
//     run::Executor executor(plan, world, kernels);    // all ranks together
//     for (int k = 0; k < 5; ++k) executor.step();     // memory lives on between steps
//   });
//
// Streams are threads of the rank (or take turns, if asked for), ordered by `after` alone. What is
// asynchronous goes on while its stream does. docs/run.md says how, and which results are the same
// bits each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/plan/expand.h"
#include "shiplap/run/kernel_table.h"
#include "shiplap/run/same_job.h"
#include "shiplap/trace/trace.h"

namespace shiplap::run {

// Who moves messages on while a rank computes.
enum class Progress {
  // A thread for each channel that needs one. Streams are threads too.
  threads,
  // Whoever computes, when it looks around. There is no thread but the caller's, so nothing takes a
  // core from it. Collectives wait until nothing else can start, and overlap nothing.
  polled,
};

struct ExecuteOptions {
  Progress progress = Progress::threads;

  // Rows are filled with NaN before `allocate` and after `free`, so that whoever uses dead rows
  // finds out.
  bool poison = false;
  // Whether step() returns events. To name layers and samples of what it receives, every rank then
  // expands the plan of all ranks once.
  bool traces = false;
  // Whether buffers have memory from the beginning, all zero. Otherwise each is bound before the
  // first step.
  bool allocates = true;
  // What all ranks must have in common besides the plan and the version of Shiplap.
  std::vector<JobFact> common;
};

struct StepResult {
  // On a clock that all ranks started together, when they made their executors.
  Seconds start;
  Seconds duration;
  trace::RankTrace trace;  // times since `start`; empty unless asked for
};

class Executor {
 public:
  // All ranks of `world` together, with the same plan. Rank r of the world is rank r of the mesh.
  // `plan`, `world` and `kernels` must live longer.
  //
  // Throws InputError on all ranks, before anything has run, if they do not run the same thing
  // (D644), or one of them finds the plan wrong (D2xx), a kernel unknown (D640), or something that
  // cannot be run (D641, D642, D643). `world` can be used after that.
  Executor(const plan::Plan& plan, comm::Communicator& world, const KernelTable& kernels,
           const ExecuteOptions& options = {});
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;
  ~Executor();

  // Executes the plan once. Throws what the first lane to fail threw: comm::Failure, or whatever a
  // kernel throws, with the operation where that can be said. The others of this rank are stopped,
  // and this rank leaves, so that no other one waits for it. The executor is of no use then.
  StepResult step();

  [[nodiscard]] const plan::RankProgram& program() const;
  // A whole buffer of this rank, or some of its rows. Promises that they are there. Between steps.
  [[nodiscard]] std::span<std::byte> rows(std::string_view buffer) const;
  [[nodiscard]] std::span<std::byte> rows(const plan::flat::Region& region) const;
  // From the next step on, a buffer of this rank lies in memory of the caller's, in place of what
  // it had. `owner`, if any, is kept until something else is bound, and for ever if a step fails,
  // for a transport may still write there then. Promises that there is such a buffer of this size;
  // empty bytes take its memory away. Between steps.
  void bind(std::string_view buffer, std::span<std::byte> bytes,
            std::shared_ptr<void> owner = nullptr);
  // Nothing but kernels that look elsewhere uses this buffer: it needs no memory until it is bound.
  void leave_out(std::string_view buffer);
  // What the plan says this rank holds at the end of a step (`goal`, `keep`), and where.
  [[nodiscard]] std::vector<KernelAccess> goals() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// One step of a plan, as `rank` of `communicator`, which it must be.
StepResult execute(const plan::Plan& plan, Rank rank, comm::Communicator& communicator,
                   const KernelTable& kernels);

// What the step of each rank returned, by rank, on all of them. All ranks together.
[[nodiscard]] std::vector<StepResult> gather_steps(comm::Communicator& world,
                                                   const StepResult& result);

// The events of all ranks on one clock, on rank 0; the others get an empty trace. All ranks
// together, each with what its step returned.
[[nodiscard]] trace::Trace gather_trace(comm::Communicator& world, const plan::Plan& plan,
                                        const StepResult& result);

}  // namespace shiplap::run
