// Sockets of TCP, and the addresses they have. All of them are non-blocking and end with the
// object.
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
// Throws InputError D308. `what` is what was given, for the message: "SHIPLAP_SOCKETS".
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

  [[nodiscard]] Address own_address() const;
  [[nodiscard]] Address peer_address() const;

  // How far a call came: `bytes` are nothing if the other end has closed the connection. `error` is
  // that of the system if it was broken.
  struct Moved {
    std::size_t bytes = 0;
    bool would_wait = false;
    int error = 0;
  };
  [[nodiscard]] Moved send(std::span<const std::byte> data) const;
  [[nodiscard]] Moved receive(std::span<std::byte> data) const;

 private:
  int descriptor_ = -1;
};

// Throws MissingPart D007 if that is an error of a process or a machine that has no more of
// something: trying again does not help.
void check_exhausted(int error);

// Raises the limit of this process if it may not open so many more files. Throws MissingPart D007
// if that is more than it may.
void reserve_descriptors(int count);

// Listens there and nowhere else. Throws InputError D308 if that cannot be done.
[[nodiscard]] Socket listen_at(const Address& address, int backlog);
// The next rank that waits to be let in, if there is one. Throws MissingPart D007 if there is one
// and this process may not open more files, or the system has no more.
[[nodiscard]] Socket accept_from(const Socket& listener);
// Tries again and again while nobody listens there. Not open if nobody did by `deadline`. Throws
// InputError D308 if there is no such host, MissingPart D007 as above.
[[nodiscard]] Socket connect_to(const Address& address, double deadline);

// Waits until there is something to read (or to accept), or to write, or until `deadline`.
enum class Ready { read, write };
[[nodiscard]] bool wait_ready(const Socket& socket, Ready ready, double deadline);
// Whole pieces. False if the connection ended or broke before, or time did.
[[nodiscard]] bool send_all(const Socket& socket, std::span<const std::byte> data, double deadline);
[[nodiscard]] bool receive_all(const Socket& socket, std::span<std::byte> data, double deadline);

}  // namespace shiplap::comm
