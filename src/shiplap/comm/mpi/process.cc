#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/base/exhausted.h"
#include "shiplap/comm/messages_internal.h"
#include "shiplap/comm/mpi/library_internal.h"
#include "shiplap/comm/mpi/process_internal.h"

namespace shiplap::comm {
namespace {

constexpr int kControlTag = 1;
constexpr double kPollEvery = 1e-3;
constexpr double kLookEvery = 5e-3;
constexpr double kNameWithin = 1.5;  // after MPI said that somebody died
constexpr double kGoodbyesWithin = 2;
constexpr double kSimulatedGoodbyesWithin = 300;  // costs nobody anything
constexpr double kFinalizeWithin = 3;

std::optional<std::int64_t> rank_by_launcher() {
  for (const char* const variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const value = std::getenv(variable)) return std::strtoll(value, nullptr, 10);
  }
  return std::nullopt;
}

// MPI_Init and MPI_Comm_dup wait for all ranks, have no deadline, and cannot be left.
class StartWatch {
 public:
  explicit StartWatch(Seconds within) : thread_(start_thread([this, within] { watch(within); })) {}
  ~StartWatch() {
    {
      const MutexLock lock(mutex_);
      has_started_ = true;
    }
    changed_.notify_all();
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

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
        .what = fmt::format("MPI did not start within {}", to_string(within)),
        .why = "it waits for all ranks of the job, and does not say which of them is missing",
        .help =
            "look for a rank that hangs or was stopped; SHIPLAP_CONNECT_WITHIN=600 waits longer"};
    std::fputs(render(late).c_str(), stderr);
    std::fflush(stderr);
    _exit(1);
  }

  Mutex mutex_;
  ConditionVariable changed_;
  bool has_started_ SHIPLAP_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

// The standard promises only 32,767.
void check_tags() {
  int* most = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &is_known);
  if (is_known != 0 && *most < MessageCommunicator::kTagsNeeded) {
    throw MissingPart(Diagnostic{.code = "D306",
                                 .what = fmt::format("this MPI has tags up to {}; {} are needed",
                                                     *most, MessageCommunicator::kTagsNeeded)});
  }
}

}  // namespace

Process& Process::instance(Seconds start_within) {
  // It lives as long as the process does.
  static Process* const process = new Process(start(start_within));
  return *process;
}

Process::Started Process::start(Seconds within) {
  std::optional<StartWatch> watch;
  if (!library::is_simulated()) watch.emplace(within);
  int provided = 0;
  const int wanted = library::is_simulated() ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE;
  if (MPI_Init_thread(nullptr, nullptr, wanted, &provided) != MPI_SUCCESS || provided < wanted) {
    throw MissingPart(Diagnostic{.code = "D306", .what = "this MPI does not support threads"});
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
  listen();
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
  Sending& sending = sending_.emplace_back(Sending{.message = message});
  MPI_Isend(&sending.message, sizeof(ControlMessage), MPI_BYTE, to, kControlTag, control_,
            &sending.request);
}

void Process::poll(const WaitState& state) {
  if (!mutex_.try_lock()) return;  // another thread does it
  const MutexLock lock(mutex_, std::adopt_lock);
  const double time = now();
  next_poll_ = time + kPollEvery;
  detector_.set_waiting(state);
  read_messages();
  std::erase_if(sending_, [](Sending& sending) {
    int done = 0;
    return MPI_Test(&sending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  if (time < next_look_) return;
  next_look_ = time + kLookEvery;
  look_for_dead();
}

void Process::listen() {
  MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, kControlTag, control_,
            &listening_);
}

void Process::read_messages() {
  while (true) {
    int there = 0;
    MPI_Status status;
    if (MPI_Test(&listening_, &there, &status) != MPI_SUCCESS) {
      // A rank died, so a message from anybody may never come. Asking who it was makes MPI go on.
      look_for_dead();
      if (listening_ == MPI_REQUEST_NULL) listen();
      return;
    }
    if (there == 0) return;
    const ControlMessage message = incoming_;
    listen();
    if (message.kind == ControlMessage::Kind::goodbye) goodbyes_[status.MPI_SOURCE] = true;
    if (const auto reply = detector_.handle(message, status.MPI_SOURCE)) {
      post(*reply, status.MPI_SOURCE);
    }
  }
}

// ---- failed ranks

void Process::look_for_dead() {
  for (const int rank : library::dead_ranks(control_)) {
    detector_.set_dead(rank, "its process died");
  }
}

std::optional<FailedRank> Process::wait_for_failed(std::span<const int> ranks) {
  for (const double end = now() + kNameWithin; now() < end;) {
    {
      const MutexLock lock(mutex_);
      read_messages();
      look_for_dead();
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
  failed_ = true;  // until the end is reached, also by exit()
}

// ---- the end

bool Process::all_said_goodbye() {
  const MutexLock lock(mutex_);
  for (const int rank : detector_.everybody()) {
    if (rank != detector_.rank() && !goodbyes_[rank] && !detector_.is_dead(rank)) return false;
  }
  return true;
}

bool Process::say_goodbye() {
  const std::span<const int> everybody = detector_.everybody();
  if (everybody.size() <= FailureDetector::kMaxProbed) {
    send({.kind = ControlMessage::Kind::goodbye}, everybody);
  }
  const double seconds = library::is_simulated() ? kSimulatedGoodbyesWithin : kGoodbyesWithin;
  for (const double end = now() + seconds; now() < end && !all_said_goodbye();) {
    poll({.text = "its end"});
    pause_briefly();
  }
  return all_said_goodbye();
}

// Pending messages can keep MPI_Finalize from returning, so it has only so much time.
void Process::finalize_or_exit(int status) {
  MPI_Cancel(&listening_);
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
    MPI_Cancel(&listening_);
    MPI_Wait(&listening_, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return;
  }
  std::fflush(nullptr);
  if (say_goodbye()) {
    const MutexLock lock(mutex_);
    finalize_or_exit(status);
  } else {
    MPI_Abort(MPI_COMM_WORLD, status == 0 ? 1 : status);
  }
}

}  // namespace shiplap::comm
