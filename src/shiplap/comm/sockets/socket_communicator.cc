#include <sched.h>

#include <algorithm>
#include <utility>

#include "shiplap/comm/sockets/socket_communicator_internal.h"

namespace shiplap::comm {
namespace {

// How long a rank that waits asks again and again before it sleeps, where there is a core for every
// rank. It gives way each time: the rank it waits for may have been put on the same core, and then
// half a ping-pong took 57 us, not 6.
constexpr double kSpinSeconds = 50e-6;
constexpr double kSleepSeconds = 10e-3;
// How often a rank that waits reports for what.
constexpr double kReportEvery = 20e-3;
// What a rank sent before it was lost may still be on its way through others when that is known.
constexpr double kInFlight = 0.1;
// Up to here one more message costs more than copying what is in it, there and here.
constexpr std::size_t kPackBelow = std::size_t{16} * 1024;

}  // namespace

// ---- one message

class SocketCommunicator::State : public Request::State {
 public:
  State(SocketCommunicator& communicator, const char* verb, int peer, int tag)
      : communicator_(communicator),
        endpoint_(*communicator.endpoint_),
        verb_(verb),
        peer_(peer),
        tag_(tag),
        awaiting_(communicator.detector(), communicator.world_rank(peer)) {}

  bool test(bool waits) final;
  void wait() final;
  void time_out() final;

 protected:
  // Throws what went wrong with the message itself.
  virtual bool is_complete() SHIPLAP_REQUIRES(endpoint_.mutex()) = 0;

  SocketCommunicator& communicator_;  // NOLINT
  Endpoint& endpoint_;                // NOLINT

 private:
  [[nodiscard]] std::string operation() const {
    return communicator_.operation(verb_, peer_, tag_);
  }
  void serve(double time) SHIPLAP_REQUIRES(endpoint_.mutex());
  void check_peer() SHIPLAP_REQUIRES(endpoint_.mutex());
  // True, and this rank waits no longer.
  bool is_over() {
    awaiting_.set(false);
    return true;
  }

  const char* verb_;
  int peer_;
  int tag_;
  double report_at_ = 0;
  FailureDetector::Awaiting awaiting_;
};

void SocketCommunicator::State::serve(double time) {
  if (time < report_at_ && !endpoint_.has_probes()) return;
  report_at_ = time + kReportEvery;
  endpoint_.serve(communicator_.wait_state(operation()));
}

// Nothing comes from a rank that has gone, whatever others may have sent.
void SocketCommunicator::State::check_peer() {
  const int peer = communicator_.world_rank(peer_);
  switch (endpoint_.gone(peer)) {
    case Endpoint::Gone::no:
      return;
    case Endpoint::Gone::ended:
      communicator_.fail_rank(peer, "it has ended its work");
    case Endpoint::Gone::lost:
      communicator_.check_failed(seconds_now());
  }
}

bool SocketCommunicator::State::test(bool waits) {
  const MutexLock lock(endpoint_.mutex());
  if (is_complete()) return is_over();
  communicator_.check_alive();
  endpoint_.progress();
  if (is_complete()) return is_over();
  awaiting_.set(waits);
  const double time = seconds_now();
  serve(time);
  check_peer();
  communicator_.check_failed(time - kInFlight);
  return is_complete() && is_over();
}

void SocketCommunicator::State::wait() {
  MutexLock lock(endpoint_.mutex());
  if (is_complete()) return static_cast<void>(is_over());
  communicator_.check_alive();
  const double begin = seconds_now();
  const double deadline = communicator_.deadline();
  report_at_ = begin + kSpinSeconds;
  double time = begin;
  while (true) {
    const bool spins = endpoint_.may_spin() && time < begin + kSpinSeconds;
    if (spins) {
      sched_yield();
      endpoint_.progress();
    } else {
      awaiting_.set(true);
      endpoint_.progress_within(std::clamp(deadline - time, 0.0, kSleepSeconds));
    }
    if (is_complete()) return static_cast<void>(is_over());
    time = seconds_now();
    serve(time);
    if (is_complete()) return static_cast<void>(is_over());
    check_peer();
    if (time > begin + kInFlight) communicator_.check_failed(time - kInFlight);
    if (time > deadline) break;
  }
  lock.unlock();
  time_out();
}

void SocketCommunicator::State::time_out() {
  MutexLock lock(endpoint_.mutex());
  if (!is_complete()) endpoint_.progress();
  if (is_complete()) return static_cast<void>(is_over());
  communicator_.check_alive();
  awaiting_.set(true);
  lock.unlock();
  const MissingRanks missing = communicator_.find_missing(operation(), peer_);
  lock.lock();
  if (is_complete()) return static_cast<void>(is_over());  // it came in the last moment
  communicator_.check_failed(seconds_now());
  communicator_.fail_late(operation(), missing.ranks, missing.about, missing.culprit);
}

class SocketCommunicator::SendState final : public State {
 public:
  SendState(SocketCommunicator& communicator, std::shared_ptr<Sending> sending, int to)
      : State(communicator, "send to", to, sending->lane.tag), sending_(std::move(sending)) {}
  ~SendState() override {
    const MutexLock lock(endpoint_.mutex());
    endpoint_.cancel(*sending_);
  }
  [[nodiscard]] std::int64_t bytes() const override {
    const MutexLock lock(endpoint_.mutex());
    return std::ssize(sending_->data);
  }

 protected:
  bool is_complete() override SHIPLAP_REQUIRES(endpoint_.mutex()) {
    if (sending_->is_refused) {
      communicator_.fail_too_long(sending_->lane.from, static_cast<std::int64_t>(sending_->room));
    }
    return sending_->is_done;
  }

 private:
  std::shared_ptr<Sending> sending_ SHIPLAP_GUARDED_BY(endpoint_.mutex());
};

class SocketCommunicator::ReceiveState final : public State {
 public:
  ReceiveState(SocketCommunicator& communicator, std::shared_ptr<Receiving> receiving, int from)
      : State(communicator, "receive from", from, receiving->lane.tag),
        receiving_(std::move(receiving)) {}
  ~ReceiveState() override {
    const MutexLock lock(endpoint_.mutex());
    if (!receiving_->is_done) endpoint_.cancel(*receiving_);
  }
  [[nodiscard]] std::int64_t bytes() const override {
    const MutexLock lock(endpoint_.mutex());
    return static_cast<std::int64_t>(receiving_->bytes);
  }

 protected:
  bool is_complete() override SHIPLAP_REQUIRES(endpoint_.mutex()) {
    if (receiving_->is_too_long) {
      communicator_.fail_too_long(receiving_->lane.from, std::ssize(receiving_->target));
    }
    return receiving_->is_done;
  }

 private:
  std::shared_ptr<Receiving> receiving_ SHIPLAP_GUARDED_BY(endpoint_.mutex());
};

// ---- the communicator

SocketCommunicator::SocketCommunicator(std::shared_ptr<Endpoint> endpoint, Members members,
                                       std::string name)
    : MonitoredCommunicator(endpoint->detector(), std::move(members), std::move(name)),
      endpoint_(std::move(endpoint)) {}

SocketCommunicator::~SocketCommunicator() {
  const MutexLock lock(endpoint_->mutex());
  endpoint_->end_group(members().group, !alive());
}

std::size_t SocketCommunicator::eager_limit(int /*peer*/) const { return Header::kMostEager; }

std::size_t SocketCommunicator::pack_below(int /*peer*/) const { return kPackBelow; }

Request SocketCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  const MutexLock lock(endpoint_->mutex());
  const MatchKey lane{.group = members().group, .from = world_rank(rank()), .tag = tag};
  return Request(
      std::make_unique<SendState>(*this, endpoint_->start_send(lane, world_rank(to), data), to));
}

Request SocketCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  const MutexLock lock(endpoint_->mutex());
  const MatchKey lane{.group = members().group, .from = world_rank(from), .tag = tag};
  return Request(std::make_unique<ReceiveState>(*this, endpoint_->start_receive(lane, data), from));
}

std::unique_ptr<Communicator> SocketCommunicator::do_split(int colour, int key,
                                                           const std::string& name) {
  const std::vector<int> part = choose_part(colour, key);
  return std::make_unique<SocketCommunicator>(endpoint_, members_of(part, colour), name);
}

}  // namespace shiplap::comm
