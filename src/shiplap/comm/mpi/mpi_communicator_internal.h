// The transport over MPI: compiled once for every MPI library, and for SMPI.
//
// Every message is started without blocking and then polled, so that waiting can end at a deadline
// and so that the death of a rank is noticed: a call that lost a rank need not return on its own.
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
  // Some ranks of an MPI communicator. Several groups without common ranks may share one.
  struct Place {
    MPI_Comm handle = MPI_COMM_NULL;
    std::vector<int> ranks;               // there, by rank of the group
    std::vector<std::int64_t> processes;  // whose memory is shared with this one's; 0: not
  };
  MpiCommunicator(Process& process, Members members, Place place, std::string name);
  ~MpiCommunicator() override;

  // The ranks of a new run of work.
  [[nodiscard]] std::unique_ptr<MpiCommunicator> open_world(Seconds timeout);

 protected:
  [[nodiscard]] double now() const override { return Process::now(); }
  Request start_send(std::span<const std::byte> data, int to, int tag) override;
  Request start_receive(std::span<std::byte> data, int from, int tag) override;
  [[nodiscard]] std::size_t eager_limit(int peer) const override;
  [[nodiscard]] std::size_t pack_below(int peer) const override;
  [[nodiscard]] bool shares_memory_with(int peer) const override {
    return place_.processes[peer] != 0;
  }
  void read_memory(int peer, std::span<const RemotePart> from,
                   std::span<const std::span<std::byte>> to) override;
  std::unique_ptr<Communicator> do_split(int colour, int key, const std::string& name) override;

 private:
  friend class MpiRequest;
  // Receives with one peer and tag that have not met their message, in order. In checked mode a
  // message is looked at before it is received: Open MPI 5 writes past the end of a buffer that is
  // too short for a large one, before it reports that.
  using Lane = std::pair<int, int>;

  [[nodiscard]] int handle_rank(int rank) const { return place_.ranks[rank]; }
  // Throws what an MPI call returned, if it is an error.
  void check(int status, const std::string& operation);
  // Gives the messages that have come to the receives that wait for them.
  void match();
  // The same ranks and their messages once more, for MPI.
  [[nodiscard]] MPI_Comm duplicate();
  // The processes whose memory all of this machine can read, by rank; 0 for the others.
  [[nodiscard]] std::vector<std::int64_t> meet_neighbours();

  Process& process_;
  Place place_;
  double settle_until_ = 0;  // once dead: how long what is under way may take to end
  std::map<Lane, std::list<MpiRequest*>> unmatched_;
  std::vector<memory::Part> reading_;
};

}  // namespace shiplap::comm
