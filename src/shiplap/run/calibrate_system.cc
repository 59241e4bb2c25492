// Measures a machine by running on it what `run` runs.
//
// Computation. A plan without communication, forward, loss, backward and update of a few layers, is
// executed on all ranks at once, for several numbers of samples: ranks share caches and memory
// bandwidth in training, too, and weights and activations come from as far away. A time is the
// median over layers and steps, averaged over the ranks.
//
// Networks. Messages go to and fro between pairs of ranks, in the chunks of messages.cc, and
// collectives run in the groups that the network connects, all groups at once. These times are
// those of the slowest rank (rank_timer.cc).
#include "shiplap/run/calibrate_system.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/packing_internal.h"
#include "shiplap/run/rank_timer_internal.h"
#include "shiplap/run/training.h"

namespace shiplap::run {
namespace {

using hardware::NetworkSamples;
using hardware::SystemSamples;
using hardware::TimedAmount;
using trace::EventKind;

constexpr std::int64_t kLayersMeasured = 4;
constexpr int kWarmUpSteps = 2;
constexpr int kMeasuredSteps = 9;
// More samples of a size that takes longer are not measured.
constexpr double kMaxStepFlop = 2e10;
constexpr std::int64_t kSmallestMessage = 256;
// So long that the burst of a throttled link saves little.
constexpr std::array<std::int64_t, 2> kMessageSizes{1 << 20, 1 << 22};
constexpr double kLongTransfer = 0.1;  // seconds: longer ones are not measured
constexpr int kNoPartner = -1;
constexpr double kTransferBudget = 0.1;  // seconds for each size

// ---- computation

// The sizes of one step: square layers, all samples on every rank.
struct StepSize {
  std::int64_t ranks = 1;
  std::int64_t hidden = 1;
  std::int64_t block = 1;
  std::int64_t samples = 1;

  [[nodiscard]] double weight() const {
    return static_cast<double>(hidden) * static_cast<double>(hidden);
  }
  [[nodiscard]] double weight_bytes() const { return weight() * sizeof(float); }
  [[nodiscard]] double activation_bytes() const {
    return static_cast<double>(block * samples * hidden) * sizeof(float);
  }
  // Of one GEMM; backward has two.
  [[nodiscard]] double gemm_flop() const {
    return 2 * weight() * static_cast<double>(block * samples);
  }
  [[nodiscard]] double step_flop() const { return 3 * kLayersMeasured * gemm_flop(); }
};

// Copies move weights and activations.
plan::Plan local_step(const StepSize& size) {
  const std::int64_t weight = size.hidden * size.hidden * std::int64_t{sizeof(float)};
  const std::int64_t sample = size.block * size.hidden * std::int64_t{sizeof(float)};
  const std::string text = fmt::format(
      R"(shiplap-plan 1
mesh dp={ranks}
tensor A[{ends}] Activation sample {n}
tensor D[{ends}] ActivationGrad sample {n}
tensor W[{layers}] Weight
tensor O[{layers}] OptState
tensor G[{layers}] WeightGrad sum sample {n}
program all on all
  buffer w rows {layers} row_bytes {weight} f32
  buffer o rows {layers} row_bytes {state} f32
  buffer g rows {layers} row_bytes {weight} f32
  buffer h rows {layers} row_bytes {weight} f32
  buffer a rows {rows} row_bytes {sample} f32
  buffer b rows {rows} row_bytes {sample} f32
  buffer d rows {rows} row_bytes {sample} f32
  repeat l {layers}
    keep w[l +1] = W[l]
    keep o[l +1] = O[l]
    compute load_weights
      reads w[l +1] = W[l]
      reads o[l +1] = O[l]
      writes w[l +1] = W[l]
      writes o[l +1] = O[l]
  end
  compute read_batch
    writes a[0 +{n}] = A[0]
  repeat l {layers}
    compute forward
      reads a[{n}*l +{n}] = A[l]
      reads w[l +1] = W[l]
      writes a[{n}*l+{n} +{n}] = A[l+1]
  end
  compute loss
    reads a[{n}*{layers} +{n}] = A[{layers}]
    writes d[{n}*{layers} +{n}] = D[{layers}]
  repeat k {layers}
    let l = {layers}-1-k
    compute backward
      reads a[{n}*l +{n}] = A[l]
      reads d[{n}*l+{n} +{n}] = D[l+1]
      reads w[l +1] = W[l]
      writes d[{n}*l +{n}] = D[l]
      writes g[l +1] = G[l]
  end
  repeat l {layers}
    copy g[l +1] to h[l +1]
    copy a[{n}*l +{n}] to b[{n}*l +{n}]
  end
  repeat l {layers}
    compute update
      reads g[l +1] = G[l]
      reads w[l +1] = W[l]
      reads o[l +1] = O[l]
      writes w[l +1] = new W[l]
      writes o[l +1] = new O[l]
  end
)",
      fmt::arg("ranks", size.ranks), fmt::arg("layers", kLayersMeasured),
      fmt::arg("ends", kLayersMeasured + 1), fmt::arg("n", size.samples),
      fmt::arg("rows", (kLayersMeasured + 1) * size.samples), fmt::arg("weight", weight),
      fmt::arg("state", 2 * weight), fmt::arg("sample", sample));
  return plan::parse_text(text, "calibration");
}

// Durations of a rank, by kind of operation; copies by whether they move weights.
struct StepTimes {
  std::map<std::pair<EventKind, bool>, std::vector<double>> durations;
  std::vector<double> gaps;  // from one operation to the next

  void add(const trace::RankTrace& trace) {
    bool moves_weight = false;
    const trace::Event* last = nullptr;
    for (const trace::Event& event : trace.events) {
      moves_weight = event.kind == EventKind::copy && !moves_weight;
      durations[{event.kind, moves_weight}].push_back(event.duration.value);
      if (last != nullptr) gaps.push_back((event.time - last->end()).value);
      last = &event;
    }
  }
};

class ComputationMeasurement {
 public:
  ComputationMeasurement(comm::Communicator& world, SystemSamples& made)
      : world_(world), made_(made) {}

  void measure(const StepSize& size) {
    const StepTimes times = run_steps(size);
    const auto time = [&](EventKind kind, bool moves_weight = false) {
      return average(median(times.durations.at({kind, moves_weight})));
    };
    made_.matrix.push_back({size.gemm_flop(), time(EventKind::forward)});
    made_.matrix.push_back({2 * size.gemm_flop(), time(EventKind::backward)});
    // As cost::RuntimePredictor counts them.
    constexpr double kFlopOfUpdate = 11;
    made_.vector.push_back({kFlopOfUpdate * size.weight(), time(EventKind::update)});
    made_.mem2.push_back({3 * size.weight_bytes(), time(EventKind::load_weights)});
    made_.mem1.push_back({2 * size.weight_bytes(), time(EventKind::copy, true)});
    made_.mem1.push_back({2 * size.activation_bytes(), time(EventKind::copy, false)});
    made_.launch = average(median(times.gaps));
  }

 private:
  StepTimes run_steps(const StepSize& size) {
    const plan::Plan plan = local_step(size);
    TrainingKernels training({.hidden = size.hidden, .block = size.block});
    KernelTable kernels;
    training.bind(kernels);
    Executor executor(plan, world_, kernels, {.traces = true});
    StepTimes times;
    for (int step = 0; step < kWarmUpSteps + kMeasuredSteps; ++step) {
      world_.barrier();
      const StepResult result = executor.step();
      if (step >= kWarmUpSteps) times.add(result.trace);
    }
    return times;
  }

  // Over the ranks.
  Seconds average(double seconds) {
    world_.all_reduce(std::span(&seconds, 1));
    constexpr double kClockTick = 1e-9;
    return {std::max(kClockTick, seconds / world_.size())};
  }

  comm::Communicator& world_;
  SystemSamples& made_;
};

void measure_computation(comm::Communicator& world, const SystemCalibrationOptions& options,
                         SystemSamples& made) {
  ComputationMeasurement measurement(world, made);
  StepSize size{.ranks = world.size(), .hidden = options.hidden, .block = options.block};
  for (const std::int64_t samples : {1, 2, 4}) {
    size.samples = samples;
    if (samples > 1 && size.step_flop() > kMaxStepFlop) break;
    measurement.measure(size);
  }
}

// ---- networks

// The ranks that a network connects, as seen by one of them.
struct NetworkGroup {
  std::string kind;
  std::unique_ptr<comm::Communicator> ranks;
  std::optional<int> partner;  // in `ranks`
};

class NetworkMeasurement {
 public:
  NetworkMeasurement(comm::Communicator& world, NetworkGroup& group)
      : timer_(world, kTransferBudget),
        group_(*group.ranks),
        partner_(group.partner.value_or(kNoPartner)) {
    made_.kind = group.kind;
    made_.group = group_.size();
  }

  NetworkSamples run() {
    made_.p2p = {transfer(kSmallestMessage, [&](auto bytes) { return message(bytes); })};
    grow(made_.p2p, [&](auto bytes) { return message(bytes); });
    grow(made_.all_reduce, [&](auto bytes) { return all_reduce(bytes); });
    grow(made_.all_gather, [&](auto bytes) { return all_gather(bytes); });
    grow(made_.reduce_scatter, [&](auto bytes) { return reduce_scatter(bytes); });
    return std::move(made_);
  }

 private:
  using Measure = std::function<double(std::int64_t bytes)>;

  TimedAmount transfer(std::int64_t bytes, const Measure& measure) {
    out_.resize(static_cast<std::size_t>(bytes));
    in_.resize(static_cast<std::size_t>(bytes));
    return {.amount = static_cast<double>(bytes), .time = {measure(bytes)}};
  }
  void grow(std::vector<TimedAmount>& all, const Measure& measure) {
    for (const std::int64_t bytes : kMessageSizes) {
      // A multiple of what every rank sends.
      const std::int64_t step = std::int64_t{sizeof(float)} * group_.size();
      all.push_back(transfer(bytes / step * step, measure));
      if (all.back().time.value > kLongTransfer) return;
    }
  }
  double measured(const std::function<void()>& act) {
    return timer_.measure(act, {.before = RankTimer::idle});
  }

  // In the chunks of messages.cc.
  void send(std::int64_t bytes) {
    std::span<const std::byte> rest = std::span(out_).first(static_cast<std::size_t>(bytes));
    std::vector<comm::Request> chunks;
    while (!rest.empty()) {
      const auto chunk = rest.first(std::min(rest.size(), group_.eager_limit(partner_)));
      chunks.push_back(group_.isend(chunk, partner_));
      rest = rest.subspan(chunk.size());
    }
    for (comm::Request& chunk : chunks) chunk.wait();
  }
  void receive(std::int64_t bytes) {
    std::span<std::byte> rest = std::span(in_).first(static_cast<std::size_t>(bytes));
    std::vector<comm::Request> chunks;
    while (!rest.empty()) {
      const auto chunk = rest.first(std::min(rest.size(), group_.eager_limit(partner_)));
      chunks.push_back(group_.ireceive(chunk, partner_));
      rest = rest.subspan(chunk.size());
    }
    for (comm::Request& chunk : chunks) chunk.wait();
  }
  // To and fro, halved.
  double message(std::int64_t bytes) {
    return measured([&] {
             if (partner_ == kNoPartner) return;
             const bool is_first = group_.rank() < partner_;
             is_first ? send(bytes) : receive(bytes);
             is_first ? receive(bytes) : send(bytes);
           }) /
           2;
  }

  // As many numbers as `bytes`, and the piece of this rank.
  std::span<float> floats(std::int64_t bytes) {
    return {reinterpret_cast<float*>(in_.data()), static_cast<std::size_t>(bytes) / sizeof(float)};
  }
  std::span<float> piece(std::int64_t bytes) {
    return {reinterpret_cast<float*>(out_.data()),
            static_cast<std::size_t>(bytes / group_.size()) / sizeof(float)};
  }
  double all_reduce(std::int64_t bytes) {
    return measured([&] { group_.all_reduce(floats(bytes)); });
  }
  double all_gather(std::int64_t bytes) {
    return measured(
        [&] { group_.all_gather(std::span<const float>(piece(bytes)), floats(bytes)); });
  }
  double reduce_scatter(std::int64_t bytes) {
    return measured(
        [&] { group_.reduce_scatter(std::span<const float>(floats(bytes)), piece(bytes)); });
  }

  RankTimer timer_;
  comm::Communicator& group_;
  int partner_;
  NetworkSamples made_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ensure(gethostname(name.data(), name.size()) == 0, "a host has a name");
  return name.data();
}

std::vector<std::string> gather_hosts(comm::Communicator& world) {
  Packer packer;
  packer.put(host_name());
  std::vector<std::string> hosts;
  for (std::vector<std::byte>& bytes : gather_bytes(world, packer.take())) {
    hosts.push_back(Unpacker(std::move(bytes)).text());
  }
  return hosts;
}

// The rank that is `step` away, in pairs; the last of an odd number has none.
std::optional<int> partner_at(int rank, int ranks, int step) {
  const int other = rank / step % 2 == 0 ? rank + step : rank - step;
  return other < ranks ? std::optional(other) : std::nullopt;
}

void measure_networks(comm::Communicator& world, const SystemCalibrationOptions& options,
                      SystemSamples& made) {
  const int per_host = static_cast<int>(made.ranks_per_node);
  std::vector<NetworkGroup> groups;
  if (per_host > 1) {
    const int on_host = world.rank() % per_host;
    groups.push_back({.kind = fmt::format("{} on a host", options.transport),
                      .ranks = world.split(world.rank() / per_host, on_host, "host"),
                      .partner = partner_at(on_host, per_host, 1)});
  }
  if (per_host < world.size()) {
    const bool knows_hosts = per_host > 0;
    groups.push_back(
        {.kind = fmt::format("{}{}", options.transport, knows_hosts ? " between hosts" : ""),
         .ranks = world.channel("calibration"),
         .partner = partner_at(world.rank(), world.size(), std::max(1, per_host))});
  }
  for (NetworkGroup& group : groups) {
    made.networks.push_back(NetworkMeasurement(world, group).run());
    made.networks.back().size = group.ranks->size();
  }
}

Bytes memory_of_host() {
  return {std::int64_t{sysconf(_SC_PHYS_PAGES)} * std::int64_t{sysconf(_SC_PAGESIZE)}};
}

// Of all ranks.
Bytes least(comm::Communicator& world, Bytes own) {
  world.all_reduce(std::span(&own.count, 1), ReduceOp::min);
  return own;
}

}  // namespace

std::int64_t ranks_per_host(const std::vector<std::string>& hosts) {
  const auto end = std::ranges::find_if(hosts, [&](const auto& host) { return host != hosts[0]; });
  const auto each = end - hosts.begin();
  if (std::ssize(hosts) % each != 0) return 0;
  for (std::ptrdiff_t k = each; k < std::ssize(hosts); ++k) {
    const bool begins = k % each == 0;
    if ((hosts[k] == hosts[k - 1]) == begins) return 0;
    if (begins && std::find(hosts.begin(), hosts.begin() + k, hosts[k]) != hosts.begin() + k) {
      return 0;
    }
  }
  return each;
}

hardware::SystemSamples measure_system(comm::Communicator& world,
                                       const SystemCalibrationOptions& options) {
  ensure(world.size() >= 2, "a network connects two ranks");
  SystemSamples made;
  const std::vector<std::string> hosts = gather_hosts(world);
  made.ranks_per_node = ranks_per_host(hosts);
  const auto here = std::ranges::count(hosts, hosts[world.rank()]);
  made.memory = least(world, {memory_of_host().count / here});
  measure_computation(world, options, made);
  measure_networks(world, options, made);
  const std::int64_t hosts_known = made.ranks_per_node > 0 ? world.size() / made.ranks_per_node : 0;
  made.source = fmt::format(
      "Measured by `shiplap calibrate --here` on {} ranks{}, {}: layers of {} x {} in f32, samples "
      "of {} tokens, all ranks at once.",
      world.size(), hosts_known > 1 ? fmt::format(" of {} hosts", hosts_known) : "",
      options.transport, options.hidden, options.hidden, options.block);
  made.ranks_per_node = std::max<std::int64_t>(1, made.ranks_per_node);
  return made;
}

}  // namespace shiplap::run
