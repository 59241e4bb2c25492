#include "shiplap/comm/threads/threads.h"

#include <fmt/format.h>

#include <exception>
#include <numeric>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/base/exhausted.h"
#include "shiplap/comm/threads/world_internal.h"

namespace shiplap::comm {
namespace {

// What the ranks threw, in order.
class Exceptions {
 public:
  void add(std::exception_ptr exception) {
    const MutexLock lock(mutex_);
    if (first_ == nullptr) first_ = std::move(exception);
  }
  // That another rank failed is told only if that rank does not tell why itself.
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
                                .what = fmt::format("{} is not a number of ranks", options.ranks)});
  }
  const auto world = std::make_shared<World>(options);
  std::vector<int> everybody(options.ranks);
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto group = std::make_shared<Group>(0, std::move(everybody));

  Exceptions exceptions;
  const auto run = [&](int rank) {
    try {
      ThreadCommunicator communicator(world, group, rank, "world");
      communicator.set_timeout(options.timeout);
      communicator.set_checked(options.checked);
      work(communicator);
    } catch (const RankFailed& error) {
      exceptions.add_consequence(std::current_exception());
      world->leave(rank, error.rank(), error.diagnostic().why);
    } catch (const DeadlinePassed& error) {
      exceptions.add(std::current_exception());
      world->leave(rank, error.culprit().value_or(Communicator::kNobody), error.what());
    } catch (const std::exception& error) {
      exceptions.add(std::current_exception());
      world->leave(rank, rank, error.what());
    } catch (...) {
      exceptions.add(std::current_exception());
      world->leave(rank, rank, "an exception of no known type");
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
    constexpr std::string_view kReason = "it was never started";
    world->leave(0, 0, kReason);
    for (auto rank = static_cast<int>(threads.size()) + 1; rank < options.ranks; ++rank) {
      world->leave(rank, rank, kReason);
    }
  }
  threads.clear();  // joins them
  exceptions.rethrow();
}

}  // namespace shiplap::comm
