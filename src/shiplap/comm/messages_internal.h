// Collectives out of sends and receives, for transports that have only those: a transport derives
// from MessageCommunicator and provides start_send, start_receive and do_split. The algorithms are
// described in messages.cc.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

class MessageCommunicator : public Communicator {
 public:
  // Collectives use tags above those of users.
  static constexpr int kTagsNeeded = kMaxTag + 2 + 0xfff;
  ~MessageCommunicator() override;

 protected:
  using Communicator::Communicator;

  // Seconds on a monotonic clock.
  [[nodiscard]] virtual double now() const = 0;
  // The deadline of a wait that begins now. All waits of one collective share one.
  [[nodiscard]] double deadline() const {
    return collective_deadline_ ? *collective_deadline_ : now() + timeout().value;
  }
  [[nodiscard]] bool in_collective() const { return collective_deadline_.has_value(); }

  // Called before the first message of a collective.
  virtual void on_collective_begin() {}

  // While it lives, all waits of this communicator have the same deadline.
  class CollectiveDeadline {
   public:
    explicit CollectiveDeadline(MessageCommunicator& communicator);
    CollectiveDeadline(const CollectiveDeadline&) = delete;
    CollectiveDeadline& operator=(const CollectiveDeadline&) = delete;
    ~CollectiveDeadline() {
      if (outermost_) communicator_.collective_deadline_.reset();
    }

   private:
    MessageCommunicator& communicator_;
    bool outermost_ = false;
  };

  // An all_gather with a tag of its own, for fingerprints and colours.
  void all_gather_control(std::span<const std::byte> in, std::span<std::byte> out);
  // Calls `function` with one deadline for all its waits.
  template <class Function>
  auto with_one_deadline(Function function) {
    const CollectiveDeadline shared_deadline(*this);
    return function();
  }

  std::vector<Fingerprint> gather_fingerprints(const Fingerprint& local) override;
  void do_barrier() override;
  void do_broadcast(std::span<std::byte> data, int root) override;
  void do_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) override;
  void do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                     const Pieces& pieces) override;
  void do_reduce_scatter(DType type, std::span<const std::byte> in, std::span<std::byte> out,
                         ReduceOp reduction) override;
  void do_all_to_all(std::span<const std::byte> in, const Pieces& to, std::span<std::byte> out,
                     const Pieces& from) override;
  void do_all_to_all_parts(const Outgoing& to, const Incoming& from) override;

  // Whether a receive of a long message that has been announced replies as soon as it is posted.
  [[nodiscard]] virtual bool replies_when_posted() const { return false; }

  // Address of a part in the process that owns it.
  struct RemotePart {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  // Whether this rank and `peer` can read each other's memory.
  [[nodiscard]] virtual bool shares_memory_with(int /*peer*/) const { return false; }
  // REQUIRES: shares_memory_with(peer), and equal lengths.
  virtual void read_memory(int peer, std::span<const RemotePart> from,
                           std::span<const std::span<std::byte>> to);

 private:
  // A receive in flight, and the length that it must have.
  struct ExpectedMessage {
    Request request;
    std::int64_t bytes = 0;
    int from = 0;
  };
  struct SegmentedReduction;

  // The ranks `steps` before and after this one on a ring. If all ranks send to rank_after(k) and
  // receive from rank_before(k), no rank is a hot spot.
  [[nodiscard]] int rank_before(int steps) const { return (rank() - steps + size()) % size(); }
  [[nodiscard]] int rank_after(int steps) const { return (rank() + steps) % size(); }

  [[nodiscard]] int tag() const {
    return kMaxTag + 2 + static_cast<int>(current().sequence & 0xfff);
  }
  static constexpr int kFingerprintTag = kMaxTag + 1;

  // A piece that is too long for one message is sent in several.
  void post_send(std::vector<Request>& sends, std::span<const std::byte> data, int to, int tag);
  void post_receive(std::vector<ExpectedMessage>& receives, std::span<std::byte> data, int from,
                    int tag);
  // Posts both in the order that uses both directions of a link, see messages.cc.
  template <class PostReceives, class PostSends>
  void post_both(const PostReceives& post_receives, const PostSends& post_sends) {
    if (replies_when_posted()) post_sends();
    post_receives();
    if (!replies_when_posted()) post_sends();
  }
  void wait_receive(ExpectedMessage& expected);
  void wait_all(std::vector<ExpectedMessage>& receives, std::vector<Request>& sends);
  void direct_exchange(std::span<const std::byte> in, const Pieces& to, std::span<std::byte> out,
                       const Pieces& from);
  void list_parts(const Outgoing& to);
  void post_parts(const Outgoing& to, const Incoming& from);
  void post_incoming(const Outgoing& to, const Incoming& from);
  void post_outgoing(const Outgoing& to);
  void read_parts(int peer, const Incoming& from, Request& list);
  void check_stamp(int peer, const RemotePart& expected);
  void bruck_all_gather(std::span<const std::byte> in, std::byte* out,
                        std::span<const std::int64_t> offsets, int tag);
  void reduce_parts(const SegmentedReduction& work);
  std::byte* scratch_of(const SegmentedReduction& work, std::size_t k, std::size_t s);
  void combine_segment(const SegmentedReduction& work, std::size_t s);
  void reduce_small(DType type, std::span<std::byte> data, ReduceOp reduction);

  std::optional<double> collective_deadline_;
  // Leaked if the communicator is dead: messages in flight may still use them.
  std::vector<std::byte> scratch_;
  std::vector<std::byte> small_;
  // State of all_to_all_parts, reused by the next call to avoid allocations.
  struct Exchange {
    std::vector<ExpectedMessage> receives;
    std::vector<Request> sends;
    std::vector<Request> lists;            // of parts, from ranks whose memory is read; by rank
    std::vector<RemotePart> local_parts;   // as `to`, with the stamp after those of each rank
    std::vector<RemotePart> remote_parts;  // as `from`, likewise
    std::vector<std::byte> signals;
    // One number, valid as long as the parts are. A peer that has read them checks it afterwards.
    std::vector<std::uint64_t> stamp{0};
    void clear();
  };
  Exchange exchange_;
};

}  // namespace shiplap::comm
