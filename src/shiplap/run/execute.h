// Executes a plan on real ranks with real memory: on threads, or as a process of an MPI job.
//
//   comm::run_ranks({.threads = 4}, [&](comm::Communicator& world) {
//     run::Executor executor(plan, world, kernels);    // all ranks together
//     for (int k = 0; k < 5; ++k) executor.step();     // memory lives on between steps
//   });
//
// Streams are threads of the rank (or are interleaved on one, with Progress::polled) and are
// ordered by `after` alone. Asynchronous operations overlap with their own stream. docs/run.md
// describes the execution model and which results are bitwise reproducible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/plan/expand.h"
#include "shiplap/run/job_consistency.h"
#include "shiplap/run/kernel_table.h"
#include "shiplap/trace/trace.h"

namespace shiplap::run {

// How messages make progress while a rank computes.
enum class Progress {
  // A thread for each channel that needs one. Streams are threads too.
  threads,
  // Kernels poll (KernelCall::poll_progress). There is no thread but the caller's, so nothing takes
  // a core from it. Collectives start when nothing else can, and overlap nothing.
  polled,
};

struct ExecuteOptions {
  Progress progress = Progress::threads;

  // Fill rows with NaN before `allocate` and after `free`, to expose uses of dead rows.
  bool poison = false;
  // Whether step() returns events. To name layers and samples of received messages, every rank then
  // expands the plans of all ranks once.
  bool traces = false;
  // Whether buffers are allocated (zeroed). Otherwise the caller binds each before the first step.
  bool allocates = true;
  // Settings that must be equal on all ranks, besides the plan and the version of Shiplap.
  std::vector<JobSetting> job_settings;
};

struct StepResult {
  Seconds start;  // on the monotonic clock of this process
  Seconds duration;
  trace::RankTrace trace;         // times since `start`; empty unless asked for
  std::vector<std::string> axes;  // Trace::axes of these events, the same on all ranks
};

class Executor {
 public:
  // Collective over `world`, with the same plan on all ranks. Rank r of the world is rank r of the
  // mesh. REQUIRES: `plan`, `world` and `kernels` outlive this.
  //
  // Throws InputError on all ranks, before anything has run, if plans or settings differ (D644),
  // the plan is invalid (D2xx), a kernel is unknown (D640), or something is unsupported (D641,
  // D642, D643). `world` stays usable.
  Executor(const plan::Plan& plan, comm::Communicator& world, const KernelTable& kernels,
           const ExecuteOptions& options = {});
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;
  ~Executor();

  // Executes the plan once. Rethrows the exception of the first thread that failed: comm::Failure,
  // or whatever a kernel throws, with the operation if possible. The other threads of this rank are
  // cancelled, and the rank aborts its communicators, so that no other rank waits for it. The
  // executor is unusable after that.
  StepResult step();

  // What this rank has called in the last step, whether or not it failed, as a dump of PyTorch's
  // flight recorder (JSON). `shiplap postmortem` finds out from the dumps of all ranks which rank
  // made the others wait. Lines are those of `plan_file` if operations have no source line.
  [[nodiscard]] std::string flight_record(std::string_view plan_file = "plan") const;

  [[nodiscard]] const plan::RankProgram& program() const;
  // A buffer of this rank, or some of its rows. REQUIRES: they exist, and no step is running.
  [[nodiscard]] std::span<std::byte> rows(std::string_view buffer) const;
  [[nodiscard]] std::span<std::byte> rows(const plan::flat::Region& region) const;
  // From the next step on, the buffer uses the caller's memory. `owner`, if any, is kept alive
  // until something else is bound; if a step fails it is leaked, since a transport may still write
  // to the memory. Empty `bytes` remove the buffer's memory. REQUIRES: the buffer exists and has
  // this size; no step is running.
  void bind(std::string_view buffer, std::span<std::byte> bytes,
            std::shared_ptr<void> owner = nullptr);
  // The buffer gets no memory until it is bound. REQUIRES: only kernels that do not access it use
  // it.
  void skip_allocation(std::string_view buffer);
  // The values that this rank holds at the end of a step (`goal`, `keep`), and where.
  [[nodiscard]] std::vector<KernelAccess> goals() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs one step of a plan. REQUIRES: `rank` is the rank of this process in `communicator`.
StepResult execute(const plan::Plan& plan, Rank rank, comm::Communicator& communicator,
                   const KernelTable& kernels);

// Collective. Returns the step results of all ranks, by rank, on all ranks.
[[nodiscard]] std::vector<StepResult> gather_steps(comm::Communicator& world,
                                                   const StepResult& result);

// Collective, each rank with the result of its step. REQUIRES: every rank traced it. Returns on
// rank 0 the events of all ranks, and an empty trace on the others. They are on one clock
// (Trace::clock_uncertainty): an event does not end before one whose data it needs begins. As in a
// simulation, an event of communication begins when the last rank that takes part has entered it.
// docs/run.md, "Traces".
[[nodiscard]] trace::Trace gather_trace(comm::Communicator& world, const plan::Plan& plan,
                                        const StepResult& result);

}  // namespace shiplap::run
