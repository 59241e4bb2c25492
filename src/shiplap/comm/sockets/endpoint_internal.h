// One rank's end of all its connections: what all its communicators share.
//
// It has no thread. Whoever waits for something moves everybody's bytes; of several threads that
// wait one sleeps for the network and wakes the others. All is behind one lock, which nobody holds
// while asleep.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/comm/news_internal.h"
#include "shiplap/comm/sockets/join_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/socket_internal.h"

namespace shiplap::comm {

// Messages of one group from one rank (of the world) with one tag.
struct SocketLane {
  std::uint64_t group = 0;
  int from = 0;
  int tag = 0;
  friend auto operator<=>(const SocketLane&, const SocketLane&) = default;
};

// What has been asked for and is under way. Held by the request and by whoever moves its bytes.
struct Receiving {
  SocketLane lane;
  std::span<std::byte> target;
  std::size_t bytes = 0;    // of the message, once it is known
  bool is_waiting = false;  // for a message, in its lane
  bool is_done = false;
  bool is_too_long = false;
  bool is_given_up = false;  // by its request: what still comes of it is thrown away
};

struct Sending {
  SocketLane lane;  // as the receiver sees it
  int to = 0;       // in the world
  std::span<const std::byte> data;
  std::uint64_t id = 0;  // if it was offered
  std::size_t written = 0;
  bool is_done = false;
  bool is_refused = false;
  std::size_t room = 0;  // of the receiver that refused it
};

class Endpoint final : public News {
 public:
  Endpoint(const Seat& seat, Joined joined);
  // Says farewell, and sees that what was sent gets to the others.
  ~Endpoint() override;

  using Lock = std::unique_lock<std::recursive_mutex>;
  [[nodiscard]] Lock lock() { return Lock(mutex_); }

  // All of these with the lock.

  // Begins at once, as far as the network takes it.
  [[nodiscard]] std::shared_ptr<Sending> start_send(const SocketLane& lane, int to,
                                                    std::span<const std::byte> data);
  [[nodiscard]] std::shared_ptr<Receiving> start_receive(const SocketLane& lane,
                                                         std::span<std::byte> target);
  // Their memory is not touched afterwards.
  void cancel(Sending& sending);
  void cancel(Receiving& receiving);
  // A group has ended here: what came, or will come, for it is thrown away.
  void end_group(std::uint64_t group, bool has_failed);

  // Moves what can be moved now.
  void progress();
  // The same, after sleeping until something can be, at most so long. The lock must be held once;
  // it is given up meanwhile.
  void progress_within(Lock& lock, double seconds);
  // Whether serve() has something to do.
  [[nodiscard]] bool has_notices() const { return !inbox_.empty(); }
  // Nothing can come from this rank any more; and if so, whether it ended by itself, in order.
  enum class Gone { no, lost, ended };
  [[nodiscard]] Gone gone(int rank) const;
  // Whether ranks that wait may keep their cores busy.
  [[nodiscard]] bool may_spin() const { return may_spin_; }

  void serve(const Doing& doing) override;

 protected:
  void send(const Notice& notice, std::span<const int> ranks) override;
  [[nodiscard]] double time() const override { return seconds_now(); }
  void pause_briefly() override;

 private:
  // What a rank may send that nobody has asked for yet. It is kept, so a rank that goes on would
  // fill the memory of this one.
  static constexpr std::size_t kMostUnasked = std::size_t{512} << 20U;
  // So much of it, until this ends.
  class Unasked {
   public:
    Unasked() = default;
    Unasked(std::size_t& all, std::size_t bytes) : all_(&all), bytes_(bytes) { all += bytes; }
    Unasked(Unasked&& other) noexcept
        : all_(std::exchange(other.all_, nullptr)), bytes_(other.bytes_) {}
    Unasked& operator=(Unasked&& other) noexcept {
      std::swap(all_, other.all_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Unasked() {
      if (all_ != nullptr) *all_ -= bytes_;
    }

   private:
    std::size_t* all_ = nullptr;
    std::size_t bytes_ = 0;
  };
  // A message, or an offer of one, that nobody has asked for yet.
  struct Arrival {
    std::uint64_t id = 0;
    std::size_t bytes = 0;
    bool is_offer = false;
    bool is_whole = false;
    std::vector<std::byte> data;           // unless it is an offer
    std::shared_ptr<Sending> own;          // an offer of this rank to itself
    std::shared_ptr<Receiving> receiving;  // asked for before it was whole
    Unasked unasked;
  };
  struct Queue {
    std::deque<std::shared_ptr<Arrival>> arrivals;
    std::deque<std::shared_ptr<Receiving>> receives;
    [[nodiscard]] bool empty() const { return arrivals.empty() && receives.empty(); }
  };
  // A header and what follows it, on its way out.
  struct Parcel {
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
    std::size_t unasked = 0;  // bytes of its messages that nobody has asked for
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
    std::shared_ptr<Arrival> arrival;
    std::vector<std::byte> notice;
    std::map<std::uint64_t, Accepted> accepted;  // by id
    std::uint64_t last_offer = 0;                // its messages are numbered upwards

    std::deque<Parcel> parcels;
    std::deque<std::shared_ptr<Sending>> granted;  // for which there is a place over there
    std::map<std::uint64_t, std::shared_ptr<Sending>> offered;
  };

  [[nodiscard]] Wire& wire(int rank) { return wires_[rank]; }
  // Moves what epoll said can be moved.
  void handle(std::span<const epoll_event> events);

  // endpoint_in.cc
  void read(Wire& wire);
  // True if there may be more.
  bool read_once(Wire& wire);
  [[nodiscard]] std::span<std::byte> place_of(Wire& wire);
  void digest(Wire& wire);
  void took(Wire& wire, std::size_t bytes);
  void begin(Wire& wire);
  [[nodiscard]] static SocketLane lane_of(const Wire& wire) {
    return {.group = wire.header.group, .from = wire.rank, .tag = wire.header.tag};
  }
  [[nodiscard]] std::shared_ptr<Receiving> first_receive(const SocketLane& lane);
  // Nothing if that was more than this rank may send before it is asked for.
  [[nodiscard]] std::shared_ptr<Arrival> add_arrival(Wire& wire, std::size_t kept);
  void begin_eager(Wire& wire);
  void begin_offer(Wire& wire);
  void begin_frame(Wire& wire);
  void withdrawn(Wire& wire);
  enum class Place { first, last };
  // In its lane, unless the message is there already.
  void wait_for_message(const std::shared_ptr<Receiving>& receiving, Place place);
  void finish(Wire& wire);
  void hear(Wire& wire);
  // False if the message does not fit; the receive is over then.
  static bool match(Receiving& receiving, std::size_t bytes);
  void accept(Wire& wire, std::uint64_t id, std::size_t bytes,
              const std::shared_ptr<Receiving>& receiving);
  void meet(const std::shared_ptr<Receiving>& receiving, Arrival& arrival);
  void lose_wire(Wire& wire, const std::string& reason);

  // endpoint_out.cc
  void write(Wire& wire);
  // The next thing to be sent is at the front of the parcels; false if there is none.
  bool prepare(Wire& wire);
  void written(Wire& wire, std::size_t bytes);
  void post(Wire& wire, const Header& header, std::vector<std::byte> body = {});
  void send_to_itself(const std::shared_ptr<Sending>& sending);
  void watch(Wire& wire);
  void linger();

  std::vector<Wire> wires_;  // by rank; the own has no socket
  Socket events_;            // epoll
  bool may_spin_ = false;
  bool is_asleep_ = false;  // one of the threads that wait
  int sleepers_ = 0;        // the others
  std::condition_variable_any woken_;
  std::map<SocketLane, Queue> lanes_;
  bool has_failed_ = false;
  std::uint64_t next_id_ = 1;
  std::vector<std::pair<Notice, int>> inbox_;
  std::vector<std::byte> waste_;
};

}  // namespace shiplap::comm
