// One rank's view of training: what it holds, what it computes, whom it talks to. A strategy is a
// coroutine that uses one of these, the same for all ranks:
//
//   Task ddp(Model& model) {
//     auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
//     ..
//     grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
//   }
//
// Every call says what it needs, and what is not so is an InputError with the rank and the call:
// D613 a value that is not in storage, D614 one of another layer, step or samples, D612 one that is
// not complete, D615 a gradient that misses samples, D620 a value that a communication under way
// still uses, D621 a rank or axis that is not there.
#pragma once

#include <coroutine>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/engine/task.h"
#include "shiplap/strategy/dist.h"
#include "shiplap/strategy/recorder.h"
#include "shiplap/strategy/storage.h"
#include "shiplap/trace/event.h"

namespace shiplap::strategy {

using engine::Task;
using trace::Event;

// With whom: the axes of the mesh along which the group runs ("dp"; "" is all ranks).
struct Over {
  std::string_view axes;
  std::string_view stream = "net";  // of what is started: those on one stream follow each other
};

// Which of the messages between two ranks: those with one tag on one channel meet in their order. A
// channel is a communicator of its own; NCCL has no tags.
struct Tagged {
  int tag = 0;
  std::string_view channel;  // "" is `main`
};

class Model;

// `co_await model.all_reduce(..)`: the result, when it is there. It cannot be kept for later, when
// what was true of the call may no longer be: for that there is Pending.
template <class T>
class [[nodiscard]] Arrival {
 public:
  struct Await {
    Arrival& arrival;
    static bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> caller);
    T await_resume();
  };
  Await operator co_await() && { return Await{*this}; }

 private:
  friend class Model;
  explicit Arrival(Model& model) : model_(model) {}
  Model& model_;
  Flight flight_;
};

// A communication under way: `auto sum = model.start_all_reduce(..)`, and later `co_await sum`.
template <class T>
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  Pending(Pending&& other) noexcept
      : model_(other.model_), flight_(std::exchange(other.flight_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept {
    model_ = other.model_;
    flight_ = std::exchange(other.flight_, nullptr);
    return *this;
  }
  Pending(const Pending&) = delete;  // it is waited for once
  Pending& operator=(const Pending&) = delete;
  ~Pending() = default;
  [[nodiscard]] bool under_way() const { return flight_ != nullptr; }

  struct Await {
    Pending& pending;
    [[nodiscard]] bool await_ready() const;
    void await_suspend(std::coroutine_handle<> caller);
    T await_resume();
  };
  Await operator co_await() { return Await{*this}; }

 private:
  friend class Model;
  Pending(Model& model, Flight& flight) : model_(&model), flight_(&flight) {}
  Model* model_ = nullptr;
  Flight* flight_ = nullptr;  // the model has it
};

// How much there is to train.
struct Training {
  int layers = 2;
  int batch = 1;         // samples of all ranks together
  int microbatches = 1;  // pieces into which a rank cuts its samples, for those who cut them
  int chunks = 1;        // groups of layers on each rank of an interleaved pipeline
};

class Model final : private Bookkeeper {
 public:
  explicit Model(int rank = 0);  // alone in a world of its own
  Model(int rank, Dist& dist, int num_layers = 2, int global_batch_size = 1)
      : Model(rank, dist, Training{.layers = num_layers, .batch = global_batch_size}) {}
  Model(int rank, Dist& dist, const Training& training);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model();

  // ---- who and where

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return dist_.size(); }
  [[nodiscard]] int position(std::string_view axis) const;
  [[nodiscard]] int size(std::string_view axis) const;
  // The rank that differs from this one only in standing at `position` of the axis.
  [[nodiscard]] int peer(std::string_view axis, int position) const;
  [[nodiscard]] int layers() const { return training_.layers; }
  [[nodiscard]] int batch() const { return training_.batch; }
  [[nodiscard]] int microbatches() const { return training_.microbatches; }
  [[nodiscard]] int chunks() const { return training_.chunks; }
  // The samples of part `part`, if the batch is cut into `parts` equal ones. Throws InputError D622
  // if it cannot be.
  [[nodiscard]] IndexSet samples(int part, int parts) const;
  [[nodiscard]] const Training& training() const { return training_; }
  [[nodiscard]] Dist& dist() { return dist_; }

  // ---- what it holds

  [[nodiscard]] Storage& storage() { return storage_; }
  [[nodiscard]] Bytes memory() const { return memory_; }
  [[nodiscard]] std::string status() const;
  // What it has done, in its order, and when it has done all that it has waited for: from
  // Dist::timeline(), so of all ranks together: asking in the middle of a step replays what all
  // ranks did so far. The log is valid until a rank does something more.
  [[nodiscard]] const std::vector<Event>& log() const;
  [[nodiscard]] Seconds time() const;
  // By layer.
  [[nodiscard]] const std::map<int, Weight>& final_weights() const { return final_weights_; }
  [[nodiscard]] const Recorder& recorder() const { return recorder_; }
  [[nodiscard]] Recording recording() const { return recorder_.recording(); }
  // The same, with the results of communications that are complete and not yet waited for.
  [[nodiscard]] Recording recording_so_far() const;

  // Something that took time and has no value: "forward" of these samples costs what forward costs.
  struct What {
    int layer = -1;
    IndexSet samples;
    int shards_on_device = 1;
    int num_shards = 1;
  };
  void log_event(trace::Kind kind, const What& what);

  // ---- what it computes

  std::pair<Weight, OptState> load_weights(int layer, int shard = 0, int num_shards = 1);
  void set_final_weight(int layer, const Weight& weight);
  Activation get_input_activation(const IndexSet& samples);
  Activation get_input_activation(std::initializer_list<std::int32_t> samples);
  Activation forward(int layer, const Activation& input, const Weight& weight);
  ActivationGrad loss(const Activation& input);
  std::pair<WeightGrad, ActivationGrad> backward(int layer, const Activation& input,
                                                 const ActivationGrad& grad, const Weight& weight);
  // Its two halves, for those who put other things between them.
  ActivationGrad backward_input(int layer, const Activation& input, const ActivationGrad& grad,
                                const Weight& weight);
  WeightGrad backward_weight(int layer, const Activation& input, const ActivationGrad& grad,
                             const Weight& weight);
  std::pair<Weight, OptState> update(int layer, const WeightGrad& grad, const Weight& weight,
                                     const OptState& opt_state);

  // ---- whom it talks to. `layer` is that of the value.

  template <workload::Reduceable T>
  Arrival<T> all_reduce(const Slot<T>& value, int layer, const Over& over = {}) {
    return arrival<T>(ask(trace::Kind::all_reduce, value.value(), layer, over, ""));
  }
  template <workload::Gatherable T>
  Arrival<T> all_gather(const Slot<T>& value, int layer, const Over& over = {}) {
    return arrival<T>(ask(trace::Kind::all_gather, value.value(), layer, over, ""));
  }
  template <workload::ReduceableGatherable T>
  Arrival<T> reduce_scatter(const Slot<T>& value, int layer, const Over& over = {}) {
    return arrival<T>(ask(trace::Kind::reduce_scatter, value.value(), layer, over, ""));
  }
  template <class T>
  Arrival<T> send(int dest, const Slot<T>& value, Tagged tagged = {}) {
    return arrival<T>(message(trace::Kind::send, dest, value.value(), tagged));
  }
  template <class T>
  Arrival<T> receive(int source, Tagged tagged = {}) {
    return arrival<T>(message(trace::Kind::recv, source, T{}, tagged));
  }

  // ---- the same, started now and waited for later

  template <workload::Reduceable T>
  Pending<T> start_all_reduce(const Slot<T>& value, int layer, const Over& over = {}) {
    return pending<T>(ask(trace::Kind::all_reduce, value.value(), layer, over, over.stream), over);
  }
  template <workload::Gatherable T>
  Pending<T> start_all_gather(const Slot<T>& value, int layer, const Over& over = {}) {
    return pending<T>(ask(trace::Kind::all_gather, value.value(), layer, over, over.stream), over);
  }
  template <workload::ReduceableGatherable T>
  Pending<T> start_reduce_scatter(const Slot<T>& value, int layer, const Over& over = {}) {
    return pending<T>(ask(trace::Kind::reduce_scatter, value.value(), layer, over, over.stream),
                      over);
  }
  template <class T>
  Pending<T> start_send(int dest, const Slot<T>& value, Tagged tagged = {}) {
    return pending<T>(message(trace::Kind::send, dest, value.value(), tagged), {});
  }
  template <class T>
  Pending<T> start_receive(int source, Tagged tagged = {}) {
    return pending<T>(message(trace::Kind::recv, source, T{}, tagged), {});
  }

  // ---- the same, for whoever knows the kind of a value only when it runs, such as another
  // language; there is also receive<AnyValue>. `kind` is all_reduce, all_gather or reduce_scatter.
  // What the types above do not allow is refused as D614: a weight is no sum.

  Arrival<AnyValue> collective(trace::Kind kind, const AnyValue& value, int layer,
                               const Over& over = {}) {
    return arrival<AnyValue>(ask_any(kind, value, layer, over, ""));
  }
  Pending<AnyValue> start_collective(trace::Kind kind, const AnyValue& value, int layer,
                                     const Over& over = {}) {
    return pending<AnyValue>(ask_any(kind, value, layer, over, over.stream), over);
  }
  Arrival<AnyValue> send_any(int dest, const AnyValue& value, Tagged tagged = {}) {
    return arrival<AnyValue>(message(trace::Kind::send, dest, value, tagged));
  }
  Pending<AnyValue> start_send_any(int dest, const AnyValue& value, Tagged tagged = {}) {
    return pending<AnyValue>(message(trace::Kind::send, dest, value, tagged), {});
  }

  // Whether something is under way, or it sleeps on something.
  [[nodiscard]] bool is_between_waits() const {
    return waiting_for_ != nullptr || !under_way_.empty();
  }
  // What it sleeps on, if it does; on a stream, the first that is not complete.
  [[nodiscard]] const Flight* waiting_for() const;
  // What was started and never waited for, if anything.
  [[nodiscard]] const Flight* unwaited() const {
    return under_way_.empty() ? nullptr : under_way_.front().get();
  }
  // "forward(layer 3)": the last call, for people.
  [[nodiscard]] std::string last_call() const;
  // The names of the streams, `main` first.
  [[nodiscard]] const std::vector<std::string>& streams() const { return stream_names_; }

 private:
  template <class T>
  friend class Arrival;
  template <class T>
  friend class Pending;

  // What is known of a value that this rank made or received.
  struct Known {
    std::int16_t places = 0;   // where it is stored
    std::int16_t readers = 0;  // communications under way that read it
    bool held = false;         // one of them also writes it
    bool gone = false;
    ValueNumber source = -1;  // the value in whose place the result may stand
    Bytes bytes;
  };

  // Bookkeeper
  void store(Weight& value, const Weight* before) override;
  void store(OptState& value, const OptState* before) override;
  void store(Activation& value, const Activation* before) override;
  void store(ActivationGrad& value, const ActivationGrad* before) override;
  void store(WeightGrad& value, const WeightGrad* before) override;
  void drop(const workload::Trail& trail, Bytes bytes) override;
  [[nodiscard]] const workload::ModelShape& shape() const override { return dist_.world().shape; }
  [[noreturn]] void nothing_there(Key key) const override;
  template <class T>
  void store_value(T& value, const T* before);
  struct Placed {
    ValueNumber number = -1;
    bool in_place = false;  // of what lay there
  };
  template <class T>
  Placed place_fresh(T& value, ValueNumber before);
  template <class T>
  Placed place_derived(T& value, ValueNumber before);

  // ---- calls
  void begin_call(std::string_view call, int layer);
  void begin_call(trace::Kind kind, int layer) { begin_call(name(kind), layer); }
  // Of so many samples with so many shards of a weight.
  struct Extent {
    std::int64_t samples = 0;
    std::int64_t held = 0;
    std::int64_t of = 0;
  };
  struct Operands {
    std::array<ValueNumber, 3> reads{-1, -1, -1};
    std::array<ValueNumber, 2> writes{-1, -1};
  };
  void compute(trace::Kind kind, const Extent& extent, const Operands& operands);
  // Texts are made only for those who need them: most values are in order.
  template <class T>
  void require_stored(const workload::Trail& trail, const T& value) const {
    const bool ours = trail.how == workload::Trail::How::made && trail.first >= 0 &&
                      static_cast<std::size_t>(trail.first) < known_.size();
    const bool stored = ours && known_[trail.first].places > 0;
    if (!stored) refuse_loose(describe(value));
    if (known_[trail.first].held) refuse_held(describe(value));
  }
  [[noreturn]] void refuse_loose(const std::string& what) const;
  [[noreturn]] void refuse_held(const std::string& what) const;
  [[noreturn]] void refuse_read(const std::string& what) const;
  template <class T>
  void require(const T& value, bool fits, const char* expected);
  template <class T>
  void require_whole(const T& value, bool complete, const char* what);
  void require_layer(int layer) const;
  [[noreturn]] void refuse(const char* code, std::string what, std::string why,
                           std::string help) const;
  // The same, of what is done to storage between two calls.
  [[noreturn]] void refuse_between(const char* code, std::string what, std::string why,
                                   std::string help) const;
  // A result of the last call: it has to be stored before the next.
  template <class T>
  void make(T& value, ValueNumber source) {
    value.trail = {.how = workload::Trail::How::made,
                   .first = static_cast<ValueNumber>(known_.size())};
    known_.push_back({.source = source, .bytes = value.memory(shape())});
    recorder_.add(value);
    loose_.push_back(value.trail.first);
  }
  void check_backward(int layer, const Activation& input, const ActivationGrad& grad,
                      const Weight& weight);
  ActivationGrad input_grad(const Activation& input, const Weight& weight) const;
  WeightGrad weight_grad(const Activation& input, const Weight& weight) const;

  // ---- communication
  template <class T>
  Arrival<T> arrival(Flight&& flight) {
    Arrival<T> result(*this);
    result.flight_ = std::move(flight);
    return result;
  }
  template <class T>
  Pending<T> pending(Flight&& flight, const Over& over) {
    Flight& own = keep(std::move(flight));
    start(own, over);
    return Pending<T>(*this, own);
  }
  Flight ask(trace::Kind kind, const AnyValue& value, int layer, const Over& over,
             std::string_view channel);
  Flight ask_any(trace::Kind kind, const AnyValue& value, int layer, const Over& over,
                 std::string_view channel);
  Flight message(trace::Kind kind, int peer, const AnyValue& value, Tagged tagged);
  // Enters it into the record, on a stream.
  void issue(Flight& flight, std::int32_t stream, bool async);
  void start(Flight& flight, const Over& over);
  // Nobody need wait for it, so it lives here.
  Flight& keep(Flight&& flight);
  void forget(const Flight& flight);
  void await(Flight& flight, std::coroutine_handle<> caller);
  template <class T>
  T take(Flight& flight);
  void taken(Flight& flight);
  std::int32_t stream_called(std::string_view name);
  void release_loose();
  std::int32_t record(const Step& step);

  std::unique_ptr<Dist> own_dist_;
  Dist& dist_;
  int rank_;
  Training training_;
  Storage storage_;
  Bytes memory_;
  std::pmr::vector<Known> known_{&dist_.arena()};
  std::pmr::vector<ValueNumber> loose_{
      &dist_.arena()};                 // made by the last call, and not stored yet
  std::vector<std::int32_t> numbers_;  // collectives so far, by kind of group
  std::vector<std::unique_ptr<Flight>> under_way_;
  std::vector<Flight*> streams_{nullptr};  // the last on each that is not taken
  std::vector<std::string> stream_names_{"main"};
  std::map<int, Weight> final_weights_;
  std::string_view call_ = "Model";
  int call_layer_ = -1;
  const Flight* waiting_for_ = nullptr;
  Recorder recorder_{dist_.tapes()};
};

template <>
AnyValue Model::take(Flight& flight);

template <class T>
void Arrival<T>::Await::await_suspend(std::coroutine_handle<> caller) {
  Model& model = arrival.model_;
  model.issue(arrival.flight_, 0, false);
  model.await(arrival.flight_, caller);
  model.dist_.start(arrival.flight_);
}

template <class T>
T Arrival<T>::Await::await_resume() {
  return arrival.model_.template take<T>(arrival.flight_);
}

template <class T>
bool Pending<T>::Await::await_ready() const {
  if (pending.flight_ == nullptr) {
    throw InputError(Diagnostic{.code = "D623",
                                .what = "nothing is under way here",
                                .why = "a communication is started once and waited for once",
                                .help = "start it again before you wait again"});
  }
  return pending.flight_->complete;
}

template <class T>
void Pending<T>::Await::await_suspend(std::coroutine_handle<> caller) {
  pending.model_->await(*pending.flight_, caller);
}

template <class T>
T Pending<T>::Await::await_resume() {
  T result = pending.model_->template take<T>(*pending.flight_);
  pending.model_->forget(*std::exchange(pending.flight_, nullptr));
  return result;
}

}  // namespace shiplap::strategy
