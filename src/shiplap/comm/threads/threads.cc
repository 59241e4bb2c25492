#include "shiplap/comm/threads/threads.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <numeric>
#include <string_view>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/base/resources.h"
#include "shiplap/comm/threads/world_internal.h"

namespace shiplap::comm {
namespace {

// The exceptions of the ranks.
class Exceptions {
 public:
  void add(std::exception_ptr exception) {
    const MutexLock lock(mutex_);
    if (first_ == nullptr) first_ = std::move(exception);
  }
  // A RankFailed is rethrown only if no rank has thrown the cause.
  void add_consequence(std::exception_ptr exception) {
    const MutexLock lock(mutex_);
    if (first_consequence_ == nullptr) first_consequence_ = std::move(exception);
  }
  void rethrow() {
    const MutexLock lock(mutex_);
    if (first_ != nullptr) std::rethrow_exception(first_);
    if (first_consequence_ != nullptr) std::rethrow_exception(first_consequence_);
  }

 private:
  Mutex mutex_;
  std::exception_ptr first_ SHIPLAP_GUARDED_BY(mutex_);
  std::exception_ptr first_consequence_ SHIPLAP_GUARDED_BY(mutex_);
};

// Ends a rank because the call was cancelled; the caller's thread has the cause.
struct RankCancelled : std::exception {};

// The threads that still run, for a caller that polls while it waits for them.
class RunningThreads {
 public:
  explicit RunningThreads(int count) : count_(count) {}

  void end_one() {
    const MutexLock lock(mutex_);
    --count_;
    changed_.notify_all();
  }
  // Throws what throw_if_cancelled() throws.
  void wait_cancellable() {
    while (!wait_interval()) throw_if_cancelled();
  }

 private:
  // Returns whether all have ended.
  bool wait_interval() {
    const MutexLock lock(mutex_);
    if (count_ > 0) {
      changed_.wait_until(mutex_, ConditionVariable::after(kCancellationInterval.value));
    }
    return count_ == 0;
  }

  Mutex mutex_;
  ConditionVariable changed_;
  int count_ SHIPLAP_GUARDED_BY(mutex_);
};

}  // namespace

void run_on_threads(const ThreadOptions& options, const std::function<void(Communicator&)>& work) {
  if (options.ranks < 1) {
    throw InputError(Diagnostic{.code = "D300",
                                .what = fmt::format("invalid number of ranks: {}", options.ranks)});
  }
  const auto world = std::make_shared<ThreadWorld>(options);
  std::vector<int> all_ranks(options.ranks);
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const auto group = std::make_shared<ThreadGroup>(0, std::move(all_ranks));

  Exceptions exceptions;
  std::atomic<bool> is_cancelled = false;
  const auto run = [&](int rank) {
    const CancellationScope scope([&] {
      if (is_cancelled) throw RankCancelled();
    });
    try {
      ThreadCommunicator communicator(world, group, rank, "world");
      communicator.set_timeout(options.timeout);
      communicator.set_checked(options.checked);
      work(communicator);
    } catch (const RankFailed& error) {
      exceptions.add_consequence(std::current_exception());
      world->abort_rank(rank, error.rank(), error.diagnostic().why);
    } catch (const TimeoutError& error) {
      exceptions.add(std::current_exception());
      world->abort_rank(rank, error.culprit().value_or(Communicator::kNobody), error.what());
    } catch (const std::exception& error) {
      exceptions.add(std::current_exception());
      world->abort_rank(rank, rank, error.what());
    } catch (...) {
      exceptions.add(std::current_exception());
      world->abort_rank(rank, rank, "unknown exception");
    }
  };
  // Rank 0 runs on the caller's thread, unless that has to poll.
  const int first = is_cancellable() ? 0 : 1;
  RunningThreads running(options.ranks - first);
  std::vector<std::jthread> threads;
  try {
    for (int rank = first; rank < options.ranks; ++rank) {
      threads.push_back(start_thread([&run, &running, rank] {
        run(rank);
        running.end_one();
      }));
    }
    if (first == 1) {
      run(0);
    } else {
      running.wait_cancellable();
    }
  } catch (...) {
    exceptions.add(std::current_exception());
    is_cancelled = true;
    for (int rank = 0; rank < options.ranks; ++rank) {
      world->abort_rank(rank, rank, "a thread could not be started, or the call was cancelled");
    }
  }
  threads.clear();  // joins them
  exceptions.rethrow();
}

}  // namespace shiplap::comm
