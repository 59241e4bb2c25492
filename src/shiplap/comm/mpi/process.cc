#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/base/resources.h"
#include "shiplap/comm/messages_internal.h"
#include "shiplap/comm/mpi/library_internal.h"
#include "shiplap/comm/mpi/process_internal.h"

namespace shiplap::comm {
namespace {

constexpr int kControlTag = 1;
constexpr double kPollEvery = 1e-3;
constexpr double kPollDeadEvery = 5e-3;
constexpr double kFindDeadWithin = 1.5;  // after MPI has reported a death
constexpr double kGoodbyesWithin = 2;
constexpr double kSimulatedGoodbyesWithin = 300;  // virtual time
constexpr double kFinalizeWithin = 3;

std::optional<std::int64_t> rank_by_launcher() {
  for (const char* const variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const value = std::getenv(variable)) return std::strtoll(value, nullptr, 10);
  }
  return std::nullopt;
}

// A watchdog: MPI_Init and MPI_Comm_dup wait for all ranks, without a timeout.
class StartupWatchdog {
 public:
  explicit StartupWatchdog(Seconds within)
      : thread_(start_thread([this, within] { watch(within); })) {}
  ~StartupWatchdog() {
    {
      const MutexLock lock(mutex_);
      has_started_ = true;
    }
    changed_.notify_all();
  }
  StartupWatchdog(const StartupWatchdog&) = delete;
  StartupWatchdog& operator=(const StartupWatchdog&) = delete;

 private:
  void watch(Seconds within) {
    const auto end = ConditionVariable::after(within.value);
    const MutexLock lock(mutex_);
    while (!has_started_ && changed_.wait_until(mutex_, end)) {
    }
    if (has_started_) return;
    const Diagnostic late{
        .code = "D301",
        .where = {.rank = rank_by_launcher(), .operation = "MPI_Init"},
        .what = fmt::format("MPI_Init timed out after {}", to_string(within)),
        .why = "it waits for all ranks of the job, and does not report which one is missing",
        .help =
            "look for a rank that hangs or was stopped; SHIPLAP_CONNECT_TIMEOUT=600 waits longer"};
    std::fputs(render(late).c_str(), stderr);
    std::fflush(stderr);
    _exit(1);
  }

  Mutex mutex_;
  ConditionVariable changed_;
  bool has_started_ SHIPLAP_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

// The standard guarantees only 32,767.
void check_tags() {
  int* max_tag = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&max_tag), &is_known);
  if (is_known != 0 && *max_tag < MessageCommunicator::kTagsNeeded) {
    throw MissingDependency(
        Diagnostic{.code = "D306",
                   .what = fmt::format("this MPI has tags up to {}; {} are needed", *max_tag,
                                       MessageCommunicator::kTagsNeeded)});
  }
}

}  // namespace

Process& Process::instance(Seconds start_within) {
  // Never destroyed.
  static Process* const process = new Process(start(start_within));
  return *process;
}

Process::Started Process::start(Seconds within) {
  std::optional<StartupWatchdog> watch;
  if (!library::is_simulated()) watch.emplace(within);
  int provided = 0;
  const int wanted = library::is_simulated() ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE;
  if (MPI_Init_thread(nullptr, nullptr, wanted, &provided) != MPI_SUCCESS || provided < wanted) {
    throw MissingDependency(
        Diagnostic{.code = "D306", .what = "this MPI does not support threads"});
  }
  Started started;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_dup(MPI_COMM_WORLD, &started.control);
  MPI_Comm_dup(MPI_COMM_WORLD, &started.base);
  MPI_Comm_set_errhandler(started.control, MPI_ERRORS_RETURN);
  check_tags();
  MPI_Comm_rank(MPI_COMM_WORLD, &started.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &started.size);
  return started;
}

Process::Process(const Started& started)
    : detector_(*this, started.rank, started.size),
      control_(started.control),
      base_(started.base),
      goodbyes_(started.size) {
  post_control_receive();
  if (!library::is_simulated()) {
    on_exit([](int status, void* self) { static_cast<Process*>(self)->end(status); }, this);
  }
}

void Process::pause_briefly() {
  if (!library::is_simulated()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- control messages

void Process::send(const ControlMessage& message, std::span<const int> ranks) {
  const MutexLock lock(mutex_);
  for (const int to : ranks) {
    if (to != detector_.rank()) post(message, to);
  }
}

void Process::post(const ControlMessage& message, int to) {
  ControlSend& sending = sending_.emplace_back(ControlSend{.message = message});
  MPI_Isend(&sending.message, sizeof(ControlMessage), MPI_BYTE, to, kControlTag, control_,
            &sending.request);
}

void Process::poll(const WaitState& state) {
  if (!mutex_.try_lock()) return;  // another thread polls
  const MutexLock lock(mutex_, std::adopt_lock);
  const double time = now();
  next_poll_ = time + kPollEvery;
  detector_.set_waiting(state);
  read_messages();
  std::erase_if(sending_, [](ControlSend& sending) {
    int done = 0;
    return MPI_Test(&sending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  if (time < next_dead_poll_) return;
  next_dead_poll_ = time + kPollDeadEvery;
  poll_dead_ranks();
}

void Process::post_control_receive() {
  MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, kControlTag, control_,
            &control_receive_);
}

void Process::read_messages() {
  while (true) {
    int there = 0;
    MPI_Status status;
    if (MPI_Test(&control_receive_, &there, &status) != MPI_SUCCESS) {
      // A rank died, so MPI_ANY_SOURCE fails. Reading the dead ranks acknowledges that.
      poll_dead_ranks();
      if (control_receive_ == MPI_REQUEST_NULL) post_control_receive();
      return;
    }
    if (there == 0) return;
    const ControlMessage message = incoming_;
    post_control_receive();
    if (message.kind == ControlMessage::Kind::goodbye) goodbyes_[status.MPI_SOURCE] = true;
    if (const auto reply = detector_.handle(message, status.MPI_SOURCE)) {
      post(*reply, status.MPI_SOURCE);
    }
  }
}

// ---- failed ranks

void Process::poll_dead_ranks() {
  for (const int rank : library::dead_ranks(control_)) {
    detector_.set_dead(rank, "its process died");
  }
}

std::optional<FailedRank> Process::wait_for_failed(std::span<const int> ranks) {
  for (const double end = now() + kFindDeadWithin; now() < end;) {
    {
      const MutexLock lock(mutex_);
      read_messages();
      poll_dead_ranks();
    }
    if (auto failed = detector_.failed_among(ranks)) return failed;
    pause_briefly();
  }
  return std::nullopt;
}

void Process::begin_run() {
  detector_.begin_run();
  const MutexLock lock(mutex_);
  goodbyes_.assign(goodbyes_.size(), false);
  failed_ = true;  // unless the run completes; work may call exit()
}

// ---- the end

bool Process::got_all_goodbyes() {
  const MutexLock lock(mutex_);
  for (const int rank : detector_.all_ranks()) {
    if (rank != detector_.rank() && !goodbyes_[rank] && !detector_.is_dead(rank)) return false;
  }
  return true;
}

bool Process::exchange_goodbyes() {
  const std::span<const int> ranks = detector_.all_ranks();
  if (ranks.size() <= FailureDetector::kMaxProbed) {
    send({.kind = ControlMessage::Kind::goodbye}, ranks);
  }
  const double seconds = library::is_simulated() ? kSimulatedGoodbyesWithin : kGoodbyesWithin;
  for (const double end = now() + seconds; now() < end && !got_all_goodbyes();) {
    poll({.text = "exit"});
    pause_briefly();
  }
  return got_all_goodbyes();
}

// MPI_Finalize may hang because of pending messages, so it gets a time limit.
void Process::finalize_or_exit(int status) {
  MPI_Cancel(&control_receive_);
  std::thread([status] {
    std::this_thread::sleep_for(std::chrono::duration<double>(kFinalizeWithin));
    _exit(status);
  }).detach();
  MPI_Finalize();
}

void Process::end(int status) {
  if (std::exchange(ended_, true)) return;
  if (!failed_ && !detector_.any_failed()) {
    const MutexLock lock(mutex_);
    MPI_Cancel(&control_receive_);
    MPI_Wait(&control_receive_, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return;
  }
  std::fflush(nullptr);
  if (exchange_goodbyes()) {
    const MutexLock lock(mutex_);
    finalize_or_exit(status);
  } else {
    MPI_Abort(MPI_COMM_WORLD, status == 0 ? 1 : status);
  }
}

}  // namespace shiplap::comm
