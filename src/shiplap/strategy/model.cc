// A Model checks every call of a strategy and records it; it does not simulate time.
//
// Values are numbered in the order in which calls return them (as in SSA form: a value is defined
// once). ValueState has what the checks need. A result belongs to the call until it is stored; at
// the next call, results that are not stored are dropped. Storing over an operand that the result
// may alias (collectives, update, a sum, a shard) is recorded as `in_place`, so that the plan
// reuses its memory. So is storing a received or gathered weight over a loaded one: a step can be
// repeated only if the new weights end where the old ones were.
//
// A blocking communication lives in the coroutine frame (Awaitable); a started one is owned by
// the model (in_flight_) until it is awaited. From the start until the wait its operand has a
// reader: it must not be erased or replaced, and the operand of a reduction must not be used at all
// (D620). Started collectives of one stream run in order: each starts when its predecessor is
// complete.
#include "shiplap/strategy/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/plan/text.h"

namespace shiplap::strategy {
namespace {

using trace::EventKind;
using workload::Features;
using workload::Provenance;

const Provenance& provenance_of(const AnyValue& value) {
  static const Provenance kNoProvenance;
  return std::visit(
      [](const auto& v) -> const Provenance& {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return kNoProvenance;
        } else {
          return v.provenance;
        }
      },
      value);
}

// Whether the result may reuse the memory of the operand.
bool may_be_in_place(EventKind kind) {
  return kind == EventKind::all_reduce || kind == EventKind::reduce_scatter ||
         kind == EventKind::all_gather;
}

bool writes_operand(EventKind kind) {
  return kind == EventKind::all_reduce || kind == EventKind::reduce_scatter;
}

template <class T>
bool allows(EventKind kind) {
  if (kind == EventKind::all_reduce) return workload::Reduceable<T>;
  if (kind == EventKind::all_gather) return workload::Gatherable<T>;
  return workload::ReduceableGatherable<T>;
}

bool allows(EventKind kind, const AnyValue& value) {
  return std::visit([&]<class T>(const T& /*value*/) { return allows<T>(kind); }, value);
}

}  // namespace

Model::Model(int rank)
    : owned_dist_(std::make_unique<Dist>(1)),
      dist_(*owned_dist_),
      rank_(rank),
      storage_(*this, dist_.arena()) {
  if (rank != 0)
    throw_error("D621", fmt::format("there is no rank {} in a world of one", rank), "", "");
  dist_.attach(*this);
}

Model::Model(int rank, Dist& dist, const Training& training)
    : dist_(dist), rank_(rank), training_(training), storage_(*this, dist_.arena()) {
  const auto positive = [&](int number, const char* what) {
    if (number >= 1) return;
    throw_error("D622", fmt::format("{} {} cannot be trained", number, what),
                "there is at least one of each", fmt::format("use 1 {} or more", what));
  };
  positive(training.layers, "layers");
  positive(training.batch, "samples");
  positive(training.microbatches, "microbatches");
  positive(training.chunks, "chunks");
  if (rank < 0 || rank >= dist.size()) {
    throw_error("D621", fmt::format("there is no rank {} in a world of {}", rank, dist.size()),
                "ranks count from 0", "");
  }
  dist_.group("", "");
  dist_.attach(*this);
}

Model::~Model() { dist_.detach(*this); }

const std::vector<Event>& Model::log() const { return dist_.timeline().trace.ranks[rank_].events; }
Seconds Model::time() const { return dist_.timeline().clock[rank_]; }

int Model::position(std::string_view axis) const {
  return static_cast<int>(dist_.group_position(dist_.group(axis, ""), rank_));
}

int Model::size(std::string_view axis) const {
  return static_cast<int>(dist_.group_size(dist_.group(axis, "")));
}

int Model::peer(std::string_view axis, int position) const {
  const std::int32_t group = dist_.group(axis, "");
  if (position < 0 || position >= dist_.group_size(group)) {
    throw_error("D621", fmt::format("`{}` has no position {}", axis, position),
                fmt::format("its positions are 0 to {}", dist_.group_size(group) - 1), "");
  }
  return plan::along(dist_.mesh(), dist_.group_axes(group), Rank(rank_))[position].value;
}

IndexSet Model::samples(int part, int parts) const {
  if (parts < 1 || part < 0 || part >= parts || training_.batch % parts != 0) {
    throw_error("D622",
                fmt::format("{} samples cannot be divided into {} parts", training_.batch, parts),
                "every rank and microbatch gets the same number of samples",
                fmt::format("take a batch that is a multiple of {}", parts));
  }
  const int each = training_.batch / parts;
  return IndexSet::range(std::int64_t{part} * each, each);
}

std::string Model::last_call() const {
  if (call_layer_ < 0) return std::string(call_);
  return fmt::format("{}(layer {})", call_, call_layer_);
}

std::string Model::status() const {
  std::string text =
      fmt::format("rank {} at {}: {}\n", rank_, to_string(time()), to_string(memory_));
  const auto list = [&](const char* name, const auto& map) {
    map.for_each([&](Key key, const auto& slot) {
      if (slot.empty()) return;
      const std::string second = key.second < 0 ? "" : fmt::format(", {}", key.second);
      text += fmt::format("  {}[{}{}] {}, {}\n", name, key.first, second, describe(slot.value()),
                          to_string(slot->memory(shape())));
    });
  };
  list("weights", storage_.weights);
  list("opt_states", storage_.opt_states);
  list("activations", storage_.activations);
  list("grad_activations", storage_.grad_activations);
  list("grad_weights", storage_.grad_weights);
  return text;
}

// ---------------------------------------------------------------- errors

void Model::throw_error(const char* code, std::string what, std::string why,
                        std::string help) const {
  throw InputError(Diagnostic{.code = code,
                              .where = {.rank = rank_, .operation = last_call()},
                              .what = std::move(what),
                              .why = std::move(why),
                              .help = std::move(help)});
}

void Model::throw_error_after_call(const char* code, std::string what, std::string why,
                                   std::string help) const {
  throw InputError(Diagnostic{.code = code,
                              .where = {.rank = rank_, .operation = "after " + last_call()},
                              .what = std::move(what),
                              .why = std::move(why),
                              .help = std::move(help)});
}

void Model::throw_empty_slot(Key key) const {
  const std::string name =
      key.second < 0 ? fmt::format("{}", key.first) : fmt::format("{}, {}", key.first, key.second);
  throw_error_after_call("D613", fmt::format("nothing is stored under [{}]", name),
                         "only stored values can be used or erased",
                         "store it first, or check with `contains`");
}

void Model::throw_not_stored(Provenance provenance, const std::string& what) const {
  if (provenance.kind == Provenance::Kind::shard) {
    throw_error(
        "D613", fmt::format("{} is not in storage", what),
        "a shard is a copy of a part, and only stored values count as memory and can be used",
        "store the shard first, in place of the whole or under a key of its own, such as "
        "[layer, 1]");
  }
  throw_error("D613", fmt::format("{} is not in storage", what),
              "only stored values count as memory and can be used",
              "store the result of each call before the next one: `activations[l] = ..`");
}

void Model::throw_being_reduced(const std::string& what) const {
  throw_error("D620", fmt::format("{} is being reduced", what),
              "a reduction in flight overwrites its operand",
              "wait for it first: `co_await` what the start_ call returned");
}

void Model::throw_in_use(const std::string& what) const {
  throw_error_after_call("D620", fmt::format("{} is in use", what),
                         "a communication in flight reads or writes it",
                         "wait for it first: `co_await` what the start_ call returned");
}

template <class T>
void Model::require(const T& value, bool fits, const char* expected) {
  require_stored(value.provenance, value);
  if (fits) return;
  throw_error("D614", fmt::format("{} does not match", describe(value)),
              fmt::format("expected {}", expected),
              "pass the values of that layer, step and samples");
}

template <class T>
void Model::require_whole(const T& value, bool complete, const char* what) {
  if (complete) return;
  throw_error("D612", fmt::format("{} is not complete", describe(value)), what,
              "gather or reduce it first, over the ranks that have the rest");
}

void Model::require_layer(int layer) const {
  if (layer >= 0 && layer < training_.layers) return;
  throw_error("D614", fmt::format("there is no layer {}", layer),
              fmt::format("layers are 0 to {}", training_.layers - 1), "");
}

// ---------------------------------------------------------------- computations

void Model::begin_call(std::string_view call, int layer) {
  call_ = call;
  call_layer_ = layer;
  drop_unstored();
}

void Model::compute(EventKind kind, Dist::Extent extent, const Operands& operands) {
  extent.layer = std::max(call_layer_, 0);
  const Dist::Work work = dist_.work(kind, extent);
  record({.type = StepType::compute,
          .kind = kind,
          .reads = operands.reads,
          .writes = operands.writes,
          .work = work.last,
          .parts = work.parts});
}

void Model::log_event(EventKind kind, const EventDetails& what) {
  begin_call(kind, what.layer);
  if (trace::is_communication(kind)) {
    throw_error("D614", fmt::format("a {} cannot be logged alone", name(kind)),
                "communication needs the other ranks", "call it");
  }
  if (!shape().layers.empty()) require_layer(what.layer);
  const Dist::Work work = dist_.work(kind, {.samples = what.samples.size(),
                                            .held = what.shards_on_device,
                                            .of = what.num_shards,
                                            .layer = what.layer});
  const auto number = static_cast<ValueNumber>(values_.size());
  values_.push_back({.dropped = true});
  recorder_.add(Activation{.layer = what.layer, .samples = what.samples});
  record({.type = StepType::log,
          .kind = kind,
          .reads = {number, -1, -1},
          .work = work.last,
          .parts = work.parts});
}

std::pair<Weight, OptState> Model::load_weights(int layer, int shard, int num_shards) {
  begin_call(EventKind::load_weights, layer);
  require_layer(layer);
  if (num_shards < 1 || shard < 0 || shard >= num_shards) {
    throw_error("D614", fmt::format("there is no shard {} of {}", shard, num_shards),
                "shards count from 0", "");
  }
  Weight weight{.layer = layer,
                .layers = training_.layers,
                .shards = IndexSet(std::int64_t{shard}),
                .num_shards = num_shards,
                .provenance = {}};
  OptState opt{.layer = layer,
               .layers = training_.layers,
               .shards = weight.shards,
               .num_shards = num_shards,
               .provenance = {}};
  add_value(weight, -1);
  add_value(opt, -1);
  for (const Provenance& loaded : {weight.provenance, opt.provenance}) {
    values_[loaded.first].is_loaded = true;
  }
  compute(EventKind::load_weights, {.held = 1, .of = num_shards},
          {.writes = {weight.provenance.first, opt.provenance.first}});
  return {std::move(weight), std::move(opt)};
}

void Model::set_final_weight(int layer, const Weight& weight) {
  begin_call("set_final_weight", layer);
  require_layer(layer);
  require(weight, weight.layer == layer, "the weight of this layer");
  final_weights_.insert_or_assign(layer, weight);
}

Activation Model::get_input_activation(std::initializer_list<std::int32_t> samples) {
  begin_call("get_input_activation", -1);
  for (const std::int32_t sample : samples) {
    if (sample < 0)
      throw_error("D614", fmt::format("there is no sample {}", sample), "samples count from 0", "");
  }
  return get_input_activation(IndexSet(std::vector<std::int32_t>(samples)));
}

Activation Model::get_input_activation(const IndexSet& samples) {
  begin_call("get_input_activation", -1);
  const bool inside = !samples.empty() && samples.runs().back().last() < training_.batch;
  if (!inside) {
    throw_error("D614", fmt::format("samples {} cannot be read", to_string(samples)),
                fmt::format("the batch has samples 0 to {}", training_.batch - 1), "");
  }
  Activation input{.layer = 0,
                   .layers = training_.layers,
                   .samples = samples,
                   .total_samples = training_.batch,
                   .provenance = {}};
  add_value(input, -1);
  record({.kind = EventKind::compute, .writes = {input.provenance.first, -1}});
  return input;
}

Activation Model::forward(int layer, const Activation& input, const Weight& weight) {
  begin_call(EventKind::forward, layer);
  require_layer(layer);
  require(input, input.layer == layer, "the activation that this layer reads");
  require(weight, weight.layer == layer, "the weight of this layer");
  require_whole(input, input.is_complete(), "a layer reads all features of its input");
  Features features = features_of(weight);
  Activation output{.layer = layer + 1,
                    .layers = training_.layers,
                    .samples = input.samples,
                    .total_samples = input.total_samples,
                    .shards = std::move(features.parts),
                    .num_shards = features.num_parts,
                    .provenance = {}};
  add_value(output, -1);
  compute(EventKind::forward, {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.provenance.first, weight.provenance.first, -1},
           .writes = {output.provenance.first, -1}});
  return output;
}

ActivationGrad Model::loss(const Activation& input) {
  begin_call(EventKind::loss, -1);
  require(input, input.layer == training_.layers, "what the last layer wrote");
  require_whole(input, input.is_complete(), "the loss needs all features");
  ActivationGrad grad{.layer = training_.layers - 1,
                      .layers = training_.layers,
                      .samples = input.samples,
                      .total_samples = input.total_samples,
                      .provenance = {}};
  add_value(grad, -1);
  compute(EventKind::loss, {0, 0, 0},
          {.reads = {input.provenance.first, -1, -1}, .writes = {grad.provenance.first, -1}});
  return grad;
}

void Model::check_backward(int layer, const Activation& input, const ActivationGrad& grad,
                           const Weight& weight) {
  require_layer(layer);
  require(input, input.layer == layer, "the activation that this layer read");
  require(grad, grad.layer == layer, "the gradient of what this layer wrote");
  require(weight, weight.layer == layer, "the weight of this layer");
  require(grad, grad.samples == input.samples, "a gradient of the samples of the activation");
  require_whole(input, input.is_complete(), "a layer reads all features of its input");
  require_whole(grad, grad.is_complete(), "backward needs the whole gradient");
}

ActivationGrad Model::input_grad(const Activation& input, const Weight& weight) const {
  Features features = features_of(weight);
  return {.layer = input.layer - 1,
          .layers = training_.layers,
          .samples = input.samples,
          .total_samples = input.total_samples,
          .summed = std::move(features.parts),
          .num_summed = features.num_parts,
          .provenance = {}};
}

WeightGrad Model::weight_grad(const Activation& input, const Weight& weight) const {
  WeightGrad grad{.layer = input.layer,
                  .layers = training_.layers,
                  .samples = input.samples,
                  .total_samples = input.total_samples,
                  .provenance = {}};
  if (!weight.is_complete()) {
    grad.shards = weight.shards;
    grad.num_shards = weight.num_shards;
  }
  return grad;
}

std::pair<WeightGrad, ActivationGrad> Model::backward(int layer, const Activation& input,
                                                      const ActivationGrad& grad,
                                                      const Weight& weight) {
  begin_call(EventKind::backward, layer);
  check_backward(layer, input, grad, weight);
  WeightGrad of_weight = weight_grad(input, weight);
  ActivationGrad of_input = input_grad(input, weight);
  add_value(of_weight, -1);
  add_value(of_input, -1);
  compute(EventKind::backward, {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.provenance.first, grad.provenance.first, weight.provenance.first},
           .writes = {of_weight.provenance.first, of_input.provenance.first}});
  return {std::move(of_weight), std::move(of_input)};
}

ActivationGrad Model::backward_input(int layer, const Activation& input, const ActivationGrad& grad,
                                     const Weight& weight) {
  begin_call(EventKind::backward_input, layer);
  check_backward(layer, input, grad, weight);
  ActivationGrad result = input_grad(input, weight);
  add_value(result, -1);
  compute(EventKind::backward_input,
          {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.provenance.first, grad.provenance.first, weight.provenance.first},
           .writes = {result.provenance.first, -1}});
  return result;
}

WeightGrad Model::backward_weight(int layer, const Activation& input, const ActivationGrad& grad,
                                  const Weight& weight) {
  begin_call(EventKind::backward_weight, layer);
  check_backward(layer, input, grad, weight);
  WeightGrad result = weight_grad(input, weight);
  add_value(result, -1);
  compute(EventKind::backward_weight,
          {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.provenance.first, grad.provenance.first, -1},
           .writes = {result.provenance.first, -1}});
  return result;
}

std::pair<Weight, OptState> Model::update(int layer, const WeightGrad& grad, const Weight& weight,
                                          const OptState& opt_state) {
  begin_call(EventKind::update, layer);
  require_layer(layer);
  require(grad, grad.layer == layer, "the gradient of this layer's weight");
  require(weight, weight.layer == layer, "the weight of this layer");
  require(opt_state, opt_state.layer == layer, "the optimizer state of this layer");
  if (!grad.samples.covers(grad.total_samples)) {
    throw_error(
        "D615", fmt::format("{} misses samples", describe(grad)),
        fmt::format("an update needs the gradient of all {} samples", grad.total_samples),
        "sum it over the ranks that have the other samples: `co_await model.all_reduce(..)`");
  }
  const auto alike = [&](const IndexSet& shards, int of) {
    return of == weight.num_shards && shards == weight.shards;
  };
  const bool has_shards =
      grad.num_shards == weight.num_shards && grad.shards.includes(weight.shards);
  require(grad, grad.is_complete() || has_shards, "the shards of the weight, or more");
  require(opt_state, alike(opt_state.shards, opt_state.num_shards), "the shards of the weight");
  require(opt_state, opt_state.step == weight.step, "the step of the weight");
  Weight new_weight = weight;
  OptState new_state = opt_state;
  ++new_weight.step;
  ++new_state.step;
  const ValueNumber old_weight = weight.provenance.first;
  const ValueNumber old_state = opt_state.provenance.first;
  add_value(new_weight, old_weight);
  add_value(new_state, old_state);
  compute(EventKind::update, {0, weight.shards.size(), weight.num_shards},
          {.reads = {grad.provenance.first, weight.provenance.first, opt_state.provenance.first},
           .writes = {new_weight.provenance.first, new_state.provenance.first}});
  return {std::move(new_weight), std::move(new_state)};
}

// ---------------------------------------------------------------- storage

void Model::drop_unstored() {
  for (const ValueNumber number : unstored_) {
    ValueState& state = values_[number];
    if (state.slots > 0 || state.dropped) continue;
    state.dropped = true;
    record({.type = StepType::drop, .reads = {number, -1, -1}});
  }
  unstored_.clear();
}

std::int32_t Model::record(const Step& step) {
  dist_.invalidate_timeline();
  const std::int32_t index = recorder_.add(step);
  for (const ValueNumber v : step.reads) {
    if (v >= 0) values_[v].last_use = index;
  }
  for (const ValueNumber v : step.writes) {
    if (v >= 0) values_[v].last_use = index;
  }
  return index;
}

// Whether the result of a communication can be written to the memory of the loaded value that it
// replaces: they have the same shards, and that value is not used since the communication began.
template <class T>
bool Model::may_replace_loaded(const T& value, const T& before) const {
  if constexpr (requires { value.step; }) {
    const ValueState& result = values_[value.provenance.first];
    const ValueState& loaded = values_[before.provenance.first];
    const bool same_shards = value.num_shards == before.num_shards && value.shards == before.shards;
    return loaded.is_loaded && result.begun > loaded.last_use && value.layer == before.layer &&
           (same_shards || (value.is_complete() && before.is_complete()));
  }
  return false;
}

// Stores a result for the first time. If it replaces the operand that it may alias, it needs no
// memory of its own.
template <class T>
Model::StoredValue Model::store_fresh(T& value, const T* before) {
  const ValueNumber number = value.provenance.first;
  if (before == nullptr) return {.number = number};
  const ValueNumber old = before->provenance.first;
  const bool in_place = values_[number].source == old || may_replace_loaded(value, *before);
  if (in_place) {
    record({.type = StepType::in_place, .reads = {old, -1, -1}, .writes = {number, -1}});
  }
  return {.number = number, .in_place = in_place};
}

// Stores a copy, a shard or a sum of stored values.
template <class T>
Model::StoredValue Model::store_derived(T& value, ValueNumber before) {
  const Provenance from = value.provenance;
  const auto alive = [&](ValueNumber n) { return n < 0 || !values_[n].dropped; };
  if (!alive(from.first) || !alive(from.second)) {
    throw_error_after_call(
        "D613", fmt::format("{} is derived from a dropped value", describe(value)),
        "a result has to be stored before the next call", "store it immediately");
  }
  const auto reduced = [&](ValueNumber n) { return n >= 0 && values_[n].being_reduced; };
  if (reduced(from.first) || reduced(from.second)) throw_being_reduced(describe(value));
  const bool sum = from.kind == Provenance::Kind::sum;
  const bool in_place = from.kind != Provenance::Kind::result &&
                        (before == from.first || (sum && before == from.second));
  const auto number = static_cast<ValueNumber>(values_.size());
  values_.push_back({.bytes = value.memory(shape())});
  value.provenance = {.kind = Provenance::Kind::result, .first = number};
  recorder_.add(value);
  if (in_place) {
    record({.type = StepType::in_place, .reads = {before, -1, -1}, .writes = {number, -1}});
    const ValueNumber read = sum && before == from.first ? from.second : from.first;
    record({.type = sum ? StepType::add : StepType::keep_shard,
            .reads = {read, -1, -1},
            .writes = {number, -1}});
    return {.number = number, .in_place = true};
  }
  record({.type = StepType::cast, .reads = {from.first, -1, -1}, .writes = {number, -1}});
  if (sum) record({.type = StepType::add, .reads = {from.second, -1, -1}, .writes = {number, -1}});
  return {.number = number, .in_place = false};
}

template <class T>
void Model::store_value(T& value, const T* before) {
  const ValueNumber old = before == nullptr ? -1 : before->provenance.first;
  const Provenance from = value.provenance;
  if (from.kind == Provenance::Kind::none ||
      from.first >= static_cast<ValueNumber>(values_.size())) {
    throw_error_after_call(
        "D613", fmt::format("{} was not computed by this rank", describe(value)),
        "storage accepts results of calls, their shards, and sums of two of them",
        "store each sum or shard before using it");
  }
  const bool made = from.kind == Provenance::Kind::result;
  if (made && from.first == old) return;
  const bool fresh = made && values_[from.first].slots == 0;
  if (fresh && values_[from.first].dropped) {
    throw_error_after_call("D613", fmt::format("{} was not stored in time", describe(value)),
                           "a result has to be stored before the next call",
                           "store it immediately");
  }
  if (before != nullptr && values_[old].readers > 0) {
    throw_in_use(describe(*before));
  }
  const auto [number, in_place] = fresh ? store_fresh(value, before) : store_derived(value, old);
  values_[number].slots = 1;
  memory_ += values_[number].bytes;
  if (before == nullptr) return;
  // A value that is replaced in place is not freed.
  ValueState& gone = values_[old];
  gone.slots = 0;
  gone.dropped = true;
  memory_ = memory_ - gone.bytes;
  if (in_place) values_[number].is_loaded = gone.is_loaded;
  if (!in_place) record({.type = StepType::drop, .reads = {old, -1, -1}});
}

void Model::store(Weight& value, const Weight* before) { store_value(value, before); }
void Model::store(OptState& value, const OptState* before) { store_value(value, before); }
void Model::store(Activation& value, const Activation* before) {
  if (value.provenance.kind == Provenance::Kind::none && !value.is_complete()) {
    throw_error_after_call(
        "D610", fmt::format("{} cannot be stored", describe(value)),
        "the features of an activation are laid out by the ranks that wrote them",
        "shard it as it was gathered, or write it with a layer whose weight is sharded");
  }
  store_value(value, before);
}
void Model::store(ActivationGrad& value, const ActivationGrad* before) {
  store_value(value, before);
}
void Model::store(WeightGrad& value, const WeightGrad* before) { store_value(value, before); }

void Model::drop(const Provenance& provenance, Bytes bytes) {
  ValueState& state = values_[provenance.first];
  if (state.readers > 0) {
    throw_in_use("the erased value");
  }
  state.slots = 0;
  state.dropped = true;
  memory_ = memory_ - bytes;
  record({.type = StepType::drop, .reads = {provenance.first, -1, -1}});
}

// ---------------------------------------------------------------- communication

PendingOp Model::make_any_collective(EventKind kind, const AnyValue& value, int layer,
                                     const CollectiveOptions& options, std::string_view channel) {
  ensure(kind == EventKind::all_reduce || kind == EventKind::all_gather ||
             kind == EventKind::reduce_scatter,
         "a collective of values");
  begin_call(kind, layer);
  if (!allows(kind, value)) {
    throw_error(
        "D614", fmt::format("unsupported: {} of {}", name(kind), describe(value)),
        "gradients are sums and can be reduced; sharded values can be gathered",
        "gradients of weights allow both, weights and activations only all_gather, gradients "
        "of activations only all_reduce");
  }
  return make_collective(kind, value, layer, options, channel);
}

PendingOp Model::make_collective(EventKind kind, const AnyValue& value, int layer,
                                 const CollectiveOptions& options, std::string_view channel) {
  begin_call(kind, layer);
  require_stored(provenance_of(value), value);
  if (writes_operand(kind) && values_[provenance_of(value).first].readers > 0) {
    throw_error("D620", fmt::format("{} is in use", describe(value)),
                "a reduction overwrites its operand, which a communication in flight reads",
                "wait for that first: `co_await` what the start_ call returned");
  }
  if (layer_of(value) != layer) {
    throw_error("D614", fmt::format("{} is not of layer {}", describe(value), layer),
                "the layer of a collective is that of its value",
                fmt::format("pass layer {}", layer_of(value)));
  }
  PendingOp op;
  op.kind = kind;
  op.rank = rank_;
  op.group = dist_.group(options.axes, channel);
  op.in = value;
  if (static_cast<std::size_t>(op.group) >= next_seq_.size()) {
    next_seq_.resize(static_cast<std::size_t>(op.group) + 1, 0);
  }
  return op;
}

PendingOp Model::make_message(EventKind kind, int peer, const AnyValue& value,
                              MessageOptions options) {
  begin_call(kind, kind == EventKind::send ? layer_of(value) : -1);
  if (peer < 0 || peer >= dist_.size() || peer == rank_) {
    throw_error("D621",
                fmt::format("rank {} cannot {} rank {}", rank_,
                            kind == EventKind::send ? "send to" : "receive from", peer),
                fmt::format("peers are other ranks from 0 to {}", dist_.size() - 1),
                "check the ends of the pipeline: the first rank has no predecessor");
  }
  PendingOp op;
  op.kind = kind;
  op.rank = rank_;
  op.peer = peer;
  op.tag = options.tag;
  op.channel = dist_.channel(options.channel);
  if (kind == EventKind::send) require_stored(provenance_of(value), value);
  op.in = value;
  return op;
}

void Model::issue(PendingOp& op, std::int32_t stream, bool async) {
  const bool collective = op.peer < 0;
  if (collective) op.seq = next_seq_[op.group]++;
  if (op.kind != EventKind::recv) {
    ValueState& state = values_[provenance_of(op.in).first];
    ++state.readers;
    if (writes_operand(op.kind)) state.being_reduced = true;
  }
  op.non_blocking = async || stream != 0;
  op.step =
      record({.type = StepType::communicate,
              .kind = op.kind,
              .async = async,
              .stream = stream,
              .group = collective ? op.group : -1,
              .peer = op.peer,
              .tag = op.tag,
              .channel = op.channel,
              .reads = {op.kind == EventKind::recv ? -1 : provenance_of(op.in).first, -1, -1}});
}

PendingOp& Model::add_in_flight(PendingOp&& op) {
  in_flight_.push_back(std::make_unique<PendingOp>(std::move(op)));
  return *in_flight_.back();
}

void Model::remove_in_flight(const PendingOp& op) {
  const auto found =
      std::ranges::find_if(in_flight_, [&](const auto& own) { return own.get() == &op; });
  ensure(found != in_flight_.end(), "an op in flight is in the list");
  std::ranges::replace(streams_, found->get(), static_cast<PendingOp*>(nullptr));
  std::swap(*found, in_flight_.back());
  in_flight_.pop_back();
}

std::int32_t Model::stream_id(std::string_view name) {
  const auto found = std::ranges::find(stream_names_, name);
  if (found == stream_names_.end()) {
    stream_names_.emplace_back(name);
    streams_.push_back(nullptr);
    return static_cast<std::int32_t>(stream_names_.size() - 1);
  }
  return static_cast<std::int32_t>(found - stream_names_.begin());
}

// Messages start immediately; collectives of one stream run in order.
void Model::start(PendingOp& op, const CollectiveOptions& options) {
  if (op.peer >= 0) {
    issue(op, 0, true);
    dist_.start(op);
    return;
  }
  if (!plan::is_name(options.stream) || options.stream == stream_names_.front()) {
    throw_error("D614",
                fmt::format("a collective cannot be started on stream `{}`", options.stream),
                "a started collective overlaps `main`, on a stream named with letters and digits",
                "name another stream, or `co_await` the call itself");
  }
  const std::int32_t stream = stream_id(options.stream);
  issue(op, stream, false);
  PendingOp* const last = std::exchange(streams_[stream], &op);
  if (last != nullptr && !last->complete) {
    last->next_on_stream = &op;
  } else {
    dist_.start(op);
  }
}

void Model::await(PendingOp& op, std::coroutine_handle<> caller) {
  op.handle = caller;
  op.awaited = true;
  op.next = nullptr;
  waiting_for_ = &op;
  begin_call(op.kind, op.kind == EventKind::recv ? -1 : layer_of(op.in));
}

const PendingOp* Model::waiting_for() const {
  const PendingOp* op = waiting_for_;
  for (std::size_t i = 0; op != nullptr && i < in_flight_.size(); ++i) {
    const auto before = std::ranges::find(in_flight_, op, [](const auto& own) {
      return static_cast<const PendingOp*>(own->next_on_stream);
    });
    if (before == in_flight_.end()) break;
    op = before->get();
  }
  return op;
}

Recording Model::recording_so_far() const {
  Recording all = recorder_.recording();
  const auto add = [&](const PendingOp& op) {
    if (!op.complete || op.kind == EventKind::send) return;
    all.steps[op.step].writes[0] = static_cast<ValueNumber>(all.values.size());
    all.values.push_back({.value = op.out, .in_place_of = -1});
  };
  for (const auto& op : in_flight_) add(*op);
  if (waiting_for_ != nullptr && waiting_for_->step >= 0 &&
      all.steps[waiting_for_->step].writes[0] < 0) {
    add(*waiting_for_);
  }
  return all;
}

// Called when the rank resumes after `op` is complete.
void Model::finish_wait(PendingOp& op) {
  waiting_for_ = nullptr;
  begin_call(op.kind, op.kind == EventKind::recv ? -1 : layer_of(op.in));
  if (op.kind != EventKind::recv) {
    ValueState& state = values_[provenance_of(op.in).first];
    --state.readers;
    state.being_reduced = false;
  }
  if (!op.non_blocking) return;
  const std::int32_t waited = record({.type = StepType::wait, .comm_step = op.step});
  if (op.kind != EventKind::recv) values_[provenance_of(op.in).first].last_use = waited;
}

template <class T>
T Model::take(PendingOp& op) {
  finish_wait(op);
  if (op.kind == EventKind::send) return std::get<T>(op.in);
  T* const value = std::get_if<T>(&op.out);
  if (value == nullptr) {
    throw_error("D616", fmt::format("rank {} sent {}", op.peer, describe(op.out)),
                "a receive names the type of the incoming value", "receive the type that is sent");
  }
  const ValueNumber source =
      may_be_in_place(op.kind) ? provenance_of(op.in).first : ValueNumber{-1};
  T result = std::move(*value);
  add_value(result, source);
  values_[result.provenance.first].begun = op.step;
  record({.type = StepType::take, .comm_step = op.step, .writes = {result.provenance.first, -1}});
  return result;
}

template <>
AnyValue Model::take(PendingOp& op) {
  const AnyValue& any = op.kind == EventKind::send ? op.in : op.out;
  return std::visit(
      [&]<class T>(const T& /*value*/) -> AnyValue {
        if constexpr (std::is_same_v<T, std::monostate>) {
          throw InternalError("a completed op has a value");
        } else {
          return take<T>(op);
        }
      },
      any);
}

template Weight Model::take(PendingOp&);
template OptState Model::take(PendingOp&);
template WeightGrad Model::take(PendingOp&);
template Activation Model::take(PendingOp&);
template ActivationGrad Model::take(PendingOp&);

}  // namespace shiplap::strategy
