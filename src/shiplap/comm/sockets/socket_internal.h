// TCP sockets and their addresses. All sockets are non-blocking, and closed by the destructor.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::comm {

using SocketClock = std::chrono::steady_clock;
[[nodiscard]] double seconds_now();

// HOST:PORT, with brackets around a host that has colons itself.
struct Address {
  std::string host;
  int port = 0;  // 0: any
  friend bool operator==(const Address&, const Address&) = default;
};
[[nodiscard]] std::string to_string(const Address& address);
enum class Port { needed, optional };
// Throws InputError D308. `what` is the source of the text, for the message: "SHIPLAP_SOCKETS".
[[nodiscard]] Address parse_address(const std::string& text, const std::string& what, Port port);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  void close() { *this = Socket(); }

  [[nodiscard]] Address local_address() const;
  [[nodiscard]] Address peer_address() const;

  // Result of a call. `bytes` is 0 if the peer has closed the connection; `error` is the errno if
  // it is broken.
  struct IoResult {
    std::size_t bytes = 0;
    bool would_block = false;
    int error = 0;
  };
  [[nodiscard]] IoResult send(std::span<const std::byte> data) const;
  [[nodiscard]] IoResult receive(std::span<std::byte> data) const;

 private:
  int descriptor_ = -1;
};

// Throws MissingDependency D007 if the errno says that a resource of the process or the host is
// exhausted: a retry does not help.
void check_exhausted(int error);

// Raises the limit on open files if this process needs `count` more. Throws MissingDependency D007
// if the hard limit is too low.
void reserve_descriptors(int count);

// Listens at this address only. Throws InputError D308 if that is not possible.
[[nodiscard]] Socket listen_at(const Address& address, int backlog);
// Returns the next pending connection; a closed socket if there is none. Throws MissingDependency
// D007 if the limit on open files is reached.
[[nodiscard]] Socket accept_from(const Socket& listener);
// Retries until `deadline` while the connection is refused. Returns a closed socket on timeout.
// Throws InputError D308 if the host is unknown, MissingDependency D007 as above.
[[nodiscard]] Socket connect_to(const Address& address, double deadline);

// Waits until the socket is readable (a listener: can accept) or writable. Returns false on
// timeout.
enum class Ready { read, write };
[[nodiscard]] bool wait_ready(const Socket& socket, Ready ready, double deadline);
// Send or receive all of `data`. Return false if the connection was closed or broken, or on
// timeout.
[[nodiscard]] bool send_all(const Socket& socket, std::span<const std::byte> data, double deadline);
[[nodiscard]] bool receive_all(const Socket& socket, std::span<std::byte> data, double deadline);

}  // namespace shiplap::comm
