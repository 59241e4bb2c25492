#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/base/resources.h"
#include "shiplap/comm/sockets/socket_internal.h"

namespace shiplap::comm {
namespace {

constexpr int kMaxPort = 65535;
constexpr std::chrono::milliseconds kRetryAfter{5};
// TCP keepalive: finds a host that is gone after half a minute. (A host with a stopped process
// still replies.)
constexpr int kKeepaliveIdleSeconds = 10;
constexpr int kKeepaliveIntervalSeconds = 5;
constexpr int kKeepaliveProbes = 4;

[[noreturn]] void throw_bad_address(std::string what, std::string help = "") {
  throw InputError(Diagnostic{.code = "D308", .what = std::move(what), .help = std::move(help)});
}

std::string text_of(int error) { return std::generic_category().message(error); }

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (status != 0) {
    throw_bad_address(fmt::format("unknown host `{}`: {}", address.host, gai_strerror(status)));
  }
  return {found, &freeaddrinfo};
}

void set_option(const Socket& socket, int level, int option, int value) {
  // Errors are ignored: no option is essential.
  (void)setsockopt(socket.descriptor(), level, option, &value, sizeof value);
}

void configure(const Socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

Address address_of(const sockaddr_storage& storage, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int status =
      getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (status != 0) return {};
  return {.host = host.data(), .port = std::stoi(port.data())};
}

Socket open_for(const addrinfo& one) {
  Socket opened(socket(one.ai_family, one.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!opened.is_open()) check_exhausted(errno);
  return opened;
}

// Approximate number of open files of this process.
int open_files() {
  std::error_code error;
  int count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  constexpr int kUsual = 16;
  return error ? kUsual : count;
}

Socket::IoResult io_result(ssize_t result) {
  if (result >= 0) return {.bytes = static_cast<std::size_t>(result)};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {.would_block = true};
  return {.error = errno};
}

// One attempt. Returns a closed socket if it fails.
Socket try_to_connect(const addrinfo& one, double deadline) {
  Socket socket = open_for(one);
  if (!socket.is_open()) return {};
  configure(socket);
  if (::connect(socket.descriptor(), one.ai_addr, one.ai_addrlen) != 0) {
    if (errno != EINPROGRESS || !wait_ready(socket, Ready::write, deadline)) return {};
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return {};
  }
  // If nothing listens at a port in the ephemeral range, the kernel may choose that port as the
  // local one and connect the socket to itself.
  if (socket.local_address() == socket.peer_address()) return {};
  return socket;
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(SocketClock::now().time_since_epoch()).count();
}

// ---- addresses

std::string to_string(const Address& address) {
  const bool has_colons = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", has_colons ? "[" : "", address.host, has_colons ? "]" : "",
                     address.port);
}

Address parse_address(const std::string& text, const std::string& what, Port port) {
  const auto fail = [&] {
    throw_bad_address(fmt::format("{} is `{}`, where {} was expected", what, text,
                                  port == Port::needed ? "HOST:PORT" : "HOST or HOST:PORT"),
                      "for example 127.0.0.1:4711, or [::1]:4711");
  };
  Address address;
  std::string rest;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string::npos) fail();
    address.host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else {
    const std::size_t colon = text.find(':');
    address.host = text.substr(0, colon);
    rest = colon == std::string::npos ? "" : text.substr(colon);
  }
  if (address.host.empty() || (rest.empty() && port == Port::needed)) fail();
  if (rest.empty()) return address;
  const char* const end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data() + 1, end, address.port);
  if (rest.front() != ':' || error != std::errc() || stop != end || address.port < 1 ||
      address.port > kMaxPort) {
    fail();
  }
  return address;
}

// ---- sockets

Socket::~Socket() {
  if (is_open()) ::close(descriptor_);
}

Address Socket::local_address() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&storage), &length);
  return address_of(storage, length);
}

Address Socket::peer_address() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getpeername(descriptor_, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return address_of(storage, length);
}

Socket::IoResult Socket::send(std::span<const std::byte> data) const {
  return io_result(::send(descriptor_, data.data(), data.size(), MSG_NOSIGNAL));
}

Socket::IoResult Socket::receive(std::span<std::byte> data) const {
  return io_result(::recv(descriptor_, data.data(), data.size(), 0));
}

void check_exhausted(int error) {
  const bool is_limit = error == EMFILE;
  if (!is_limit && error != ENFILE && error != ENOBUFS && error != ENOMEM) return;
  throw_resource_exhausted(fmt::format("cannot open one more connection: {}", text_of(error)),
                           is_limit ? "this process has reached its limit on open files" : "",
                           is_limit ? "`ulimit -n 65536` before the ranks are started" : "");
}

void reserve_descriptors(int count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(open_files()) + static_cast<rlim_t>(count);
  if (limit.rlim_cur >= wanted) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = wanted;
  if (limit.rlim_max >= wanted && setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw_resource_exhausted(
      fmt::format("limit on open files is too low: {} allowed, {} needed", before, wanted),
      fmt::format("every rank has a connection to every other; the limit cannot be raised above {}",
                  limit.rlim_max),
      fmt::format("raise it: `ulimit -Hn {}` as root, or in the job scheduler", wanted));
}

Socket listen_at(const Address& address, int backlog) {
  const AddressList found = resolve(address);
  Socket listener = open_for(*found);
  if (listener.is_open()) {
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(listener.descriptor(), found->ai_addr, found->ai_addrlen) == 0 &&
        listen(listener.descriptor(), backlog) == 0) {
      return listener;
    }
  }
  const int error = errno;
  throw_bad_address(fmt::format("cannot listen at {}: {}", to_string(address), text_of(error)),
                    error == EADDRINUSE      ? "another program uses this port; choose another one"
                    : error == EADDRNOTAVAIL ? "it must be an address of this machine"
                                             : "");
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) {
    configure(socket);
  } else {
    check_exhausted(errno);
  }
  return socket;
}

Socket connect_to(const Address& address, double deadline) {
  const AddressList found = resolve(address);
  while (true) {
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      Socket socket = try_to_connect(*one, deadline);
      if (socket.is_open()) return socket;
    }
    if (seconds_now() >= deadline) return {};
    std::this_thread::sleep_for(kRetryAfter);
  }
}

// ---- waiting

bool wait_ready(const Socket& socket, Ready ready, double deadline) {
  pollfd one{.fd = socket.descriptor(),
             .events = static_cast<short>(ready == Ready::read ? POLLIN : POLLOUT),
             .revents = 0};
  while (true) {
    const double left = deadline - seconds_now();
    const int status = poll(&one, 1, static_cast<int>(std::clamp(left * 1e3 + 1, 0.0, 1e9)));
    if (status > 0) return true;
    if (status == 0 || errno != EINTR) return false;
  }
}

bool send_all(const Socket& socket, std::span<const std::byte> data, double deadline) {
  while (!data.empty()) {
    const Socket::IoResult moved = socket.send(data);
    if (moved.error != 0) return false;
    if (moved.would_block && !wait_ready(socket, Ready::write, deadline)) return false;
    data = data.subspan(moved.bytes);
  }
  return true;
}

bool receive_all(const Socket& socket, std::span<std::byte> data, double deadline) {
  while (!data.empty()) {
    const Socket::IoResult moved = socket.receive(data);
    if (moved.error != 0 || (moved.bytes == 0 && !moved.would_block)) return false;
    if (moved.would_block && !wait_ready(socket, Ready::read, deadline)) return false;
    data = data.subspan(moved.bytes);
  }
  return true;
}

}  // namespace shiplap::comm
