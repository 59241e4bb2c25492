#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/base/exhausted.h"
#include "shiplap/comm/messages_internal.h"
#include "shiplap/comm/mpi/library_internal.h"
#include "shiplap/comm/mpi/process_internal.h"

namespace shiplap::comm {
namespace {

constexpr int kNoticeTag = 1;
constexpr double kServiceEvery = 1e-3;
constexpr double kLookEvery = 5e-3;
constexpr double kNameWithin = 1.5;  // after MPI said that somebody died
constexpr double kFarewellsWithin = 2;
constexpr double kSimulatedFarewellsWithin = 300;  // costs nobody anything
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
      const std::lock_guard lock(mutex_);
      has_started_ = true;
    }
    changed_.notify_all();
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void watch(Seconds within) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(within.value),
                          [&] { return has_started_; })) {
      return;
    }
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

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_started_ = false;
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
  static Process* const process = new Process(start_within);
  return *process;
}

Process::Process(Seconds start_within) {
  std::optional<StartWatch> watch;
  if (!library::is_simulated()) watch.emplace(start_within);
  int provided = 0;
  const int wanted = library::is_simulated() ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE;
  if (MPI_Init_thread(nullptr, nullptr, wanted, &provided) != MPI_SUCCESS || provided < wanted) {
    throw MissingPart(Diagnostic{.code = "D306", .what = "this MPI does not support threads"});
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_dup(MPI_COMM_WORLD, &notices_);
  MPI_Comm_dup(MPI_COMM_WORLD, &base_);
  MPI_Comm_set_errhandler(notices_, MPI_ERRORS_RETURN);
  check_tags();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  set_ranks(rank, size);
  farewells_.resize(size);
  listen();
  if (!library::is_simulated()) {
    on_exit([](int status, void* self) { static_cast<Process*>(self)->end(status); }, this);
  }
}

void Process::pause_briefly() {
  if (!library::is_simulated()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- notices

void Process::send(const Notice& notice, std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  for (const int to : ranks) {
    if (to == rank()) continue;
    Sending& sending = sending_.emplace_back(Sending{.notice = notice});
    MPI_Isend(&sending.notice, sizeof(Notice), MPI_BYTE, to, kNoticeTag, notices_,
              &sending.request);
  }
}

void Process::serve(const Doing& doing) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread does it
  const double time = now();
  next_service_ = time + kServiceEvery;
  say(doing);
  read_notices();
  std::erase_if(sending_, [](Sending& sending) {
    int done = 0;
    return MPI_Test(&sending.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  if (time < next_look_) return;
  next_look_ = time + kLookEvery;
  look_for_dead();
}

void Process::listen() {
  MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, kNoticeTag, notices_,
            &listening_);
}

void Process::read_notices() {
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
    const Notice notice = incoming_;
    listen();
    handle(notice, status.MPI_SOURCE);
  }
}

// ---- the lost

void Process::look_for_dead() {
  for (const int rank : library::dead_ranks(notices_)) {
    lose(rank, {.rank = rank, .reason = "its process died", .since = now(), .is_dead = true});
  }
}

std::optional<Process::Lost> Process::wait_for_lost(std::span<const int> ranks) {
  for (const double end = now() + kNameWithin; now() < end;) {
    {
      const std::lock_guard lock(mutex_);
      read_notices();
      look_for_dead();
    }
    if (auto lost = lost_among(ranks)) return lost;
    pause_briefly();
  }
  return std::nullopt;
}

void Process::begin_run() {
  const std::lock_guard lock(mutex_);
  forget_who_left();
  farewells_.assign(farewells_.size(), false);
  failed_ = true;  // until the end is reached, also by exit()
}

// ---- the end

bool Process::say_farewell() {
  if (everybody().size() <= kLargestRollCall) send({.kind = Notice::Kind::farewell}, everybody());
  const auto complete = [&] {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(everybody(), [&](int rank) {
      const auto found = lost().find(rank);
      const bool is_dead = found != lost().end() && found->second.is_dead;
      return rank == this->rank() || is_dead || farewells_[rank];
    });
  };
  const double seconds = library::is_simulated() ? kSimulatedFarewellsWithin : kFarewellsWithin;
  for (const double end = now() + seconds; now() < end && !complete();) {
    serve({.text = "its end"});
    pause_briefly();
  }
  return complete();
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
  if (!failed_ && !anybody_lost()) {
    MPI_Cancel(&listening_);
    MPI_Wait(&listening_, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return;
  }
  std::fflush(nullptr);
  if (say_farewell()) {
    finalize_or_exit(status);
  } else {
    MPI_Abort(MPI_COMM_WORLD, status == 0 ? 1 : status);
  }
}

}  // namespace shiplap::comm
