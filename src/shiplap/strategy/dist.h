// The world that ranks share: who they are and how they meet.
//
// Collectives meet by their number on a group, messages by sender, receiver and tag, in order; so
// the result does not depend on who runs first. Values pass, and nothing has a clock: when
// everything happens is what sim::replay says of the record (Dist::timeline).
#pragma once

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
#include "shiplap/cost/price.h"
#include "shiplap/cost/runtime_predictor.h"
#include "shiplap/engine/scheduler.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/strategy/flight.h"
#include "shiplap/strategy/recorder.h"
#include "shiplap/trace/trace.h"
#include "shiplap/workload/shape.h"

namespace shiplap::strategy {

// All that arrive at a barrier of `target` ranks go on together. It can be used again at once.
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
  // `rank` says who comes, for reports.
  Await wait(int rank) { return {*this, rank}; }
  // Whoever waits now waits no longer: they go on.
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

// What the ranks and their machine are.
struct World {
  std::vector<plan::Axis> mesh{{.name = "dp", .size = 1}};
  hardware::System system = hardware::find_system("h100_80g_nvl8");
  workload::ModelShape shape;
  Bytes eager_up_to{0};  // messages up to this size are sent whether or not they are waited for
  ProgressCallback progress;  // of a run, of its plan and of its replay
};

class Model;

// What the ranks have done so far, in virtual time.
struct Timeline {
  trace::Trace trace;          // of every rank the calls that are complete, in its order
  Seconds end;                 // of everything
  std::vector<Seconds> clock;  // by rank: when it has done, and waited for, all that it did
};

class Dist {
 public:
  // Throws InputError D622 for a mesh that is none.
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

  // The replay of what its models have recorded. It is kept until one of them does something more.
  [[nodiscard]] const Timeline& timeline() const;
  // Models say that they are there, and that they have done something.
  void enter(const Model& model);
  void leave(const Model& model);
  void changed() { timeline_.reset(); }
  [[nodiscard]] Tapes& tapes() { return tapes_; }
  // By rank; null: none.
  [[nodiscard]] const std::vector<const Model*>& models() const { return models_; }

  // Where ranks put what lives as long as the world does.
  [[nodiscard]] std::pmr::memory_resource& arena() { return *arena_; }

  // A computation on so many samples with so many shards of a weight.
  [[nodiscard]] cost::ComputeWork work(trace::Kind kind, std::int64_t samples, std::int64_t held,
                                       std::int64_t of) const;

  // ---- as a rank: `co_await dist.all_reduce(rank, gradient)` gives the sum. Throws InputError
  // D621 for a rank that is not there, D616 where something else is sent than is received. What is
  // wrong with a collective, problem() says.
  template <workload::Reduceable T>
  [[nodiscard]] auto all_reduce(int rank, const T& in) {
    return meet<T>(trace::Kind::all_reduce, rank, in);
  }
  template <workload::Gatherable T>
  [[nodiscard]] auto all_gather(int rank, const T& in) {
    return meet<T>(trace::Kind::all_gather, rank, in);
  }
  template <workload::ReduceableGatherable T>
  [[nodiscard]] auto reduce_scatter(int rank, const T& in) {
    return meet<T>(trace::Kind::reduce_scatter, rank, in);
  }
  template <class T>
  [[nodiscard]] auto send(int source, int dest, const T& value) {
    Await<T> await(*this, trace::Kind::send, source);
    await.flight.peer = present(dest);
    await.flight.in = value;
    return await;
  }
  template <class T>
  [[nodiscard]] auto receive(int source, int dest) {
    Await<T> await(*this, trace::Kind::recv, dest);
    await.flight.peer = present(source);
    return await;
  }

  // ---- underneath

  // The kind of group that runs along some axes ("dp", "dp tp"; "" is all) on a channel. In
  // whatever order they are named, the same axes are the same group. Throws InputError D621 if
  // there is no such axis.
  std::int32_t group(std::string_view axes, std::string_view channel);
  [[nodiscard]] std::int64_t group_size(std::int32_t group) const;
  [[nodiscard]] std::int64_t group_position(std::int32_t group, int rank) const;
  [[nodiscard]] const std::vector<plan::AxisId>& group_axes(std::int32_t group) const;
  [[nodiscard]] const std::string& group_channel(std::int32_t group) const;
  [[nodiscard]] std::string group_name(std::int32_t group) const;
  // The number of a channel for messages.
  std::int32_t channel(std::string_view name);
  [[nodiscard]] const std::string& channel_name(std::int32_t channel) const;

  // Wakes the rank when it is complete, if it is awaited.
  void start(Flight& flight);

  // What is wrong, once something is: then nobody is woken any more.
  [[nodiscard]] const std::optional<Diagnostic>& problem() const { return problem_; }
  // Whom a flight that has not landed waits for.
  [[nodiscard]] std::vector<int> missing_ranks(const Flight& flight) const;

 private:
  struct Group;
  struct Meeting;
  // A send that is waited for, or one that was eager and left a copy of itself.
  struct Letter {
    Flight* flight = nullptr;
    std::unique_ptr<Flight> copy;
  };
  struct Mailbox {
    std::vector<Letter> sends;
    std::vector<Flight*> receives;
  };

  template <class T>
  struct [[nodiscard]] Await {
    Dist& dist;
    Flight flight;
    Await(Dist& d, trace::Kind kind, int rank) : dist(d) {
      flight.kind = kind;
      flight.rank = d.present(rank);
    }
    static bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> caller) {
      flight.handle = caller;
      flight.awaited = true;
      dist.start(flight);
    }
    T await_resume() const {
      const T* const value =
          std::get_if<T>(flight.kind == trace::Kind::send ? &flight.in : &flight.out);
      if (value == nullptr) refuse_other(flight);
      return *value;
    }
  };
  template <class T>
  Await<T> meet(trace::Kind kind, int rank, const T& in) {
    Await<T> await(*this, kind, rank);
    await.flight.group = group("", "rank");  // not where models meet, which count on their own
    await.flight.number = next_number(rank);
    await.flight.in = in;
    return await;
  }
  std::int32_t next_number(int rank);
  [[nodiscard]] std::int32_t present(int rank) const;
  [[noreturn]] static void refuse_other(const Flight& received);
  [[nodiscard]] std::vector<plan::AxisId> axes_called(std::string_view axes) const;
  void join(Flight& flight);
  void post(Flight& flight);
  void send(Flight& flight, Mailbox& box);
  void receive(Flight& flight, Mailbox& box);
  void settle(Flight& send, Flight& receive);
  [[nodiscard]] bool is_eager(const Flight& send) const {
    return memory(send.in, world_.shape) <= world_.eager_up_to;
  }
  void arrive(Flight& flight);
  void finish(Group& group, std::size_t instance, Meeting& meeting);
  static void combine(const Meeting& meeting);
  // Complete: what waited behind it may start.
  void land(Flight& flight);
  void report(Diagnostic diagnostic);

  std::unique_ptr<std::pmr::memory_resource> arena_;
  World world_;
  plan::Mesh mesh_;
  std::int64_t ranks_;
  cost::RuntimePredictor predictor_;
  engine::Scheduler scheduler_;
  Tapes tapes_;
  std::vector<const Model*> models_;  // by rank
  mutable std::optional<Timeline> timeline_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::string> channels_{""};  // of messages
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>, Mailbox> mailboxes_;
  std::vector<Flight*> to_start_;
  bool starting_ = false;
  std::vector<std::int32_t> numbers_;  // by rank, of those who ask as a rank
  std::optional<Diagnostic> problem_;
};

}  // namespace shiplap::strategy
