// Connects the ranks of a world: rendezvous, handshakes, and a full mesh of connections.
#pragma once

#include <string>
#include <vector>

#include "shiplap/comm/sockets/rendezvous.h"
#include "shiplap/comm/sockets/socket_internal.h"
#include "shiplap/comm/sockets/sockets.h"

namespace shiplap::comm {

struct PeerSockets {
  std::vector<Socket> sockets;  // by rank; closed for this rank
  int ranks_on_host = 1;        // including this one
};
// Throws as connect() does.
[[nodiscard]] PeerSockets join(const RankInfo& self, Rendezvous& rendezvous,
                               const SocketOptions& options);

// Why a rank failed before all were connected. It writes this to the rendezvous, so that a peer
// that loses its connection can report the rank at fault.
struct JoinFailure {
  int culprit = -1;  // -1: unknown
  std::string why;
};
[[nodiscard]] std::string format_join_failure(const JoinFailure& failure);
[[nodiscard]] JoinFailure parse_join_failure(const std::string& text);
// Throws the failure of `rank` on this one: D302 if its culprit is another rank, D301 otherwise.
[[noreturn]] void throw_join_failure(const RankInfo& self, int rank, const JoinFailure& failure);
// The key of that note in a rendezvous.
[[nodiscard]] std::string join_failure_key(const std::string& name, int rank);

// Throws D301, D302 and D307.
[[noreturn]] void throw_join_timeout(const RankInfo& self, std::string what,
                                     std::vector<int> missing, std::string why);
[[noreturn]] void throw_rank_failed(const RankInfo& self, int rank, std::string why);
[[noreturn]] void throw_bad_peer(const RankInfo& self, std::string what, std::string help);

}  // namespace shiplap::comm
