// Ranks that live in this process, one on each device of JAX that belongs to a group: each with its
// communicator and its buffers. Groups have numbers, by which a compiled program names them.
//
// Handlers of XLA run on any thread, and on another one the next time, so nothing here belongs to
// a thread. Nothing here calls Python.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/comm/sockets/rendezvous.h"
#include "shiplap/run/buffer_registry.h"
#include "shiplap/trace/trace.h"

namespace shiplap::python::jax {

// A rank that is on a device of this process. Along an axis of a mesh there are several lines of
// devices; the ranks of one line talk to each other.
struct Place {
  int device = 0;  // its number among all of JAX: jax.Device.id
  int rank = 0;
  std::string line;              // where the ranks of it find each other
  std::vector<std::string> who;  // all ranks of it, for messages: "process 3"
};

struct GroupRequest {
  std::string name;           // for messages
  std::vector<Place> places;  // of this process, at least one
  std::string address = "127.0.0.1";
  Seconds timeout{60};
  Seconds connect_within{60};
  bool traces = false;
};

// One rank of this process.
class LocalRank {
 public:
  LocalRank(std::unique_ptr<comm::Communicator> communicator, bool traces);

  [[nodiscard]] int rank() const { return communicator_->rank(); }
  [[nodiscard]] int size() const { return communicator_->size(); }
  [[nodiscard]] comm::Communicator& communicator() { return *communicator_; }
  [[nodiscard]] run::BufferRegistry& registry() { return registry_; }
  void destroy_all_buffers();

  // The buffer that was created with this number; or, if it is -1, one that is made for whoever
  // asks with the same request. Throws InputError D806, D800 .. as the registry does.
  [[nodiscard]] std::shared_ptr<run::CommOverlapCore> buffer(std::int64_t id,
                                                             run::BufferRequest request);

  // Where operands and results of the last call lay, for tests.
  void note_addresses(std::vector<std::uintptr_t> addresses);
  [[nodiscard]] std::vector<std::uintptr_t> addresses() const;

  // The events of a call, with times since the group was made. The oldest are forgotten when there
  // are too many.
  void note_events(std::vector<trace::Event> events, Seconds begun);
  [[nodiscard]] std::vector<trace::Event> take_events();

 private:
  std::unique_ptr<comm::Communicator> communicator_;
  run::BufferRegistry registry_;
  mutable std::mutex mutex_;
  std::map<std::string, std::int64_t, std::less<>> made_;  // without being asked for by number
  std::vector<std::uintptr_t> addresses_;
  std::deque<std::vector<trace::Event>> calls_;
  std::int64_t traced_ = 0;  // calls so far
};

class Group {
 public:
  // All ranks of the group together. Throws what comm::connect() does.
  Group(GroupRequest request, comm::Rendezvous& rendezvous);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] const GroupRequest& request() const { return request_; }
  // Throws InputError D816 if the group has no rank there.
  [[nodiscard]] LocalRank& on(int device);
  [[nodiscard]] LocalRank& first() { return *ranks_.begin()->second; }

  // For all ranks of this process; the number is the same on all. See BufferRegistry.
  std::int64_t create(const run::BufferRequest& request);
  void destroy(std::int64_t id);
  void destroy_all();

  // Names of ranks, in the line of a device: "rank 2 is process 5".
  [[nodiscard]] std::string who(int device, const std::vector<int>& ranks) const;
  // Since it was made, on a clock that all ranks started together.
  [[nodiscard]] Seconds now() const;
  // Of all ranks in the line of the first rank here, since the last time. All ranks together, while
  // nothing else goes on.
  [[nodiscard]] trace::Trace take_trace();

 private:
  GroupRequest request_;
  std::map<int, std::unique_ptr<LocalRank>> ranks_;  // by device
  std::int64_t begun_ns_ = 0;
};

// The groups of this process, by number. Numbers are used once.
std::int64_t add_group(std::shared_ptr<Group> group);
// Throws InputError D816 if there is none.
[[nodiscard]] std::shared_ptr<Group> group_of(std::int64_t number);
// Calls that are under way go on to their end.
void remove_group(std::int64_t number);

// A rank on its own for each device, for products without communication.
[[nodiscard]] LocalRank& alone(int device);
void destroy_buffers_of_those_alone();

// What handlers have thrown, with the words in which XLA was told of it. Many are kept.
void note_failure(std::string said, std::exception_ptr failure);
// Throws the one whose words are within these, and forgets it. Nothing if there is none.
void throw_failure(const std::string& said);

}  // namespace shiplap::python::jax
