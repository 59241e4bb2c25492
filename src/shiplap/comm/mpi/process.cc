#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/comm/messages_internal.h"
#include "shiplap/comm/mpi/library_internal.h"
#include "shiplap/comm/mpi/process_internal.h"

namespace shiplap::comm {
namespace {

constexpr int kNoticeTag = 1;
constexpr double kServiceEvery = 1e-3;
constexpr double kLookEvery = 5e-3;
constexpr double kAnswersWithin = 0.5;
constexpr double kFresh = 0.1;       // how long a waiter counts as waiting after it last said so
constexpr double kNameWithin = 1.5;  // after MPI said that somebody died
constexpr double kFarewellsWithin = 2;
constexpr double kSimulatedFarewellsWithin = 300;  // costs nobody anything
constexpr double kFinalizeWithin = 3;
// Beyond this a roll call would be a storm of messages.
constexpr std::size_t kLargestRollCall = 512;
constexpr std::size_t kLongestAccount = 400;

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

void pause_briefly() {
  if (!library::is_simulated()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace

Process& Process::instance() {
  static Process* const process = new Process;  // lives as long as the process does
  return *process;
}

Process::Process() {
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
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  farewells_.resize(static_cast<std::size_t>(size_));
  everybody_.resize(farewells_.size());
  std::iota(everybody_.begin(), everybody_.end(), 0);
  listen();
  if (!library::is_simulated()) {
    on_exit([](int status, void* self) { static_cast<Process*>(self)->end(status); }, this);
  }
}

// ---- notices

void Process::send(const Notice& notice, std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  for (const int to : ranks) {
    if (to == rank_) continue;
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
  said_[doing.group] = {.text = doing.text, .time = time};
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

// Threads of this process may wait in several groups: the one that reads the question need not be
// the one it is about.
Notice Process::answer_to(std::uint64_t group) {
  Notice answer{.kind = Notice::Kind::answer, .group = group};
  const auto own = arrived_.find(group);
  if (own != arrived_.end()) answer.arrived = own->second;
  const double fresh = now() - kFresh;
  auto said = said_.find(group);
  answer.waits = said != said_.end() && said->second.time > fresh ? 1 : 0;
  if (answer.waits == 0) {
    said = std::ranges::max_element(said_, {}, [](const auto& one) { return one.second.time; });
  }
  if (said != said_.end()) {
    said->second.text.copy(answer.text.data(), answer.text.size() - 1);
  }
  return answer;
}

void Process::handle(const Notice& notice, int from) {
  const std::string text(notice.text.data());
  switch (notice.kind) {
    case Notice::Kind::question:
      others_[{notice.group, from}] = {
          .arrived = notice.arrived, .waits = notice.waits != 0, .doing = text};
      send(answer_to(notice.group), {{from}});
      return;
    case Notice::Kind::answer:
      others_[{notice.group, from}] = {
          .arrived = notice.arrived, .waits = notice.waits != 0, .doing = text};
      return;
    case Notice::Kind::leaving:
      if (notice.run < run_) return;
      lose(from, {.rank = notice.root, .reason = text, .since = now(), .run = notice.run});
      return;
    case Notice::Kind::farewell:
      farewells_[static_cast<std::size_t>(from)] = true;
      return;
  }
}

// ---- the lost

void Process::lose(int rank, const Lost& lost) {
  const auto [known, is_new] = lost_.try_emplace(rank, lost);
  known->second.is_dead = known->second.is_dead || lost.is_dead;
  anybody_lost_ = true;
}

void Process::look_for_dead() {
  for (const int rank : library::dead_ranks(notices_)) {
    lose(rank, {.rank = rank, .reason = "its process died", .since = now(), .is_dead = true});
  }
}

std::optional<Process::Lost> Process::lost_among(std::span<const int> ranks) {
  if (!anybody_lost_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, lost] : lost_) {
    if (std::ranges::find(ranks, rank) != ranks.end()) return lost;
  }
  return std::nullopt;
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
  ++run_;
  std::erase_if(lost_,
                [&](const auto& one) { return !one.second.is_dead && one.second.run < run_; });
  anybody_lost_ = !lost_.empty();
  farewells_.assign(farewells_.size(), false);
  failed_ = true;  // until the end is reached, also by exit()
}

void Process::leave(int root, const std::string& reason) {
  Notice notice{.kind = Notice::Kind::leaving, .root = root, .run = run_};
  reason.copy(notice.text.data(), notice.text.size() - 1);
  send(notice, everybody_);
  // Other threads of this process may wait too.
  const std::lock_guard lock(mutex_);
  lose(rank_, {.rank = root, .reason = reason, .since = now(), .run = run_});
}

// ---- the roll call

void Process::set_arrived(std::uint64_t group, std::int64_t count) {
  const std::lock_guard lock(mutex_);
  arrived_[group] = count;
}

Process::RollCall Process::call_roll(std::uint64_t group, std::int64_t count,
                                     std::span<const int> ranks, const Doing& doing) {
  if (ranks.size() > kLargestRollCall) return {};
  Notice question{
      .kind = Notice::Kind::question, .group = group, .waits = doing.group == group ? 1 : 0};
  {
    const std::lock_guard lock(mutex_);
    const auto own = arrived_.find(group);
    if (own != arrived_.end()) question.arrived = own->second;
  }
  doing.text.copy(question.text.data(), question.text.size() - 1);
  send(question, ranks);
  const auto progress_of = [&](int rank) {
    const std::lock_guard lock(mutex_);
    const auto found = others_.find({group, rank});
    return found == others_.end() ? Progress{} : found->second;
  };
  const auto all_known = [&] {
    return std::ranges::all_of(
        ranks, [&](int rank) { return rank == rank_ || progress_of(rank).arrived >= 0; });
  };
  for (const double end = now() + kAnswersWithin; now() < end && !all_known();) {
    serve(doing);
    pause_briefly();
  }
  std::vector<int> behind;
  RollCall result;
  for (const int rank : ranks) {
    const Progress progress = progress_of(rank);
    if (rank == rank_ || progress.arrived >= count) continue;
    (progress.waits ? behind : result.missing).push_back(rank);
  }
  if (result.missing.empty()) result.missing = behind;
  std::string silent;
  for (const int rank : result.missing) {
    const Progress progress = progress_of(rank);
    if (progress.arrived < 0) {
      silent += fmt::format("{}{}", silent.empty() ? "" : ", ", rank);
    } else if (result.about.size() < kLongestAccount) {
      result.about +=
          fmt::format("{}rank {} is in {}", result.about.empty() ? "" : "; ", rank, progress.doing);
    }
  }
  if (!silent.empty()) {
    result.about += fmt::format("{}no answer from {}: computing, stopped or gone",
                                result.about.empty() ? "" : "; ", silent);
  }
  return result;
}

// ---- the end

bool Process::say_farewell() {
  if (everybody_.size() <= kLargestRollCall) send({.kind = Notice::Kind::farewell}, everybody_);
  const auto complete = [&] {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(everybody_, [&](int rank) {
      const auto lost = lost_.find(rank);
      const bool is_dead = lost != lost_.end() && lost->second.is_dead;
      return rank == rank_ || is_dead || farewells_[static_cast<std::size_t>(rank)];
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
  if (!failed_ && !anybody_lost_) {
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
