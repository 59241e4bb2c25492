// The network of a simulated job: descriptors of listeners, connections, epoll and eventfd, as the
// calls of the system show them. Bytes take time; faults change what becomes of them.
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

// Descriptors of the simulation lie above those of the process that simulates.
constexpr int kFirstDescriptor = 1 << 20;

// What a hostile rank makes of the bytes that it sends: called with those that its program sends,
// returns those that leave.
using Tamper = std::function<std::vector<std::byte>(std::span<const std::byte>)>;

class Network {
 public:
  explicit Network(Scheduler& scheduler) : scheduler_(scheduler) {}

  // ---- calls, of the process that runs; like those of the system, with -errno for an error

  [[nodiscard]] int open_socket();
  [[nodiscard]] int open_epoll();
  [[nodiscard]] int open_event();
  int bind(int descriptor, int port);
  int listen(int descriptor);
  [[nodiscard]] int accept(int descriptor);
  int connect(int descriptor, int port);
  // After a connection was begun.
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
  void ring(int event) { at(event).rung = true; }
  [[nodiscard]] bool take_ring(int event) { return std::exchange(at(event).rung, false); }
  [[nodiscard]] bool can_read(int descriptor) const;
  [[nodiscard]] bool can_write(int descriptor) const;
  [[nodiscard]] bool is_broken(int descriptor) const;

  // ---- faults

  // What is sent from one process to another from now on does not arrive.
  void drop(int from, int to) { dropped_.insert({from, to}); }
  // Connections between them break.
  void reset(int a, int b);
  // No more descriptors for a process.
  void exhaust(int process) { exhausted_.insert(process); }
  void make_hostile(int process, std::function<Tamper(bool has_connected, int port)> make) {
    tampers_[process] = std::move(make);
  }
  // Its descriptors are closed, as the system does for a process that has ended.
  void close_all(int process);
  // Calls so far that opened something: at least one is a fault if that fails.
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
    double ends_at = kNever;  // the sender has closed it
    bool ends_by_reset = false;
    bool is_reset = false;  // what is on its way is lost
  };
  struct Connection {
    std::array<Pipe, 2> pipes;  // pipes[k]: what end k sends
    std::array<int, 2> processes{};
    std::array<int, 2> ports{};
  };
  enum class Kind : std::uint8_t { none, socket, listener, connection, epoll, event };
  struct Descriptor {
    Kind kind = Kind::none;
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
    bool rung = false;  // of an event
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

// Of the run that goes on.
[[nodiscard]] Network* current_network();
void set_current_network(Network* network);

}  // namespace shiplap::simulation
