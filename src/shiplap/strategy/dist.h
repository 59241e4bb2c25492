// The world that ranks share: the mesh, its groups, and the matching of communication.
//
// Collectives match by their sequence number on a group, messages by sender, receiver, channel and
// tag, in FIFO order; so the result does not depend on which rank runs first. Only values are
// exchanged here. There is no clock: times come from a sim::replay of the recording
// (Dist::timeline).
#pragma once

#include <compare>
#include <coroutine>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/cost/runtime_predictor.h"
#include "shiplap/engine/scheduler.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/strategy/pending_op.h"
#include "shiplap/strategy/recorder.h"
#include "shiplap/trace/trace.h"
#include "shiplap/workload/shape.h"

namespace shiplap::strategy {

// Releases its ranks when `target` of them have arrived. Reusable.
class Barrier {
 public:
  Barrier(engine::Scheduler& scheduler, int target) : scheduler_(scheduler), target_(target) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  ~Barrier() = default;

  struct [[nodiscard]] Await : engine::Waiter {
    Barrier& barrier;
    int rank;
    Await(Barrier& b, int r) : barrier(b), rank(r) {}
    static bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> caller) {
      handle = caller;
      barrier.arrive(*this);
    }
    static void await_resume() {}
  };
  // `rank` is for reports only.
  Await wait(int rank) { return {*this, rank}; }
  // Releases all waiting ranks.
  void reset();
  [[nodiscard]] const std::vector<int>& waiting() const { return ranks_; }

 private:
  void arrive(Await& await);
  engine::Scheduler& scheduler_;
  int target_;
  std::vector<int> ranks_;
  engine::Waiter* first_ = nullptr;
  engine::Waiter* last_ = nullptr;
};

// The ranks and their hardware.
struct World {
  std::vector<plan::Axis> mesh{{.name = "dp", .size = 1}};
  hardware::System system = hardware::find_system("h100_80g_nvl8");
  workload::ModelShape shape;
  Bytes eager_limit{0};       // sends up to this size complete without a matching receive
  ProgressCallback progress;  // of recording, lowering and replay
};

class Model;

// The recording of all ranks so far, in virtual time.
struct Timeline {
  trace::Trace trace;          // the completed calls of every rank, in program order
  Seconds end;                 // of all ranks
  std::vector<Seconds> clock;  // by rank: end of its last call, including awaited communication
};

class Dist {
 public:
  // Throws InputError D622 if the mesh is invalid.
  explicit Dist(World world);
  explicit Dist(int world_size) : Dist(World{.mesh = {{.name = "dp", .size = world_size}}}) {}
  Dist(const Dist&) = delete;
  Dist& operator=(const Dist&) = delete;
  ~Dist();

  [[nodiscard]] int size() const { return static_cast<int>(ranks_); }
  [[nodiscard]] const World& world() const { return world_; }
  [[nodiscard]] const plan::Mesh& mesh() const { return mesh_; }
  [[nodiscard]] const cost::RuntimePredictor& predictor() const { return predictor_; }
  [[nodiscard]] engine::Scheduler& scheduler() { return scheduler_; }

  // Replays the recordings of all models. Cached until one of them records another step.
  [[nodiscard]] const Timeline& timeline() const;
  // For models: registration, and a new recorded step.
  void attach(const Model& model);
  void detach(const Model& model);
  void invalidate_timeline() { timeline_.reset(); }
  [[nodiscard]] Tapes& tapes() { return tapes_; }
  // By rank; may be null.
  [[nodiscard]] const std::vector<const Model*>& models() const { return models_; }

  // Memory for objects that live as long as the world.
  [[nodiscard]] std::pmr::memory_resource& arena() { return *arena_; }

  // A computation on `samples`, with `held` of `of` shards of the weight of a layer.
  struct Extent {
    std::int64_t samples = 0;
    std::int64_t held = 0;
    std::int64_t of = 0;
    std::int32_t layer = 0;
    friend auto operator<=>(const Extent&, const Extent&) = default;
  };
  // The work, in the last part of a layer of parts, and the number of those before it.
  struct Work {
    cost::ComputeWork last;
    std::int32_t parts = -1;
  };
  [[nodiscard]] Work work(trace::EventKind kind, const Extent& extent);
  // Empty for -1.
  [[nodiscard]] const std::vector<cost::PartCost>& parts(std::int32_t number) const;

  // ---- communication without a Model: `co_await dist.all_reduce(rank, gradient)` returns the sum.
  // Throws InputError D621 for an unknown rank, D616 if a message has another type than its
  // receive. Errors of collectives are in problem().
  template <workload::Reduceable T>
  [[nodiscard]] auto all_reduce(int rank, const T& in) {
    return collective<T>(trace::EventKind::all_reduce, rank, in);
  }
  template <workload::Gatherable T>
  [[nodiscard]] auto all_gather(int rank, const T& in) {
    return collective<T>(trace::EventKind::all_gather, rank, in);
  }
  template <workload::ReduceableGatherable T>
  [[nodiscard]] auto reduce_scatter(int rank, const T& in) {
    return collective<T>(trace::EventKind::reduce_scatter, rank, in);
  }
  template <class T>
  [[nodiscard]] auto send(int source, int dest, const T& value) {
    Await<T> await(*this, trace::EventKind::send, source);
    await.op.peer = checked_rank(dest);
    await.op.in = value;
    return await;
  }
  template <class T>
  [[nodiscard]] auto receive(int source, int dest) {
    Await<T> await(*this, trace::EventKind::recv, dest);
    await.op.peer = checked_rank(source);
    return await;
  }

  // ---- internals, used by Model

  // Returns the id of the groups along some axes ("dp", "dp tp"; "" is all) on a channel. The order
  // of the names does not matter. Throws InputError D621 if there is no such axis.
  std::int32_t group(std::string_view axes, std::string_view channel);
  [[nodiscard]] std::int64_t group_size(std::int32_t group) const;
  [[nodiscard]] std::int64_t group_position(std::int32_t group, int rank) const;
  [[nodiscard]] const std::vector<plan::AxisId>& group_axes(std::int32_t group) const;
  [[nodiscard]] const std::string& group_channel(std::int32_t group) const;
  [[nodiscard]] std::string group_name(std::int32_t group) const;
  // Returns the id of a channel for messages.
  std::int32_t channel(std::string_view name);
  [[nodiscard]] const std::string& channel_name(std::int32_t channel) const;

  // Wakes the rank when `op` is complete, if it is awaited.
  void start(PendingOp& op);

  // The first error. After it no rank is woken.
  [[nodiscard]] const std::optional<Diagnostic>& problem() const { return problem_; }
  // The ranks that an incomplete op waits for.
  [[nodiscard]] std::vector<int> missing_ranks(const PendingOp& op) const;

 private:
  [[nodiscard]] Work work_of_parts(cost::RuntimePredictor::Pass pass, const Extent& extent);
  struct Group;
  struct PendingCollective;
  // A send without a receive yet. An eager send is complete and leaves a copy (unexpected message).
  struct QueuedSend {
    PendingOp* op = nullptr;
    std::unique_ptr<PendingOp> copy;
  };
  struct Mailbox {
    std::vector<QueuedSend> sends;
    std::vector<PendingOp*> receives;
  };

  template <class T>
  struct [[nodiscard]] Await {
    Dist& dist;
    PendingOp op;
    Await(Dist& d, trace::EventKind kind, int rank) : dist(d) {
      op.kind = kind;
      op.rank = d.checked_rank(rank);
    }
    static bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> caller) {
      op.handle = caller;
      op.awaited = true;
      dist.start(op);
    }
    T await_resume() const {
      const T* const value = std::get_if<T>(op.kind == trace::EventKind::send ? &op.in : &op.out);
      if (value == nullptr) throw_type_mismatch(op);
      return *value;
    }
  };
  template <class T>
  Await<T> collective(trace::EventKind kind, int rank, const T& in) {
    Await<T> await(*this, kind, rank);
    await.op.group = group("", "rank");  // models count sequence numbers on other channels
    await.op.seq = next_seq(rank);
    await.op.in = in;
    return await;
  }
  std::int32_t next_seq(int rank);
  [[nodiscard]] std::int32_t checked_rank(int rank) const;
  [[noreturn]] static void throw_type_mismatch(const PendingOp& received);
  [[nodiscard]] std::vector<plan::AxisId> parse_axes(std::string_view axes) const;
  void join(PendingOp& op);
  void post(PendingOp& op);
  void send(PendingOp& op, Mailbox& box);
  void receive(PendingOp& op, Mailbox& box);
  void match(PendingOp& send, PendingOp& receive);
  [[nodiscard]] bool is_eager(const PendingOp& send) const {
    return memory(send.in, world_.shape) <= world_.eager_limit;
  }
  void complete_and_wake(PendingOp& op);
  void finish(Group& group, std::size_t instance, PendingCollective& collective);
  static void combine(const PendingCollective& collective);
  // Marks `op` complete and lets its successor on the stream start.
  void on_complete(PendingOp& op);
  void report(Diagnostic diagnostic);

  std::unique_ptr<std::pmr::memory_resource> arena_;
  World world_;
  plan::Mesh mesh_;
  std::int64_t ranks_;
  cost::RuntimePredictor predictor_;
  std::map<std::pair<cost::RuntimePredictor::Pass, Extent>, Work> known_parts_;
  std::vector<std::vector<cost::PartCost>> parts_;  // by their number
  engine::Scheduler scheduler_;
  Tapes tapes_;
  std::vector<const Model*> models_;  // by rank
  mutable std::optional<Timeline> timeline_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::string> channels_{""};  // of messages
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>, Mailbox> mailboxes_;
  std::vector<PendingOp*> to_start_;
  bool starting_ = false;
  std::vector<std::int32_t> next_seq_;  // by rank, of communication without a Model
  std::optional<Diagnostic> problem_;
};

}  // namespace shiplap::strategy
