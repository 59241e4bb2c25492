// One rank's end of all its connections: the message protocol over TCP.
//
// The problem. A receive may be posted before or after its message arrives. The data should be
// copied by the kernel only, a peer must not fill the memory of this rank, and after a timeout no
// buffer of the user may be touched any more.
//
// Eager protocol, up to Header::kMaxEager: header and data are sent at once. If no receive is
// posted, the data goes to the unexpected-message queue of its match key (group, source, tag).
//
// Rendezvous protocol, above that (as in MPICH and Open MPI; W. Gropp, E. Lusk et al., "A
// high-performance, portable implementation of the MPI message passing interface standard", 1996):
//
//   sender                               receiver
//     rts (id, bytes)  ---------------->   waits in the unexpected-message queue until it matches
//                      <----------------   cts (id), or reject (room) if the message is too long
//     frame (id), frame (id), ..  ----->   straight into the buffer of the receive
//
// Progress without a progress thread: a thread that waits drives the I/O of all connections and
// answers probes; a rank that computes does not respond. Of several threads that wait, one sleeps
// in epoll_wait without the mutex, the others on a condition variable.
//
// Invariants:
// - Messages with the same match key are matched in the order in which they were sent, receives in
//   the order in which they were posted. A match queue never holds both.
// - Rendezvous ids of one sender only grow, and a frame is checked against its cts. So a peer
//   cannot have two messages under one id, nor write past the end of a buffer.
// - A peer has at most kMaxUnexpected bytes in the unexpected-message queues.
// - A cancelled operation does not touch its buffer again. A queued frame is copied, whether or
//   not a part of it has been sent; incoming data of a cancelled receive goes to discard_buffer_.
//
// Rejected: a progress thread (it replies to probes although its rank hangs, which hides what the
// probe asks, and costs a core or a wakeup per message), UDP, io_uring and MSG_ZEROCOPY
// (docs/decisions/010, 019).
#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/comm/sockets/endpoint_internal.h"

namespace shiplap::comm {
namespace {

// Read-ahead of a connection: a short message costs one system call, and of a long one at most
// this much is copied.
constexpr std::size_t kBufferBytes = std::size_t{16} * 1024;
constexpr std::size_t kDiscardBytes = std::size_t{64} * 1024;
constexpr int kEventsAtOnce = 64;
// Frames per sendmsg().
constexpr std::size_t kFramesAtOnce = 8;
// Calls of readv() for one connection before the next one has its turn.
constexpr int kReadsAtOnce = 16;
// In the destructor, for sent data to leave this host.
constexpr double kLingerSeconds = 2;

Socket open_epoll() {
  Socket events(epoll_create1(EPOLL_CLOEXEC));
  if (!events.is_open()) check_exhausted(errno);
  ensure(events.is_open(), "the kernel has epoll");
  return events;
}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

Endpoint::Endpoint(const RankInfo& self, PeerSockets peers)
    : detector_(*this, self.rank, self.size),
      events_(open_epoll()),
      may_spin_(peers.ranks_on_host <= static_cast<int>(std::thread::hardware_concurrency())),
      connections_(static_cast<std::size_t>(self.size)),
      discard_buffer_(kDiscardBytes) {
  for (int rank = 0; rank < self.size; ++rank) {
    Connection& one = connection(rank);
    one.rank = rank;
    one.socket = std::move(peers.sockets[rank]);
    if (!one.socket.is_open()) continue;
    one.buffer.resize(kBufferBytes);
    epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(rank)}};
    ensure(epoll_ctl(events_.descriptor(), EPOLL_CTL_ADD, one.socket.descriptor(), &event) == 0,
           "a socket can be watched");
  }
}

Endpoint::~Endpoint() {
  try {
    send({.kind = ControlMessage::Kind::goodbye, .waits = has_failed_ ? 1 : 0},
         detector_.all_ranks());
    linger();
  } catch (...) {  // NOLINT(bugprone-empty-catch): peers see a closed connection without goodbye
  }
}

// The kernel retransmits data that it has sent once, even after the process has exited. Data that
// it has not sent is dropped if a segment arrives for a closed socket.
void Endpoint::linger() {
  const auto is_clear = [](const Connection& one) {
    if (!one.socket.is_open() || one.is_broken) return true;
    int unsent = 0;
    return one.outgoing.empty() &&
           (ioctl(one.socket.descriptor(), SIOCOUTQNSD, &unsent) != 0 || unsent == 0);
  };
  const MutexLock lock(mutex_);
  for (const double end = time() + kLingerSeconds; time() < end;) {
    if (std::ranges::all_of(connections_, is_clear)) break;
    wait_for_progress(1e-3);
  }
  progress();  // closing a socket with unread data would reset the connection
}

void Endpoint::end_group(std::uint64_t group, bool has_failed) {
  has_failed_ = has_failed_ || has_failed;
  detector_.end_group(group);
  match_queues_.erase(match_queues_.lower_bound({.group = group}),
                      match_queues_.lower_bound({.group = group + 1}));
}

Endpoint::PeerState Endpoint::peer_state(int rank) const {
  const Connection& one = connections_[rank];
  if (rank == detector_.rank()) return PeerState::active;
  // After a failure on the peer, this rank reports that failure and not the exit of the peer.
  if (one.got_goodbye) return one.has_failed ? PeerState::active : PeerState::finished;
  return one.socket.is_open() ? PeerState::active : PeerState::lost;
}

// ---- progress

void Endpoint::handle(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    Connection& one = connections_[event.data.u32];
    if ((event.events & EPOLLOUT) != 0 && one.socket.is_open()) write(one);
    if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0 && one.socket.is_open()) read(one);
  }
}

void Endpoint::progress() {
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count = epoll_wait(events_.descriptor(), events.data(), kEventsAtOnce, 0);
  if (count > 0) handle(std::span(events).first(count));
}

void Endpoint::wait_for_progress(double seconds) {
  if (is_polling_) {
    ++waiters_;
    polled_.wait_until(mutex_, ConditionVariable::after(seconds));
    --waiters_;
    return;
  }
  std::array<epoll_event, kEventsAtOnce> events{};
  is_polling_ = true;
  mutex_.unlock();
  const int count = epoll_wait(events_.descriptor(), events.data(), kEventsAtOnce,
                               static_cast<int>(std::ceil(seconds * 1e3)));
  mutex_.lock();
  is_polling_ = false;
  if (count > 0) handle(std::span(events).first(count));
  if (waiters_ > 0) polled_.notify_all();
}

// ---- control messages

void Endpoint::answer_probes(const WaitState& state) {
  detector_.set_waiting(state);
  progress();
  for (const auto& [probe, from] : std::exchange(probes_, {})) {
    if (const auto reply = detector_.handle(probe, from)) post(*reply, from);
  }
}

void Endpoint::poll(const WaitState& state) {
  const MutexLock lock(mutex_);
  answer_probes(state);
}

void Endpoint::send(const ControlMessage& message, std::span<const int> ranks) {
  const MutexLock lock(mutex_);
  for (const int to : ranks) {
    if (to != detector_.rank()) post(message, to);
  }
}

void Endpoint::post(const ControlMessage& message, int to) {
  const auto bytes = encode(message);
  post(connection(to), {.kind = Header::Kind::control, .bytes = kControlBytes},
       {bytes.begin(), bytes.end()});
}

void Endpoint::pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

// ---- sends: messages are written from the memory of the user; long ones in frames, so that
// control messages and short messages are sent in between

std::shared_ptr<PendingSend> Endpoint::start_send(const MatchKey& key, int to,
                                                  std::span<const std::byte> data) {
  auto sending = std::make_shared<PendingSend>(PendingSend{.key = key, .to = to, .data = data});
  if (to == detector_.rank()) {
    send_to_self(sending);
    return sending;
  }
  Connection& one = connection(to);
  if (!one.socket.is_open() || one.is_broken) return sending;
  Header header{.tag = key.tag, .group = key.group, .bytes = data.size()};
  if (data.size() <= Header::kMaxEager) {
    one.outgoing.push_back({.head = encode(header), .body = data, .sending = sending});
  } else {
    header.kind = Header::Kind::rts;
    header.id = sending->id = next_id_++;
    one.rts_sent.emplace(sending->id, sending);
    one.outgoing.push_back({.head = encode(header)});
  }
  write(one);
  return sending;
}

void Endpoint::post(Connection& connection, const Header& header, std::vector<std::byte> body) {
  if (!connection.socket.is_open() || connection.is_broken) return;
  OutgoingFrame& frame = connection.outgoing.emplace_back(OutgoingFrame{.head = encode(header)});
  frame.kept = std::move(body);
  frame.body = frame.kept;
  write(connection);
}

bool Endpoint::prepare_frame(Connection& connection) {
  if (!connection.outgoing.empty()) return true;
  if (connection.cts_received.empty()) return false;
  const std::shared_ptr<PendingSend>& sending = connection.cts_received.front();
  const auto body = sending->data.subspan(
      sending->written, std::min(Header::kMaxFrame, sending->data.size() - sending->written));
  connection.outgoing.push_back({.head = encode(Header{.kind = Header::Kind::frame,
                                                       .tag = sending->key.tag,
                                                       .group = sending->key.group,
                                                       .bytes = body.size(),
                                                       .id = sending->id}),
                                 .body = body,
                                 .sending = sending});
  return true;
}

void Endpoint::write(Connection& connection) {
  connection.wants_write = connection.wants_write && !connection.is_broken;
  bool would_block = false;
  while (!would_block && !connection.is_broken && prepare_frame(connection)) {
    std::array<iovec, 2 * kFramesAtOnce> pieces{};
    std::size_t count = 0;
    std::size_t bytes = 0;
    const auto add = [&](std::span<const std::byte> piece) {
      if (piece.empty()) return;
      // iovec has no const pointer, although sendmsg() only reads.
      // NOLINTNEXTLINE(bugprone-bitwise-pointer-cast)
      pieces.at(count++) = {.iov_base = std::bit_cast<void*>(piece.data()),
                            .iov_len = piece.size()};
      bytes += piece.size();
    };
    for (std::size_t k = 0; k < std::min(kFramesAtOnce, connection.outgoing.size()); ++k) {
      const OutgoingFrame& frame = connection.outgoing[k];
      const std::size_t of_head = std::min(frame.sent, Header::kBytes);
      add(std::span(frame.head).subspan(of_head));
      add(frame.body.subspan(frame.sent - of_head));
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(connection.socket.descriptor(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      would_block = errno == EAGAIN || errno == EWOULDBLOCK;
      // The next read reports the death.
      if (!would_block && errno != EINTR) connection.is_broken = true;
      continue;
    }
    on_sent(connection, static_cast<std::size_t>(sent));
    would_block = static_cast<std::size_t>(sent) < bytes;
  }
  if (connection.is_broken) {
    connection.outgoing.clear();
    connection.cts_received.clear();
    connection.rts_sent.clear();
  }
  if (connection.wants_write != would_block) {
    connection.wants_write = would_block;
    update_events(connection);
  }
}

void Endpoint::update_events(Connection& connection) {
  epoll_event event{.events = EPOLLIN | (connection.wants_write ? EPOLLOUT : 0U),
                    .data = {.u32 = static_cast<std::uint32_t>(connection.rank)}};
  (void)epoll_ctl(events_.descriptor(), EPOLL_CTL_MOD, connection.socket.descriptor(), &event);
}

void Endpoint::on_sent(Connection& connection, std::size_t bytes) {
  while (bytes > 0) {
    OutgoingFrame& frame = connection.outgoing.front();
    const std::size_t length = Header::kBytes + frame.body.size();
    const std::size_t part = std::min(bytes, length - frame.sent);
    frame.sent += part;
    bytes -= part;
    if (frame.sent < length) return;
    if (PendingSend* const sending = frame.sending.get()) {
      sending->written += frame.body.size();
      sending->is_done = sending->written == sending->data.size();
      if (sending->id != 0 && sending->is_done) connection.cts_received.pop_front();
    }
    connection.outgoing.pop_front();
  }
}

void Endpoint::send_to_self(const std::shared_ptr<PendingSend>& sending) {
  MatchQueue& queue = match_queues_[sending->key];
  auto message = std::make_shared<UnexpectedMessage>();
  message->bytes = sending->data.size();
  if (queue.posted.empty() && message->bytes <= Header::kMaxEager) {
    message->is_whole = true;
    message->data.assign(sending->data.begin(), sending->data.end());
    sending->is_done = true;
  } else {
    message->self_send = sending;
  }
  if (queue.posted.empty()) {
    queue.unexpected.push_back(std::move(message));
    return;
  }
  const std::shared_ptr<PendingReceive> receiving = std::move(queue.posted.front());
  queue.posted.pop_front();
  if (queue.empty()) match_queues_.erase(sending->key);
  receiving->is_posted = false;
  deliver(receiving, *message);
}

void Endpoint::cancel(PendingSend& sending) {
  if (sending.is_done || sending.is_rejected) return;
  if (sending.to == detector_.rank()) {
    const auto queue = match_queues_.find(sending.key);
    if (queue == match_queues_.end()) return;
    std::erase_if(queue->second.unexpected,
                  [&](const auto& message) { return message->self_send.get() == &sending; });
    if (queue->second.empty()) match_queues_.erase(queue);
    return;
  }
  Connection& one = connection(sending.to);
  const auto frame = std::ranges::find_if(
      one.outgoing, [&](const OutgoingFrame& each) { return each.sending.get() == &sending; });
  if (frame != one.outgoing.end()) {
    // The frame must still be sent, but the caller may free its memory before.
    frame->kept.assign(frame->body.begin(), frame->body.end());
    frame->body = frame->kept;
    frame->sending = nullptr;
  }
  if (sending.id == 0) return;  // an eager message still arrives
  one.rts_sent.erase(sending.id);
  std::erase_if(one.cts_received, [&](const auto& each) { return each.get() == &sending; });
  post(one, {.kind = Header::Kind::cancel,
             .tag = sending.key.tag,
             .group = sending.key.group,
             .id = sending.id});
}

// ---- incoming bytes: straight to their target if it is known

void Endpoint::read(Connection& connection) {
  for (int k = 0; k < kReadsAtOnce && connection.socket.is_open(); ++k) {
    if (!read_once(connection)) return;
  }
}

std::span<std::byte> Endpoint::read_target(Connection& connection) {
  if (connection.receiving != nullptr && !connection.receiving->is_cancelled) {
    return connection.receiving->target.subspan(connection.offset, connection.left);
  }
  if (connection.unexpected != nullptr)
    return std::span(connection.unexpected->data).last(connection.left);
  if (connection.header.kind == Header::Kind::control)
    return std::span(connection.control).last(connection.left);
  return std::span(discard_buffer_).first(std::min(connection.left, discard_buffer_.size()));
}

bool Endpoint::read_once(Connection& connection) {
  if (connection.begin == connection.end) connection.begin = connection.end = 0;
  const std::span<std::byte> place =
      connection.left > 0 ? read_target(connection) : std::span<std::byte>();
  // The discard buffer may be shorter than the rest of the body. Then read nothing behind it.
  const bool is_all = place.size() == connection.left;
  const auto rest = std::span(connection.buffer).subspan(connection.end);
  std::array<iovec, 2> pieces{{{.iov_base = place.data(), .iov_len = place.size()},
                               {.iov_base = rest.data(), .iov_len = is_all ? rest.size() : 0}}};
  const std::size_t asked = pieces[0].iov_len + pieces[1].iov_len;
  const ssize_t count = readv(connection.socket.descriptor(), pieces.data(), 2);
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == EINTR) return true;
    disconnect(connection,
               fmt::format("its connection broke: {}", std::generic_category().message(errno)));
    return false;
  }
  if (count == 0) {
    disconnect(connection, "its process died: its connection was closed");
    return false;
  }
  const auto bytes = static_cast<std::size_t>(count);
  const std::size_t placed = std::min(bytes, place.size());
  if (placed > 0) consumed(connection, placed);
  connection.end += bytes - placed;
  parse(connection);
  return bytes == asked;
}

void Endpoint::consumed(Connection& connection, std::size_t bytes) {
  connection.left -= bytes;
  connection.offset += bytes;
  if (connection.left == 0) finish_body(connection);
}

void Endpoint::parse(Connection& connection) {
  while (connection.socket.is_open() && connection.begin < connection.end) {
    const auto available = std::span<const std::byte>(connection.buffer)
                               .subspan(connection.begin, connection.end - connection.begin);
    if (connection.left > 0) {
      const std::span<std::byte> place = read_target(connection);
      const std::size_t bytes = std::min(available.size(), place.size());
      copy_bytes(place, available.first(bytes));
      connection.begin += bytes;
      consumed(connection, bytes);
      continue;
    }
    if (available.size() < Header::kBytes) break;
    const auto header = decode_header(available.first<Header::kBytes>());
    if (!header) return disconnect(connection, "it sent an invalid message header");
    connection.begin += Header::kBytes;
    connection.header = *header;
    handle_header(connection);
  }
  if (connection.begin > 0) {
    std::memmove(connection.buffer.data(), connection.buffer.data() + connection.begin,
                 connection.end - connection.begin);
    connection.end -= connection.begin;
    connection.begin = 0;
  }
}

void Endpoint::disconnect(Connection& connection, const std::string& reason) {
  connection.socket.close();
  connection.outgoing.clear();
  connection.cts_received.clear();
  connection.rts_sent.clear();
  connection.cts_sent.clear();
  connection.receiving = nullptr;
  connection.unexpected = nullptr;
  connection.left = 0;
  if (connection.got_goodbye) return;
  detector_.set_dead(connection.rank, reason);
}

// ---- incoming frames

void Endpoint::handle_header(Connection& connection) {
  const Header& header = connection.header;
  connection.receiving = nullptr;
  connection.unexpected = nullptr;
  connection.offset = 0;
  connection.left = 0;
  switch (header.kind) {
    case Header::Kind::eager:
      return handle_eager(connection);
    case Header::Kind::rts:
      return handle_rts(connection);
    case Header::Kind::frame:
      return handle_frame(connection);
    case Header::Kind::control:
      connection.control.resize(kControlBytes);
      connection.left = kControlBytes;
      return;
    case Header::Kind::cts:
    case Header::Kind::reject: {
      const auto found = connection.rts_sent.find(header.id);
      if (found == connection.rts_sent.end()) return;  // it was cancelled
      if (header.kind == Header::Kind::cts) {
        connection.cts_received.push_back(found->second);
      } else {
        found->second->is_rejected = true;
        found->second->room = header.bytes;
      }
      connection.rts_sent.erase(found);
      return write(connection);
    }
    case Header::Kind::cancel:
      return handle_cancel(connection);
  }
}

bool Endpoint::match(PendingReceive& receiving, std::size_t bytes) {
  receiving.bytes = bytes;
  receiving.is_too_long = bytes > receiving.target.size();
  receiving.is_done = receiving.is_too_long;
  return !receiving.is_too_long;
}

// Removes and returns the oldest posted receive with this key; null if there is none.
std::shared_ptr<PendingReceive> Endpoint::pop_posted(const MatchKey& key) {
  const auto found = match_queues_.find(key);
  if (found == match_queues_.end() || found->second.posted.empty()) return nullptr;
  std::shared_ptr<PendingReceive> receiving = std::move(found->second.posted.front());
  found->second.posted.pop_front();
  if (found->second.empty()) match_queues_.erase(found);
  receiving->is_posted = false;
  return receiving;
}

std::shared_ptr<Endpoint::UnexpectedMessage> Endpoint::add_unexpected(Connection& connection,
                                                                      std::size_t kept) {
  constexpr std::size_t kOverhead = 2048;  // a new key has a queue of its own
  const std::size_t bytes = kept + kOverhead;
  if (connection.unexpected_bytes + bytes > kMaxUnexpected) {
    disconnect(connection, "it sent more than 512 MiB of unexpected messages");
    return nullptr;
  }
  auto message = std::make_shared<UnexpectedMessage>();
  message->bytes = connection.header.bytes;
  message->charge = UnexpectedBytes(connection.unexpected_bytes, bytes);
  match_queues_[key_of(connection)].unexpected.push_back(message);
  return message;
}

void Endpoint::handle_eager(Connection& connection) {
  const MatchKey key = key_of(connection);
  connection.left = connection.header.bytes;
  if (auto receiving = pop_posted(key)) {
    if (match(*receiving, connection.left)) connection.receiving = std::move(receiving);
  } else if (!detector_.is_group_ended(key.group)) {
    connection.unexpected = add_unexpected(connection, connection.left);
    if (connection.unexpected == nullptr) return;
    connection.unexpected->data.resize(connection.left);
  }
  if (connection.left == 0) finish_body(connection);
}

void Endpoint::handle_rts(Connection& connection) {
  if (connection.header.id <= connection.last_rts) {
    return disconnect(connection, "it sent two messages with the same id");
  }
  connection.last_rts = connection.header.id;
  const MatchKey key = key_of(connection);
  if (const auto receiving = pop_posted(key)) {
    send_cts(connection, connection.header.id, connection.header.bytes, receiving);
  } else if (!detector_.is_group_ended(key.group)) {
    const auto message = add_unexpected(connection, 0);
    if (message == nullptr) return;
    message->id = connection.header.id;
    message->is_rts = true;
  }
}

void Endpoint::send_cts(Connection& connection, std::uint64_t id, std::size_t bytes,
                        const std::shared_ptr<PendingReceive>& receiving) {
  Header reply{.kind = Header::Kind::cts, .id = id};
  if (match(*receiving, bytes)) {
    const bool is_new =
        connection.cts_sent.emplace(id, RendezvousReceive{.receiving = receiving}).second;
    ensure(is_new, "a message gets one cts");
  } else {
    reply.kind = Header::Kind::reject;
    reply.bytes = receiving->target.size();
  }
  post(connection, reply);
}

void Endpoint::handle_frame(Connection& connection) {
  const auto found = connection.cts_sent.find(connection.header.id);
  if (found == connection.cts_sent.end() ||
      connection.header.bytes > found->second.receiving->bytes - found->second.received) {
    return disconnect(connection, "it sent more of a message than was announced");
  }
  connection.receiving = found->second.receiving;
  connection.offset = found->second.received;
  connection.left = connection.header.bytes;
}

// As if the message had never been sent: a receive that had matched it is posted again, in front of
// those that were posted later.
void Endpoint::handle_cancel(Connection& connection) {
  const MatchKey key = key_of(connection);
  if (const auto found = connection.cts_sent.find(connection.header.id);
      found != connection.cts_sent.end()) {
    const std::shared_ptr<PendingReceive> receiving = std::move(found->second.receiving);
    connection.cts_sent.erase(found);
    if (!receiving->is_cancelled) match_or_post(receiving, QueueEnd::front);
    return;
  }
  const auto found = match_queues_.find(key);
  if (found == match_queues_.end()) return;
  std::erase_if(found->second.unexpected, [&](const auto& message) {
    return message->is_rts && message->id == connection.header.id;
  });
  if (found->second.empty()) match_queues_.erase(found);
}

// The whole body behind a header has arrived.
void Endpoint::finish_body(Connection& connection) {
  if (connection.header.kind == Header::Kind::control) return handle_control(connection);
  if (connection.unexpected != nullptr) {
    const std::shared_ptr<UnexpectedMessage> message = std::move(connection.unexpected);
    message->is_whole = true;
    if (message->receiving != nullptr) deliver(message->receiving, *message);
    return;
  }
  if (connection.receiving == nullptr) return;
  const std::shared_ptr<PendingReceive> receiving = std::move(connection.receiving);
  receiving->is_done = connection.offset == receiving->bytes;
  if (connection.header.kind != Header::Kind::frame) return;
  const auto found = connection.cts_sent.find(connection.header.id);
  found->second.received = connection.offset;
  if (receiving->is_done) connection.cts_sent.erase(found);
}

// Probes are kept until a thread waits: only that thread can report the wait state of this rank.
void Endpoint::handle_control(Connection& connection) {
  const auto message =
      decode_control(std::span<const std::byte>(connection.control).first<kControlBytes>());
  if (!message) return disconnect(connection, "it sent an invalid control message");
  if (message->kind == ControlMessage::Kind::probe) {
    probes_.emplace_back(*message, connection.rank);
  } else if (message->kind == ControlMessage::Kind::goodbye) {
    connection.got_goodbye = true;
    connection.has_failed = message->waits != 0;
    if (!connection.has_failed) detector_.set_ended(connection.rank);
  } else {
    (void)detector_.handle(*message, connection.rank);  // only probes are replied to
  }
}

// ---- matching

std::shared_ptr<PendingReceive> Endpoint::start_receive(const MatchKey& key,
                                                        std::span<std::byte> target) {
  auto receiving = std::make_shared<PendingReceive>(PendingReceive{.key = key, .target = target});
  match_or_post(receiving, QueueEnd::back);
  return receiving;
}

void Endpoint::match_or_post(const std::shared_ptr<PendingReceive>& receiving, QueueEnd end) {
  MatchQueue& queue = match_queues_[receiving->key];
  if (queue.unexpected.empty()) {
    receiving->is_posted = true;
    queue.posted.insert(end == QueueEnd::front ? queue.posted.begin() : queue.posted.end(),
                        receiving);
    return;
  }
  const std::shared_ptr<UnexpectedMessage> message = std::move(queue.unexpected.front());
  queue.unexpected.pop_front();
  if (queue.empty()) match_queues_.erase(receiving->key);
  deliver(receiving, *message);
}

void Endpoint::deliver(const std::shared_ptr<PendingReceive>& receiving,
                       UnexpectedMessage& message) {
  if (message.is_rts) {
    return send_cts(connection(receiving->key.from), message.id, message.bytes, receiving);
  }
  if (message.self_send == nullptr && !message.is_whole) {
    message.receiving = receiving;
    return;
  }
  if (receiving->is_cancelled) return;
  const bool fits = match(*receiving, message.bytes);
  if (PendingSend* const self_send = message.self_send.get()) {
    if (fits) copy_bytes(receiving->target, self_send->data);
    self_send->is_done = fits;
    self_send->is_rejected = !fits;
    self_send->room = receiving->target.size();
  } else if (fits) {
    copy_bytes(receiving->target, message.data);
  }
  receiving->is_done = true;
}

void Endpoint::cancel(PendingReceive& receiving) {
  receiving.is_cancelled = true;
  if (!receiving.is_posted) return;
  const auto queue = match_queues_.find(receiving.key);
  if (queue == match_queues_.end()) return;  // its group has ended
  std::erase_if(queue->second.posted, [&](const auto& each) { return each.get() == &receiving; });
  if (queue->second.empty()) match_queues_.erase(queue);
}

}  // namespace shiplap::comm
