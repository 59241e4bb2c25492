// How the ranks of a world come together: each leaves its address in a rendezvous, calls all ranks
// before it and lets in all that come after it.
#pragma once

#include <string>
#include <vector>

#include "shiplap/comm/sockets/rendezvous.h"
#include "shiplap/comm/sockets/socket_internal.h"
#include "shiplap/comm/sockets/sockets.h"

namespace shiplap::comm {

struct Joined {
  std::vector<Socket> sockets;  // by rank; none to the own
  int here = 1;                 // how many ranks have the same host as this one, itself included
};
// Throws as connect() does.
[[nodiscard]] Joined join(const Seat& seat, Rendezvous& rendezvous, const SocketOptions& options);

// A failure while ranks come together, as those of communicators are.
[[noreturn]] void fail_to_meet(const Seat& seat, std::string what, std::vector<int> missing,
                               std::string why);
[[noreturn]] void fail_to_meet_rank(const Seat& seat, int rank, std::string why);
// D307.
[[noreturn]] void refuse_peer(const Seat& seat, std::string what, std::string help);

}  // namespace shiplap::comm
