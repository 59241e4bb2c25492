// The network of a simulated job: descriptors of listeners, connections, epoll and eventfd, with
// the semantics of the system calls. Bytes take time to arrive; faults drop, reset or change them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace shiplap::simulation {

// Simulated descriptors are larger than those of the real process.
constexpr int kFirstDescriptor = 1 << 20;

// Changes the bytes that a byzantine rank sends: called with the bytes of its program, returns
// those that are sent.
using Tamper = std::function<std::vector<std::byte>(std::span<const std::byte>)>;

class Network {
 public:
  explicit Network(Scheduler& scheduler) : scheduler_(scheduler) {}

  // ---- system calls of the running process; they return -errno on errors

  [[nodiscard]] int open_socket();
  [[nodiscard]] int open_epoll();
  [[nodiscard]] int open_event();
  int bind(int descriptor, int port);
  int listen(int descriptor);
  [[nodiscard]] int accept(int descriptor);
  int connect(int descriptor, int port);
  // SO_ERROR, after connect().
  [[nodiscard]] int error_of(int descriptor);
  [[nodiscard]] std::int64_t send(int descriptor, std::span<const std::byte> data);
  [[nodiscard]] std::int64_t receive(int descriptor, std::span<std::byte> data);
  int close(int descriptor);
  [[nodiscard]] int port_of(int descriptor) const;
  [[nodiscard]] int peer_port_of(int descriptor) const;
  void watch(int epoll, int descriptor, std::uint32_t events, std::uint32_t data);
  struct Watched {
    std::uint32_t events = 0;
    std::uint32_t data = 0;
  };
  [[nodiscard]] const std::map<int, Watched>& watched(int epoll) const;
  void signal(int event) { at(event).signaled = true; }
  [[nodiscard]] bool take_signal(int event) { return std::exchange(at(event).signaled, false); }
  [[nodiscard]] bool can_read(int descriptor) const;
  [[nodiscard]] bool can_write(int descriptor) const;
  [[nodiscard]] bool is_broken(int descriptor) const;

  // ---- faults

  // From now on, bytes from one process to the other are lost.
  void drop(int from, int to) { dropped_.insert({from, to}); }
  // Resets the connections between two processes.
  void reset(int a, int b);
  // From now on, a process cannot open descriptors (EMFILE).
  void exhaust(int process) { exhausted_.insert(process); }
  void make_hostile(int process, std::function<Tamper(bool has_connected, int port)> make) {
    tampers_[process] = std::move(make);
  }
  // Closes all descriptors of a process, as the system does when it ends.
  void close_all(int process);
  [[nodiscard]] std::vector<int> listening_ports() const;

 private:
  // One direction of a connection.
  struct Pipe {
    struct Segment {
      double arrives = 0;
      std::vector<std::byte> bytes;
      std::size_t taken = 0;
    };
    std::deque<Segment> segments;
    std::size_t bytes = 0;  // not read yet
    double last_arrival = 0;
    double ends_at = kNever;  // when the close of the sender arrives
    bool ends_by_reset = false;
    bool is_reset = false;  // bytes in flight are lost
  };
  struct Connection {
    std::array<Pipe, 2> pipes;  // pipes[k]: what end k sends
    std::array<int, 2> processes{};
    std::array<int, 2> ports{};
  };
  enum class DescriptorKind : std::uint8_t { none, socket, listener, connection, epoll, event };
  struct Descriptor {
    DescriptorKind kind = DescriptorKind::none;
    int process = 0;
    int port = 0;
    // of a listener
    struct Pending {
      std::shared_ptr<Connection> connection;
      double arrives = 0;
    };
    std::deque<Pending> pending;
    // of a connection
    std::shared_ptr<Connection> connection;
    int end = 0;
    double connects_at = 0;
    int error = 0;
    Tamper tamper;
    // of an epoll
    std::map<int, Watched> watched;
    bool signaled = false;  // of an event
  };

  [[nodiscard]] Descriptor& at(int number) { return descriptors_.at(number); }
  [[nodiscard]] const Descriptor& at(int number) const { return descriptors_.at(number); }
  [[nodiscard]] int add(Descriptor descriptor);
  [[nodiscard]] double delay();
  [[nodiscard]] const Pipe& incoming(const Descriptor& one) const {
    return one.connection->pipes[1 - one.end];
  }
  void shut(Descriptor& one);

  Scheduler& scheduler_;
  std::map<int, Descriptor> descriptors_;
  int next_ = kFirstDescriptor;
  int next_port_ = 40000;
  std::set<std::pair<int, int>> dropped_;
  std::set<int> exhausted_;
  std::map<int, std::function<Tamper(bool, int)>> tampers_;
};

// The network of the current run.
[[nodiscard]] Network* current_network();
void set_current_network(Network* network);

}  // namespace shiplap::simulation
