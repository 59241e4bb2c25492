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
// How often a rank that waits says for what.
constexpr double kSayEvery = 20e-3;
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
        verb_(verb),
        peer_(peer),
        tag_(tag),
        awaiting_(communicator.news(), communicator.world_rank(peer)) {}

  bool test(bool waits) final;
  void wait() final;
  void give_up() final;

 protected:
  // With the lock. Throws what went wrong with the message itself.
  virtual bool is_complete() = 0;

  SocketCommunicator& communicator_;  // NOLINT

 private:
  [[nodiscard]] std::string operation() const {
    return communicator_.operation(verb_, peer_, tag_);
  }
  // All with the lock.
  void serve(double time);
  void check_peer();
  // True, and this rank waits no longer.
  bool is_over() {
    awaiting_.set(false);
    return true;
  }

  const char* verb_;
  int peer_;
  int tag_;
  double say_at_ = 0;
  News::Awaiting awaiting_;
};

void SocketCommunicator::State::serve(double time) {
  if (time < say_at_ && !communicator_.endpoint_->has_notices()) return;
  say_at_ = time + kSayEvery;
  communicator_.endpoint_->serve(communicator_.doing(operation()));
}

// Nothing comes from a rank that has gone, whatever others may have sent.
void SocketCommunicator::State::check_peer() {
  const int peer = communicator_.world_rank(peer_);
  switch (communicator_.endpoint_->gone(peer)) {
    case Endpoint::Gone::no:
      return;
    case Endpoint::Gone::ended:
      communicator_.fail_rank(peer, "it has ended its work");
    case Endpoint::Gone::lost:
      communicator_.check_lost(seconds_now());
  }
}

bool SocketCommunicator::State::test(bool waits) {
  const Endpoint::Lock lock = communicator_.endpoint_->lock();
  if (is_complete()) return is_over();
  communicator_.check_alive();
  communicator_.endpoint_->progress();
  if (is_complete()) return is_over();
  awaiting_.set(waits);
  const double time = seconds_now();
  serve(time);
  check_peer();
  communicator_.check_lost(time - kInFlight);
  return is_complete() && is_over();
}

void SocketCommunicator::State::wait() {
  Endpoint& endpoint = *communicator_.endpoint_;
  Endpoint::Lock lock = endpoint.lock();
  if (is_complete()) return static_cast<void>(is_over());
  communicator_.check_alive();
  const double begin = seconds_now();
  const double deadline = communicator_.deadline();
  say_at_ = begin + kSpinSeconds;
  double time = begin;
  while (true) {
    const bool spins = endpoint.may_spin() && time < begin + kSpinSeconds;
    if (spins) {
      sched_yield();
      endpoint.progress();
    } else {
      awaiting_.set(true);
      endpoint.progress_within(lock, std::clamp(deadline - time, 0.0, kSleepSeconds));
    }
    if (is_complete()) return static_cast<void>(is_over());
    time = seconds_now();
    serve(time);
    if (is_complete()) return static_cast<void>(is_over());
    check_peer();
    if (time > begin + kInFlight) communicator_.check_lost(time - kInFlight);
    if (time > deadline) break;
  }
  lock.unlock();
  give_up();
}

void SocketCommunicator::State::give_up() {
  Endpoint::Lock lock = communicator_.endpoint_->lock();
  if (!is_complete()) communicator_.endpoint_->progress();
  if (is_complete()) return static_cast<void>(is_over());
  communicator_.check_alive();
  awaiting_.set(true);
  lock.unlock();
  const News::RollCall roll = communicator_.call_roll(operation(), peer_);
  lock.lock();
  if (is_complete()) return static_cast<void>(is_over());  // it came in the last moment
  communicator_.check_lost(seconds_now());
  communicator_.fail_late(operation(), roll.missing, roll.about, roll.culprit);
}

class SocketCommunicator::SendState final : public State {
 public:
  SendState(SocketCommunicator& communicator, std::shared_ptr<Sending> sending, int to)
      : State(communicator, "send to", to, sending->lane.tag), sending_(std::move(sending)) {}
  ~SendState() override {
    const Endpoint::Lock lock = communicator_.endpoint_->lock();
    communicator_.endpoint_->cancel(*sending_);
  }
  [[nodiscard]] std::int64_t bytes() const override { return std::ssize(sending_->data); }

 protected:
  bool is_complete() override {
    if (sending_->is_refused) {
      communicator_.fail_too_long(sending_->lane.from, static_cast<std::int64_t>(sending_->room));
    }
    return sending_->is_done;
  }

 private:
  std::shared_ptr<Sending> sending_;
};

class SocketCommunicator::ReceiveState final : public State {
 public:
  ReceiveState(SocketCommunicator& communicator, std::shared_ptr<Receiving> receiving, int from)
      : State(communicator, "receive from", from, receiving->lane.tag),
        receiving_(std::move(receiving)) {}
  ~ReceiveState() override {
    const Endpoint::Lock lock = communicator_.endpoint_->lock();
    if (!receiving_->is_done) communicator_.endpoint_->cancel(*receiving_);
  }
  [[nodiscard]] std::int64_t bytes() const override {
    return static_cast<std::int64_t>(receiving_->bytes);
  }

 protected:
  bool is_complete() override {
    if (receiving_->is_too_long) {
      communicator_.fail_too_long(receiving_->lane.from, std::ssize(receiving_->target));
    }
    return receiving_->is_done;
  }

 private:
  std::shared_ptr<Receiving> receiving_;
};

// ---- the communicator

SocketCommunicator::SocketCommunicator(std::shared_ptr<Endpoint> endpoint, Members members,
                                       std::string name)
    : ListeningCommunicator(*endpoint, std::move(members), std::move(name)),
      endpoint_(std::move(endpoint)) {}

SocketCommunicator::~SocketCommunicator() {
  const Endpoint::Lock lock = endpoint_->lock();
  endpoint_->end_group(members().group, !alive());
}

std::size_t SocketCommunicator::in_order_up_to(int /*peer*/) const { return Header::kMostEager; }

std::size_t SocketCommunicator::pack_below(int /*peer*/) const { return kPackBelow; }

Request SocketCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  const Endpoint::Lock lock = endpoint_->lock();
  const SocketLane lane{.group = members().group, .from = world_rank(rank()), .tag = tag};
  return Request(
      std::make_unique<SendState>(*this, endpoint_->start_send(lane, world_rank(to), data), to));
}

Request SocketCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  const Endpoint::Lock lock = endpoint_->lock();
  const SocketLane lane{.group = members().group, .from = world_rank(from), .tag = tag};
  return Request(std::make_unique<ReceiveState>(*this, endpoint_->start_receive(lane, data), from));
}

std::unique_ptr<Communicator> SocketCommunicator::do_split(int colour, int key,
                                                           const std::string& name) {
  const std::vector<int> part = choose_part(colour, key);
  return std::make_unique<SocketCommunicator>(endpoint_, members_of(part, colour), name);
}

}  // namespace shiplap::comm
