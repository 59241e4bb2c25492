// One rank's end of all its connections; all communicators of the rank share it. The protocol is
// described in endpoint.cc.
//
// There is no progress thread: a thread that waits drives the I/O of all connections. Of several
// threads that wait, one sleeps in epoll_wait and wakes the others. One mutex guards everything,
// and no thread sleeps with it. The mutex of the failure detector may be locked under it, never the
// other way round.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/thread_annotations.h"
#include "shiplap/comm/failure_detector_internal.h"
#include "shiplap/comm/sockets/join_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/socket_internal.h"

namespace shiplap::comm {

// A receive matches the messages of one group with one source (a rank of the world) and one tag.
struct MatchKey {
  std::uint64_t group = 0;
  int from = 0;
  int tag = 0;
  friend auto operator<=>(const MatchKey&, const MatchKey&) = default;
};

// An operation in flight. Shared by its request and the connection that moves its bytes.
struct PendingReceive {
  MatchKey key;
  std::span<std::byte> target;
  std::size_t bytes = 0;   // of the message, once it has matched
  bool is_posted = false;  // in the match queue: no message yet
  bool is_done = false;
  bool is_too_long = false;
  bool is_cancelled = false;  // by its request: the rest of the message is discarded
};

struct PendingSend {
  MatchKey key;  // of the receiver
  int to = 0;    // rank of the world
  std::span<const std::byte> data;
  std::uint64_t id = 0;  // rendezvous; 0: eager
  std::size_t written = 0;
  bool is_done = false;
  bool is_rejected = false;
  std::size_t room = 0;  // of the receive that rejected it
};

class Endpoint final : private ControlChannel {
 public:
  Endpoint(const RankInfo& self, PeerSockets peers);
  // Sends goodbye, and waits until the kernel has sent all data.
  ~Endpoint() override;

  [[nodiscard]] Mutex& mutex() SHIPLAP_RETURN_CAPABILITY(mutex_) { return mutex_; }
  [[nodiscard]] FailureDetector& detector() { return detector_; }

  // Writes at once as much as the socket takes.
  [[nodiscard]] std::shared_ptr<PendingSend> start_send(const MatchKey& key, int to,
                                                        std::span<const std::byte> data)
      SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] std::shared_ptr<PendingReceive> start_receive(const MatchKey& key,
                                                              std::span<std::byte> target)
      SHIPLAP_REQUIRES(mutex_);
  // Their memory is not accessed afterwards.
  void cancel(PendingSend& sending) SHIPLAP_REQUIRES(mutex_);
  void cancel(PendingReceive& receiving) SHIPLAP_REQUIRES(mutex_);
  // A group has ended on this rank: its messages, also later ones, are discarded.
  void end_group(std::uint64_t group, bool has_failed) SHIPLAP_REQUIRES(mutex_);

  // Does all I/O that is possible without blocking.
  void progress() SHIPLAP_REQUIRES(mutex_);
  // Sleeps without the mutex until I/O is possible, at most `seconds`, then does it.
  void wait_for_progress(double seconds) SHIPLAP_REQUIRES(mutex_);
  // Reports to the failure detector what this rank waits for, makes progress, and replies to
  // probes.
  void answer_probes(const WaitState& state) SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] bool has_probes() const SHIPLAP_REQUIRES(mutex_) { return !probes_.empty(); }
  // lost: the connection is closed. finished: the peer has sent goodbye after work without failure.
  enum class PeerState { active, lost, finished };
  [[nodiscard]] PeerState peer_state(int rank) const SHIPLAP_REQUIRES(mutex_);
  // Whether this host has a core for every rank, so that a rank that waits may poll.
  [[nodiscard]] bool may_spin() const { return may_spin_; }

 private:
  // ControlChannel
  void send(const ControlMessage& message, std::span<const int> ranks) override
      SHIPLAP_EXCLUDES(mutex_);
  void poll(const WaitState& state) override SHIPLAP_EXCLUDES(mutex_);
  void pause_briefly() override;
  [[nodiscard]] double time() const override { return seconds_now(); }

  // Limit for the unexpected messages of one peer, in bytes.
  static constexpr std::size_t kMaxUnexpected = std::size_t{512} << 20U;
  // Counts bytes of an unexpected message, as long as it lives.
  class UnexpectedBytes {
   public:
    UnexpectedBytes() = default;
    UnexpectedBytes(std::size_t& all, std::size_t bytes) : all_(&all), bytes_(bytes) {
      all += bytes;
    }
    UnexpectedBytes(UnexpectedBytes&& other) noexcept
        : all_(std::exchange(other.all_, nullptr)), bytes_(other.bytes_) {}
    UnexpectedBytes& operator=(UnexpectedBytes&& other) noexcept {
      std::swap(all_, other.all_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~UnexpectedBytes() {
      if (all_ != nullptr) *all_ -= bytes_;
    }

   private:
    std::size_t* all_ = nullptr;
    std::size_t bytes_ = 0;
  };
  // A message, or its rts, that arrived before its receive was posted.
  struct UnexpectedMessage {
    std::uint64_t id = 0;
    std::size_t bytes = 0;
    bool is_rts = false;
    bool is_whole = false;
    std::vector<std::byte> data;                // unless it is an rts
    std::shared_ptr<PendingSend> self_send;     // a message of this rank to itself
    std::shared_ptr<PendingReceive> receiving;  // matched before all data had arrived
    UnexpectedBytes charge;
  };
  // One of the two is empty.
  struct MatchQueue {
    std::deque<std::shared_ptr<UnexpectedMessage>> unexpected;
    std::deque<std::shared_ptr<PendingReceive>> posted;
    [[nodiscard]] bool empty() const { return unexpected.empty() && posted.empty(); }
  };
  // A header and its body in the send queue.
  struct OutgoingFrame {
    std::array<std::byte, Header::kBytes> head{};
    std::span<const std::byte> body;
    std::vector<std::byte> kept;           // owns the body, if the user does not
    std::shared_ptr<PendingSend> sending;  // owner of the body; null: `kept`
    std::size_t sent = 0;                  // bytes of header and body
  };
  // A message that has its cts and arrives in frames.
  struct RendezvousReceive {
    std::shared_ptr<PendingReceive> receiving;
    std::size_t received = 0;
  };
  struct Connection {
    int rank = 0;
    std::size_t unexpected_bytes = 0;  // at most kMaxUnexpected
    Socket socket;
    bool got_goodbye = false;
    bool has_failed = false;  // the goodbye followed a failure
    bool wants_write = false;
    bool is_broken = false;  // sends fail; data that has arrived can still be read

    std::vector<std::byte> buffer;  // read ahead; [begin, end) is not parsed
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t left = 0;  // bytes of the current body that have not arrived; 0: a header is next
    Header header;
    std::shared_ptr<PendingReceive> receiving;            // target of the current body
    std::size_t offset = 0;                               // in that target
    std::shared_ptr<UnexpectedMessage> unexpected;        // or this is the target
    std::vector<std::byte> control;                       // or this
    std::map<std::uint64_t, RendezvousReceive> cts_sent;  // by id
    std::uint64_t last_rts = 0;                           // ids of a peer only grow

    std::deque<OutgoingFrame> outgoing;
    std::map<std::uint64_t, std::shared_ptr<PendingSend>> rts_sent;  // by id; waiting for the cts
    std::deque<std::shared_ptr<PendingSend>> cts_received;  // sent in frames, in this order
  };

  [[nodiscard]] Connection& connection(int rank) SHIPLAP_REQUIRES(mutex_) {
    return connections_[rank];
  }
  // Reads and writes the connections that epoll reported.
  void handle(std::span<const epoll_event> events) SHIPLAP_REQUIRES(mutex_);

  // ---- incoming

  void read(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  // Returns true if more data may be available.
  bool read_once(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] std::span<std::byte> read_target(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void parse(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void consumed(Connection& connection, std::size_t bytes) SHIPLAP_REQUIRES(mutex_);
  void handle_header(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] static MatchKey key_of(const Connection& connection) {
    return {
        .group = connection.header.group, .from = connection.rank, .tag = connection.header.tag};
  }
  [[nodiscard]] std::shared_ptr<PendingReceive> pop_posted(const MatchKey& key)
      SHIPLAP_REQUIRES(mutex_);
  // Disconnects the peer and returns null if it exceeds kMaxUnexpected.
  [[nodiscard]] std::shared_ptr<UnexpectedMessage> add_unexpected(Connection& connection,
                                                                  std::size_t kept)
      SHIPLAP_REQUIRES(mutex_);
  void handle_eager(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void handle_rts(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void handle_frame(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void handle_cancel(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  enum class QueueEnd { front, back };
  // Delivers the first unexpected message of its key, or else posts the receive.
  void match_or_post(const std::shared_ptr<PendingReceive>& receiving, QueueEnd end)
      SHIPLAP_REQUIRES(mutex_);
  void finish_body(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void handle_control(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  // Returns false if the message is too long; that completes the receive.
  static bool match(PendingReceive& receiving, std::size_t bytes);
  void send_cts(Connection& connection, std::uint64_t id, std::size_t bytes,
                const std::shared_ptr<PendingReceive>& receiving) SHIPLAP_REQUIRES(mutex_);
  void deliver(const std::shared_ptr<PendingReceive>& receiving, UnexpectedMessage& message)
      SHIPLAP_REQUIRES(mutex_);
  void disconnect(Connection& connection, const std::string& reason) SHIPLAP_REQUIRES(mutex_);

  // ---- outgoing

  void write(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  // Makes the next frame to be sent the front of `outgoing`. Returns false if there is none.
  bool prepare_frame(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void on_sent(Connection& connection, std::size_t bytes) SHIPLAP_REQUIRES(mutex_);
  void post(Connection& connection, const Header& header, std::vector<std::byte> body = {})
      SHIPLAP_REQUIRES(mutex_);
  void post(const ControlMessage& message, int to) SHIPLAP_REQUIRES(mutex_);
  void send_to_self(const std::shared_ptr<PendingSend>& sending) SHIPLAP_REQUIRES(mutex_);
  void update_events(Connection& connection) SHIPLAP_REQUIRES(mutex_);
  void linger() SHIPLAP_EXCLUDES(mutex_);

  FailureDetector detector_;
  Socket events_;  // epoll
  bool may_spin_ = false;

  Mutex mutex_;
  std::vector<Connection> connections_ SHIPLAP_GUARDED_BY(mutex_);  // by rank
  bool is_polling_ SHIPLAP_GUARDED_BY(mutex_) = false;              // a thread is in epoll_wait
  int waiters_ SHIPLAP_GUARDED_BY(mutex_) = 0;  // threads that wait for that one
  ConditionVariable polled_;
  std::map<MatchKey, MatchQueue> match_queues_ SHIPLAP_GUARDED_BY(mutex_);
  bool has_failed_ SHIPLAP_GUARDED_BY(mutex_) = false;
  std::uint64_t next_id_ SHIPLAP_GUARDED_BY(mutex_) = 1;
  // From which rank; kept until a thread waits and can report the wait state.
  std::vector<std::pair<ControlMessage, int>> probes_ SHIPLAP_GUARDED_BY(mutex_);
  std::vector<std::byte> discard_buffer_ SHIPLAP_GUARDED_BY(mutex_);
};

}  // namespace shiplap::comm
