#include "sample_traces.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::trace {
namespace {

constexpr Seconds kForward{2.1e-3};  // of a layer
constexpr Seconds kBackward{4.2e-3};
constexpr Seconds kTransfer{0.35e-3};
constexpr Seconds kUpdate{1.6e-3};
constexpr Bytes kActivation{192 << 20};  // of a microbatch and layer
constexpr Bytes kWeight{64 << 20};
constexpr Bytes kOptimizer{4 * kWeight.count};

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// One rank's clock, and what is alive on it.
class Clock {
 public:
  explicit Clock(int rank) : rank_(rank) {}

  void allocate(Bytes bytes) {
    alive_ += bytes;
    if (!trace.memory.empty() && trace.memory.back().time == now) trace.memory.pop_back();
    trace.memory.push_back({.time = now, .bytes = alive_});
  }
  void release(Bytes bytes) { allocate(Bytes{-bytes.count}); }

  Event& log(EventKind kind, int layer, Seconds time, Seconds duration) {
    Event& event = trace.events.emplace_back();
    event.kind = kind;
    event.rank = rank_;
    event.layer = layer;
    event.operation = static_cast<std::int32_t>(trace.events.size()) - 1;
    event.time = time;
    event.duration = duration;
    event.memory = alive_;
    return event;
  }
  Event& run(EventKind kind, int layer, Seconds duration) {
    Event& event = log(kind, layer, now, duration);
    now += duration;
    return event;
  }

  Seconds now;
  RankTrace trace;

 private:
  int rank_;
  Bytes alive_;
};

enum class Way { forward, backward };
struct Step {
  Way way = Way::forward;
  int microbatch = 0;
};

std::vector<Step> steps_of(int rank, const Pipeline& pipeline) {
  const int ahead = std::min(pipeline.ranks - 1 - rank, pipeline.microbatches);
  std::vector<Step> steps;
  for (int m = 0; m < pipeline.microbatches + ahead; ++m) {
    if (m < pipeline.microbatches) steps.push_back({.way = Way::forward, .microbatch = m});
    if (m >= ahead) steps.push_back({.way = Way::backward, .microbatch = m - ahead});
  }
  return steps;
}

class Playing {
 public:
  explicit Playing(const Pipeline& pipeline) : pipeline_(pipeline) {
    for (int rank = 0; rank < pipeline.ranks; ++rank) {
      Clock& clock = clocks_.emplace_back(rank);
      steps_.push_back(steps_of(rank, pipeline));
      for (int layer = first_layer(rank); layer < first_layer(rank + 1); ++layer) {
        clock.allocate(kWeight + kOptimizer);
        clock.run(EventKind::load_weights, layer, Seconds{0.2e-3});
      }
    }
    next_.resize(at(pipeline.ranks));
  }

  Trace trace() {
    std::size_t left = at(pipeline_.ranks) * at(2 * pipeline_.microbatches);
    while (left > 0) {
      std::size_t done = 0;
      for (int rank = 0; rank < pipeline_.ranks; ++rank) {
        while (next_[rank] < steps_[rank].size() && try_step(rank)) ++done;
      }
      ensure(done > 0, "some rank can go on");
      left -= done;
    }
    Trace result;
    for (int rank = 0; rank < pipeline_.ranks; ++rank) {
      for (int layer = first_layer(rank); layer < first_layer(rank + 1); ++layer) {
        clocks_[rank].run(EventKind::update, layer, kUpdate);
      }
      result.ranks.push_back(std::move(clocks_[rank].trace));
    }
    return result;
  }

 private:
  [[nodiscard]] int first_layer(int rank) const { return rank * pipeline_.layers_per_rank; }

  // False if what it needs was not sent yet.
  bool try_step(int rank) {
    const Step step = steps_[rank][next_[rank]];
    const bool is_forward = step.way == Way::forward;
    const int from = is_forward ? rank - 1 : rank + 1;
    if (from >= 0 && from < pipeline_.ranks && !try_receive(rank, from, step)) return false;
    ++next_[rank];
    compute(rank, step);
    const int to = is_forward ? rank + 1 : rank - 1;
    if (to >= 0 && to < pipeline_.ranks) {
      ready_[{rank, step.way == Way::forward, step.microbatch}] = clocks_[rank].now;
    }
    return true;
  }

  bool try_receive(int rank, int from, const Step& step) {
    const auto ready = ready_.find({from, step.way == Way::forward, step.microbatch});
    if (ready == ready_.end()) return false;
    Clock& clock = clocks_[rank];
    const Seconds begin = std::max(ready->second, clock.now);
    const std::int64_t match = (std::int64_t{from} << 24) + messages_++;
    const int layer = step.way == Way::forward ? first_layer(rank) : first_layer(rank + 1) - 1;
    const auto tell = [&](Event& event, int peer) {
      event.peer = peer;
      event.match = match;
      event.bytes = kActivation;
      event.samples = IndexSet(step.microbatch);
    };
    tell(clocks_[from].log(EventKind::send, layer, begin, kTransfer), rank);
    tell(clock.log(EventKind::recv, layer, begin, kTransfer), from);
    clock.now = begin + kTransfer;
    return true;
  }

  void compute(int rank, const Step& step) {
    Clock& clock = clocks_[rank];
    const int first = first_layer(rank);
    for (int i = 0; i < pipeline_.layers_per_rank; ++i) {
      const bool is_forward = step.way == Way::forward;
      const int layer = is_forward ? first + i : first_layer(rank + 1) - 1 - i;
      if (is_forward) clock.allocate(kActivation);
      const EventKind kind = is_forward ? EventKind::forward : EventKind::backward;
      clock.run(kind, layer, is_forward ? kForward : kBackward).samples = IndexSet(step.microbatch);
      if (!is_forward) clock.release(kActivation);
    }
    const bool is_last = rank + 1 == pipeline_.ranks;
    if (is_last && step.way == Way::forward) clock.run(EventKind::loss, -1, Seconds{0});
  }

  Pipeline pipeline_;
  std::vector<Clock> clocks_;
  std::vector<std::vector<Step>> steps_;
  std::vector<std::size_t> next_;
  std::map<std::tuple<int, bool, int>, Seconds> ready_;  // when it can be sent
  std::int64_t messages_ = 0;
};

// The gathers and scatters of one rank, one after another beside its computation.
class Network {
 public:
  Network(Clock& clock, int ranks) : clock_(clock), ranks_(ranks) {}

  // When it is complete.
  Seconds start(EventKind kind, int layer) {
    const Seconds begin = std::max(free_from_, clock_.now);
    Event& event = clock_.log(kind, layer, begin, kCollective);
    event.stream = 1;
    event.bytes = kWeight;
    free_from_ = event.end();
    return event.end();
  }
  void gather(int layer) {
    clock_.allocate(kWeight);
    gathered_[layer] = start(EventKind::all_gather, layer);
  }
  void wait(int layer) { clock_.now = std::max(clock_.now, gathered_.at(layer)); }
  void drop() { clock_.release(kWeight); }
  [[nodiscard]] Bytes shard(Bytes whole) const { return {whole.count / ranks_}; }
  [[nodiscard]] Seconds free_from() const { return free_from_; }

 private:
  static constexpr Seconds kCollective{2.6e-3};
  Clock& clock_;
  int ranks_;
  Seconds free_from_;
  std::map<int, Seconds> gathered_;
};

RankTrace sharded_rank(int rank, const Sharded& sharded) {
  Clock clock(rank);
  Network network(clock, sharded.ranks);
  const IndexSet samples = IndexSet::range(4 * std::int64_t{rank}, 4);
  for (int layer = 0; layer < sharded.layers; ++layer) {
    clock.allocate(network.shard(kWeight + kOptimizer));
    clock.run(EventKind::load_weights, layer, Seconds{0});
  }
  network.gather(0);
  for (int layer = 0; layer < sharded.layers; ++layer) {
    if (layer + 1 < sharded.layers) network.gather(layer + 1);
    network.wait(layer);
    clock.allocate(kActivation);
    clock.run(EventKind::forward, layer, kForward).samples = samples;
    network.drop();
  }
  network.gather(sharded.layers - 1);
  for (int layer = sharded.layers - 1; layer >= 0; --layer) {
    if (layer > 0) network.gather(layer - 1);
    network.wait(layer);
    clock.run(EventKind::backward, layer, kBackward).samples = samples;
    clock.release(kActivation);
    network.drop();
    network.start(EventKind::reduce_scatter, layer);
  }
  clock.now = std::max(clock.now, network.free_from());
  for (int layer = 0; layer < sharded.layers; ++layer) {
    clock.run(EventKind::update, layer, Seconds{0.4e-3});
  }
  return clock.trace;
}

Event random_event(Random& random, int rank) {
  Event event;
  event.kind =
      static_cast<EventKind>(random.between(0, static_cast<std::int64_t>(EventKind::send)));
  event.rank = rank;
  event.layer = static_cast<std::int32_t>(random.between(-1, 9));
  event.stream = static_cast<std::int32_t>(random.between(0, 2));
  event.operation = static_cast<std::int32_t>(random.between(-1, 99));
  event.time = Seconds{1e-6 * static_cast<double>(random.between(0, 30))};
  event.duration = Seconds{1e-6 * static_cast<double>(random.between(0, 9))};
  event.bytes = {is_communication(event.kind) ? random.between(0, 1 << 20) : 0};
  event.memory = {random.between(0, 1 << 20)};
  if (random.chance()) event.samples = IndexSet::range(random.between(0, 9), random.between(1, 5));
  return event;
}

}  // namespace

Trace one_forward_one_backward(const Pipeline& pipeline) { return Playing(pipeline).trace(); }

Trace sharded_weights(const Sharded& sharded) {
  Trace trace{.streams = {"main", "net"}};
  for (int rank = 0; rank < sharded.ranks; ++rank) {
    trace.ranks.push_back(sharded_rank(rank, sharded));
  }
  return trace;
}

Trace random_trace(std::uint64_t seed) {
  Random random(seed);
  constexpr int kRanks = 3;
  Trace trace{.streams = {"main", "net"}, .ranks = std::vector<RankTrace>(kRanks)};
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < 40; ++i) trace.ranks[rank].events.push_back(random_event(random, rank));
    for (int i = 0; i < 5; ++i) {
      trace.ranks[rank].memory.push_back(
          {.time = Seconds{i * 1e-5}, .bytes = {random.between(0, 1 << 30)}});
    }
  }
  for (std::int64_t match = 0; match < 20; ++match) {
    const int from = static_cast<int>(random.between(0, kRanks));
    const int to = (from + 1) % kRanks;
    Event send = random_event(random, from);
    send.kind = EventKind::send;
    send.peer = to;
    send.match = match;
    Event recv = send;
    recv.kind = EventKind::recv;
    recv.rank = to;
    recv.peer = from;
    if (random.chance()) recv.time += Seconds{2e-6};
    trace.ranks[from].events.push_back(send);
    trace.ranks[to].events.push_back(recv);
  }
  return trace;
}

}  // namespace shiplap::trace
