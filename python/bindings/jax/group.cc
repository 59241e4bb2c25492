#include "group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <shared_mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/sockets.h"
#include "shiplap/run/execute.h"

namespace shiplap::python::jax {
namespace {

constexpr std::size_t kMaxFailures = 256;
constexpr std::size_t kMaxTracedCalls = 10'000;         // calls
constexpr std::int64_t kMatchIdStride = 1'000'000'000;  // more messages than a call has

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The cache key of a request, which is also the name of the buffer on all ranks.
std::string key_of(const run::BufferRequest& r) {
  const bool is_tapered = r.cut == overlap::Cut::tapered;
  return fmt::format("{} {}x{} {} {}{}{}",
                     to_string(overlap::Choice{r.comm_type, r.method, r.atomic_gemm}),
                     r.buffer_shape.front(), r.buffer_shape.back(), shiplap::name(r.buffer_dtype),
                     shiplap::name(r.result_dtype),
                     r.scaling_mode == kernels::ScalingMode::no_scaling
                         ? ""
                         : fmt::format(" {}", kernels::name(r.scaling_mode)),
                     r.chunks == 1 && !is_tapered
                         ? ""
                         : fmt::format(" in {}{}", r.chunks, is_tapered ? " tapered" : ""));
}

// Calls f(0) .. f(count - 1) concurrently, for collectives of several local ranks.
void run_concurrently(std::size_t count, const std::function<void(std::size_t)>& f) {
  std::vector<std::exception_ptr> failures(count);
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < count; ++k) {
    threads.emplace_back([&, k] {
      try {
        f(k);
      } catch (...) {
        failures[k] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Returns the time on this rank's clock at which the clock of rank 0 started. Cristian's algorithm:
// of some round trips to rank 0 the shortest counts, and its reply is assumed to have been sent
// halfway. Collective.
std::int64_t common_start(comm::Communicator& world) {
  constexpr int kPings = 16;
  const std::int64_t begun = nanoseconds_now();
  std::int64_t start = begun;
  for (int rank = 1; rank < world.size(); ++rank) {
    std::int64_t quickest = std::numeric_limits<std::int64_t>::max();
    for (int k = 0; k < kPings; ++k) {
      std::int64_t since = 0;
      if (world.rank() == 0) {
        world.receive(std::span(&since, 1), rank);
        since = nanoseconds_now() - begun;
        world.send(std::span<const std::int64_t>(&since, 1), rank);
      } else if (world.rank() == rank) {
        const std::int64_t asked = nanoseconds_now();
        world.send(std::span<const std::int64_t>(&since, 1), 0);
        world.receive(std::span(&since, 1), 0);
        const std::int64_t took = nanoseconds_now() - asked;
        if (took < quickest) {
          quickest = took;
          start = asked + took / 2 - since;
        }
      }
    }
  }
  return start;
}

// The store of a communicator of a single rank.
class InMemoryStore final : public comm::Rendezvous {
 public:
  void put(const std::string& key, const std::string& value) override { values_[key] = value; }
  [[nodiscard]] std::optional<std::string> get(const std::string& key,
                                               Seconds /*within*/) override {
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

struct Groups {
  std::shared_mutex mutex;
  std::unordered_map<std::int64_t, std::shared_ptr<Group>> by_number;
  std::int64_t next = 1;
};

// Never destroyed: programs of XLA may run until the process ends.
Groups& groups() {
  static Groups* const all = new Groups;  // NOLINT(cppcoreguidelines-owning-memory)
  return *all;
}

struct SingleRankContexts {
  std::mutex mutex;
  std::map<int, std::unique_ptr<LocalRank>> by_device;
};

SingleRankContexts& single_rank_contexts() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  static SingleRankContexts* const all = new SingleRankContexts;
  return *all;
}

struct Failures {
  std::mutex mutex;
  std::deque<std::pair<std::string, std::exception_ptr>> stored;  // the newest last
};

Failures& failures() {
  static Failures* const all = new Failures;  // NOLINT(cppcoreguidelines-owning-memory)
  return *all;
}

}  // namespace

// ---- one rank

LocalRank::LocalRank(std::unique_ptr<comm::Communicator> communicator, bool traces)
    : communicator_(std::move(communicator)), registry_(*communicator_, {.traces = traces}) {}

std::shared_ptr<run::CommOverlapCore> LocalRank::buffer(std::int64_t id,
                                                        run::BufferRequest request) {
  if (id >= 0) return registry_.find(id);
  request.name = key_of(request);
  const std::lock_guard lock(mutex_);
  auto found = cached_.find(request.name);
  if (found == cached_.end()) {
    const std::int64_t made = registry_.create_comm_overlap_buffer(request);
    found = cached_.emplace(request.name, made).first;
  }
  return registry_.find(found->second);
}

void LocalRank::destroy_all_buffers() {
  const std::lock_guard lock(mutex_);
  cached_.clear();
  registry_.destroy_all_comm_overlap_buffers();
}

void LocalRank::record_addresses(std::vector<std::uintptr_t> addresses) {
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

std::vector<std::uintptr_t> LocalRank::addresses() const {
  const std::lock_guard lock(mutex_);
  return addresses_;
}

void LocalRank::record_events(std::vector<trace::Event> events, Seconds begun) {
  const std::lock_guard lock(mutex_);
  // Ranks make the same calls in the same order, so a message has the same match id on both.
  for (trace::Event& event : events) {
    event.time += begun;
    event.layer = static_cast<std::int32_t>(traced_);
    event.axis = -1;  // every call has a plan with axes of its own
    if (event.match >= 0) event.match += traced_ * kMatchIdStride;
  }
  ++traced_;
  calls_.push_back(std::move(events));
  if (calls_.size() > kMaxTracedCalls) calls_.pop_front();
}

std::vector<trace::Event> LocalRank::take_events() {
  const std::lock_guard lock(mutex_);
  std::vector<trace::Event> all;
  for (const auto& events : calls_) all.insert(all.end(), events.begin(), events.end());
  calls_.clear();
  traced_ = 0;
  return all;
}

// ---- a group

Group::Group(GroupRequest request, comm::Rendezvous& rendezvous) : request_(std::move(request)) {
  std::vector<std::unique_ptr<comm::Communicator>> made(request_.placements.size());
  run_concurrently(made.size(), [&](std::size_t k) {
    const RankPlacement& placement = request_.placements[k];
    made[k] = comm::connect(
        {.rank = placement.rank, .size = static_cast<int>(placement.rank_names.size())}, rendezvous,
        {.timeout = request_.timeout,
         .address = request_.address,
         .connect_timeout = request_.connect_timeout,
         .name = placement.subgroup});
    const std::int64_t start = common_start(*made[k]);
    if (k == 0) begun_ns_ = start;  // ranks of one process have one clock
  });
  for (std::size_t k = 0; k < made.size(); ++k) {
    ranks_.emplace(request_.placements[k].device,
                   std::make_unique<LocalRank>(std::move(made[k]), request_.traces));
  }
}

LocalRank& Group::rank_on(int device) {
  const auto found = ranks_.find(device);
  if (found != ranks_.end()) return *found->second;
  throw InputError(
      Diagnostic{.code = "D816",
                 .what = fmt::format("no rank of the group `{}` is on device {} of this process",
                                     request_.name, device),
                 .help = "run it on the devices of the mesh that the group was created with"});
}

std::int64_t Group::create(const run::BufferRequest& request) {
  std::int64_t number = 0;  // 0 is not the number of a buffer
  for (auto& [device, rank] : ranks_) {
    const std::int64_t made = rank->registry().create_comm_overlap_buffer(request);
    ensure(number == 0 || number == made, "all ranks of a process number buffers alike");
    number = made;
  }
  return number;
}

void Group::destroy(std::int64_t id) {
  for (auto& [device, rank] : ranks_) rank->registry().destroy_comm_overlap_buffer(id);
}

void Group::destroy_all() {
  for (auto& [device, rank] : ranks_) rank->destroy_all_buffers();
}

void Group::abort(const std::string& reason) {
  for (auto& [device, rank] : ranks_) rank->communicator().abort(reason);
}

std::string Group::describe_ranks(int device, const std::vector<int>& ranks) const {
  std::vector<std::string> names;
  for (const RankPlacement& placement : request_.placements) {
    if (placement.device != device) continue;
    for (const int rank : ranks) {
      if (rank < 0 || rank >= std::ssize(placement.rank_names)) continue;
      names.push_back(fmt::format("rank {} is {}", rank, placement.rank_names[rank]));
    }
  }
  return fmt::format("of group `{}`: {}", request_.name, fmt::join(names, ", "));
}

Seconds Group::now() const { return {static_cast<double>(nanoseconds_now() - begun_ns_) * 1e-9}; }

trace::Trace Group::take_trace() {
  std::vector<LocalRank*> ranks;
  for (auto& [device, rank] : ranks_) ranks.push_back(rank.get());
  std::vector<std::vector<run::StepResult>> gathered(ranks.size());
  run_concurrently(ranks.size(), [&](std::size_t k) {
    const run::StepResult own{.trace = {.events = ranks[k]->take_events()}};
    gathered[k] = run::gather_steps(ranks[k]->communicator(), own);
  });
  // The streams that plans of overlaps have.
  trace::Trace trace{.streams = {"main", "net", "reduce"}};
  for (run::StepResult& step : gathered.front()) trace.ranks.push_back(std::move(step.trace));
  return trace;
}

// ---- all groups

std::int64_t add_group(std::shared_ptr<Group> group) {
  Groups& all = groups();
  const std::lock_guard lock(all.mutex);
  all.by_number.emplace(all.next, std::move(group));
  return all.next++;
}

std::shared_ptr<Group> group_of(std::int64_t number) {
  Groups& all = groups();
  const std::shared_lock lock(all.mutex);
  const auto found = all.by_number.find(number);
  if (found != all.by_number.end()) return found->second;
  throw InputError(Diagnostic{.code = "D816",
                              .what = fmt::format("there is no group {} in this process", number),
                              .why = "it was closed, or created by another process",
                              .help = "call shiplap.jax.initialize() before the call"});
}

void remove_group(std::int64_t number) {
  std::shared_ptr<Group> last;  // is destroyed without the lock
  Groups& all = groups();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_number.find(number);
  if (found == all.by_number.end()) return;
  last = std::move(found->second);
  all.by_number.erase(found);
}

LocalRank& single_rank_context(int device) {
  SingleRankContexts& all = single_rank_contexts();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<LocalRank>& rank = all.by_device[device];
  if (rank == nullptr) {
    InMemoryStore store;
    rank = std::make_unique<LocalRank>(comm::connect({.rank = 0, .size = 1}, store), false);
  }
  return *rank;
}

void destroy_single_rank_buffers() {
  SingleRankContexts& all = single_rank_contexts();
  const std::lock_guard lock(all.mutex);
  for (auto& [device, rank] : all.by_device) rank->destroy_all_buffers();
}

// ---- failures

void record_failure(std::string message, std::exception_ptr failure) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  Failures& all = failures();
  const std::lock_guard lock(all.mutex);
  all.stored.push_back({std::move(message), std::move(failure)});
  if (all.stored.size() > kMaxFailures) all.stored.pop_front();
}

void rethrow_failure(const std::string& message) {
  std::exception_ptr found;
  Failures& all = failures();
  {
    const std::lock_guard lock(all.mutex);
    const auto it = std::ranges::find_if(all.stored, [&](const auto& failure) {
      return message.find(failure.first) != std::string::npos;
    });
    if (it == all.stored.end()) return;
    found = std::move(it->second);
    all.stored.erase(it);
  }
  std::rethrow_exception(found);
}

}  // namespace shiplap::python::jax
