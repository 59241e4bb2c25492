// Communication between ranks: one interface, whether they are threads of this process, processes
// that use TCP, or processes of an MPI job.
//
// Every call has a timeout. A call that cannot complete in time, because a rank is missing, dead or
// in another call, throws a Failure (failure.h) and never hangs. After a failure the communicator
// is dead; others made from the same ranks may still be usable.
//
// Invalid arguments throw InputError D300 and have no effect.
//
// A communicator belongs to one rank, and one thread at a time may use it. A second thread needs a
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

// A call of a collective; all ranks of the group must make the same one.
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
    end,  // of run_ranks()
  };
  Kind kind = Kind::barrier;
  DType type = DType::u8;
  ReduceOp reduction = ReduceOp::sum;
  std::int32_t root = 0;
  std::int64_t count = 0;     // elements, where they must agree
  std::uint64_t pieces = 0;   // hash of all counts, where they must agree
  std::int64_t sequence = 0;  // number of the call on this communicator, from 0
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// "all_reduce number 3 (f32 x 1024, sum)"
[[nodiscard]] std::string describe(const Fingerprint& fingerprint);

// Counts and displacements, as of MPI_Alltoallv: the pieces for or from each rank in a buffer, in
// elements. Without offsets the pieces are contiguous.
struct Pieces {
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> offsets;
};

// Memory ranges for each rank, or from each: those of rank i are parts[first[i]] ..
// parts[first[i+1]].
struct Outgoing {
  std::span<const std::size_t> first;  // size() + 1 entries
  std::span<const std::span<const std::byte>> parts;
};
struct Incoming {
  std::span<const std::size_t> first;
  std::span<const std::span<std::byte>> parts;
};

// A send or receive in flight. Destroying one that is not complete cancels it where the transport
// can and waits for it where it cannot.
//
// REQUIRES: the buffer is not modified (send) or accessed (receive) until the request is complete,
// and the communicator outlives the request.
class [[nodiscard]] Request {
 public:
  // Implemented by each transport.
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

  // Returns true if complete. Throws Failure, also if another rank of the group has failed. `waits`
  // is what this rank replies to probes: false if it computes and only polls in between.
  [[nodiscard]] bool test(bool waits = true) { return state_ == nullptr || state_->test(waits); }
  // Returns how many bytes were received or sent.
  std::int64_t wait() {
    if (state_ == nullptr) return 0;
    state_->wait();
    return state_->bytes();
  }
  // For callers of test() with a deadline of their own that has passed: throws as wait() does on
  // timeout, unless the request is complete by now.
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
  // Returns the rank in the world of a rank of this group.
  [[nodiscard]] virtual int world_rank(int rank) const = 0;
  [[nodiscard]] bool alive() const { return !dead_; }

  // Limit for every call. Inherited by communicators made from this one.
  [[nodiscard]] Seconds timeout() const { return timeout_; }
  void set_timeout(Seconds timeout);

  // Checked mode compares the calls of all ranks before each collective: a mismatch is then an
  // error on all ranks that names the outliers, not a hang or wrong data.
  //
  // REQUIRES: all ranks of the group use the same mode.
  void set_checked(bool checked) { checked_ = checked; }
  [[nodiscard]] bool checked() const { return checked_; }

  // Aborts the peers: ranks that wait in a group with this one get RankFailed. The communicator is
  // dead then. `culprit` is the rank of the world at fault; default: this one. With kNobody, for a
  // timeout without a known culprit, the others get TimeoutError.
  static constexpr int kNobody = -1;
  void abort(const std::string& reason, std::optional<int> culprit = std::nullopt);

  // ---- point to point: messages with the same source, destination and tag are received in order

  static constexpr int kMaxTag = (1 << 20) - 1;

  template <Element T>
  void send(std::span<const T> data, int to, int tag = 0) {
    isend(data, to, tag).wait();
  }
  // Returns how many elements were received.
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

  // Messages to and from `peer` that are longer than this may complete out of order: they use a
  // rendezvous protocol, or share the link. The same on both ends.
  [[nodiscard]] virtual std::size_t eager_limit(int peer) const;

  // ---- collectives: all ranks of the group call them, in the same order

  void barrier();

  template <Element T>
  void broadcast(std::span<T> data, int root) {
    checked_broadcast(TypeOf<T>::kType, std::as_writable_bytes(data), root);
  }
  // In place. Combines in the order of ranks, so the result has the same bits on all ranks and on
  // every transport.
  template <Element T>
  void all_reduce(std::span<T> data, ReduceOp reduction = ReduceOp::sum) {
    checked_all_reduce(TypeOf<T>::kType, std::as_writable_bytes(data), reduction);
  }
  // `in` may be the local piece of `out`.
  template <Element T>
  void all_gather(std::span<const T> in, std::span<T> out) {
    checked_all_gather(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out));
  }
  // The same with pieces of different sizes.
  template <Element T>
  void all_gather_v(std::span<const T> in, std::span<T> out, const Pieces& pieces) {
    checked_all_gather_v(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out), pieces);
  }
  // Combines in the order of ranks. `out` may be the local piece of `in`.
  template <Element T>
  void reduce_scatter(std::span<const T> in, std::span<T> out, ReduceOp reduction = ReduceOp::sum) {
    checked_reduce_scatter(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out),
                           reduction);
  }
  // REQUIRES: `in` and `out` do not overlap.
  template <Element T>
  void all_to_all(std::span<const T> in, std::span<T> out) {
    checked_all_to_all(TypeOf<T>::kType, std::as_bytes(in), std::as_writable_bytes(out));
  }
  // With pieces of different sizes. REQUIRES: rank i sends to rank j as many as j expects.
  template <Element T>
  void all_to_all_v(std::span<const T> in, const Pieces& to, std::span<T> out, const Pieces& from) {
    checked_all_to_all_v(TypeOf<T>::kType, std::as_bytes(in), to, std::as_writable_bytes(out),
                         from);
  }

  // With scattered memory: the k-th part for a rank is received as the k-th part from this one
  // there. A part is copied once if the memory of the peer can be read.
  //
  // REQUIRES: the two parts have the same length; incoming parts do not overlap any other part.
  void all_to_all_parts(const Outgoing& to, const Incoming& from);
  // Parts for or from `peer` that are shorter than this should be packed into one. The same on both
  // ends.
  [[nodiscard]] virtual std::size_t pack_below(int peer) const;

  // ---- groups: collectives too

  // As MPI_Comm_split: ranks with the same colour, ordered by key, then by rank.
  [[nodiscard]] std::unique_ptr<Communicator> split(int colour, int key, const std::string& name);
  // As MPI_Cart_sub: the ranks that differ only along some axes of a mesh, whose last axis varies
  // fastest. `along` are indices into `sizes`. REQUIRES: the product of `sizes` is size().
  [[nodiscard]] std::unique_ptr<Communicator> split_along(std::span<const int> sizes,
                                                          std::span<const int> along,
                                                          const std::string& name);
  // As MPI_Comm_dup: the same ranks; messages and collectives of the two never match.
  [[nodiscard]] std::unique_ptr<Communicator> channel(const std::string& name);

 protected:
  struct Identity {
    int rank = 0;
    int size = 1;
    std::string name;
  };
  explicit Communicator(Identity identity)
      : rank_(identity.rank), size_(identity.size), name_(std::move(identity.name)) {}

  // Implemented by each transport. Arguments are valid and consistent on this rank. With one rank,
  // only all_gather, reduce_scatter and all_to_all are called.
  virtual Request start_send(std::span<const std::byte> data, int to, int tag) = 0;
  virtual Request start_receive(std::span<std::byte> data, int from, int tag) = 0;
  // Returns the fingerprints of all ranks.
  virtual std::vector<Fingerprint> gather_fingerprints(const Fingerprint& local) = 0;
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
  virtual void do_abort(int culprit, const std::string& reason) = 0;

  // Throws CommunicatorDead if this communicator is dead.
  void check_alive() const;
  // The current collective, or the last one.
  [[nodiscard]] const Fingerprint& current() const { return current_; }
  [[nodiscard]] std::int64_t collectives() const { return collectives_; }

  // Counts a collective, and in checked mode compares it with those of the other ranks.
  void begin_collective(Fingerprint fingerprint);
  // All later calls throw CommunicatorDead with this reason.
  void mark_dead(const std::string& reason);
  // Mark this communicator as dead and throw. Ranks are those of the world.
  [[noreturn]] void fail_operation_timeout(const std::string& operation, std::vector<int> missing,
                                           const std::string& about = {},
                                           std::optional<int> culprit = std::nullopt);
  [[noreturn]] void fail_rank(int rank, const std::string& reason);
  // `rank` has aborted because of `culprit`, which may be kNobody.
  [[noreturn]] void fail_aborted(int rank, int culprit, const std::string& reason);
  [[noreturn]] void fail_mismatch(const std::string& what, std::vector<int> outliers);
  [[noreturn]] void fail_too_long(int from, std::int64_t room);
  [[noreturn]] void fail_dead(const std::string& reason);
  // Throws Mismatch unless the calls of all ranks are the same.
  void check_agreement(const std::vector<Fingerprint>& all);

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
  // In checked mode: throws Mismatch on all ranks unless every count is what its receiver expects.
  void check_counts(const Pieces& to, const Pieces& from);

  int rank_;
  int size_;
  std::string name_;
  Seconds timeout_{60};
  bool checked_ = false;
  bool dead_ = false;
  std::string death_reason_;
  Fingerprint current_;
  std::int64_t collectives_ = 0;
};

}  // namespace shiplap::comm
