// Ranks as processes that talk over TCP, on one machine or many. Neither MPI nor a launcher nor a
// shared file is needed, only a way to learn each other's addresses (rendezvous.h).
//
// Ranks listen only at the address they are given, and let in who proves to know the secret of the
// job. There is no encryption: who can read or change what goes over the network can read and
// change tensors. Without a secret, whoever can reach the address while the ranks find each other
// can be one of them. SECURITY.md says more.
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
  // How long the ranks may take to find each other.
  Seconds connect_within{60};
  // Under which keys: a store that keeps them needs another name for every world.
  std::string name = "shiplap";
  // What only the ranks of this job know. The number of the world, which they learn from the
  // rendezvous, counts as a part of it: so who cannot read a store is kept out without a secret
  // too.
  std::string secret;
};

// One rank of a world; all ranks call it. Every two of them have a connection, so the death of a
// process is known to all others at once. Several ranks may live in one process.
//
// The connections last as long as the communicator and those that were made from it. A rank that
// waits for one whose communicators are gone gets RankFailed.
//
// Throws InputError D300 for a seat that makes no sense, D308 for an address that cannot be used,
// D307 if a rank is of another version or size or its number is taken; DeadlinePassed D301 with
// the ranks that did not come.
[[nodiscard]] std::unique_ptr<Communicator> connect(const Seat& seat, Rendezvous& rendezvous,
                                                    const SocketOptions& options = {});

// What the environment says:
//
//   SHIPLAP_SOCKETS=HOST:PORT        where rank 0 serves a Meeting, or the addresses of all ranks,
//                                    by rank, with commas between them
//   SHIPLAP_RANK, SHIPLAP_SIZE       of this process
//   SHIPLAP_ADDRESS=HOST[:PORT]      where this one listens, if not at the address by which it
//                                    reaches rank 0
//   SHIPLAP_SECRET                   any text, the same for all ranks of the job
struct SocketJob {
  std::string where;
  Seat seat;
  std::string address;
  std::string secret;
};
// Nothing if SHIPLAP_SOCKETS is not set. Throws InputError D300 if the others make no sense.
[[nodiscard]] std::optional<SocketJob> socket_job();

// Calls `work` with all ranks of the job, of which this process is one, and returns when all of
// them have come to its end. When it throws, the other ranks that wait for this one get RankFailed,
// and the exception goes on to the caller. May be called again; the ranks connect anew then.
// `options.address` and `options.secret` count for nothing: the job says them.
void run_on_sockets(const SocketJob& job, const SocketOptions& options,
                    const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
