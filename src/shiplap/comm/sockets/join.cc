// How the ranks of a world connect: a full mesh of TCP connections, one per pair of ranks.
//
// Each rank publishes its address in a rendezvous (a key-value store), connects to all lower ranks
// and accepts connections of all higher ones, so no two ranks wait for each other. A connection is
// a rank only after a handshake of three messages:
//
//   connecting rank (higher)                  accepting rank (lower)
//     request: version, session, size,  ---->   rejects it with the reason (HandshakeStatus)
//              ranks, nonce             <----   or ok: nonce, HMAC of both messages
//     proof: HMAC of both messages      ---->   accepts the connection
//
// Both HMACs are keyed with the secret of the job and the session number (docs/decisions/024), and
// a nonce is never used twice, so a recorded handshake cannot be replayed. A peer that is no rank
// of this job is rejected and the others go on: a port scan, or a process of yesterday's job,
// cannot end today's. If the join times out, the error names the last peer that was rejected.
//
// Connections exist before all ranks are done, so rank 0 collects `ready` from all and then sends
// `go`. Without this barrier a rank could time out in its first collective because another one is
// still connecting.
//
// A rank that fails meanwhile writes the reason to the rendezvous and aborts its peers. A peer
// whose connection closes reads that note, and so reports the rank at fault and not the one that
// left.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <list>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/endpoint_internal.h"
#include "shiplap/comm/sockets/join_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"

namespace shiplap::comm {
namespace {

// A peer that sends nothing for so long after it has connected is rejected.
constexpr double kHandshakeWithin = 10;
// For a lookup after the deadline, to find out which ranks are missing.
constexpr Seconds kStoreLookup{0.2};
// A rank that fails writes its note before it closes its connections, but the store may be slower.
constexpr Seconds kNoteWithin{0.5};
// Pending connections in addition to one per rank.
constexpr int kExtraPeers = 64;
constexpr const char* kInvalidMessage = "it sent an invalid handshake message";

// Unique and unpredictable.
std::uint64_t new_session() {
  std::uint64_t number = 0;
  const Nonce nonce = random_nonce();
  std::memcpy(&number, nonce.data(), sizeof number);
  return number;
}

std::span<const std::byte> signed_part(std::span<const std::byte> hello) {
  return hello.first(Hello::kSignedBytes);
}

std::uint64_t parse_session(const RankInfo& self, const std::string& text) {
  std::uint64_t number = 0;
  const bool is_hex = text.size() == 16 && std::ranges::all_of(text, [&](char digit) {
                        const std::size_t value = std::string_view("0123456789abcdef").find(digit);
                        number = number * 16 + value;
                        return value != std::string_view::npos;
                      });
  if (!is_hex) {
    throw_bad_peer(self, fmt::format("invalid session `{}` in the rendezvous", text),
                   "give every world a store, or a name, of its own");
  }
  return number;
}

// File descriptors for one connection per rank, for pending peers, and for the rest of the process.
RankInfo reserved(const RankInfo& self) {
  constexpr int kOthers = 16;
  reserve_descriptors(self.size + kExtraPeers + kOthers);
  return self;
}

// Connects this rank to all others.
class WorldJoiner {
 public:
  WorldJoiner(const RankInfo& self, Rendezvous& rendezvous, const SocketOptions& options)
      : self_(reserved(self)),
        rendezvous_(rendezvous),
        options_(options),
        deadline_(seconds_now() + options.connect_timeout.value),
        listener_(listen_at(parse_address(options.address, "the address", Port::optional),
                            std::max(self.size, 16))) {
    peers_.sockets.resize(at(self.size));
    is_connected_.resize(at(self.size));
    is_connected_[self.rank] = true;
  }

  // Publishes the failure of this rank: in the rendezvous, and to the peers that are connected.
  void abort(const JoinFailure& failure);

  PeerSockets run() {
    publish_address();
    for (int rank = 0; rank < self_.rank; ++rank) connect_to_rank(rank);
    while (!is_complete()) {
      const bool is_timed_out = seconds_now() >= deadline_;
      poll_sockets();
      accept_connections();
      read_handshakes();
      read_replies();
      if (is_timed_out && !is_complete()) fail_connect_timeout();
    }
    const std::string local = listener_.local_address().host;
    is_mesh_complete_ = true;
    start_barrier();
    for (const Socket& socket : peers_.sockets) {
      if (socket.is_open() && socket.peer_address().host == local) ++peers_.ranks_on_host;
    }
    return std::move(peers_);
  }

 private:
  using HelloBytes = std::array<std::byte, Hello::kBytes>;
  // An accepted connection whose handshake is not complete.
  struct PendingPeer {
    Socket socket;
    double since = 0;
    HelloBytes bytes{};
    std::size_t count = 0;
    int claimed_rank = -1;  // got an ok; its proof is expected
    HelloBytes request{};
    HelloBytes reply{};
  };
  // The bytes so far of the reply of a rank to which this one has connected.
  struct PendingReply {
    int rank = 0;
    HelloBytes request{};
    HelloBytes bytes{};
    std::size_t count = 0;
  };

  [[nodiscard]] std::size_t max_pending_peers() const { return at(self_.size + kExtraPeers); }
  [[nodiscard]] bool is_complete() const {
    return std::ranges::all_of(is_connected_, [](bool one) { return one; });
  }
  [[nodiscard]] Seconds left() const {
    return std::max(Seconds{deadline_ - seconds_now()}, kStoreLookup);
  }
  [[nodiscard]] std::string key(int rank) const {
    return fmt::format("{}/{}", options_.name, rank);
  }

  void publish_address();
  void connect_to_rank(int rank);
  void poll_sockets();
  void accept_connections();
  void read_handshakes();
  // Returns true if more messages are expected.
  bool read_handshake(PendingPeer& peer);
  // Returns true if the proof is expected next.
  bool reply_to(PendingPeer& peer, const Hello& hello);
  void accept_if_authenticated(PendingPeer& peer, const Hello& hello);
  void send_version_mismatch(const PendingPeer& peer);
  [[nodiscard]] HandshakeStatus check_hello(const Hello& hello) const;
  void read_replies();
  bool read_reply(PendingReply& reply);
  void handle_reply(const PendingReply& reply, const Hello& hello);
  void authenticate(const PendingReply& reply, const Hello& hello);
  // Returns when all ranks have all their connections.
  void start_barrier();
  void await_all_ready();
  void send_status(int rank, HandshakeStatus status);
  [[noreturn]] void fail_disconnected(
      int rank, const char* why = "it closed its connection while the ranks connected");
  void reject(std::string who) {
    ++rejected_;
    last_rejected_ = std::move(who);
  }
  [[noreturn]] void fail_connect_timeout();

  RankInfo self_;
  Rendezvous& rendezvous_;
  const SocketOptions& options_;
  double deadline_;
  Socket listener_;
  std::uint64_t session_ = 0;
  Secret secret_;
  PeerSockets peers_;
  std::vector<bool> is_connected_;  // by rank
  bool is_mesh_complete_ = false;
  std::list<PendingPeer> pending_peers_;
  std::list<PendingReply> replies_;
  int rejected_ = 0;
  std::string last_rejected_;
};

void WorldJoiner::publish_address() {
  const Address local = listener_.local_address();
  const std::string session_key = options_.name + "/session";
  if (self_.rank == 0) {
    rendezvous_.put(session_key, fmt::format("{:016x}", new_session()));
  }
  rendezvous_.put(key(self_.rank), to_string(local));
  const auto session = rendezvous_.get(session_key, left());
  if (!session) fail_connect_timeout();
  session_ = parse_session(self_, *session);
  secret_ = Secret(options_.secret + *session);
}

void WorldJoiner::connect_to_rank(int rank) {
  const auto text = rendezvous_.get(key(rank), left());
  if (!text) fail_connect_timeout();
  const Address address = parse_address(
      *text, fmt::format("the address of rank {} in the rendezvous", rank), Port::needed);
  Socket socket = connect_to(address, deadline_);
  const HelloBytes request = encode(Hello{.from = self_.rank,
                                          .to = rank,
                                          .size = self_.size,
                                          .session = session_,
                                          .nonce = random_nonce()});
  if (!socket.is_open() || !send_all(socket, request, deadline_)) {
    throw_join_timeout(self_,
                       fmt::format("connecting to rank {} at {} timed out after {}", rank,
                                   to_string(address), to_string(options_.connect_timeout)),
                       {rank}, "its address is known, but it does not accept connections");
  }
  peers_.sockets[rank] = std::move(socket);
  replies_.push_back({.rank = rank, .request = request});
}

void WorldJoiner::poll_sockets() {
  std::vector<pollfd> all{{.fd = listener_.descriptor(), .events = POLLIN, .revents = 0}};
  for (const PendingPeer& one : pending_peers_) {
    all.push_back({.fd = one.socket.descriptor(), .events = POLLIN, .revents = 0});
  }
  for (const PendingReply& one : replies_) {
    const int descriptor = peers_.sockets[one.rank].descriptor();
    all.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  }
  // At least once a second, for the timeouts of pending peers.
  const double seconds = std::clamp(deadline_ - seconds_now(), 0.0, 1.0);
  (void)poll(all.data(), all.size(), static_cast<int>(seconds * 1e3));
}

void WorldJoiner::accept_connections() {
  for (Socket socket = accept_from(listener_); socket.is_open(); socket = accept_from(listener_)) {
    if (pending_peers_.size() >= max_pending_peers()) {
      std::erase_if(pending_peers_, [](const PendingPeer& one) { return one.claimed_rank < 0; });
    }
    pending_peers_.push_back({.socket = std::move(socket), .since = seconds_now()});
  }
}

void WorldJoiner::read_handshakes() {
  for (auto one = pending_peers_.begin(); one != pending_peers_.end();) {
    one = read_handshake(*one) ? std::next(one) : pending_peers_.erase(one);
  }
}

bool WorldJoiner::read_handshake(PendingPeer& peer) {
  const auto moved = peer.socket.receive(std::span(peer.bytes).subspan(peer.count));
  peer.count += moved.bytes;
  const std::string where = to_string(peer.socket.peer_address());
  if (moved.would_block) {
    // A rank that got an ok reads it only after it has connected to all lower ranks, some of which
    // may start late.
    if (peer.claimed_rank >= 0 || seconds_now() < peer.since + kHandshakeWithin) return true;
    reject(fmt::format("{}, which sent nothing", where));
    return false;
  }
  if (moved.bytes == 0) return false;  // closed by the peer
  if (peer.count < Hello::kCommonBytes) return true;
  const auto version = version_of_hello(std::span(peer.bytes).first<Hello::kCommonBytes>());
  if (version && *version != kSocketsVersion) {
    send_version_mismatch(peer);
    reject(fmt::format("a rank with protocol version {}", *version));
    return false;
  }
  if (version && peer.count < Hello::kBytes) return true;
  const auto hello = version ? decode_hello(peer.bytes) : std::nullopt;
  const HandshakeStatus expected =
      peer.claimed_rank < 0 ? HandshakeStatus::request : HandshakeStatus::proof;
  if (!hello || hello->status != expected) {
    reject(fmt::format("{}, which is not a Shiplap rank", where));
    return false;
  }
  if (expected == HandshakeStatus::request) return reply_to(peer, *hello);
  accept_if_authenticated(peer, *hello);
  return false;
}

void WorldJoiner::send_version_mismatch(const PendingPeer& peer) {
  (void)send_all(peer.socket, encode(Hello{.status = HandshakeStatus::version_mismatch}),
                 deadline_);
}

HandshakeStatus WorldJoiner::check_hello(const Hello& hello) const {
  if (hello.session != session_) return HandshakeStatus::job_mismatch;
  if (hello.size != self_.size) return HandshakeStatus::size_mismatch;
  if (hello.to != self_.rank || hello.from <= self_.rank || hello.from >= self_.size) {
    return HandshakeStatus::wrong_rank;
  }
  return is_connected_[hello.from] ? HandshakeStatus::duplicate_rank : HandshakeStatus::ok;
}

bool WorldJoiner::reply_to(PendingPeer& peer, const Hello& hello) {
  const HandshakeStatus status = check_hello(hello);
  Hello reply{.status = status,
              .from = self_.rank,
              .to = hello.from,
              .size = self_.size,
              .session = status == HandshakeStatus::ok ? session_ : 0,
              .nonce = random_nonce()};
  if (status == HandshakeStatus::ok) {
    reply.proof = secret_.prove("answer", signed_part(peer.bytes), signed_part(encode(reply)));
  }
  peer.request = peer.bytes;
  peer.reply = encode(reply);
  peer.count = 0;
  peer.claimed_rank = hello.from;
  const bool sent = send_all(peer.socket, peer.reply, deadline_);
  if (status == HandshakeStatus::ok) return sent;
  reject(fmt::format("rank {} of {}", hello.from, hello.size));
  return false;
}

void WorldJoiner::accept_if_authenticated(PendingPeer& peer, const Hello& hello) {
  const int rank = peer.claimed_rank;
  const Digest expected =
      secret_.prove("proof", signed_part(peer.request), signed_part(peer.reply));
  if (!equal_in_constant_time(hello.proof, expected)) {
    return reject(
        fmt::format("{}, which has the wrong secret", to_string(peer.socket.peer_address())));
  }
  if (is_connected_[rank]) return reject(fmt::format("a second rank {}", rank));
  peers_.sockets[rank] = std::move(peer.socket);
  is_connected_[rank] = true;
}

void WorldJoiner::read_replies() {
  for (auto one = replies_.begin(); one != replies_.end();) {
    one = read_reply(*one) ? std::next(one) : replies_.erase(one);
  }
}

bool WorldJoiner::read_reply(PendingReply& reply) {
  const Socket& socket = peers_.sockets[reply.rank];
  const auto moved = socket.receive(std::span(reply.bytes).subspan(reply.count));
  if (moved.would_block) return true;
  if (moved.bytes == 0) {
    fail_disconnected(reply.rank);
  }
  reply.count += moved.bytes;
  if (reply.count < Hello::kCommonBytes) return true;
  const auto version = version_of_hello(std::span(reply.bytes).first<Hello::kCommonBytes>());
  if (version == kSocketsVersion && reply.count < Hello::kBytes) return true;
  const auto hello = version ? decode_hello(reply.bytes) : std::nullopt;
  if (!hello || hello->status == HandshakeStatus::request ||
      hello->status >= HandshakeStatus::proof) {
    throw_bad_peer(self_,
                   fmt::format("the server at {} is not Shiplap rank {}",
                               to_string(socket.peer_address()), reply.rank),
                   "check the addresses in the rendezvous of this job");
  }
  handle_reply(reply, *hello);
  return false;
}

void WorldJoiner::authenticate(const PendingReply& reply, const Hello& hello) {
  const Digest expected =
      secret_.prove("answer", signed_part(reply.request), signed_part(reply.bytes));
  if (!equal_in_constant_time(hello.proof, expected)) {
    throw_bad_peer(
        self_, fmt::format("the server at the address of rank {} has the wrong secret", reply.rank),
        "give all ranks the same SHIPLAP_SECRET");
  }
  const Hello proof{
      .status = HandshakeStatus::proof,
      .from = self_.rank,
      .to = reply.rank,
      .size = self_.size,
      .proof = secret_.prove("proof", signed_part(reply.request), signed_part(reply.bytes))};
  if (!send_all(peers_.sockets[reply.rank], encode(proof), deadline_)) {
    fail_disconnected(reply.rank);
  }
  is_connected_[reply.rank] = true;
}

void WorldJoiner::handle_reply(const PendingReply& reply, const Hello& hello) {
  const auto reject_reply = [&](const std::string& what, const char* help) {
    throw_bad_peer(self_, what, help);
  };
  switch (hello.status) {
    case HandshakeStatus::request:
    case HandshakeStatus::proof:
    case HandshakeStatus::ready:
    case HandshakeStatus::go:
    case HandshakeStatus::ok:
      authenticate(reply, hello);
      return;
    case HandshakeStatus::version_mismatch:
      reject_reply(fmt::format("protocol version mismatch: rank {} has version {}, this rank {}",
                               reply.rank, hello.version, kSocketsVersion),
                   "use the same version of Shiplap for all ranks");
      return;
    case HandshakeStatus::size_mismatch:
      reject_reply(fmt::format("world size mismatch: rank {} has {} ranks, this rank {}",
                               reply.rank, hello.size, self_.size),
                   "give all ranks the same size");
      return;
    case HandshakeStatus::job_mismatch:
      reject_reply(fmt::format("session mismatch: rank {} belongs to another job", reply.rank),
                   "give every world a store, or a name, of its own");
      return;
    case HandshakeStatus::duplicate_rank:
      reject_reply(fmt::format("duplicate rank: rank {} is already connected to a rank {}",
                               reply.rank, self_.rank),
                   "give every rank a number of its own");
      return;
    case HandshakeStatus::wrong_rank:
      reject_reply(fmt::format("wrong address: the server at the address of rank {} is rank {}",
                               reply.rank, hello.from),
                   "compare the addresses of the ranks");
      return;
  }
}

void WorldJoiner::start_barrier() {
  if (self_.rank == 0) {
    await_all_ready();
    for (int rank = 1; rank < self_.size; ++rank) send_status(rank, HandshakeStatus::go);
    return;
  }
  send_status(0, HandshakeStatus::ready);
  HelloBytes bytes{};
  if (!receive_all(peers_.sockets[0], bytes, deadline_)) {
    seconds_now() >= deadline_ ? fail_connect_timeout() : fail_disconnected(0);
  }
  const auto hello = decode_hello(bytes);
  if (!hello || hello->status != HandshakeStatus::go) fail_disconnected(0, kInvalidMessage);
}

void WorldJoiner::send_status(int rank, HandshakeStatus status) {
  const Hello hello{.status = status, .from = self_.rank, .to = rank, .size = self_.size};
  if (!send_all(peers_.sockets[rank], encode(hello), deadline_)) fail_disconnected(rank);
}

void WorldJoiner::await_all_ready() {
  listener_.close();  // all ranks are connected
  pending_peers_.clear();
  is_connected_.assign(at(self_.size), false);
  is_connected_[0] = true;
  for (int rank = 1; rank < self_.size; ++rank) replies_.push_back({.rank = rank});
  while (!replies_.empty()) {
    if (seconds_now() >= deadline_) fail_connect_timeout();
    poll_sockets();
    std::erase_if(replies_, [&](PendingReply& reply) {
      const Socket& socket = peers_.sockets[reply.rank];
      const auto moved = socket.receive(std::span(reply.bytes).subspan(reply.count));
      if (moved.would_block) return false;
      reply.count += moved.bytes;
      if (moved.bytes > 0 && reply.count < Hello::kBytes) return false;
      const auto hello = decode_hello(reply.bytes);
      if (moved.bytes == 0) fail_disconnected(reply.rank);
      if (!hello || hello->status != HandshakeStatus::ready) {
        fail_disconnected(reply.rank, kInvalidMessage);
      }
      is_connected_[reply.rank] = true;
      return true;
    });
  }
}

void WorldJoiner::fail_disconnected(int rank, const char* why) {
  std::optional<std::string> note;
  // If the store cannot be read, a missing note proves nothing.
  bool is_known = true;
  try {
    note = rendezvous_.get(join_failure_key(options_.name, rank), kNoteWithin);
    is_known = note || rendezvous_.get(options_.name + "/session", kStoreLookup);
  } catch (const Failure&) {
    throw;  // a TcpStore, which reports the rank at fault
  } catch (const std::exception&) {
    is_known = true;  // the store was on the rank that is lost
  }
  if (note) throw_join_failure(self_, rank, parse_join_failure(*note));
  if (is_known) throw_rank_failed(self_, rank, why);
  throw_join_timeout(self_, fmt::format("rank {} disconnected", rank), {},
                     fmt::format("{}; the rendezvous does not respond", why));
}

void WorldJoiner::abort(const JoinFailure& failure) {
  const auto try_to = [](const auto& act) {
    try {
      act();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  (void)try_to([&] {
    rendezvous_.put(join_failure_key(options_.name, self_.rank), format_join_failure(failure));
  });
  (void)try_to([&] {
    for (int rank = 0; rank < self_.size; ++rank) {
      if (!is_mesh_complete_ && !is_connected_[rank]) peers_.sockets[rank].close();
    }
    Endpoint endpoint(self_, std::move(peers_));
    endpoint.detector().abort_peers(failure.culprit, failure.why);
    const MutexLock lock(endpoint.mutex());
    endpoint.end_group(0, /*has_failed=*/true);
  });
}

void WorldJoiner::fail_connect_timeout() {
  std::vector<int> missing;
  for (int rank = 0; rank < self_.size; ++rank) {
    if (rank != self_.rank && !rendezvous_.get(key(rank), kStoreLookup)) missing.push_back(rank);
  }
  for (int rank = 0; missing.empty() && rank < self_.size; ++rank) {
    if (!is_connected_[rank]) missing.push_back(rank);
  }
  throw_join_timeout(self_,
                     fmt::format("connecting {} ranks timed out after {}", self_.size,
                                 to_string(options_.connect_timeout)),
                     std::move(missing),
                     rejected_ == 0 ? ""
                                    : fmt::format("{} connections rejected, the last from {}",
                                                  rejected_, last_rejected_));
}

}  // namespace

void throw_join_timeout(const RankInfo& self, std::string what, std::vector<int> missing,
                        std::string why) {
  if (!missing.empty()) {
    why =
        fmt::format("missing: rank {}{}{}", fmt::join(missing, ", "), why.empty() ? "" : "; ", why);
  }
  throw TimeoutError(Diagnostic{.code = "D301",
                                .where = {.rank = self.rank, .operation = "connect"},
                                .what = std::move(what),
                                .why = std::move(why)},
                     std::move(missing));
}

std::string join_failure_key(const std::string& name, int rank) {
  return fmt::format("{}/gave-up/{}", name, rank);
}

std::string format_join_failure(const JoinFailure& failure) {
  std::string why = failure.why.substr(0, 200);
  std::ranges::replace_if(why, [](char letter) { return letter < ' ' || letter > '~'; }, ' ');
  return fmt::format("{} {}", failure.culprit, why);
}

JoinFailure parse_join_failure(const std::string& text) {
  JoinFailure failure;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), failure.culprit);
  const auto used = static_cast<std::size_t>(end - text.data());
  if (error == std::errc() && used < text.size()) failure.why = text.substr(used + 1);
  return failure;
}

void throw_join_failure(const RankInfo& self, int rank, const JoinFailure& failure) {
  const std::string why = fmt::format("rank {} failed to connect: {}", rank, failure.why);
  // If the other rank reports this one, the link is broken: this rank has not failed.
  const bool is_this_rank = failure.culprit == self.rank;
  if (failure.culprit >= 0 && failure.culprit < self.size && !is_this_rank) {
    throw_rank_failed(self, failure.culprit, why);
  }
  throw_join_timeout(self, fmt::format("connecting {} ranks failed", self.size), {}, why);
}

void throw_rank_failed(const RankInfo& self, int rank, std::string why) {
  throw RankFailed(Diagnostic{.code = "D302",
                              .where = {.rank = self.rank, .operation = "connect"},
                              .what = fmt::format("rank {} failed", rank),
                              .why = std::move(why)},
                   rank);
}

void throw_bad_peer(const RankInfo& self, std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D307",
                              .where = {.rank = self.rank, .operation = "connect"},
                              .what = std::move(what),
                              .help = std::move(help)});
}

PeerSockets join(const RankInfo& self, Rendezvous& rendezvous, const SocketOptions& options) {
  if (self.size < 1 || self.rank < 0 || self.rank >= self.size) {
    throw InputError(Diagnostic{
        .code = "D300",
        .where = {.operation = "connect"},
        .what = fmt::format("rank {} is out of range for {} ranks", self.rank, self.size)});
  }
  WorldJoiner joiner(self, rendezvous, options);
  try {
    return joiner.run();
  } catch (const Failure& failure) {
    joiner.abort({.culprit = failure.culprit().value_or(-1), .why = failure.diagnostic().what});
    throw;
  } catch (const std::exception& error) {
    joiner.abort({.culprit = self.rank, .why = error.what()});
    throw;
  }
}

}  // namespace shiplap::comm
