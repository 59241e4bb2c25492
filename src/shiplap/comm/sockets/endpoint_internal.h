// One rank's end of all its connections: what all its communicators share.
//
// It has no thread: a thread that waits drives the I/O of all connections. Of several threads that
// wait, one sleeps in epoll_wait and wakes the others. One mutex guards everything; nobody holds it
// while asleep. The mutex of the failure detector may be locked under it, never the other way.
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

// Messages of one group from one rank (of the world) with one tag.
struct MatchKey {
  std::uint64_t group = 0;
  int from = 0;
  int tag = 0;
  friend auto operator<=>(const MatchKey&, const MatchKey&) = default;
};

// What has been asked for and is under way. Held by the request and by whoever moves its bytes.
struct Receiving {
  MatchKey lane;
  std::span<std::byte> target;
  std::size_t bytes = 0;    // of the message, once it is known
  bool is_waiting = false;  // for a message, in its lane
  bool is_done = false;
  bool is_too_long = false;
  bool is_given_up = false;  // by its request: what still comes of it is thrown away
};

struct Sending {
  MatchKey lane;  // as the receiver sees it
  int to = 0;     // in the world
  std::span<const std::byte> data;
  std::uint64_t id = 0;  // if it goes by rendezvous
  std::size_t written = 0;
  bool is_done = false;
  bool is_refused = false;
  std::size_t room = 0;  // of the receiver that refused it
};

class Endpoint final : private ControlChannel {
 public:
  Endpoint(const Seat& seat, Joined joined);
  // Says farewell, and sees that what was sent gets to the others.
  ~Endpoint() override;

  [[nodiscard]] Mutex& mutex() SHIPLAP_RETURN_CAPABILITY(mutex_) { return mutex_; }
  [[nodiscard]] FailureDetector& detector() { return detector_; }

  // Begins at once, as far as the network takes it.
  [[nodiscard]] std::shared_ptr<Sending> start_send(const MatchKey& lane, int to,
                                                    std::span<const std::byte> data)
      SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] std::shared_ptr<Receiving> start_receive(const MatchKey& lane,
                                                         std::span<std::byte> target)
      SHIPLAP_REQUIRES(mutex_);
  // Their memory is not touched afterwards.
  void cancel(Sending& sending) SHIPLAP_REQUIRES(mutex_);
  void cancel(Receiving& receiving) SHIPLAP_REQUIRES(mutex_);
  // A group has ended here: what came, or will come, for it is thrown away.
  void end_group(std::uint64_t group, bool has_failed) SHIPLAP_REQUIRES(mutex_);

  // Moves what can be moved now.
  void progress() SHIPLAP_REQUIRES(mutex_);
  // The same, after sleeping without the mutex until something can be moved, at most so long.
  void progress_within(double seconds) SHIPLAP_REQUIRES(mutex_);
  // Reports what this rank waits for to the failure detector, and answers probes.
  void serve(const WaitState& state) SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] bool has_probes() const SHIPLAP_REQUIRES(mutex_) { return !probes_.empty(); }
  // Nothing can come from this rank any more; and if so, whether it ended by itself, in order.
  enum class Gone { no, lost, ended };
  [[nodiscard]] Gone gone(int rank) const SHIPLAP_REQUIRES(mutex_);
  // Whether ranks that wait may keep their cores busy.
  [[nodiscard]] bool may_spin() const { return may_spin_; }

 private:
  // ControlChannel
  void send(const ControlMessage& message, std::span<const int> ranks) override
      SHIPLAP_EXCLUDES(mutex_);
  void poll(const WaitState& state) override SHIPLAP_EXCLUDES(mutex_);
  void pause_briefly() override;
  [[nodiscard]] double time() const override { return seconds_now(); }

  // What a rank may send before its receives are posted. It is kept, so a rank that goes on would
  // fill the memory of this one.
  static constexpr std::size_t kMaxUnexpected = std::size_t{512} << 20U;
  // So much of it, until this ends.
  class Unexpected {
   public:
    Unexpected() = default;
    Unexpected(std::size_t& all, std::size_t bytes) : all_(&all), bytes_(bytes) { all += bytes; }
    Unexpected(Unexpected&& other) noexcept
        : all_(std::exchange(other.all_, nullptr)), bytes_(other.bytes_) {}
    Unexpected& operator=(Unexpected&& other) noexcept {
      std::swap(all_, other.all_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Unexpected() {
      if (all_ != nullptr) *all_ -= bytes_;
    }

   private:
    std::size_t* all_ = nullptr;
    std::size_t bytes_ = 0;
  };
  // A message, or the rts of one, that came before its receive was posted.
  struct UnexpectedMessage {
    std::uint64_t id = 0;
    std::size_t bytes = 0;
    bool is_rts = false;
    bool is_whole = false;
    std::vector<std::byte> data;           // unless it is an rts
    std::shared_ptr<Sending> own;          // a message of this rank to itself
    std::shared_ptr<Receiving> receiving;  // asked for before it was whole
    Unexpected unexpected;
  };
  struct Queue {
    std::deque<std::shared_ptr<UnexpectedMessage>> arrivals;
    std::deque<std::shared_ptr<Receiving>> receives;
    [[nodiscard]] bool empty() const { return arrivals.empty() && receives.empty(); }
  };
  // A header and what follows it, on its way out.
  struct OutgoingFrame {
    std::array<std::byte, Header::kBytes> head{};
    std::span<const std::byte> body;
    std::vector<std::byte> kept;       // the body, if nobody else keeps it
    std::shared_ptr<Sending> sending;  // whose body it is, if it still is
    std::size_t sent = 0;              // of both
  };
  // A message that was accepted and comes in frames.
  struct Accepted {
    std::shared_ptr<Receiving> receiving;
    std::size_t received = 0;
  };
  struct Wire {
    int rank = 0;
    std::size_t unexpected = 0;  // bytes of its messages that nobody has asked for
    Socket socket;
    bool is_ended = false;    // it has said farewell
    bool has_failed = false;  // and that something went wrong before
    bool waits_to_write = false;
    bool is_broken = false;  // nothing can be sent any more; what has come can still be read

    std::vector<std::byte> buffer;  // what has come and not been looked at
    std::size_t begin = 0;
    std::size_t end = 0;
    // What the bytes that come next belong to, if not to a header: so many are left.
    std::size_t left = 0;
    Header header;
    std::shared_ptr<Receiving> receiving;
    std::size_t offset = 0;  // in its target
    std::shared_ptr<UnexpectedMessage> arrival;
    std::vector<std::byte> control;
    std::map<std::uint64_t, Accepted> accepted;  // by id
    std::uint64_t last_rts = 0;                  // its messages are numbered upwards

    std::deque<OutgoingFrame> outgoing;
    std::deque<std::shared_ptr<Sending>> granted;  // for which there is a place over there
    std::map<std::uint64_t, std::shared_ptr<Sending>> offered;
  };

  [[nodiscard]] Wire& wire(int rank) SHIPLAP_REQUIRES(mutex_) { return wires_[rank]; }
  // Moves what epoll said can be moved.
  void handle(std::span<const epoll_event> events) SHIPLAP_REQUIRES(mutex_);

  // endpoint_in.cc
  void read(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  // True if there may be more.
  bool read_once(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] std::span<std::byte> place_of(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void digest(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void took(Wire& wire, std::size_t bytes) SHIPLAP_REQUIRES(mutex_);
  void begin(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  [[nodiscard]] static MatchKey lane_of(const Wire& wire) {
    return {.group = wire.header.group, .from = wire.rank, .tag = wire.header.tag};
  }
  [[nodiscard]] std::shared_ptr<Receiving> first_receive(const MatchKey& lane)
      SHIPLAP_REQUIRES(mutex_);
  // Nothing if that was more than this rank may send before it is asked for.
  [[nodiscard]] std::shared_ptr<UnexpectedMessage> add_unexpected(Wire& wire, std::size_t kept)
      SHIPLAP_REQUIRES(mutex_);
  void begin_eager(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void begin_rts(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void begin_frame(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void withdrawn(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  enum class Place { first, last };
  // In its lane, unless the message is there already.
  void wait_for_message(const std::shared_ptr<Receiving>& receiving, Place place)
      SHIPLAP_REQUIRES(mutex_);
  void finish(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void hear(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  // False if the message does not fit; the receive is over then.
  static bool match(Receiving& receiving, std::size_t bytes);
  void send_cts(Wire& wire, std::uint64_t id, std::size_t bytes,
                const std::shared_ptr<Receiving>& receiving) SHIPLAP_REQUIRES(mutex_);
  void meet(const std::shared_ptr<Receiving>& receiving, UnexpectedMessage& arrival)
      SHIPLAP_REQUIRES(mutex_);
  void lose_wire(Wire& wire, const std::string& reason) SHIPLAP_REQUIRES(mutex_);

  // endpoint_out.cc
  void write(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  // The next thing to be sent is at the front of `outgoing`; false if there is none.
  bool prepare(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void written(Wire& wire, std::size_t bytes) SHIPLAP_REQUIRES(mutex_);
  void post(Wire& wire, const Header& header, std::vector<std::byte> body = {})
      SHIPLAP_REQUIRES(mutex_);
  void post(const ControlMessage& message, int to) SHIPLAP_REQUIRES(mutex_);
  void send_to_itself(const std::shared_ptr<Sending>& sending) SHIPLAP_REQUIRES(mutex_);
  void watch(Wire& wire) SHIPLAP_REQUIRES(mutex_);
  void linger() SHIPLAP_EXCLUDES(mutex_);

  FailureDetector detector_;
  Socket events_;  // epoll
  bool may_spin_ = false;

  Mutex mutex_;
  std::vector<Wire> wires_ SHIPLAP_GUARDED_BY(mutex_);  // by rank; the own has no socket
  bool is_asleep_ SHIPLAP_GUARDED_BY(mutex_) = false;   // one of the threads that wait
  int sleepers_ SHIPLAP_GUARDED_BY(mutex_) = 0;         // the others
  ConditionVariable woken_;
  std::map<MatchKey, Queue> lanes_ SHIPLAP_GUARDED_BY(mutex_);
  bool has_failed_ SHIPLAP_GUARDED_BY(mutex_) = false;
  std::uint64_t next_id_ SHIPLAP_GUARDED_BY(mutex_) = 1;
  // Kept until a waiter comes that knows what this rank does.
  std::vector<std::pair<ControlMessage, int>> probes_ SHIPLAP_GUARDED_BY(mutex_);
  std::vector<std::byte> discard_buffer_ SHIPLAP_GUARDED_BY(mutex_);
};

}  // namespace shiplap::comm
