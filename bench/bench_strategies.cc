// Benchmark of strategies: recording and timing them, for 1,024 to 131,072 ranks; and the engine's
// scheduler against a lower bound: a queue that resumes empty coroutines.
//
//   bench_strategies [--json]
//
// Prints a table, or one JSON object. Times are median, minimum and maximum; the two loops
// alternate.
#include <sys/resource.h>

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "figures.h"
#include "shiplap/base/json.h"
#include "shiplap/engine/scheduler.h"
#include "shiplap/sim/replay.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap {
namespace {

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

// ---- the engine and the bare loop

constexpr int kRanks = 1024;
constexpr int kEventsPerRank = 1000;

engine::Task yields(engine::Scheduler& scheduler) {
  for (int i = 0; i < kEventsPerRank; ++i) co_await scheduler.yield();
}

double engine_seconds() {
  engine::Scheduler scheduler;
  for (int r = 0; r < kRanks; ++r) scheduler.spawn(yields(scheduler));
  return seconds([&] { scheduler.run(); });
}

struct Empty {
  struct promise_type {
    Empty get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    static std::suspend_always initial_suspend() noexcept { return {}; }
    static std::suspend_always final_suspend() noexcept { return {}; }
    static void return_void() {}
    static void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

Empty empty() {
  for (int i = 0; i < kEventsPerRank; ++i) co_await std::suspend_always{};
}

double bare_seconds() {
  std::vector<Empty> coroutines;
  std::queue<std::coroutine_handle<>> queue;
  for (int r = 0; r < kRanks; ++r) {
    coroutines.push_back(empty());
    queue.push(coroutines.back().handle);
  }
  const double took = seconds([&] {
    while (!queue.empty()) {
      const std::coroutine_handle<> next = queue.front();
      queue.pop();
      next.resume();
      if (!next.done()) queue.push(next);
    }
  });
  for (const Empty& coroutine : coroutines) coroutine.handle.destroy();
  return took;
}

void measure_engine(Json& json) {
  std::vector<double> ours;
  std::vector<double> bare;
  std::vector<double> ratios;
  for (int k = 0; k < 15; ++k) {
    ours.push_back(engine_seconds());
    bare.push_back(bare_seconds());
    ratios.push_back(ours.back() / bare.back());
  }
  const double events = kRanks * (kEventsPerRank + 1.0);
  json.set("events_per_s", events / spread(ours).median);
  json.set("bare_events_per_s", events / spread(bare).median);
  put(json, "ratio_to_bare_loop", spread(ratios));
}

// ---- strategies

// Records a strategy and makes its plan.
plan::Plan ddp_plan(int ranks) {
  const strategy::World world{.mesh = {{.name = "dp", .size = ranks}}};
  strategy::Trainer trainer(world, {.layers = 6, .batch = ranks});
  trainer.run(strategy::ddp);
  return strategy::to_plan(trainer);
}

// Computes the times of all its events.
struct Ddp {
  double seconds = 0;
  std::int64_t events = 0;
};
Ddp ddp(int ranks) {
  Ddp result;
  const strategy::World world{.mesh = {{.name = "dp", .size = ranks}}};
  result.seconds = seconds([&] {
    strategy::Trainer trainer(world, {.layers = 6, .batch = ranks});
    trainer.run(strategy::ddp);
    for (const trace::RankTrace& rank : trainer.trace().ranks)
      result.events += std::ssize(rank.events);
  });
  return result;
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

void measure_ddp(Json& json) {
  std::vector<double> small;
  std::int64_t events = 0;
  for (int k = 0; k < 21; ++k) {
    const Ddp run = ddp(1024);
    small.push_back(run.seconds);
    events = run.events;
  }
  put(json, "ddp_1024_ms", spread(small), 1e3);
  json.set("ddp_1024_events", events);
  json.set("ddp_1024_events_per_s", static_cast<double>(events) / spread(small).median);
  std::vector<double> large_plan;
  for (int k = 0; k < 3; ++k) {
    large_plan.push_back(seconds([] { (void)ddp_plan(131'072); }));
  }
  put(json, "ddp_131072_to_plan_s", spread(large_plan));
  json.set("ddp_131072_to_plan_peak_gib", peak_gib());
  std::vector<double> large;
  for (int k = 0; k < 3; ++k) large.push_back(ddp(131'072).seconds);
  put(json, "ddp_131072_s", spread(large));
  json.set("ddp_131072_peak_gib", peak_gib());
}

// From a strategy to its plan, and from the plan to times.
void measure_plan(Json& json) {
  const strategy::World world{.mesh = {{.name = "dp", .size = 1024}}};
  std::vector<double> recording;
  std::vector<double> replay;
  std::int64_t events = 0;
  for (int k = 0; k < 5; ++k) {
    plan::Plan plan;
    recording.push_back(seconds([&] { plan = ddp_plan(1024); }));
    replay.push_back(seconds([&] {
      const sim::Replay again = sim::replay(plan, {.system = world.system, .eager_limit = {}});
      events = 0;
      for (const trace::RankTrace& rank : again.trace.ranks) {
        events += static_cast<std::int64_t>(rank.events.size());
      }
    }));
  }
  put(json, "ddp_1024_to_plan_ms", spread(recording), 1e3);
  put(json, "ddp_1024_replay_ms", spread(replay), 1e3);
  json.set("ddp_1024_replay_events", events);
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: bench_strategies [--json]\n");
    return 2;
  }
  shiplap::Json result = shiplap::Json::object({{"schema", "shiplap.bench.strategies/1"}});
  shiplap::measure_engine(result);
  shiplap::measure_plan(result);
  shiplap::measure_ddp(result);
  if (json) {
    std::printf("%s\n", shiplap::to_text(result).c_str());
  } else {
    for (const auto& [key, value] : result.as_object()) {
      std::printf("%-30s %s\n", key.c_str(), shiplap::to_text(value).c_str());
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
