// One order in which all operations can happen, if there is one: whoever can start, starts.
//
// Matching is fixed, so what one rank does never keeps another from going on: if this order gets
// stuck, every order does.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "shiplap/check/job_internal.h"
#include "shiplap/check/values_internal.h"

namespace shiplap::check {

inline constexpr std::int64_t kAllEager = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kAllRendezvous = -1;

// Which communication of a rank is done in the order in which it is listed, whatever streams it is
// on: none; that of each communicator, as NCCL does; all of it, which is what NCCL promises.
enum class Queues : std::uint8_t { none, communicators, one };

// The communication of one rank, each operation with those before it.
class Queue {
 public:
  Queue(const Job& job, const Script& script, Queues queues);
  [[nodiscard]] std::span<const std::int32_t> before(std::int32_t op) const {
    const auto first = static_cast<std::size_t>(first_[op]);
    const auto last = static_cast<std::size_t>(first_[static_cast<std::size_t>(op) + 1]);
    return std::span(before_).subspan(first, last - first);
  }

 private:
  std::vector<std::int32_t> first_;  // by operation, in before_
  std::vector<std::int32_t> before_;
};

class Execution {
 public:
  // Sends of up to so many bytes are eager. `values` may be null.
  Execution(const Job& job, std::int64_t eager_up_to, Values* values, Queues queues = Queues::none);
  // Whether everything was done.
  bool run();
  // To be called before run(): what messages carried is kept.
  void keep_messages() { keep_ = true; }
  [[nodiscard]] const Pieces& carried(const MessageKey& key, std::size_t n) const {
    return posts_[static_cast<std::size_t>(key.first) + n].data;
  }

  // One operation that another waits for.
  struct Wait {
    Place waiting;
    Place awaited;
    friend bool operator==(const Wait&, const Wait&) = default;
  };
  // Operations in which ranks wait for each other, each for the next, the last for the first.
  // Promises that run() returned false.
  [[nodiscard]] std::vector<Wait> circle() const;
  // In what each stuck rank waits.
  [[nodiscard]] std::vector<Place> stuck() const;

 private:
  enum class State : std::uint8_t { waiting, started, complete };
  struct Post {
    Pieces data;
    bool sent = false;
    bool awaited = false;
  };
  struct Node {
    std::int32_t script = -1;
    std::int32_t op = -1;
    friend auto operator<=>(const Node&, const Node&) = default;
  };

  [[nodiscard]] State state(Node node) const { return states_[node.script][node.op]; }
  void set(Node node, State state) { states_[node.script][node.op] = state; }
  [[nodiscard]] const Op& op(Node node) const { return job_.scripts[node.script][node.op]; }
  // What must be complete before it, in the queues that it is in.
  [[nodiscard]] std::span<const std::int32_t> queued_before(Node node) const {
    if (queues_.empty()) return {};
    return queues_[node.script].before(node.op);
  }
  void wake(std::int32_t script);
  void poll(std::int32_t script);
  [[nodiscard]] bool can_start(Node node) const;
  void start(Node node);
  void start_batch(Node node);
  void start_send(Node node);
  void start_receive(Node node);
  void start_call(Node node);
  void complete(Node node);
  [[nodiscard]] Node sender(const Op& receive) const;
  [[nodiscard]] Node receiver(const Op& send) const;
  [[nodiscard]] std::int64_t message(const Op& op) const {
    return job_.keys[op.group].first + op.n;
  }
  // What must happen before it can start or be complete.
  [[nodiscard]] std::vector<Node> needs(Node node) const;
  // Shorter than `longest`, or nothing.
  [[nodiscard]] std::vector<Node> shortest_circle(Node through, std::size_t longest,
                                                  std::int64_t& budget) const;
  [[nodiscard]] Place place(Node node) const { return {job_.scripts[node.script].rank, node.op}; }

  const Job& job_;
  std::int64_t eager_up_to_;
  Values* values_;
  std::vector<std::vector<State>> states_;          // by script and operation
  std::vector<std::vector<std::int32_t>> next_;     // by script and stream: what starts next
  std::vector<std::vector<std::int32_t>> members_;  // by script and batch: members to complete
  std::vector<Queue> queues_;                       // by script, if there are any
  std::vector<Post> posts_;                         // by message
  std::vector<std::int32_t> arrived_;               // by meeting
  std::vector<bool> awake_;
  std::vector<std::int32_t> ready_;
  std::int64_t left_ = 0;
  bool keep_ = false;
};

}  // namespace shiplap::check
