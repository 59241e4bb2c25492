#include "job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "network.h"
#include "scheduler.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/sockets.h"
#include "tamper.h"

namespace shiplap::simulation {
namespace {

constexpr int kStorePort = 5000;
// Time after a timeout for probing missing ranks and notifying the others.
constexpr double kGrace = 8;
constexpr std::int64_t kMaxSteps = 2'000'000;

enum class FaultKind : std::uint8_t {
  kill,
  stop,
  reset,
  drop,
  partition,
  exhaust,
  byzantine,
  rogue_client
};
constexpr std::array kFaultNames{"kill", "stop",    "reset",     "drop",
                                 "cut",  "exhaust", "byzantine", "rogue client"};

struct Fault {
  FaultKind kind = FaultKind::kill;
  int a = 0;
  int b = 0;
  double time = 0;
};

enum class StepKind : std::uint8_t {
  barrier,
  broadcast,
  reduce,
  gather,
  exchange,
  ring,
  late,
  split
};
struct Step {
  StepKind kind = StepKind::barrier;
  std::int64_t count = 1;  // elements
  int root = 0;
};

// A buffer with canaries on both sides. Its destructor checks them, also after a failed operation.
class GuardedBuffer {
 public:
  GuardedBuffer(bool& damaged, std::int64_t count, std::int64_t margin = 16)
      : damaged_(damaged),
        count_(static_cast<std::size_t>(count)),
        margin_(static_cast<std::size_t>(margin)),
        all_(count_ + 2 * margin_, kMark) {}
  GuardedBuffer(GuardedBuffer&&) = default;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer() {
    const auto is_mark = [](std::int32_t value) { return value == kMark; };
    if (all_.empty()) return;  // moved from
    const auto all = std::span(all_);
    damaged_ = damaged_ || !std::ranges::all_of(all.first(margin_), is_mark) ||
               !std::ranges::all_of(all.last(margin_), is_mark);
  }
  [[nodiscard]] std::span<std::int32_t> values() {
    return std::span(all_).subspan(margin_, count_);
  }

 private:
  static constexpr std::int32_t kMark = 0x5ca1ab1e;
  bool& damaged_;
  std::size_t count_;
  std::size_t margin_;
  std::vector<std::int32_t> all_;
};

struct InvariantViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::int32_t value_of(std::size_t step, int rank, std::int64_t k) {
  return static_cast<std::int32_t>(
      (step * 7919 + static_cast<std::size_t>(rank) * 104'729 + static_cast<std::size_t>(k) * 31) %
      100'000);
}

class Job {
 public:
  explicit Job(std::uint64_t seed) : seed_(seed), random_(seed), scheduler_(seed * 3 + 1) {
    draw();
  }

  Outcome run() {
    set_current_network(&network_);
    ranks_.resize(size_);
    for (int rank = 0; rank < size_; ++rank) {
      const double late =
          rank == late_rank_ ? 12 : static_cast<double>(random_.between(0, 3)) * 1e-3;
      scheduler_.start(rank + 1, [this, rank] { run_rank(rank); }, late);
    }
    for (std::size_t k = 0; k < faults_.size(); ++k) plan(faults_[k], static_cast<int>(k));
    const bool ended = scheduler_.run(kMaxSteps);
    set_current_network(nullptr);
    return check_invariants(ended);
  }

 private:
  struct Rank {
    bool is_over = false;
    bool is_well = false;
    double began = 0;    // start of its last operation
    double allowed = 0;  // timeout of that operation
    double ended = 0;
    std::string error;
    std::optional<int> named;
    bool is_at_work = false;
    std::string violation;  // of an invariant
    std::string code;
  };

  // Most messages are short; some are offered, and a few of those come in several frames.
  std::int64_t draw_count() {
    const std::int64_t kind = random_.between(0, 40);
    if (kind < 24) return random_.between(0, 50);
    if (kind < 36) return random_.between(1000, 30'000);
    return kind < 39 || size_ > 4 ? random_.between(30'000, 150'000)
                                  : random_.between(270'000, 400'000);
  }

  void draw() {
    size_ = static_cast<int>(random_.between(2, random_.between(0, 3) == 0 ? 9 : 5));
    options_.timeout = Seconds{0.4 + 0.1 * static_cast<double>(random_.between(0, 6))};
    options_.connect_timeout = Seconds{1.0 + static_cast<double>(random_.between(0, 2))};
    options_.checked = random_.between(0, 3) == 0;
    secret_ = random_.between(0, 2) == 0 ? "known to the ranks alone" : "";
    const std::int64_t steps = random_.between(1, 9);
    for (std::int64_t k = 0; k < steps; ++k) {
      steps_.push_back({.kind = static_cast<StepKind>(random_.between(0, 8)),
                        .count = draw_count(),
                        .root = static_cast<int>(random_.between(0, size_))});
    }
    if (random_.between(0, 20) == 0) {
      late_rank_ = static_cast<int>(random_.between(0, size_));
      options_.connect_timeout = Seconds{30};
    }
    const std::int64_t count = random_.between(0, 8) == 0 ? 0 : random_.between(1, 4);
    for (std::int64_t k = 0; k < count; ++k) {
      Fault fault{
          .kind = static_cast<FaultKind>(random_.between(0, 8)),
          .a = static_cast<int>(random_.between(0, size_)),
          .time = 1e-4 * std::pow(10.0, static_cast<double>(random_.between(0, 350)) / 100)};
      fault.b = (fault.a + static_cast<int>(random_.between(1, size_))) % size_;
      faults_.push_back(fault);
    }
  }

  // ---- faults

  void plan(const Fault& fault, int number) {
    const int a = fault.a + 1;
    const int b = fault.b + 1;
    const double time = scheduler_.now() + fault.time;
    switch (fault.kind) {
      case FaultKind::kill:
        return scheduler_.at_time(time, [this, a] {
          network_.close_all(a);
          scheduler_.kill(a);
        });
      case FaultKind::stop:
        return scheduler_.at_time(time, [this, a] { scheduler_.stop(a); });
      case FaultKind::reset:
        return scheduler_.at_time(time, [this, a, b] { network_.reset(a, b); });
      case FaultKind::drop:
        return scheduler_.at_time(time, [this, a, b] { network_.drop(a, b); });
      case FaultKind::partition:
        return scheduler_.at_time(time, [this, a, b] {
          network_.drop(a, b);
          network_.drop(b, a);
        });
      case FaultKind::exhaust:
        return scheduler_.at_time(time, [this, a] { network_.exhaust(a); });
      case FaultKind::byzantine:
        return network_.make_hostile(a, [this](bool has_connected, int port) -> Tamper {
          if (port == kStorePort) return {};
          constexpr std::size_t kHello = comm::Hello::kBytes;
          return make_tamper(static_cast<std::uint64_t>(random_.between(0, 1 << 30)),
                             has_connected ? 2 * kHello : kHello);
        });
      case FaultKind::rogue_client:
        scheduler_.start(size_ + 1 + number, [this] { run_rogue_client(); }, fault.time);
    }
  }

  // A client that knows the addresses, but neither the protocol state nor the secret.
  void run_rogue_client() {
    Random& random = scheduler_.random();
    const std::int64_t visits = random.between(1, random.between(0, 8) == 0 ? 120 : 6);
    for (std::int64_t k = 0; k < visits; ++k) {
      const std::vector<int> ports = network_.listening_ports();
      if (ports.empty()) {
        scheduler_.wait([] { return false; }, scheduler_.now() + 1e-3);
        continue;
      }
      const int one = network_.open_socket();
      (void)network_.connect(one, random.pick(ports));
      scheduler_.wait([&] { return network_.can_write(one); }, scheduler_.now() + 1e-2);
      const std::vector<std::byte> message = random_message();
      (void)network_.send(one, message);
      scheduler_.wait([] { return false; },
                      scheduler_.now() + 1e-4 * static_cast<double>(random.between(0, 100)));
      std::array<std::byte, 64> reply{};
      if (random.between(0, 2) == 0) (void)network_.receive(one, reply);
      if (random.between(0, 2) == 0) (void)network_.send(one, random_message());
      if (random.between(0, 2) == 0) network_.close(one);
    }
  }

  std::vector<std::byte> random_message() {
    Random& random = scheduler_.random();
    const auto in_bytes = [](const auto& bytes) {
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    switch (random.between(0, 5)) {
      case 0:
        return {};
      case 1:
        return in_bytes(comm::encode(comm::Hello{.from = static_cast<int>(random.between(0, size_)),
                                                 .to = static_cast<int>(random.between(0, size_)),
                                                 .size = size_,
                                                 .session = 12345}));
      case 2: {
        auto bytes = in_bytes(comm::encode(
            comm::StoreMessage{.kind = static_cast<comm::StoreMessage::Kind>(random.between(1, 8)),
                               .key = 9,
                               .value = 16}));
        bytes.resize(bytes.size() + 25, std::byte{'x'});
        return bytes;
      }
      case 3: {
        auto bytes = in_bytes(comm::encode(
            comm::Hello{.version = static_cast<std::uint32_t>(random.between(0, 9)),
                        .status = static_cast<comm::HandshakeStatus>(random.between(0, 8))}));
        bytes.resize(random.between(1, std::ssize(bytes) + 1));
        return bytes;
      }
      default: {
        std::vector<std::byte> bytes(random.between(1, 300));
        for (std::byte& one : bytes) one = static_cast<std::byte>(random.between(0, 256));
        return bytes;
      }
    }
  }

  // ---- ranks

  void run_rank(int number) {
    Rank& rank = ranks_[number];
    begin(rank, options_.connect_timeout.value);
    try {
      comm::run_on_sockets({.where = fmt::format("127.0.0.1:{}", kStorePort),
                            .self = {.rank = number, .size = size_},
                            .address = "",
                            .secret = secret_},
                           options_, [&](comm::Communicator& world) { work(rank, world); });
      rank.is_well = true;
    } catch (const InvariantViolation& violation) {
      rank.violation = violation.what();
    } catch (const comm::Failure& failure) {
      rank.error = failure.what();
      rank.code = failure.diagnostic().code;
      rank.named = failure.culprit();
    } catch (const InputError& error) {
      rank.error = error.what();
      rank.code = error.diagnostics().front().code;
    } catch (const std::exception& error) {
      rank.violation = fmt::format("unexpected exception: {}", error.what());
    }
    rank.ended = scheduler_.now();
    rank.is_over = true;
  }

  void begin(Rank& rank, double allowed) {
    rank.began = scheduler_.now();
    rank.allowed = allowed;
  }

  void work(Rank& rank, comm::Communicator& world) {
    rank.is_at_work = true;
    for (std::size_t k = 0; k < steps_.size(); ++k) {
      begin(rank, options_.timeout.value);
      run_step(k, world);
    }
    begin(rank, options_.timeout.value);
  }

  // Data must be correct, unless there is a byzantine rank.
  void expect(bool holds, const char* what) const {
    if (!holds && !has(FaultKind::byzantine)) throw InvariantViolation(what);
  }

  void run_step(std::size_t k, comm::Communicator& world) {
    const Step& step = steps_[k];
    const int rank = world.rank();
    GuardedBuffer mine(is_damaged_, step.count);
    for (std::int64_t i = 0; i < step.count; ++i) {
      mine.values()[i] = value_of(k, rank, i);
    }
    switch (step.kind) {
      case StepKind::barrier:
        return world.barrier();
      case StepKind::broadcast:
        world.broadcast(mine.values(), step.root);
        expect_values(mine, [&](std::int64_t i) { return value_of(k, step.root, i); });
        return;
      case StepKind::reduce:
        world.all_reduce(mine.values());
        expect_values(mine, [&](std::int64_t i) { return sum_of(k, world.size(), i); });
        return;
      case StepKind::gather: {
        GuardedBuffer all(is_damaged_, step.count * world.size());
        world.all_gather(std::span<const std::int32_t>(mine.values()), all.values());
        expect_values(all, [&](std::int64_t i) {
          return value_of(k, static_cast<int>(i / step.count), i % step.count);
        });
        return;
      }
      case StepKind::exchange: {
        GuardedBuffer from(is_damaged_, step.count * world.size());
        GuardedBuffer to(is_damaged_, step.count * world.size());
        for (std::int64_t i = 0; i < std::ssize(from.values()); ++i) {
          from.values()[i] = value_of(k, rank, i);
        }
        world.all_to_all(std::span<const std::int32_t>(from.values()), to.values());
        expect_values(to, [&](std::int64_t i) {
          return value_of(k, static_cast<int>(i / step.count), rank * step.count + i % step.count);
        });
        return;
      }
      case StepKind::ring:
      case StepKind::late:
        return ring(k, world, mine);
      case StepKind::split: {
        const auto half = world.split(rank % 2, rank, "half");
        half->all_reduce(mine.values());
        return;
      }
    }
  }

  void ring(std::size_t k, comm::Communicator& world, GuardedBuffer& mine) {
    const Step& step = steps_[k];
    const int right = (world.rank() + 1) % world.size();
    const int left = (world.rank() + world.size() - 1) % world.size();
    std::vector<GuardedBuffer> received;
    received.reserve(3);
    received.emplace_back(is_damaged_, step.count);
    received.emplace_back(is_damaged_, step.count);
    // With a margin that can take the first message.
    received.emplace_back(is_damaged_, step.count / 3, step.count + 16);
    const auto send = [&](int tag, std::int64_t count) {
      const auto values = mine.values().first(count);
      return world.isend(std::span<const std::int32_t>(values), right, tag);
    };
    const auto receive = [&](int tag) {
      return world.ireceive(received[tag - 1].values(), left, tag);
    };
    // Receives are posted long after the sends, or at once, in reverse order of the sends; one is
    // posted before its send.
    comm::Request first = send(1, step.count);
    comm::Request second = send(2, step.count);
    if (step.kind == StepKind::late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    comm::Request from_third = receive(3);
    comm::Request from_second = receive(2);
    comm::Request from_first = receive(1);
    for (comm::Request* each : {&from_second, &second, &from_first, &first}) each->wait();
    comm::Request third = send(3, step.count / 3);
    from_third.wait();
    third.wait();
    for (GuardedBuffer& memory : received) {
      expect_values(memory, [&](std::int64_t i) { return value_of(k, left, i); });
    }
  }

  std::int32_t sum_of(std::size_t k, int size, std::int64_t i) const {
    std::int32_t sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += value_of(k, rank, i);
    return sum;
  }
  template <class Value>
  void expect_values(GuardedBuffer& memory, const Value& value) {
    std::int64_t k = 0;
    for (const std::int32_t one : memory.values()) {
      if (one != value(k++)) return expect(false, "received data differs from sent data");
    }
  }

  // ---- invariants

  [[nodiscard]] bool has(FaultKind kind) const {
    return std::ranges::any_of(faults_, [&](const Fault& fault) { return fault.kind == kind; });
  }
  // The ranks with a fault.
  [[nodiscard]] std::set<int> faulty() const {
    std::set<int> ranks;
    for (const Fault& fault : faults_) {
      if (fault.kind == FaultKind::rogue_client) continue;
      ranks.insert(fault.a);
      const bool is_link = fault.kind == FaultKind::reset || fault.kind == FaultKind::drop ||
                           fault.kind == FaultKind::partition;
      if (is_link) ranks.insert(fault.b);
    }
    return ranks;
  }

  Outcome check_invariants(bool ended) {
    Outcome outcome{
        .faults = static_cast<int>(faults_.size()), .all_well = true, .steps = scheduler_.steps()};
    std::string& log = outcome.log;
    log = fmt::format("seed {}: {} ranks, {} steps, timeout {:.1f} s\n", seed_, size_,
                      steps_.size(), options_.timeout.value);
    for (const Fault& fault : faults_) {
      log += fmt::format("  {:.2f} ms: {} {} {}\n", fault.time * 1e3,
                         kFaultNames[static_cast<std::size_t>(fault.kind)], fault.a, fault.b);
    }
    const std::set<int> suspects = faulty();
    const auto report_violation = [&](const std::string& text) {
      if (outcome.violation.empty()) outcome.violation = text;
    };
    if (!ended) report_violation("a process hangs");
    if (is_damaged_) report_violation("buffer overflow: memory next to a buffer was written");
    for (int k = 0; k < size_; ++k) {
      const Rank& rank = ranks_[k];
      log += fmt::format("  rank {}: {} after {:.3f} s\n", k,
                         rank.is_well             ? "well"
                         : rank.violation.empty() ? rank.error
                                                  : rank.violation,
                         rank.ended - 1000);
      if (!rank.violation.empty()) report_violation(fmt::format("rank {}: {}", k, rank.violation));
      const bool gone = std::ranges::any_of(faults_, [&](const Fault& fault) {
        return fault.a == k && (fault.kind == FaultKind::kill || fault.kind == FaultKind::stop);
      });
      if (gone) continue;
      if (rank.is_well) continue;
      outcome.all_well = false;
      const double late = rank.ended - rank.began - rank.allowed;
      outcome.slowest = std::max(outcome.slowest, late);
      if (late > kGrace) report_violation(fmt::format("rank {} ended {:.1f} s too late", k, late));
      if (suspects.empty()) report_violation(fmt::format("rank {} failed without a fault", k));
      if (rank.code == "D007" && !has(FaultKind::exhaust))
        report_violation("D007 without a reason");
      const bool is_clear = faults_.size() == 1 && (faults_[0].kind == FaultKind::kill ||
                                                    faults_[0].kind == FaultKind::stop);
      if (!rank.named && is_clear && rank.is_at_work) {
        report_violation(fmt::format("rank {} does not name the only rank that failed", k));
      }
      if (!rank.named) continue;
      ++outcome.named;
      if (!suspects.contains(*rank.named) && !has(FaultKind::byzantine)) {
        report_violation(fmt::format("rank {} names rank {}, which has no fault", k, *rank.named));
      }
    }
    return outcome;
  }

  std::uint64_t seed_;
  Random random_;
  Scheduler scheduler_;
  Network network_{scheduler_};
  int size_ = 2;
  int late_rank_ = -1;  // starts long after the others
  comm::SocketOptions options_;
  std::string secret_;
  std::vector<Step> steps_;
  std::vector<Fault> faults_;
  std::vector<Rank> ranks_;
  bool is_damaged_ = false;
};

}  // namespace

Outcome simulate(std::uint64_t seed) { return Job(seed).run(); }

}  // namespace shiplap::simulation
