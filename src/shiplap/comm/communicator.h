// Ranks that talk to each other: one interface, whether they are threads of this process or
// processes of an MPI job on many machines.
//
// Every call has a deadline. What cannot be done in time, because a rank is missing, dead or does
// something else, ends in a Failure (failure.h) that says so, never in a hang. After a failure the
// communicator is dead; others made from the same ranks may live on.
//
// Wrong arguments throw InputError D300 and change nothing.
//
// A communicator belongs to one rank, and one thread at a time may use it. A second thread takes a
// channel() of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/type.h"

namespace shiplap::comm {

// What all ranks of a group must agree on when they call a collective.
struct Fingerprint {
  enum class Kind : std::uint8_t {
    barrier,
    broadcast,
    all_reduce,
    all_gather,
    all_gather_v,
    reduce_scatter,
    all_to_all,
    all_to_all_v,
    all_to_all_parts,
    split,
    end,  // of the work
  };
  Kind kind = Kind::barrier;
  DType type = DType::u8;
  ReduceOp reduction = ReduceOp::sum;
  std::int32_t root = 0;
  std::int64_t count = 0;     // elements, where they must agree
  std::uint64_t pieces = 0;   // a hash of all counts, where they must agree
  std::int64_t sequence = 0;  // how many collectives this communicator had before
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// "all_reduce number 3 (f32 x 1024, sum)"
[[nodiscard]] std::string describe(const Fingerprint& fingerprint);

// Where the pieces for or from each rank lie in a buffer, in elements. Without offsets they follow
// each other.
struct Pieces {
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> offsets;
};

// Parts of memory for each rank, or from each: those of rank i are first[i] .. first[i+1].
struct Outgoing {
  std::span<const std::size_t> first;  // and the end
  std::span<const std::span<const std::byte>> parts;
};
struct Incoming {
  std::span<const std::size_t> first;
  std::span<const std::span<std::byte>> parts;
};

// A send or receive under way. Its buffer must stay as it is until it is complete. Destroying one
// that is not complete cancels it where the transport can and waits for it where it cannot. It must
// not outlive its communicator.
class [[nodiscard]] Request {
 public:
  // What a transport provides.
  class State {
   public:
    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    virtual ~State() = default;
    virtual bool test(bool waits) = 0;
    virtual void wait() = 0;
    virtual void time_out() = 0;
    [[nodiscard]] virtual std::int64_t bytes() const = 0;
  };

  Request() = default;
  explicit Request(std::unique_ptr<State> state) : state_(std::move(state)) {}

  // True once complete. Throws Failure, also what concerns other ranks of the group. Others are
  // told that this rank waits for it, unless it does not: it computes, and looks in between.
  [[nodiscard]] bool test(bool waits = true) { return state_ == nullptr || state_->test(waits); }
  // Returns how many bytes arrived, or were sent.
  std::int64_t wait() {
    if (state_ == nullptr) return 0;
    state_->wait();
    return state_->bytes();
  }
  // For those who test() and have a deadline of their own that has passed: throws what wait() does
  // then, unless it is complete, also in the last moment.
  void time_out() {
    if (state_ != nullptr) state_->time_out();
  }

 private:
  std::unique_ptr<State> state_;
};

class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // "world", "world/dp": for messages.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Which rank of the world a rank of this group is.
  [[nodiscard]] virtual int world_rank(int rank) const = 0;
  [[nodiscard]] bool alive() const { return !dead_; }

  // How long any call may take. Communicators made from this one begin with the same.
  [[nodiscard]] Seconds timeout() const { return timeout_; }
  void set_timeout(Seconds timeout);

  // Before each collective, compare what the ranks are about to do: a mismatch is then an error on
  // all of them that names the odd ones, not a hang or wrong data. All ranks switch it together.
  void set_checked(bool checked) { checked_ = checked; }
  [[nodiscard]] bool checked() const { return checked_; }

  // Tells the others that this rank gives up: whoever waits for something in a group with it gets
  // RankFailed. The communicator is dead then. If it does so because another rank of the world has
  // failed, that one is the `root`, and is who they are told of; if it waited in vain and does not
  // know for whom, that is kNobody, and they get DeadlinePassed.
  static constexpr int kNobody = -1;
  void leave(const std::string& reason, std::optional<int> root = std::nullopt);

  // ---- point to point: messages with the same two ends and tag arrive in order

  static constexpr int kLargestTag = (1 << 20) - 1;

  template <Element T>
  void send(std::span<const T> data, int to, int tag = 0) {
    isend(data, to, tag).wait();
  }
  // Returns how many elements arrived.
  template <Element T>
  std::size_t receive(std::span<T> data, int from, int tag = 0) {
    return static_cast<std::size_t>(ireceive(data, from, tag).wait()) / sizeof(T);
  }
  template <Element T>
  Request isend(std::span<const T> data, int to, int tag = 0) {
    check_peer("send", to, tag);
    return start_send(std::as_bytes(data), to, tag);
  }
  template <Element T>
  Request ireceive(std::span<T> data, int from, int tag = 0) {
    check_peer("receive", from, tag);
    return start_receive(std::as_writable_bytes(data), from, tag);
  }

  // Messages to and from `peer` that are longer than this wait for each other's answers, or take
  // turns: one that was sent later may arrive earlier. Both ends get the same answer.
  [[nodiscard]] virtual std::size_t eager_limit(int peer) const;

  // ---- collectives: all ranks of the group call them, in the same order

  void barrier();

  // From `root` to all others.
  template <Element T>
  void broadcast(std::span<T> data, int root) {
    checked_broadcast(TypeOf<T>::kType, std::as_writable_bytes(data), root);
  }
  // In place: what each rank has, combined in the order of ranks, is what all have. So all ranks
  // get the same bits, and the same on every transport.
  template <Element T>
  void all_reduce(std::span<T> data, ReduceOp reduction = ReduceOp::sum) {
    checked_all_reduce(TypeOf<T>::kType, std::as_writable_bytes(data), reduction);
  }
  // `out` holds what all ranks have in `in`, one after another. `in` may be the own piece of `out`.
  template <Element T>
  void all_gather(std::span<const T> in, std::span<T> out) {
    checked_all_gather(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out));
  }
  // The same with pieces of different sizes.
  template <Element T>
  void all_gather_v(std::span<const T> in, std::span<T> out, const Pieces& pieces) {
    checked_all_gather_v(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out), pieces);
  }
  // `in` has a piece for every rank; `out` is what all have in the own piece, combined in the order
  // of ranks. `out` may be the own piece of `in`.
  template <Element T>
  void reduce_scatter(std::span<const T> in, std::span<T> out, ReduceOp reduction = ReduceOp::sum) {
    checked_reduce_scatter(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out),
                           reduction);
  }
  // Piece i of `in` goes to rank i; piece i of `out` came from it. The two do not overlap.
  template <Element T>
  void all_to_all(std::span<const T> in, std::span<T> out) {
    checked_all_to_all(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out));
  }
  // The same with pieces of different sizes: what rank i sends to rank j must be what j expects.
  template <Element T>
  void all_to_all_v(std::span<const T> in, const Pieces& to, std::span<T> out, const Pieces& from) {
    checked_all_to_all_v(TypeOf<T>::kType, std::as_bytes(in), to, std::as_writable_bytes(out),
                         from);
  }

  // The same with parts that lie anywhere: the k-th for a rank meets the k-th from this one there,
  // and the two have the same length. Where the memory of the other rank can be reached, a part is
  // copied once. Outgoing parts may overlap each other, incoming ones nothing.
  void all_to_all_parts(const Outgoing& to, const Incoming& from);
  // Parts for or from `peer` that are shorter than this are better put together into one before.
  // Both ends get the same answer.
  [[nodiscard]] virtual std::size_t pack_below(int peer) const;

  // ---- groups: collectives too

  // The ranks that give the same colour, ordered by key, then by rank here.
  [[nodiscard]] std::unique_ptr<Communicator> split(int colour, int key, const std::string& name);
  // The ranks that differ only along some axes of a mesh; the last axis varies fastest. `sizes` are
  // those of all axes and multiply to size(); `along` are indices into it.
  [[nodiscard]] std::unique_ptr<Communicator> split_along(std::span<const int> sizes,
                                                          std::span<const int> along,
                                                          const std::string& name);
  // The same ranks once more, so that messages and collectives of the two never meet.
  [[nodiscard]] std::unique_ptr<Communicator> channel(const std::string& name);

 protected:
  struct Identity {
    int rank = 0;
    int size = 1;
    std::string name;
  };
  explicit Communicator(Identity identity)
      : rank_(identity.rank), size_(identity.size), name_(std::move(identity.name)) {}

  // What a transport provides. Arguments have been checked and fit together on this rank.
  // Collectives other than all_gather, reduce_scatter and all_to_all are not called for one rank.
  virtual Request start_send(std::span<const std::byte> data, int to, int tag) = 0;
  virtual Request start_receive(std::span<std::byte> data, int from, int tag) = 0;
  // What each rank is about to do, by rank.
  virtual std::vector<Fingerprint> compare(const Fingerprint& own) = 0;
  virtual void do_barrier() = 0;
  virtual void do_broadcast(std::span<std::byte> data, int root) = 0;
  virtual void do_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) = 0;
  // The pieces are in bytes, and have offsets.
  virtual void do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                             const Pieces& pieces) = 0;
  virtual void do_reduce_scatter(DType type, std::span<const std::byte> in,
                                 std::span<std::byte> out, ReduceOp reduction) = 0;
  virtual void do_all_to_all(std::span<const std::byte> in, const Pieces& to,
                             std::span<std::byte> out, const Pieces& from) = 0;
  virtual void do_all_to_all_parts(const Outgoing& to, const Incoming& from) = 0;
  virtual std::unique_ptr<Communicator> do_split(int colour, int key, const std::string& name) = 0;
  virtual void do_leave(int root, const std::string& reason) = 0;

  // Throws CommunicatorDead if it is.
  void check_alive() const;
  // The collective under way, or the last one.
  [[nodiscard]] const Fingerprint& current() const { return current_; }
  [[nodiscard]] std::int64_t collectives() const { return collectives_; }

  // Counts a call, and in checked mode compares it with the others'.
  void begin(Fingerprint fingerprint);
  // From here on every call throws CommunicatorDead with this reason.
  void die(const std::string& reason);
  // The ways to die. Ranks are those of the world.
  [[noreturn]] void fail_late(const std::string& operation, std::vector<int> missing,
                              const std::string& about = {},
                              std::optional<int> culprit = std::nullopt);
  [[noreturn]] void fail_rank(int rank, const std::string& reason);
  // `rank` has left because of `root`, which may be kNobody.
  [[noreturn]] void fail_left(int rank, int root, const std::string& reason);
  [[noreturn]] void fail_mismatch(const std::string& what, std::vector<int> outliers);
  [[noreturn]] void fail_too_long(int from, std::int64_t room);
  [[noreturn]] void fail_dead(const std::string& reason);
  // Throws Mismatch unless all ranks, by rank, are about to do the same.
  void judge(const std::vector<Fingerprint>& all);

 private:
  void checked_broadcast(DType type, std::span<std::byte> data, int root);
  void checked_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction);
  void checked_all_gather(DType type, std::span<const std::byte> in, std::span<std::byte> out);
  void checked_all_gather_v(DType type, std::span<const std::byte> in, std::span<std::byte> out,
                            const Pieces& pieces);
  void checked_reduce_scatter(DType type, std::span<const std::byte> in, std::span<std::byte> out,
                              ReduceOp reduction);
  void checked_all_to_all(DType type, std::span<const std::byte> in, std::span<std::byte> out);
  void checked_all_to_all_v(DType type, std::span<const std::byte> in, const Pieces& to,
                            std::span<std::byte> out, const Pieces& from);
  [[noreturn]] void throw_dead(const std::string& reason) const;
  void check_peer(std::string_view operation, int peer, int tag) const;
  // In checked mode: does everybody send what its receiver expects? In bytes.
  void check_matrix(const Pieces& to, const Pieces& from);

  int rank_;
  int size_;
  std::string name_;
  Seconds timeout_{60};
  bool checked_ = false;
  bool dead_ = false;
  std::string death_;
  Fingerprint current_;
  std::int64_t collectives_ = 0;
};

}  // namespace shiplap::comm
