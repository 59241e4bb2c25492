#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/comm/sockets/endpoint_internal.h"

namespace shiplap::comm {
namespace {

// Short messages come with one call of the kernel; of long ones only so much is copied.
constexpr std::size_t kBufferBytes = std::size_t{16} * 1024;
constexpr std::size_t kDiscardBytes = std::size_t{64} * 1024;
constexpr int kEventsAtOnce = 64;
// At the end, for what has been sent to leave this machine.
constexpr double kLingerSeconds = 2;

Socket open_epoll() {
  Socket events(epoll_create1(EPOLL_CLOEXEC));
  if (!events.is_open()) check_exhausted(errno);
  ensure(events.is_open(), "the kernel has epoll");
  return events;
}

}  // namespace

Endpoint::Endpoint(const Seat& seat, Joined joined)
    : detector_(*this, seat.rank, seat.size),
      events_(open_epoll()),
      may_spin_(joined.here <= static_cast<int>(std::thread::hardware_concurrency())),
      wires_(static_cast<std::size_t>(seat.size)),
      discard_buffer_(kDiscardBytes) {
  for (int rank = 0; rank < seat.size; ++rank) {
    Wire& one = wire(rank);
    one.rank = rank;
    one.socket = std::move(joined.sockets[rank]);
    if (!one.socket.is_open()) continue;
    one.buffer.resize(kBufferBytes);
    epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(rank)}};
    ensure(epoll_ctl(events_.descriptor(), EPOLL_CTL_ADD, one.socket.descriptor(), &event) == 0,
           "a socket can be watched");
  }
}

Endpoint::~Endpoint() {
  send({.kind = ControlMessage::Kind::goodbye, .waits = has_failed_ ? 1 : 0},
       detector_.everybody());
  linger();
}

// What the kernel has sent, it sends again if need be, also after the process has ended. But if
// something comes for a socket that is closed it forgets what it has not sent yet.
void Endpoint::linger() {
  const auto is_clear = [](const Wire& one) {
    if (!one.socket.is_open() || one.is_broken) return true;
    int unsent = 0;
    return one.outgoing.empty() &&
           (ioctl(one.socket.descriptor(), SIOCOUTQNSD, &unsent) != 0 || unsent == 0);
  };
  const MutexLock lock(mutex_);
  for (const double end = time() + kLingerSeconds; time() < end;) {
    if (std::ranges::all_of(wires_, is_clear)) break;
    progress_within(1e-3);
  }
  progress();  // what has come unread would make the kernel break the connection
}

void Endpoint::end_group(std::uint64_t group, bool has_failed) {
  has_failed_ = has_failed_ || has_failed;
  detector_.end_group(group);
  lanes_.erase(lanes_.lower_bound({.group = group}), lanes_.lower_bound({.group = group + 1}));
}

Endpoint::Gone Endpoint::gone(int rank) const {
  const Wire& one = wires_[rank];
  if (rank == detector_.rank()) return Gone::no;
  // Where something went wrong before, this rank finds out in the same way as that one did.
  if (one.is_ended) return one.has_failed ? Gone::no : Gone::ended;
  return one.socket.is_open() ? Gone::no : Gone::lost;
}

// ---- progress

void Endpoint::handle(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    Wire& one = wires_[event.data.u32];
    if ((event.events & EPOLLOUT) != 0 && one.socket.is_open()) write(one);
    if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0 && one.socket.is_open()) read(one);
  }
}

void Endpoint::progress() {
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count = epoll_wait(events_.descriptor(), events.data(), kEventsAtOnce, 0);
  if (count > 0) handle(std::span(events).first(count));
}

void Endpoint::progress_within(double seconds) {
  if (is_asleep_) {
    ++sleepers_;
    woken_.wait_until(mutex_, ConditionVariable::after(seconds));
    --sleepers_;
    return;
  }
  std::array<epoll_event, kEventsAtOnce> events{};
  is_asleep_ = true;
  mutex_.unlock();
  const int count = epoll_wait(events_.descriptor(), events.data(), kEventsAtOnce,
                               static_cast<int>(std::ceil(seconds * 1e3)));
  mutex_.lock();
  is_asleep_ = false;
  if (count > 0) handle(std::span(events).first(count));
  if (sleepers_ > 0) woken_.notify_all();
}

// ---- control messages

void Endpoint::serve(const WaitState& state) {
  detector_.set_waiting(state);
  progress();
  for (const auto& [probe, from] : std::exchange(probes_, {})) {
    if (const auto reply = detector_.handle(probe, from)) post(*reply, from);
  }
}

void Endpoint::poll(const WaitState& state) {
  const MutexLock lock(mutex_);
  serve(state);
}

void Endpoint::send(const ControlMessage& message, std::span<const int> ranks) {
  const MutexLock lock(mutex_);
  for (const int to : ranks) {
    if (to != detector_.rank()) post(message, to);
  }
}

void Endpoint::post(const ControlMessage& message, int to) {
  const auto bytes = encode(message);
  post(wire(to), {.kind = Header::Kind::control, .bytes = kControlBytes},
       {bytes.begin(), bytes.end()});
}

void Endpoint::pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

}  // namespace shiplap::comm
