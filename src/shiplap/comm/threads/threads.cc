#include "shiplap/comm/threads/threads.h"

#include <fmt/format.h>

#include <exception>
#include <numeric>
#include <string_view>

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
  const auto run = [&](int rank) {
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
  std::vector<std::jthread> threads;
  try {
    for (int rank = 1; rank < options.ranks; ++rank) {
      threads.push_back(start_thread([&run, rank] { run(rank); }));
    }
    run(0);
  } catch (...) {
    exceptions.add(std::current_exception());
    constexpr std::string_view kReason = "its thread could not be started";
    world->abort_rank(0, 0, kReason);
    for (auto rank = static_cast<int>(threads.size()) + 1; rank < options.ranks; ++rank) {
      world->abort_rank(rank, rank, kReason);
    }
  }
  threads.clear();  // joins them
  exceptions.rethrow();
}

}  // namespace shiplap::comm
