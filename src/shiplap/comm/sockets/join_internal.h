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

// Why a rank gave up before all had come together: it leaves that in the rendezvous, so that those
// who lose it need not take it for dead.
struct GivenUp {
  int culprit = -1;  // nobody that it knows
  std::string why;
};
[[nodiscard]] std::string to_text(const GivenUp& given_up);
[[nodiscard]] GivenUp parse_given_up(const std::string& text);
[[noreturn]] void fail_given_up(const Seat& seat, int rank, const GivenUp& given_up);
// Under which a rank leaves it in a rendezvous.
[[nodiscard]] std::string given_up_key(const std::string& name, int rank);

// A failure while ranks come together, as those of communicators are.
[[noreturn]] void fail_to_meet(const Seat& seat, std::string what, std::vector<int> missing,
                               std::string why);
[[noreturn]] void fail_to_meet_rank(const Seat& seat, int rank, std::string why);
// D307.
[[noreturn]] void refuse_peer(const Seat& seat, std::string what, std::string help);

}  // namespace shiplap::comm
