// Interposes the system calls of comm/sockets: in a simulated process they use the simulated
// network and clock, everywhere else the real system.
//
// The code under test is the shipped code; only this program is linked with these symbols.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>

#include "network.h"

namespace sim = shiplap::simulation;

namespace {

constexpr double kCallSeconds = 1e-6;

// The scheduler if the caller is a simulated process; whether a descriptor is simulated.
sim::Scheduler* simulated() { return sim::current(); }
bool is_simulated(int descriptor) {
  return sim::current() != nullptr && descriptor >= sim::kFirstDescriptor;
}
sim::Network& network() { return *sim::current_network(); }

template <class Number>
Number result_of(Number number) {
  if (number >= 0) return number;
  errno = static_cast<int>(-number);
  return -1;
}

// Some blocking calls are interrupted.
bool is_interrupted() { return simulated()->random().between(0, 100) == 0; }

double deadline_in(double seconds) {
  return seconds < 0 ? sim::kNever : simulated()->now() + seconds;
}

// Waits until look() finds ready descriptors; returns their number.
int wait_ready(const std::function<int()>& look, int milliseconds) {
  simulated()->step(kCallSeconds);
  if (milliseconds > 0 && is_interrupted()) return result_of(-EINTR);
  int ready = look();
  if (ready == 0 && milliseconds != 0) {
    simulated()->wait([&] { return look() > 0; }, deadline_in(milliseconds * 1e-3));
    ready = look();
  }
  return ready;
}

int port_in(const sockaddr* address) {
  sockaddr_in in{};
  std::memcpy(&in, address, sizeof in);
  return ntohs(in.sin_port);
}

int write_address(int port, sockaddr* address, socklen_t* length) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<std::uint16_t>(port));
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(address, &in, std::min<std::size_t>(*length, sizeof in));
  *length = sizeof in;
  return 0;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// The number of notifications of each condition variable.
std::map<const pthread_cond_t*, std::uint64_t>& notified() {
  static std::map<const pthread_cond_t*, std::uint64_t> counts;
  return counts;
}

int wait_for_notification(pthread_cond_t* condition, pthread_mutex_t* mutex, double deadline) {
  const std::uint64_t before = notified()[condition];
  pthread_mutex_unlock(mutex);
  const bool is_notified =
      simulated()->wait([=] { return notified()[condition] != before; }, deadline);
  pthread_mutex_lock(mutex);
  return is_notified ? 0 : ETIMEDOUT;
}

constexpr pthread_t kFirstThread = 1U << 20U;

timespec to_timespec(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  return {.tv_sec = whole,
          .tv_nsec = static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
}

double to_seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

extern "C" {

// ---- time and threads

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  sim::Scheduler* const self = simulated();
  if (self == nullptr) return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  self->pass(kCallSeconds / 10);
  *time = to_timespec(self->now(self->process()));
  return 0;
}

int nanosleep(const timespec* length, timespec* rest) {
  sim::Scheduler* const self = simulated();
  if (self == nullptr) return static_cast<int>(syscall(SYS_nanosleep, length, rest));
  self->wait([] { return false; }, self->now() + to_seconds(*length));
  return 0;
}

int sched_yield() noexcept {
  sim::Scheduler* const self = simulated();
  if (self == nullptr) return static_cast<int>(syscall(SYS_sched_yield));
  self->step(kCallSeconds);
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                   void* argument) noexcept {
  sim::Scheduler* const self = simulated();
  if (self == nullptr) {
    return next<decltype(&pthread_create)>("pthread_create")(thread, attributes, routine, argument);
  }
  const int fiber = self->start(self->process(), [=] { routine(argument); });
  *thread = kFirstThread + static_cast<pthread_t>(fiber);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  sim::Scheduler* const self = simulated();
  if (self == nullptr) return next<decltype(&pthread_join)>("pthread_join")(thread, result);
  const int fiber = static_cast<int>(thread - kFirstThread);
  self->wait_even_dead([=] { return self->is_over(fiber); });
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (simulated() == nullptr) {
    return next<decltype(&pthread_cond_wait)>("pthread_cond_wait")(condition, mutex);
  }
  return wait_for_notification(condition, mutex, sim::kNever);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  if (simulated() == nullptr) {
    return next<decltype(&pthread_cond_clockwait)>("pthread_cond_clockwait")(condition, mutex,
                                                                             clock, until);
  }
  return wait_for_notification(condition, mutex, to_seconds(*until));
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (simulated() == nullptr) {
    return next<decltype(&pthread_cond_broadcast)>("pthread_cond_broadcast")(condition);
  }
  ++notified()[condition];
  return 0;
}

ssize_t getrandom(void* bytes, std::size_t count, unsigned flags) {
  sim::Scheduler* const self = simulated();
  if (self == nullptr) return syscall(SYS_getrandom, bytes, count, flags);
  for (std::size_t k = 0; k < count; ++k) {
    static_cast<unsigned char*>(bytes)[k] =
        static_cast<unsigned char>(self->random().between(0, 256));
  }
  return static_cast<ssize_t>(count);
}

// ---- sockets

int socket(int domain, int type, int protocol) noexcept {
  if (simulated() == nullptr) return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
  simulated()->step(kCallSeconds);
  return result_of(network().open_socket());
}

int bind(int descriptor, const sockaddr* address, socklen_t length) noexcept {
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_bind, descriptor, address, length));
  }
  return result_of(network().bind(descriptor, port_in(address)));
}

int listen(int descriptor, int backlog) noexcept {
  if (!is_simulated(descriptor)) return static_cast<int>(syscall(SYS_listen, descriptor, backlog));
  return result_of(network().listen(descriptor));
}

int accept4(int descriptor, sockaddr* address, socklen_t* length, int flags) {
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_accept4, descriptor, address, length, flags));
  }
  simulated()->step(kCallSeconds);
  return result_of(network().accept(descriptor));
}

int connect(int descriptor, const sockaddr* address, socklen_t length) {
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_connect, descriptor, address, length));
  }
  simulated()->step(kCallSeconds);
  return result_of(network().connect(descriptor, port_in(address)));
}

int getsockopt(int descriptor, int level, int option, void* value, socklen_t* length) noexcept {
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_getsockopt, descriptor, level, option, value, length));
  }
  const int error = option == SO_ERROR ? network().error_of(descriptor) : 0;
  std::memcpy(value, &error, sizeof error);
  return 0;
}

int setsockopt(int descriptor, int level, int option, const void* value,
               socklen_t length) noexcept {
  if (is_simulated(descriptor)) return 0;
  return static_cast<int>(syscall(SYS_setsockopt, descriptor, level, option, value, length));
}

int getsockname(int descriptor, sockaddr* address, socklen_t* length) noexcept {
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_getsockname, descriptor, address, length));
  }
  return write_address(network().port_of(descriptor), address, length);
}

int getpeername(int descriptor, sockaddr* address, socklen_t* length) noexcept {
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_getpeername, descriptor, address, length));
  }
  const int port = network().peer_port_of(descriptor);
  return port < 0 ? result_of(-ENOTCONN) : write_address(port, address, length);
}

int close(int descriptor) {
  if (!is_simulated(descriptor)) return static_cast<int>(syscall(SYS_close, descriptor));
  return result_of(network().close(descriptor));
}

ssize_t send(int descriptor, const void* data, std::size_t bytes, int flags) {
  if (!is_simulated(descriptor)) {
    return syscall(SYS_sendto, descriptor, data, bytes, flags, nullptr, 0);
  }
  simulated()->step(kCallSeconds);
  return result_of(network().send(descriptor, {static_cast<const std::byte*>(data), bytes}));
}

ssize_t recv(int descriptor, void* data, std::size_t bytes, int flags) {
  if (!is_simulated(descriptor)) {
    return syscall(SYS_recvfrom, descriptor, data, bytes, flags, nullptr, nullptr);
  }
  simulated()->step(kCallSeconds);
  return result_of(network().receive(descriptor, {static_cast<std::byte*>(data), bytes}));
}

ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  if (!is_simulated(descriptor)) return syscall(SYS_sendmsg, descriptor, message, flags);
  simulated()->step(kCallSeconds);
  std::vector<std::byte> all;
  for (std::size_t k = 0; k < message->msg_iovlen; ++k) {
    const iovec& piece = message->msg_iov[k];
    const auto* const begin = static_cast<const std::byte*>(piece.iov_base);
    all.insert(all.end(), begin, begin + piece.iov_len);
  }
  return result_of(network().send(descriptor, all));
}

ssize_t readv(int descriptor, const iovec* pieces, int count) {
  if (!is_simulated(descriptor)) return syscall(SYS_readv, descriptor, pieces, count);
  simulated()->step(kCallSeconds);
  std::size_t bytes = 0;
  for (int k = 0; k < count; ++k) bytes += pieces[k].iov_len;
  std::vector<std::byte> all(bytes);
  const std::int64_t got = network().receive(descriptor, all);
  std::size_t taken = 0;
  for (int k = 0; k < count && got > 0; ++k) {
    const std::size_t part = std::min(pieces[k].iov_len, static_cast<std::size_t>(got) - taken);
    if (part > 0) std::memcpy(pieces[k].iov_base, all.data() + taken, part);
    taken += part;
  }
  return result_of(got);
}

ssize_t read(int descriptor, void* data, std::size_t bytes) {
  if (!is_simulated(descriptor)) return syscall(SYS_read, descriptor, data, bytes);
  return network().take_signal(descriptor) ? static_cast<ssize_t>(bytes) : result_of(-EAGAIN);
}

ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  if (!is_simulated(descriptor)) return syscall(SYS_write, descriptor, data, bytes);
  network().signal(descriptor);
  return static_cast<ssize_t>(bytes);
}

int ioctl(int descriptor, unsigned long request, ...) noexcept {
  std::va_list arguments;
  va_start(arguments, request);
  void* const value = va_arg(arguments, void*);
  va_end(arguments);
  if (!is_simulated(descriptor)) {
    return static_cast<int>(syscall(SYS_ioctl, descriptor, request, value));
  }
  const int nothing = 0;  // SIOCOUTQNSD: no unsent bytes
  std::memcpy(value, &nothing, sizeof nothing);
  return 0;
}

int eventfd(unsigned count, int flags) noexcept {
  if (simulated() == nullptr) return static_cast<int>(syscall(SYS_eventfd2, count, flags));
  return result_of(network().open_event());
}

// ---- waiting

int poll(pollfd* all, nfds_t count, int milliseconds) {
  if (simulated() == nullptr) {
    return static_cast<int>(syscall(SYS_poll, all, count, milliseconds));
  }
  const std::span<pollfd> each(all, count);
  const auto look = [&] {
    int ready = 0;
    for (pollfd& one : each) {
      one.revents = 0;
      if (one.fd < 0) continue;
      if ((one.events & POLLIN) != 0 && network().can_read(one.fd)) one.revents |= POLLIN;
      if ((one.events & POLLOUT) != 0 && network().can_write(one.fd)) one.revents |= POLLOUT;
      if (network().is_broken(one.fd)) one.revents |= POLLERR;
      if (one.revents != 0) ++ready;
    }
    return ready;
  };
  return wait_ready(look, milliseconds);
}

int epoll_create1(int flags) noexcept {
  if (simulated() == nullptr) return static_cast<int>(syscall(SYS_epoll_create1, flags));
  return result_of(network().open_epoll());
}

int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
  if (!is_simulated(epoll)) {
    return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, descriptor, event));
  }
  network().watch(epoll, descriptor, event->events, event->data.u32);
  return 0;
}

int epoll_wait(int epoll, epoll_event* events, int most, int milliseconds) {
  if (!is_simulated(epoll)) {
    return static_cast<int>(
        syscall(SYS_epoll_pwait, epoll, events, most, milliseconds, nullptr, 0));
  }
  const auto look = [&] {
    int ready = 0;
    for (const auto& [descriptor, watched] : network().watched(epoll)) {
      std::uint32_t now = 0;
      if ((watched.events & EPOLLIN) != 0 && network().can_read(descriptor)) now |= EPOLLIN;
      if ((watched.events & EPOLLOUT) != 0 && network().can_write(descriptor)) now |= EPOLLOUT;
      if (network().is_broken(descriptor)) now |= EPOLLERR;
      if (now == 0) continue;
      events[ready].events = now;
      events[ready].data.u32 = watched.data;
      if (++ready == most) break;
    }
    return ready;
  };
  return wait_ready(look, milliseconds);
}

}  // extern "C"
