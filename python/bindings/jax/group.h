// The local ranks of this process, one per JAX device of a group, each with its communicator and
// its buffers. A compiled program refers to a group by its number. A torch process has one rank of
// each group, on device 0.
//
// XLA runs a handler on any thread, and on a different one the next time, so nothing here is
// thread-local. Nothing here calls Python.
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

// A rank on a device of this process. A mesh has several lines of devices along an axis; each line
// is a subgroup whose ranks communicate with each other.
struct RankPlacement {
  int device = 0;  // the global id: jax.Device.id
  int rank = 0;
  std::string subgroup;                 // its name; the prefix of its keys in the store
  std::vector<std::string> rank_names;  // of all ranks of the subgroup, for messages: "process 3"
};

struct GroupRequest {
  std::string name;                       // for messages
  std::vector<RankPlacement> placements;  // of this process, at least one
  std::string address = "127.0.0.1";
  Seconds timeout{60};
  Seconds connect_timeout{60};
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

  // Returns the buffer that was created with this number; for -1, the cached buffer of an equal
  // request, created on first use. Throws InputError D806, D800 .. as the registry does.
  [[nodiscard]] std::shared_ptr<run::CommOverlapCore> buffer(std::int64_t id,
                                                             run::BufferRequest request);

  // Addresses of operands and results of the last call, for tests.
  void record_addresses(std::vector<std::uintptr_t> addresses);
  [[nodiscard]] std::vector<std::uintptr_t> addresses() const;

  // Records the events of a call, with times since the group was created. At most kMaxTracedCalls
  // calls are kept; the oldest are dropped.
  void record_events(std::vector<trace::Event> events, Seconds begun);
  [[nodiscard]] std::vector<trace::Event> take_events();

 private:
  std::unique_ptr<comm::Communicator> communicator_;
  run::BufferRegistry registry_;
  mutable std::mutex mutex_;
  std::map<std::string, std::int64_t, std::less<>> cached_;  // buffers for id -1, by request
  std::vector<std::uintptr_t> addresses_;
  std::deque<std::vector<trace::Event>> calls_;
  std::int64_t traced_ = 0;  // calls so far
};

class Group {
 public:
  // Collective: all ranks of the group call it. Throws what comm::connect() does.
  Group(GroupRequest request, comm::Rendezvous& rendezvous);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] const GroupRequest& request() const { return request_; }
  // Throws InputError D816 if the group has no rank on the device.
  [[nodiscard]] LocalRank& rank_on(int device);
  [[nodiscard]] LocalRank& first() { return *ranks_.begin()->second; }

  // Create and destroy the buffer of each local rank; its number is the same on all ranks. See
  // BufferRegistry.
  std::int64_t create(const run::BufferRequest& request);
  void destroy(std::int64_t id);
  void destroy_all();

  // Aborts the peers of each local rank; the group is unusable then.
  void abort(const std::string& reason);

  // Describes ranks of the subgroup of a device: "rank 2 is process 5".
  [[nodiscard]] std::string describe_ranks(int device, const std::vector<int>& ranks) const;
  // Seconds since the group was created, on a clock that is synchronized between ranks.
  [[nodiscard]] Seconds now() const;
  // Returns the trace of all ranks in the subgroup of the first local rank since the last call.
  // Collective. REQUIRES: no other call of the group is in flight.
  [[nodiscard]] trace::Trace take_trace();

 private:
  GroupRequest request_;
  std::map<int, std::unique_ptr<LocalRank>> ranks_;  // by device
  std::int64_t begun_ns_ = 0;
};

// The groups of this process, by number. Numbers are not reused.
std::int64_t add_group(std::shared_ptr<Group> group);
// Throws InputError D816 if there is none.
[[nodiscard]] std::shared_ptr<Group> group_of(std::int64_t number);
// Calls in flight complete.
void remove_group(std::int64_t number);

// A communicator of a single rank for each device, for GEMMs without communication.
[[nodiscard]] LocalRank& single_rank_context(int device);
void destroy_single_rank_buffers();

// Stores an exception that a handler threw, by the message that XLA was given. The newest
// kMaxFailures are kept.
void record_failure(std::string message, std::exception_ptr failure);
// Rethrows and removes the stored exception whose message is a substring of this one. Does nothing
// if there is none.
void rethrow_failure(const std::string& message);

}  // namespace shiplap::python::jax
