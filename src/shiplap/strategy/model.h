// One rank's view of training: its storage, its computations, its communication. A strategy is a
// coroutine that uses a Model, the same for all ranks (SPMD):
//
//   Task ddp(Model& model) {
//     auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
//     ..
//     grad_weights[l] = co_await model.all_reduce(grad_weights[l], l);
//   }
//
// Every call checks its operands and throws InputError with the rank and the call: D613 a value
// that is not in storage, D614 one of another layer, step or samples, D612 one that is not
// complete, D615 a gradient that misses samples, D620 a value that a communication in flight still
// uses, D621 an unknown rank or axis.
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

// The group of a collective: the axes of the mesh along which it runs ("dp"; "" is all ranks).
struct CollectiveOptions {
  std::string_view axes;
  std::string_view stream = "net";  // of a started collective: one stream runs in order
};

// Messages between two ranks match by channel and tag, in FIFO order. A channel is a communicator
// of its own, since NCCL has no tags.
struct MessageOptions {
  int tag = 0;
  std::string_view channel;  // "" is `main`
};

class Model;

// `co_await model.all_reduce(..)` returns the result. Only a temporary can be awaited, since the
// checks of the call hold only now; to wait later, use Pending.
template <class T>
class [[nodiscard]] Awaitable {
 public:
  struct Await {
    Awaitable& awaitable;
    static bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> caller);
    T await_resume();
  };
  Await operator co_await() && { return Await{*this}; }

 private:
  friend class Model;
  explicit Awaitable(Model& model) : model_(model) {}
  Model& model_;
  PendingOp op_;
};

// A communication in flight: `auto sum = model.start_all_reduce(..)`, and later `co_await sum`.
template <class T>
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  Pending(Pending&& other) noexcept
      : model_(other.model_), op_(std::exchange(other.op_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept {
    model_ = other.model_;
    op_ = std::exchange(other.op_, nullptr);
    return *this;
  }
  Pending(const Pending&) = delete;  // awaited once
  Pending& operator=(const Pending&) = delete;
  ~Pending() = default;
  [[nodiscard]] bool in_flight() const { return op_ != nullptr; }

  struct Await {
    Pending& pending;
    [[nodiscard]] bool await_ready() const;
    void await_suspend(std::coroutine_handle<> caller);
    T await_resume();
  };
  Await operator co_await() { return Await{*this}; }

 private:
  friend class Model;
  Pending(Model& model, PendingOp& op) : model_(&model), op_(&op) {}
  Model* model_ = nullptr;
  PendingOp* op_ = nullptr;  // owned by the model
};

// The size of the training problem.
struct Training {
  int layers = 2;
  int batch = 1;         // samples of all ranks together
  int microbatches = 1;  // per rank, for strategies that use them
  int chunks = 1;        // groups of layers on each rank of an interleaved pipeline
  int zero_stage = 0;    // of ZeRO, for strategies that take one
};

class Model final : private StorageObserver {
 public:
  explicit Model(int rank = 0);  // in a world of one rank
  Model(int rank, Dist& dist, int num_layers = 2, int global_batch_size = 1)
      : Model(rank, dist, Training{.layers = num_layers, .batch = global_batch_size}) {}
  Model(int rank, Dist& dist, const Training& training);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model();

  // ---- position in the mesh

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return dist_.size(); }
  [[nodiscard]] int position(std::string_view axis) const;
  [[nodiscard]] int size(std::string_view axis) const;
  // The rank at `position` of the axis whose other coordinates are those of this rank.
  [[nodiscard]] int peer(std::string_view axis, int position) const;
  [[nodiscard]] int layers() const { return training_.layers; }
  [[nodiscard]] int batch() const { return training_.batch; }
  [[nodiscard]] int microbatches() const { return training_.microbatches; }
  [[nodiscard]] int chunks() const { return training_.chunks; }
  [[nodiscard]] int zero_stage() const { return training_.zero_stage; }
  // The samples of part `part` of `parts` equal parts of the batch. Throws InputError D622 if
  // `parts` does not divide it.
  [[nodiscard]] IndexSet samples(int part, int parts) const;
  [[nodiscard]] const Training& training() const { return training_; }
  [[nodiscard]] Dist& dist() { return dist_; }

  // ---- state

  [[nodiscard]] Storage& storage() { return storage_; }
  [[nodiscard]] Bytes memory() const { return memory_; }
  [[nodiscard]] std::string status() const;
  // The events of this rank in program order, and the end of the last one (including awaited
  // communication). Both come from Dist::timeline(): in the middle of a step they replay the
  // recordings of all ranks so far. The log is valid until a rank records another step.
  [[nodiscard]] const std::vector<Event>& log() const;
  [[nodiscard]] Seconds time() const;
  // By layer.
  [[nodiscard]] const std::map<int, Weight>& final_weights() const { return final_weights_; }
  [[nodiscard]] const Recorder& recorder() const { return recorder_; }
  [[nodiscard]] Recording recording() const { return recorder_.recording(); }
  // The same, with the results of communications that are complete and not yet awaited.
  [[nodiscard]] Recording recording_so_far() const;

  // Records a computation without operands or results: "forward" of these samples has the cost of a
  // forward.
  struct EventDetails {
    int layer = -1;
    IndexSet samples;
    int shards_on_device = 1;
    int num_shards = 1;
  };
  void log_event(trace::EventKind kind, const EventDetails& what);

  // ---- computation

  std::pair<Weight, OptState> load_weights(int layer, int shard = 0, int num_shards = 1);
  void set_final_weight(int layer, const Weight& weight);
  Activation get_input_activation(const IndexSet& samples);
  Activation get_input_activation(std::initializer_list<std::int32_t> samples);
  Activation forward(int layer, const Activation& input, const Weight& weight);
  ActivationGrad loss(const Activation& input);
  std::pair<WeightGrad, ActivationGrad> backward(int layer, const Activation& input,
                                                 const ActivationGrad& grad, const Weight& weight);
  // The two halves of backward, to overlap or reorder them (zero bubble).
  ActivationGrad backward_input(int layer, const Activation& input, const ActivationGrad& grad,
                                const Weight& weight);
  WeightGrad backward_weight(int layer, const Activation& input, const ActivationGrad& grad,
                             const Weight& weight);
  std::pair<Weight, OptState> update(int layer, const WeightGrad& grad, const Weight& weight,
                                     const OptState& opt_state);

  // ---- communication. `layer` is that of the value.

  template <workload::Reduceable T>
  Awaitable<T> all_reduce(const Slot<T>& value, int layer, const CollectiveOptions& options = {}) {
    return awaitable<T>(
        make_collective(trace::EventKind::all_reduce, value.value(), layer, options, ""));
  }
  template <workload::Gatherable T>
  Awaitable<T> all_gather(const Slot<T>& value, int layer, const CollectiveOptions& options = {}) {
    return awaitable<T>(
        make_collective(trace::EventKind::all_gather, value.value(), layer, options, ""));
  }
  template <workload::ReduceableGatherable T>
  Awaitable<T> reduce_scatter(const Slot<T>& value, int layer,
                              const CollectiveOptions& options = {}) {
    return awaitable<T>(
        make_collective(trace::EventKind::reduce_scatter, value.value(), layer, options, ""));
  }
  template <class T>
  Awaitable<T> send(int dest, const Slot<T>& value, MessageOptions options = {}) {
    return awaitable<T>(make_message(trace::EventKind::send, dest, value.value(), options));
  }
  template <class T>
  Awaitable<T> receive(int source, MessageOptions options = {}) {
    return awaitable<T>(make_message(trace::EventKind::recv, source, T{}, options));
  }

  // ---- non-blocking communication: started now, awaited later

  template <workload::Reduceable T>
  Pending<T> start_all_reduce(const Slot<T>& value, int layer,
                              const CollectiveOptions& options = {}) {
    return pending<T>(make_collective(trace::EventKind::all_reduce, value.value(), layer, options,
                                      options.stream),
                      options);
  }
  template <workload::Gatherable T>
  Pending<T> start_all_gather(const Slot<T>& value, int layer,
                              const CollectiveOptions& options = {}) {
    return pending<T>(make_collective(trace::EventKind::all_gather, value.value(), layer, options,
                                      options.stream),
                      options);
  }
  template <workload::ReduceableGatherable T>
  Pending<T> start_reduce_scatter(const Slot<T>& value, int layer,
                                  const CollectiveOptions& options = {}) {
    return pending<T>(make_collective(trace::EventKind::reduce_scatter, value.value(), layer,
                                      options, options.stream),
                      options);
  }
  template <class T>
  Pending<T> start_send(int dest, const Slot<T>& value, MessageOptions options = {}) {
    return pending<T>(make_message(trace::EventKind::send, dest, value.value(), options), {});
  }
  template <class T>
  Pending<T> start_receive(int source, MessageOptions options = {}) {
    return pending<T>(make_message(trace::EventKind::recv, source, T{}, options), {});
  }

  // ---- the same for values whose type is known only at run time, such as those of Python; there
  // is also receive<AnyValue>. `kind` is all_reduce, all_gather or reduce_scatter. Throws D614
  // where the types above would not compile: weights cannot be reduced.

  Awaitable<AnyValue> collective(trace::EventKind kind, const AnyValue& value, int layer,
                                 const CollectiveOptions& options = {}) {
    return awaitable<AnyValue>(make_any_collective(kind, value, layer, options, ""));
  }
  Pending<AnyValue> start_collective(trace::EventKind kind, const AnyValue& value, int layer,
                                     const CollectiveOptions& options = {}) {
    return pending<AnyValue>(make_any_collective(kind, value, layer, options, options.stream),
                             options);
  }
  Awaitable<AnyValue> send_any(int dest, const AnyValue& value, MessageOptions options = {}) {
    return awaitable<AnyValue>(make_message(trace::EventKind::send, dest, value, options));
  }
  Pending<AnyValue> start_send_any(int dest, const AnyValue& value, MessageOptions options = {}) {
    return pending<AnyValue>(make_message(trace::EventKind::send, dest, value, options), {});
  }

  // Whether a communication is in flight or being awaited.
  [[nodiscard]] bool has_pending_ops() const {
    return waiting_for_ != nullptr || !in_flight_.empty();
  }
  // The op that blocks this rank, or null. On a stream: the first op that is not complete.
  [[nodiscard]] const PendingOp* waiting_for() const;
  // An op that was started and never awaited, or null.
  [[nodiscard]] const PendingOp* unwaited() const {
    return in_flight_.empty() ? nullptr : in_flight_.front().get();
  }
  // The last call as text: "forward(layer 3)".
  [[nodiscard]] std::string last_call() const;
  // The names of the streams, `main` first.
  [[nodiscard]] const std::vector<std::string>& streams() const { return stream_names_; }

 private:
  template <class T>
  friend class Awaitable;
  template <class T>
  friend class Pending;

  // The state of a value that this rank computed or received.
  struct ValueState {
    std::int16_t slots = 0;      // in which it is stored
    std::int16_t readers = 0;    // communications in flight that read it
    bool being_reduced = false;  // one of the readers overwrites it
    bool dropped = false;
    bool is_loaded = false;      // by load_weights, or has replaced such a value in place
    ValueNumber source = -1;     // the operand whose memory the result may reuse
    std::int32_t begun = -1;     // of a communication's result: the step from which it is written
    std::int32_t last_use = -1;  // the last step that reads or writes it
    Bytes bytes;
  };

  // StorageObserver
  void store(Weight& value, const Weight* before) override;
  void store(OptState& value, const OptState* before) override;
  void store(Activation& value, const Activation* before) override;
  void store(ActivationGrad& value, const ActivationGrad* before) override;
  void store(WeightGrad& value, const WeightGrad* before) override;
  void drop(const workload::Provenance& provenance, Bytes bytes) override;
  [[nodiscard]] const workload::ModelShape& shape() const override { return dist_.world().shape; }
  [[noreturn]] void throw_empty_slot(Key key) const override;
  template <class T>
  void store_value(T& value, const T* before);
  struct StoredValue {
    ValueNumber number = -1;
    bool in_place = false;  // reuses the memory of the old value
  };
  template <class T>
  [[nodiscard]] bool may_replace_loaded(const T& value, const T& before) const;
  template <class T>
  StoredValue store_fresh(T& value, const T* before);
  template <class T>
  StoredValue store_derived(T& value, ValueNumber before);

  // ---- calls
  void begin_call(std::string_view call, int layer);
  void begin_call(trace::EventKind kind, int layer) { begin_call(name(kind), layer); }
  // Samples, and `held` of `of` shards of a weight.
  struct Operands {
    std::array<ValueNumber, 3> reads{-1, -1, -1};
    std::array<ValueNumber, 2> writes{-1, -1};
  };
  void compute(trace::EventKind kind, Dist::Extent extent, const Operands& operands);
  // Formats the value only on error: this is on the hot path.
  template <class T>
  void require_stored(const workload::Provenance& provenance, const T& value) const {
    const bool ours = provenance.kind == workload::Provenance::Kind::result &&
                      provenance.first >= 0 &&
                      static_cast<std::size_t>(provenance.first) < values_.size();
    const bool stored = ours && values_[provenance.first].slots > 0;
    if (!stored) throw_not_stored(provenance, describe(value));
    if (values_[provenance.first].being_reduced) throw_being_reduced(describe(value));
  }
  [[noreturn]] void throw_not_stored(workload::Provenance provenance,
                                     const std::string& what) const;
  [[noreturn]] void throw_being_reduced(const std::string& what) const;
  [[noreturn]] void throw_in_use(const std::string& what) const;
  template <class T>
  void require(const T& value, bool fits, const char* expected);
  template <class T>
  void require_whole(const T& value, bool complete, const char* what);
  void require_layer(int layer) const;
  [[noreturn]] void throw_error(const char* code, std::string what, std::string why,
                                std::string help) const;
  // The same, for changes of storage between two calls.
  [[noreturn]] void throw_error_after_call(const char* code, std::string what, std::string why,
                                           std::string help) const;
  // Registers a result of this call. It has to be stored before the next call.
  template <class T>
  void add_value(T& value, ValueNumber source) {
    value.provenance = {.kind = workload::Provenance::Kind::result,
                        .first = static_cast<ValueNumber>(values_.size())};
    values_.push_back({.source = source, .bytes = value.memory(shape())});
    recorder_.add(value);
    unstored_.push_back(value.provenance.first);
  }
  void check_backward(int layer, const Activation& input, const ActivationGrad& grad,
                      const Weight& weight);
  ActivationGrad input_grad(const Activation& input, const Weight& weight) const;
  WeightGrad weight_grad(const Activation& input, const Weight& weight) const;

  // ---- communication
  template <class T>
  Awaitable<T> awaitable(PendingOp&& op) {
    Awaitable<T> result(*this);
    result.op_ = std::move(op);
    return result;
  }
  template <class T>
  Pending<T> pending(PendingOp&& op, const CollectiveOptions& options) {
    PendingOp& own = add_in_flight(std::move(op));
    start(own, options);
    return Pending<T>(*this, own);
  }
  PendingOp make_collective(trace::EventKind kind, const AnyValue& value, int layer,
                            const CollectiveOptions& options, std::string_view channel);
  PendingOp make_any_collective(trace::EventKind kind, const AnyValue& value, int layer,
                                const CollectiveOptions& options, std::string_view channel);
  PendingOp make_message(trace::EventKind kind, int peer, const AnyValue& value,
                         MessageOptions options);
  // Records the op on a stream.
  void issue(PendingOp& op, std::int32_t stream, bool async);
  void start(PendingOp& op, const CollectiveOptions& options);
  // Takes ownership: the Pending handle may be dropped.
  PendingOp& add_in_flight(PendingOp&& op);
  void remove_in_flight(const PendingOp& op);
  void await(PendingOp& op, std::coroutine_handle<> caller);
  template <class T>
  T take(PendingOp& op);
  void finish_wait(PendingOp& op);
  std::int32_t stream_id(std::string_view name);
  void drop_unstored();
  std::int32_t record(const Step& step);

  std::unique_ptr<Dist> owned_dist_;
  Dist& dist_;
  int rank_;
  Training training_;
  Storage storage_;
  Bytes memory_;
  std::pmr::vector<ValueState> values_{&dist_.arena()};
  std::pmr::vector<ValueNumber> unstored_{
      &dist_.arena()};                  // results of the last call that are not stored yet
  std::vector<std::int32_t> next_seq_;  // next sequence number, by group
  std::vector<std::unique_ptr<PendingOp>> in_flight_;
  std::vector<PendingOp*> streams_{nullptr};  // by stream: the last op that is not taken
  std::vector<std::string> stream_names_{"main"};
  std::map<int, Weight> final_weights_;
  std::string_view call_ = "Model";
  int call_layer_ = -1;
  const PendingOp* waiting_for_ = nullptr;
  Recorder recorder_{dist_.tapes()};
};

template <>
AnyValue Model::take(PendingOp& op);

template <class T>
void Awaitable<T>::Await::await_suspend(std::coroutine_handle<> caller) {
  Model& model = awaitable.model_;
  model.issue(awaitable.op_, 0, false);
  model.await(awaitable.op_, caller);
  model.dist_.start(awaitable.op_);
}

template <class T>
T Awaitable<T>::Await::await_resume() {
  return awaitable.model_.template take<T>(awaitable.op_);
}

template <class T>
bool Pending<T>::Await::await_ready() const {
  if (pending.op_ == nullptr) {
    throw InputError(Diagnostic{.code = "D623",
                                .what = "nothing is in flight here",
                                .why = "a communication is started once and awaited once",
                                .help = "start it again before you await it again"});
  }
  return pending.op_->complete;
}

template <class T>
void Pending<T>::Await::await_suspend(std::coroutine_handle<> caller) {
  pending.model_->await(*pending.op_, caller);
}

template <class T>
T Pending<T>::Await::await_resume() {
  T result = pending.model_->template take<T>(*pending.op_);
  pending.model_->remove_in_flight(*std::exchange(pending.op_, nullptr));
  return result;
}

}  // namespace shiplap::strategy
