// Collectives made of messages, for transports that have only those: a transport derives from
// MessageCommunicator and provides start_send, start_receive and groups.
//
// Large pieces go straight from the rank that has them to the rank that wants them, so no rank
// sends or receives more bytes than it must; small ones are passed on in a number of messages that
// grows with the logarithm of the size. Sums are made in the order of ranks either way, so they
// have the same bits on every transport.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

class MessageCommunicator : public Communicator {
 public:
  // Tags of collectives lie above those of users.
  static constexpr int kTagsNeeded = kLargestTag + 2 + 0xfff;
  ~MessageCommunicator() override;

 protected:
  using Communicator::Communicator;

  // Seconds on a clock that only runs forward.
  [[nodiscard]] virtual double now() const = 0;
  // When a wait that begins now must end: all waits of one collective end together.
  [[nodiscard]] double deadline() const {
    return collective_deadline_ ? *collective_deadline_ : now() + timeout().value;
  }
  [[nodiscard]] bool in_collective() const { return collective_deadline_.has_value(); }

  // Called when this rank begins to communicate for a collective.
  virtual void collective_begun() {}

  // While it lives all waits of this communicator have the same deadline.
  class OneDeadline {
   public:
    explicit OneDeadline(MessageCommunicator& communicator);
    OneDeadline(const OneDeadline&) = delete;
    OneDeadline& operator=(const OneDeadline&) = delete;
    ~OneDeadline() {
      if (outermost_) communicator_.collective_deadline_.reset();
    }

   private:
    MessageCommunicator& communicator_;
    bool outermost_ = false;
  };

  // What all ranks have in `in`, one after another, on messages that no other collective uses.
  void gather(std::span<const std::byte> in, std::span<std::byte> out);
  // Calls `function` with one deadline for all its waits.
  template <class Function>
  auto together(Function function) {
    const OneDeadline one_deadline(*this);
    return function();
  }

  std::vector<Fingerprint> compare(const Fingerprint& own) override;
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

  // Where a part lies in the memory of the process that has it.
  struct RemotePart {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  // Whether this rank can read the memory of `peer`, and that one this rank's.
  [[nodiscard]] virtual bool shares_memory_with(int /*peer*/) const { return false; }
  // Only where it is shared. The parts have the same lengths.
  virtual void read_memory(int peer, std::span<const RemotePart> from,
                           std::span<const std::span<std::byte>> to);

 private:
  // Receives under way, with what is expected of them.
  struct Expected {
    Request request;
    std::int64_t bytes = 0;
    int from = 0;
  };
  struct Reducing;

  // The ranks so many places before and after this one, in a circle. Who sends to `after` while it
  // receives from `before` never crowds one rank.
  [[nodiscard]] int before(int steps) const { return (rank() - steps + size()) % size(); }
  [[nodiscard]] int after(int steps) const { return (rank() + steps) % size(); }

  [[nodiscard]] int tag() const {
    return kLargestTag + 2 + static_cast<int>(current().sequence & 0xfff);
  }
  static constexpr int kCompareTag = kLargestTag + 1;

  // A piece travels in several messages if it is too long for one.
  void post_send(std::vector<Request>& sends, std::span<const std::byte> data, int to, int tag);
  void post_receive(std::vector<Expected>& receives, std::span<std::byte> data, int from, int tag);
  void take(Expected& expected);
  void finish(std::vector<Expected>& receives, std::vector<Request>& sends);
  void exchange(std::span<const std::byte> in, const Pieces& to, std::span<std::byte> out,
                const Pieces& from);
  void list_parts(const Outgoing& to);
  void post_parts(const Outgoing& to, const Incoming& from);
  void read_parts(int peer, const Incoming& from, Request& list);
  void check_stamp(int peer, const RemotePart& expected);
  void gather_small(std::span<const std::byte> in, std::byte* out,
                    std::span<const std::int64_t> offsets, int tag);
  void reduce_parts(const Reducing& reducing);
  std::byte* scratch_of(const Reducing& reducing, std::size_t k, std::size_t s);
  void combine_segment(const Reducing& reducing, std::size_t s);
  void reduce_small(DType type, std::span<std::byte> data, ReduceOp reduction);

  std::optional<double> collective_deadline_;
  // Messages under way when it dies may still use them, so they are kept then.
  std::vector<std::byte> scratch_;
  std::vector<std::byte> small_;
  // Of an exchange of parts; kept from call to call, so that the next one allocates nothing.
  struct Exchange {
    std::vector<Expected> receives;
    std::vector<Request> sends;
    std::vector<Request> lists;           // from the ranks whose memory is read, by rank
    std::vector<RemotePart> own_parts;    // as `to`, and after those of each rank the stamp
    std::vector<RemotePart> their_parts;  // as `from`, likewise
    std::vector<std::byte> signals;
    // One number, which says that the parts are still there: whoever reads them looks at it
    // afterwards.
    std::vector<std::uint64_t> stamp{0};
    void clear();
  };
  Exchange exchange_;
};

}  // namespace shiplap::comm
