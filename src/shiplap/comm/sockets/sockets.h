// Ranks as processes that communicate over TCP, on one host or many. Neither MPI nor a launcher nor
// a shared file system is needed, only a way to learn each other's addresses (rendezvous.h).
//
// Ranks listen only at the address they are given, and accept only peers that prove that they know
// the secret of the job. There is no encryption: an attacker on the network can read and change
// tensors. Without a secret, any process that can reach the address while the ranks connect can
// join as a rank. See SECURITY.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/comm/sockets/rendezvous.h"

namespace shiplap::comm {

struct SocketOptions {
  Seconds timeout{60};
  bool checked = false;
  // Where this rank listens: HOST, or HOST:PORT. Without a port the system chooses one.
  std::string address = "127.0.0.1";
  // How long the ranks may take to connect.
  Seconds connect_timeout{60};
  // Prefix of the keys: a store that is used for several worlds needs a name for each.
  std::string name = "shiplap";
  // Known only to the ranks of this job. The session number of the world, which the ranks read from
  // the rendezvous, is part of it: even without a secret, a process that cannot read the store is
  // rejected.
  std::string secret;
};

// Returns the world communicator of one rank; all ranks call it. There is a connection between
// every two ranks, so all ranks learn at once that a process has died. Several ranks may be in one
// process.
//
// The connections last as long as the communicator and those that were made from it. A rank that
// waits for one whose communicators are destroyed gets RankFailed.
//
// Throws InputError D300 if `self` is invalid, D308 if the address cannot be used, D307 if a rank
// has another version or world size or its number is a duplicate; TimeoutError D301 with the ranks
// that are missing.
[[nodiscard]] std::unique_ptr<Communicator> connect(const RankInfo& self, Rendezvous& rendezvous,
                                                    const SocketOptions& options = {});

// The job of this process, from the environment:
//
//   SHIPLAP_SOCKETS=HOST:PORT        where rank 0 serves a TcpStore, or the addresses of all ranks,
//                                    by rank, separated by commas
//   SHIPLAP_RANK, SHIPLAP_WORLD_SIZE of this process
//   SHIPLAP_ADDRESS=HOST[:PORT]      where this rank listens; default: the address of this host on
//                                    the route to rank 0
//   SHIPLAP_SECRET                   any text, the same for all ranks of the job
struct SocketJob {
  std::string where;
  RankInfo self;
  std::string address;
  std::string secret;
};
// Returns nothing if SHIPLAP_SOCKETS is not set. Throws InputError D300 if the others are invalid.
[[nodiscard]] std::optional<SocketJob> socket_job();

// Calls `work` with the world communicator, and returns when all ranks have returned from theirs.
// If `work` throws, the other ranks that wait for this one get RankFailed, and the exception is
// rethrown. May be called again; the ranks then connect again. `options.address` and
// `options.secret` are ignored: those of the job are used.
void run_on_sockets(const SocketJob& job, const SocketOptions& options,
                    const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
