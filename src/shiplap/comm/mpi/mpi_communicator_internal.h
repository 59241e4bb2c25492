// The transport over MPI: compiled once for every MPI library, and for SMPI.
//
// All messages are non-blocking and polled, so that waits can time out and the death of a rank is
// noticed: a blocking MPI call need not return after a rank has died.
#pragma once

#include <mpi.h>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/comm/monitored_communicator_internal.h"
#include "shiplap/comm/mpi/memory_internal.h"
#include "shiplap/comm/mpi/process_internal.h"

namespace shiplap::comm {

class MpiRequest;

class MpiCommunicator : public MonitoredCommunicator {
 public:
  // Some ranks of an MPI communicator. Disjoint groups may share one.
  struct MpiGroup {
    MPI_Comm handle = MPI_COMM_NULL;
    std::vector<int> ranks;               // in `handle`, by rank of the group
    std::vector<std::int64_t> processes;  // pid if its memory can be read, otherwise 0; by rank
  };
  MpiCommunicator(Process& process, Members members, MpiGroup group, std::string name);
  ~MpiCommunicator() override;

  // Returns the world communicator of a new run.
  [[nodiscard]] std::unique_ptr<MpiCommunicator> open_world(Seconds timeout);

 protected:
  [[nodiscard]] double now() const override { return Process::now(); }
  Request start_send(std::span<const std::byte> data, int to, int tag) override;
  Request start_receive(std::span<std::byte> data, int from, int tag) override;
  [[nodiscard]] std::size_t eager_limit(int peer) const override;
  [[nodiscard]] std::size_t pack_below(int peer) const override;
  [[nodiscard]] bool shares_memory_with(int peer) const override {
    return group_.processes[peer] != 0;
  }
  // Between hosts, MPI has a rendezvous protocol like that of our sockets.
  [[nodiscard]] bool replies_when_posted() const override;
  void read_memory(int peer, std::span<const RemotePart> from,
                   std::span<const std::span<std::byte>> to) override;
  std::unique_ptr<Communicator> do_split(int colour, int key, const std::string& name) override;

 private:
  friend class MpiRequest;
  // In checked mode messages are matched with MPI_Improbe before they are received: Open MPI 5
  // writes past the end of a buffer that is too short for a large message, before it reports an
  // error. Here are the receives without a message, in order, by peer and tag.
  using PeerAndTag = std::pair<int, int>;

  [[nodiscard]] int handle_rank(int rank) const { return group_.ranks[rank]; }
  // Throws if `status`, returned by an MPI call, is an error.
  void check(int status, const std::string& operation);
  // Matches arrived messages with unmatched receives.
  void match();
  // MPI_Comm_dup with a timeout.
  [[nodiscard]] MPI_Comm duplicate();
  // Returns MpiGroup::processes: all ranks of a host can read each other's memory, or none uses it.
  [[nodiscard]] std::vector<std::int64_t> find_readable_peers();

  Process& process_;
  MpiGroup group_;
  double drain_until_ = 0;  // once dead: when to stop waiting for messages in flight
  std::map<PeerAndTag, std::list<MpiRequest*>> unmatched_;
  std::vector<memory::RemoteRead> reads_;
};

}  // namespace shiplap::comm
