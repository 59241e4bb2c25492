#include "shiplap/run/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/plan/link.h"
#include "shiplap/run/flight_record_internal.h"
#include "shiplap/run/polled_internal.h"
#include "shiplap/run/stream_threads_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;

// The program of this rank, or the problems that prevent running it.
struct Expanded {
  plan::RankProgram program;
  std::vector<Diagnostic> problems;
};

Expanded expand_checked(const plan::Plan& plan, const comm::Communicator& world,
                        const KernelTable& kernels, Progress progress) {
  Expanded made;
  if (plan.mesh.ranks() != world.size()) {
    made.problems.push_back(
        {.code = "D641",
         .what = fmt::format("rank count mismatch: the plan has {} ranks and `{}` has {}",
                             plan.mesh.ranks(), world.name(), world.size()),
         .help = fmt::format("run it on {} ranks", plan.mesh.ranks())});
    return made;
  }
  try {
    made.program = plan::expand(plan, Rank(static_cast<std::int32_t>(world.rank())));
  } catch (const InputError& error) {
    made.problems = error.diagnostics();
    return made;
  }
  made.problems = unknown_kernels(made.program, kernels);
  std::ranges::move(unsupported(made.program), std::back_inserter(made.problems));
  if (progress == Progress::polled) {
    std::ranges::move(polling_conflicts(made.program), std::back_inserter(made.problems));
  }
  return made;
}

std::vector<BoundKernel> find_kernels(const plan::RankProgram& program,
                                      const KernelTable& kernels) {
  std::vector<BoundKernel> found(program.operations.size());
  for (std::size_t k = 0; k < found.size(); ++k) {
    const plan::Operation& source = *program.operations[k].source;
    const auto* const compute = std::get_if<plan::Compute>(&source.action);
    if (compute == nullptr) continue;
    found[k].one = kernels.find(compute->kernel);
    if (source.joined) found[k].joined = kernels.find_joined(compute->kernel);
  }
  return found;
}

plan::BufferId find_buffer(const plan::RankProgram& program, std::string_view name) {
  ensure(program.program.exists(), "a spare rank has no buffers");
  const auto& buffers = program.plan->programs[program.program].buffers;
  const auto found = std::ranges::find(buffers, name, &plan::Buffer::name);
  ensure(found != buffers.end(), "the buffer exists on this rank");
  return plan::BufferId(static_cast<std::size_t>(found - buffers.begin()));
}

}  // namespace

class Executor::Impl {
 public:
  Impl(const plan::Plan& plan, comm::Communicator& world, const KernelTable& kernels,
       const ExecuteOptions& options)
      : world_(world), table_(kernels), options_(options) {
    std::vector<JobSetting> settings{plan_setting(plan)};
    settings.insert(settings.end(), options.job_settings.begin(), options.job_settings.end());
    check_job_consistency(world, std::move(settings));
    Expanded expanded = expand_checked(plan, world, kernels, options.progress);
    communicators_ = create_communicators(world, expanded.program, expanded.problems);
    rank_state_ = std::make_shared<RankState>(
        std::move(expanded.program),
        options.allocates ? MemorySource::allocated : MemorySource::bound);
    schedule_ = schedule(program());
    kernels_ = find_kernels(program(), kernels);
    tracker_ = std::make_unique<CompletionTracker>(program());
    rank_state_->stream_scratch.resize(schedule_.streams.size());
    rank_state_->stream_staging.resize(schedule_.streams.size());
    rank_state_->group_scratch.resize(schedule_.groups.size());
    if (options.traces) {
      plan::LinkedProgram linked = plan::link(plan, {});
      operations_ = linked.template_of(world.rank());
      events_ = std::move(linked.trace.ranks[world.rank()].events);
      axes_ = std::move(linked.trace.axes);
    }
    world.barrier();  // so that the first step starts at once
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (failed_) leak_intentionally(rank_state_);
  }

  [[nodiscard]] const plan::RankProgram& program() const { return rank_state_->program; }
  [[nodiscard]] const RankMemory& memory() const { return rank_state_->memory; }
  [[nodiscard]] RankMemory& memory() { return rank_state_->memory; }

  StepResult step() {
    ensure(!failed_, "an executor that failed is not used again");
    ensure(memory().is_complete(), "every buffer has memory");
    failed_ = true;  // until the step completes
    const double start = CompletionTracker::now();
    tracker_->reset();
    prepare();
    const StepContext context{.state = *rank_state_,
                              .communicators = communicators_,
                              .schedule = schedule_,
                              .kernels = kernels_,
                              .world = world_,
                              .tracker = *tracker_,
                              .timings = timings_,
                              .step = steps_,
                              .poison = options_.poison};
    timings_.assign(program().operations.size(), {});
    options_.progress == Progress::polled ? run_polled(context) : run_on_threads(context);
    ++steps_;
    failed_ = false;
    StepResult result{.start = {start}, .duration = {CompletionTracker::now() - start}};
    if (options_.traces) {
      result.trace = make_trace(timings_, start);
      result.axes = axes_;
    }
    return result;
  }
  [[nodiscard]] std::string flight_record(std::string_view plan_file) const {
    return run::flight_record({.program = program(),
                               .tracker = *tracker_,
                               .timings = timings_,
                               .number = failed_ || steps_ == 0 ? steps_ : steps_ - 1,
                               .timeout = world_.timeout(),
                               .plan_file = std::string(plan_file)});
  }

 private:
  // Poisons rows that are not allocated yet, and provides the given values.
  void prepare() {
    for (const Operation& op : program().operations) {
      if (!options_.poison || !std::holds_alternative<plan::Allocate>(op.source->action)) continue;
      memory().poison(op.from);
    }
    if (!table_.given()) return;
    for (const plan::flat::Fact& fact : program().given) {
      table_.given()(
          {.program = &program(),
           .step = steps_,
           .access = kernel_access(memory(), plan::Access::Kind::writes, fact.region, fact.value)});
    }
  }

  [[nodiscard]] trace::RankTrace make_trace(const std::vector<Timing>& timings,
                                            double start) const {
    trace::RankTrace trace;
    std::vector<std::pair<double, std::size_t>> changes;  // of memory: when, by which operation
    for (std::size_t k = 0; k < timings.size(); ++k) {
      const plan::Step& step = operations_.steps[k];
      if (step.event >= 0) {
        trace::Event& event = trace.events.emplace_back(events_[step.event]);
        event.time = {timings[k].begin - start};
        event.duration = {timings[k].end - timings[k].begin};
      } else if (plan::is_lifetime(step.action)) {
        changes.emplace_back(timings[k].end - start, k);
      }
    }
    std::ranges::sort(changes);
    for (const auto& [time, k] : changes) {
      const plan::Step& step = operations_.steps[k];
      trace.memory.push_back({.time = {time}, .bytes = {step.memory + step.bytes}});
    }
    return trace;
  }

  comm::Communicator& world_;
  const KernelTable& table_;
  ExecuteOptions options_;
  std::shared_ptr<RankState> rank_state_;
  CommunicatorSet communicators_;
  Schedule schedule_;
  std::vector<BoundKernel> kernels_;
  std::unique_ptr<CompletionTracker> tracker_;
  std::vector<Timing> timings_;       // of the last step, by operation
  plan::RankTemplate operations_;     // if it traces
  std::vector<trace::Event> events_;  // likewise, without times
  std::vector<std::string> axes_;     // likewise
  std::int64_t steps_ = 0;
  bool failed_ = false;
};

Executor::Executor(const plan::Plan& plan, comm::Communicator& world, const KernelTable& kernels,
                   const ExecuteOptions& options)
    : impl_(std::make_unique<Impl>(plan, world, kernels, options)) {}
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;
Executor::~Executor() = default;

StepResult Executor::step() { return impl_->step(); }
std::string Executor::flight_record(std::string_view plan_file) const {
  return impl_->flight_record(plan_file);
}

const plan::RankProgram& Executor::program() const { return impl_->program(); }

std::span<std::byte> Executor::rows(std::string_view buffer) const {
  return impl_->memory().buffer(find_buffer(program(), buffer));
}

void Executor::bind(std::string_view buffer, std::span<std::byte> bytes,
                    std::shared_ptr<void> owner) {
  impl_->memory().bind(find_buffer(program(), buffer), bytes, std::move(owner));
}

void Executor::skip_allocation(std::string_view buffer) {
  impl_->memory().skip_allocation(find_buffer(program(), buffer));
}

std::span<std::byte> Executor::rows(const plan::flat::Region& region) const {
  return impl_->memory().rows(region);
}

std::vector<KernelAccess> Executor::goals() const {
  std::vector<KernelAccess> all;
  for (const plan::flat::Fact& fact : program().goal) {
    all.push_back(
        kernel_access(impl_->memory(), plan::Access::Kind::reads, fact.region, fact.value));
  }
  return all;
}

StepResult execute(const plan::Plan& plan, Rank rank, comm::Communicator& communicator,
                   const KernelTable& kernels) {
  ensure(rank.value == communicator.rank(), "rank matches the communicator");
  return Executor(plan, communicator, kernels).step();
}

}  // namespace shiplap::run
