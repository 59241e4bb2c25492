#include <sched.h>

#include <algorithm>
#include <utility>

#include "shiplap/comm/sockets/socket_communicator_internal.h"

namespace shiplap::comm {
namespace {

// Adaptive waiting: where there is a core for every rank, a rank polls this long before it sleeps.
// It yields each time: the rank it waits for may be on the same core, and then half a ping-pong
// took 57 us, not 6.
constexpr double kSpinSeconds = 50e-6;
constexpr double kSleepSeconds = 10e-3;
// How often a rank that waits reports what it waits for.
constexpr double kReportEvery = 20e-3;
// Below this, one more message costs more than copying its data on both sides.
constexpr std::size_t kPackBelow = std::size_t{16} * 1024;

}  // namespace

// ---- requests

class SocketCommunicator::SocketRequest : public Request::State {
 public:
  SocketRequest(SocketCommunicator& communicator, const char* verb, int peer, int tag)
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
  // Throws the failure of this message.
  virtual bool is_complete() SHIPLAP_REQUIRES(endpoint_.mutex()) = 0;

  SocketCommunicator& communicator_;  // NOLINT
  Endpoint& endpoint_;                // NOLINT

 private:
  [[nodiscard]] std::string operation() const {
    return communicator_.operation(verb_, peer_, tag_);
  }
  void answer_probes(double time) SHIPLAP_REQUIRES(endpoint_.mutex());
  void check_peer() SHIPLAP_REQUIRES(endpoint_.mutex());
  // Returns true. This rank no longer waits.
  bool finish() {
    awaiting_.set(false);
    return true;
  }

  const char* verb_;
  int peer_;
  int tag_;
  double report_at_ = 0;
  FailureDetector::Awaiting awaiting_;
};

void SocketCommunicator::SocketRequest::answer_probes(double time) {
  if (time < report_at_ && !endpoint_.has_probes()) return;
  report_at_ = time + kReportEvery;
  endpoint_.answer_probes(communicator_.wait_state(operation()));
}

// No message can arrive from a rank that has disconnected.
void SocketCommunicator::SocketRequest::check_peer() {
  const int peer = communicator_.world_rank(peer_);
  switch (endpoint_.peer_state(peer)) {
    case Endpoint::PeerState::active:
      return;
    case Endpoint::PeerState::finished:
      communicator_.fail_rank(peer, "it has finished its work and disconnected");
    case Endpoint::PeerState::lost:
      communicator_.throw_if_rank_failed(seconds_now());
  }
}

bool SocketCommunicator::SocketRequest::test(bool waits) {
  const MutexLock lock(endpoint_.mutex());
  if (is_complete()) return finish();
  communicator_.check_alive();
  endpoint_.progress();
  if (is_complete()) return finish();
  awaiting_.set(waits);
  const double time = seconds_now();
  answer_probes(time);
  check_peer();
  communicator_.throw_if_rank_failed(time - kFailureGracePeriod);
  return is_complete() && finish();
}

void SocketCommunicator::SocketRequest::wait() {
  MutexLock lock(endpoint_.mutex());
  if (is_complete()) return static_cast<void>(finish());
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
      endpoint_.wait_for_progress(std::clamp(deadline - time, 0.0, kSleepSeconds));
    }
    if (is_complete()) return static_cast<void>(finish());
    time = seconds_now();
    answer_probes(time);
    if (is_complete()) return static_cast<void>(finish());
    check_peer();
    if (time > begin + kFailureGracePeriod)
      communicator_.throw_if_rank_failed(time - kFailureGracePeriod);
    if (time > deadline) break;
  }
  lock.unlock();
  time_out();
}

void SocketCommunicator::SocketRequest::time_out() {
  MutexLock lock(endpoint_.mutex());
  if (!is_complete()) endpoint_.progress();
  if (is_complete()) return static_cast<void>(finish());
  communicator_.check_alive();
  awaiting_.set(true);
  lock.unlock();
  const MissingRanks missing = communicator_.find_missing(operation(), peer_);
  lock.lock();
  if (is_complete()) return static_cast<void>(finish());  // it arrived in the meantime
  communicator_.throw_if_rank_failed(seconds_now());
  communicator_.fail_operation_timeout(operation(), missing.ranks, missing.about, missing.culprit);
}

class SocketCommunicator::SendRequest final : public SocketRequest {
 public:
  SendRequest(SocketCommunicator& communicator, std::shared_ptr<PendingSend> sending, int to)
      : SocketRequest(communicator, "send to", to, sending->key.tag),
        sending_(std::move(sending)) {}
  ~SendRequest() override {
    const MutexLock lock(endpoint_.mutex());
    endpoint_.cancel(*sending_);
  }
  [[nodiscard]] std::int64_t bytes() const override {
    const MutexLock lock(endpoint_.mutex());
    return std::ssize(sending_->data);
  }

 protected:
  bool is_complete() override SHIPLAP_REQUIRES(endpoint_.mutex()) {
    if (sending_->is_rejected) {
      communicator_.fail_too_long(sending_->key.from, static_cast<std::int64_t>(sending_->room));
    }
    return sending_->is_done;
  }

 private:
  std::shared_ptr<PendingSend> sending_ SHIPLAP_GUARDED_BY(endpoint_.mutex());
};

class SocketCommunicator::ReceiveRequest final : public SocketRequest {
 public:
  ReceiveRequest(SocketCommunicator& communicator, std::shared_ptr<PendingReceive> receiving,
                 int from)
      : SocketRequest(communicator, "receive from", from, receiving->key.tag),
        receiving_(std::move(receiving)) {}
  ~ReceiveRequest() override {
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
      communicator_.fail_too_long(receiving_->key.from, std::ssize(receiving_->target));
    }
    return receiving_->is_done;
  }

 private:
  std::shared_ptr<PendingReceive> receiving_ SHIPLAP_GUARDED_BY(endpoint_.mutex());
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

std::size_t SocketCommunicator::eager_limit(int /*peer*/) const { return Header::kMaxEager; }

std::size_t SocketCommunicator::pack_below(int /*peer*/) const { return kPackBelow; }

Request SocketCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  const MutexLock lock(endpoint_->mutex());
  const MatchKey key{.group = members().group, .from = world_rank(rank()), .tag = tag};
  return Request(
      std::make_unique<SendRequest>(*this, endpoint_->start_send(key, world_rank(to), data), to));
}

Request SocketCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  const MutexLock lock(endpoint_->mutex());
  const MatchKey key{.group = members().group, .from = world_rank(from), .tag = tag};
  return Request(
      std::make_unique<ReceiveRequest>(*this, endpoint_->start_receive(key, data), from));
}

std::unique_ptr<Communicator> SocketCommunicator::do_split(int colour, int key,
                                                           const std::string& name) {
  const std::vector<int> part = exchange_colours(colour, key);
  return std::make_unique<SocketCommunicator>(endpoint_, members_of(part, colour), name);
}

}  // namespace shiplap::comm
