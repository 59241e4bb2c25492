// The accuracy of the predicted times of collectives, GEMMs and attention against published
// measurements, the rate of predictions, and the time of simulations of large steps.
//
//   bench_network [--json]     the errors on the tables that were held out of the fit
//   bench_network --points     every collective with its prediction, as CSV, for tools/accuracy
//   bench_network --gemms      every GEMM and attention, likewise
//   bench_network --fit        fits the constants of data/hardware/ again, and prints them
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string_view>
#include <vector>

#include "fit_collectives.h"
#include "published.h"
#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/sim/flows.h"
#include "shiplap/sim/replay.h"
#include "shiplap/step/step.h"
#include "shiplap/trace/summary.h"
#include "shiplap/workload/model.h"

namespace shiplap {
namespace {

constexpr const char* kFolder = SHIPLAP_SOURCE "/data/published";
constexpr const char* kFabrics = SHIPLAP_SOURCE "/data/fabrics.csv";
constexpr std::int64_t kMiB = 1 << 20;

// The other tools also time the launch and the skew of the ranks, 18 to 100 us
// (data/published/README.md): their small sizes say nothing about the collective.
bool counts(const CollectivePoint& point) {
  return point.method == "nccl-tests" || point.bytes.count >= kMiB;
}

struct Errors {
  std::vector<double> values;

  [[nodiscard]] double quantile(double share) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  }
  [[nodiscard]] double within(double limit) const {
    const auto count = std::ranges::count_if(values, [&](double e) { return e <= limit; });
    return static_cast<double>(count) / static_cast<double>(values.size());
  }
};

void put(Json& json, const std::string& name, Errors errors) {
  json.set(name + "_points", static_cast<std::int64_t>(errors.values.size()));
  json.set(name + "_median_error", errors.quantile(0.5));
  json.set(name + "_p90_error", errors.quantile(0.9));
  json.set(name + "_worst_error", errors.quantile(1));
  json.set(name + "_within_25_percent", errors.within(0.25));
}

double estimates_per_second(const Machines& machines) {
  const hardware::System& system = machines.systems.at("h100_80g_nvl8");
  constexpr int kCount = 1'000'000;
  double sum = 0;
  const std::clock_t begin = std::clock();
  for (int k = 0; k < kCount; ++k) {
    const cost::RankSpan span{.ranks = 2 + k % 512, .lowest = 0, .highest = 1 + k % 512};
    sum += cost::collective_time(system, CollectiveKind::all_reduce, {k}, span).value;
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return sum > 0 ? kCount / seconds : 0;
}

// Of a step of Llama 3 405B in 16 stages of 8 tensor ranks: seconds to plan, replay and summarize.
double simulation_seconds(const hardware::System& system, std::int64_t ranks, bool shares_links) {
  const workload::Model model = workload::find_model("llama3.1-405b").model;
  layout::Layout layout{.tensor = 8, .sequence_parallel = true, .pipeline = 16};
  for (std::int64_t stage = 0; stage < 16; ++stage) {
    const bool first = stage == 0;
    const bool last = stage == 15;
    layout.stages.push_back({.embedding = first, .layers = first || last ? 7 : 8, .head = last});
  }
  layout.data = ranks / (std::int64_t{8} * 16);
  layout.sharding = layout::Sharding::optimizer;
  layout.global_batch = 16 * layout.data;
  layout.seq_length = 8192;
  const auto begin = std::chrono::steady_clock::now();
  const plan::Plan plan = step::step_plan(model, layout);
  const sim::Replay replay =
      sim::replay(plan, {.system = system, .fold = true, .shares_links = shares_links});
  const trace::Summary summary = trace::summarize(replay.trace);
  ensure(std::ssize(summary.ranks) == ranks, "all ranks are in the summary");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A ring all-reduce, message by message: each rank sends a chunk to the next when it has received
// the one before it, 2 (n - 1) times.
class RingOfMessages {
 public:
  RingOfMessages(const hardware::System& system, std::int32_t ranks, Bytes chunk)
      : ranks_(ranks), flows_(capacities(system, ranks)), state_(ranks), sender_(ranks) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      const Rank next((rank + 1) % ranks);
      const Seconds latency = cost::message_time(system, {}, Rank(rank), next);
      const Seconds time = cost::message_time(system, chunk, Rank(rank), next);
      const auto bytes = static_cast<double>(chunk.count);
      state_[rank].size = {
          .latency = latency.value, .bytes = bytes, .rate = bytes / (time - latency).value};
    }
  }

  Seconds run() {
    for (std::int32_t rank = 0; rank < ranks_; ++rank) start(rank, 0);
    double end = 0;
    for (std::int64_t left = std::int64_t{2} * ranks_ * (ranks_ - 1); left > 0; --left) {
      const sim::Flows::End done = flows_.end_next();
      end = done.time;
      const std::int32_t rank = sender_[done.flow];
      const std::int32_t next = (rank + 1) % ranks_;
      state_[rank].sends = false;
      ++state_[rank].sent;
      ++state_[next].received;
      start(rank, end);
      start(next, end);
    }
    return {end};
  }

 private:
  struct State {
    sim::FlowSize size;
    std::int32_t sent = 0;
    std::int32_t received = 0;
    bool sends = false;
  };

  // Of the hop from each rank to the next: out and in.
  static std::vector<double> capacities(const hardware::System& system, std::int32_t ranks) {
    std::vector<double> result;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t size = system.networks.front().size;
      const bool leaves = (rank + 1) % size == 0;
      const hardware::Network& network = leaves ? system.networks.back() : system.networks.front();
      result.insert(result.end(), 2, network.bandwidth.bytes_per_second * network.efficiency);
    }
    return result;
  }

  void start(std::int32_t rank, double time) {
    State& state = state_[rank];
    if (state.sends || state.sent > state.received || state.sent == 2 * (ranks_ - 1)) return;
    state.sends = true;
    const std::array<sim::LinkUse, 2> uses{{{.link = 2 * rank}, {.link = 2 * rank + 1}}};
    sender_[flows_.start(time, uses, state.size)] = rank;
  }

  std::int32_t ranks_;
  sim::Flows flows_;
  std::vector<State> state_;
  std::vector<std::int32_t> sender_;  // by flow
};

double ring_seconds(const hardware::System& system) {
  const auto begin = std::chrono::steady_clock::now();
  const Seconds time = RingOfMessages(system, 2048, {4 * kMiB}).run();
  ensure(time > Seconds{0}, "a ring takes time");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Json measure(const Machines& machines, const std::vector<CollectivePoint>& points) {
  Errors held_out;
  Errors nccl_tests;
  Errors large;
  Errors fitted;
  for (const CollectivePoint& point : points) {
    if (!counts(point)) continue;
    const double error =
        std::abs(predict(machines.of(point), point).time.value / point.seconds - 1);
    (point.fit ? fitted : held_out).values.push_back(error);
    if (!point.fit && point.method == "nccl-tests") nccl_tests.values.push_back(error);
    if (!point.fit && point.bytes.count >= kMiB) large.values.push_back(error);
  }
  Json json;
  put(json, "collectives", held_out);
  put(json, "collectives_nccl_tests", nccl_tests);
  put(json, "collectives_large", large);
  put(json, "collectives_fitted", fitted);
  Errors gemms;
  Errors attention;
  for (const ComputationPoint& point : read_computation(kFolder)) {
    if (point.fit) continue;
    const double predicted = predicted_seconds(machines.systems.at(point.machine), point);
    (point.work.kernel_class == "gemm" ? gemms : attention)
        .values.push_back(std::abs(predicted / point.seconds - 1));
  }
  put(json, "gemms", gemms);
  put(json, "attention", attention);
  json.set("collective_estimates_per_second", estimates_per_second(machines));
  const hardware::System& system = machines.systems.at("h100_80g_nvl8");
  json.set("simulate_405b_16384_s", simulation_seconds(system, 16'384, false));
  json.set("simulate_131072_s", simulation_seconds(system, 131'072, false));
  json.set("simulate_shared_405b_16384_s", simulation_seconds(system, 16'384, true));
  json.set("simulate_shared_131072_s", simulation_seconds(system, 131'072, true));
  json.set("ring_2048_s", ring_seconds(system));
  return json;
}

void print_points(const Machines& machines, const std::vector<CollectivePoint>& points) {
  fmt::print(
      "table,page,fit,counts,operation,machine,network,gpus,method,bytes,measured_us,"
      "predicted_us,algorithm,protocol\n");
  for (const CollectivePoint& point : points) {
    const cost::CollectiveEstimate found = predict(machines.of(point), point);
    fmt::print("{},{},{},{},{},{},\"{}\",{},{},{},{:.6g},{:.6g},{},{}\n", point.table, point.page,
               point.fit ? "yes" : "no", counts(point) ? "yes" : "no", point.operation,
               point.machine, point.network, point.gpus, point.method, point.bytes.count,
               1e6 * point.seconds, 1e6 * found.time.value, to_string(found.algorithm),
               to_string(found.protocol));
  }
}

void print_gemms(const Machines& machines) {
  fmt::print("tool,fit,device,type,shape,gflop,measured_us,predicted_us\n");
  for (const ComputationPoint& point : read_computation(kFolder)) {
    fmt::print("{},{},{},{},{},{:.6g},{:.6g},{:.6g}\n", point.tool, point.fit ? "yes" : "no",
               point.device, point.type, point.shape, 1e-9 * point.work.flop, 1e6 * point.seconds,
               1e6 * predicted_seconds(machines.systems.at(point.machine), point));
  }
}

int run(std::string_view mode) {
  Machines machines = read_machines(kFabrics);
  const std::vector<CollectivePoint> points = read_collectives(kFolder);
  if (mode == "--points") {
    print_points(machines, points);
  } else if (mode == "--gemms") {
    print_gemms(machines);
  } else if (mode == "--fit") {
    for (const FittedConstant& constant : fit_collectives(machines, points)) {
      fmt::print("{:40} {:.4g}\n", constant.name, constant.value);
    }
  } else if (mode == "--json") {
    fmt::print("{}\n", to_text(measure(machines, points)));
  } else {
    const Json measured = measure(machines, points);
    for (const auto& [name, value] : measured.as_object()) {
      fmt::print("{:40} {:.4g}\n", name, value.as_number());
    }
  }
  return 0;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  try {
    return shiplap::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_network: %s\n", error.what());
    return 1;
  }
}
