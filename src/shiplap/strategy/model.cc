#include "shiplap/strategy/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shiplap::strategy {
namespace {

using trace::Kind;

}  // namespace

Model::Model(int rank)
    : own_dist_(std::make_unique<Dist>(1)),
      dist_(*own_dist_),
      rank_(rank),
      storage_(*this, dist_.arena()) {
  if (rank != 0) refuse("D621", fmt::format("there is no rank {} in a world of one", rank), "", "");
  dist_.enter(*this);
}

Model::Model(int rank, Dist& dist, const Training& training)
    : dist_(dist), rank_(rank), training_(training), storage_(*this, dist_.arena()) {
  const auto positive = [&](int number, const char* what) {
    if (number >= 1) return;
    refuse("D622", fmt::format("{} {} cannot be trained", number, what),
           "there is at least one of each", fmt::format("ask for 1 {} or more", what));
  };
  positive(training.layers, "layers");
  positive(training.batch, "samples");
  positive(training.microbatches, "microbatches");
  positive(training.chunks, "chunks");
  if (rank < 0 || rank >= dist.size()) {
    refuse("D621", fmt::format("there is no rank {} in a world of {}", rank, dist.size()),
           "ranks count from 0", "");
  }
  dist_.group("", "");
  dist_.enter(*this);
}

Model::~Model() { dist_.leave(*this); }

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
    refuse("D621", fmt::format("`{}` has no position {}", axis, position),
           fmt::format("its positions are 0 to {}", dist_.group_size(group) - 1), "");
  }
  return plan::along(dist_.mesh(), dist_.group_axes(group), Rank(rank_))[position].value;
}

IndexSet Model::samples(int part, int parts) const {
  if (parts < 1 || part < 0 || part >= parts || training_.batch % parts != 0) {
    refuse("D622", fmt::format("{} samples cannot be cut into {} parts", training_.batch, parts),
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
  const auto list = [&](const char* name, const auto& shelf) {
    shelf.for_each([&](Key key, const auto& slot) {
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

// ---------------------------------------------------------------- refusals

void Model::refuse(const char* code, std::string what, std::string why, std::string help) const {
  throw InputError(Diagnostic{.code = code,
                              .where = {.rank = rank_, .operation = last_call()},
                              .what = std::move(what),
                              .why = std::move(why),
                              .help = std::move(help)});
}

void Model::refuse_between(const char* code, std::string what, std::string why,
                           std::string help) const {
  throw InputError(Diagnostic{.code = code,
                              .where = {.rank = rank_, .operation = "after " + last_call()},
                              .what = std::move(what),
                              .why = std::move(why),
                              .help = std::move(help)});
}

void Model::nothing_there(Key key) const {
  const std::string name =
      key.second < 0 ? fmt::format("{}", key.first) : fmt::format("{}, {}", key.first, key.second);
  refuse_between("D613", fmt::format("nothing is stored under [{}]", name),
                 "only what is in storage can be used or erased",
                 "store it first, or ask `contains` whether it is there");
}

void Model::refuse_loose(const std::string& what) const {
  refuse("D613", fmt::format("{} is not in storage", what),
         "only what is in storage counts as memory, so only that can be used",
         "store the result of each call before the next one: `activations[l] = ..`");
}

void Model::refuse_held(const std::string& what) const {
  refuse("D620", fmt::format("{} is being reduced", what),
         "a reduction that is under way writes where its operand lies",
         "wait for it first: `co_await` what the start_ call returned");
}

void Model::refuse_read(const std::string& what) const {
  refuse_between("D620", fmt::format("{} is in use", what),
                 "a communication that is under way reads or writes what lies there",
                 "wait for it first: `co_await` what the start_ call returned");
}

template <class T>
void Model::require(const T& value, bool fits, const char* expected) {
  require_stored(value.trail, value);
  if (fits) return;
  refuse("D614", fmt::format("{} does not fit", describe(value)),
         fmt::format("expected is {}", expected),
         "give the values of that layer, step and samples");
}

template <class T>
void Model::require_whole(const T& value, bool complete, const char* what) {
  if (complete) return;
  refuse("D612", fmt::format("{} is not complete", describe(value)), what,
         "gather or reduce it first, over the ranks that have the rest");
}

void Model::require_layer(int layer) const {
  if (layer >= 0 && layer < training_.layers) return;
  refuse("D614", fmt::format("there is no layer {}", layer),
         fmt::format("layers are 0 to {}", training_.layers - 1), "");
}

// ---------------------------------------------------------------- computations

void Model::begin_call(std::string_view call, int layer) {
  call_ = call;
  call_layer_ = layer;
  release_loose();
}

void Model::compute(Kind kind, const Extent& extent, const Operands& operands) {
  record({.what = Step::What::compute,
          .kind = kind,
          .reads = operands.reads,
          .writes = operands.writes,
          .work = dist_.work(kind, extent.samples, extent.held, extent.of)});
}

void Model::log_event(Kind kind, const What& what) {
  begin_call(kind, what.layer);
  if (trace::is_communication(kind)) {
    refuse("D614", fmt::format("a {} cannot be logged alone", name(kind)),
           "communication needs the other ranks", "call it");
  }
  const auto number = static_cast<ValueNumber>(known_.size());
  known_.push_back({.gone = true});
  recorder_.add(Activation{.layer = what.layer, .samples = what.samples});
  record({.what = Step::What::log,
          .kind = kind,
          .reads = {number, -1, -1},
          .work = dist_.work(kind, what.samples.size(), what.shards_on_device, what.num_shards)});
}

std::pair<Weight, OptState> Model::load_weights(int layer, int shard, int num_shards) {
  begin_call(Kind::load_weights, layer);
  require_layer(layer);
  if (num_shards < 1 || shard < 0 || shard >= num_shards) {
    refuse("D614", fmt::format("there is no shard {} of {}", shard, num_shards),
           "shards count from 0", "");
  }
  Weight weight{.layer = layer,
                .layers = training_.layers,
                .shards = IndexSet(std::int64_t{shard}),
                .num_shards = num_shards,
                .trail = {}};
  OptState opt{.layer = layer,
               .layers = training_.layers,
               .shards = weight.shards,
               .num_shards = num_shards,
               .trail = {}};
  make(weight, -1);
  make(opt, -1);
  compute(Kind::load_weights, {.held = 1, .of = num_shards},
          {.writes = {weight.trail.first, opt.trail.first}});
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
      refuse("D614", fmt::format("there is no sample {}", sample), "samples count from 0", "");
  }
  return get_input_activation(IndexSet(std::vector<std::int32_t>(samples)));
}

Activation Model::get_input_activation(const IndexSet& samples) {
  begin_call("get_input_activation", -1);
  const bool inside = !samples.empty() && samples.runs().back().last() < training_.batch;
  if (!inside) {
    refuse("D614", fmt::format("samples {} cannot be read", to_string(samples)),
           fmt::format("the batch has samples 0 to {}", training_.batch - 1), "");
  }
  Activation input{.layer = 0,
                   .layers = training_.layers,
                   .samples = samples,
                   .total_samples = training_.batch,
                   .trail = {}};
  make(input, -1);
  record({.kind = Kind::compute, .writes = {input.trail.first, -1}});
  return input;
}

Activation Model::forward(int layer, const Activation& input, const Weight& weight) {
  begin_call(Kind::forward, layer);
  require_layer(layer);
  require(input, input.layer == layer, "the activation that this layer reads");
  require(weight, weight.layer == layer, "the weight of this layer");
  require_whole(input, input.is_complete(), "a layer reads all features of its input");
  Activation output{.layer = layer + 1,
                    .layers = training_.layers,
                    .samples = input.samples,
                    .total_samples = input.total_samples,
                    .trail = {}};
  if (!weight.is_complete()) {
    output.shards = weight.shards;
    output.num_shards = weight.num_shards;
  }
  make(output, -1);
  compute(
      Kind::forward, {input.samples.size(), weight.shards.size(), weight.num_shards},
      {.reads = {input.trail.first, weight.trail.first, -1}, .writes = {output.trail.first, -1}});
  return output;
}

ActivationGrad Model::loss(const Activation& input) {
  begin_call(Kind::loss, -1);
  require(input, input.layer == training_.layers, "what the last layer wrote");
  require_whole(input, input.is_complete(), "the loss needs all features");
  ActivationGrad grad{.layer = training_.layers - 1,
                      .layers = training_.layers,
                      .samples = input.samples,
                      .total_samples = input.total_samples,
                      .trail = {}};
  make(grad, -1);
  compute(Kind::loss, {0, 0, 0},
          {.reads = {input.trail.first, -1, -1}, .writes = {grad.trail.first, -1}});
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
  ActivationGrad grad{.layer = input.layer - 1,
                      .layers = training_.layers,
                      .samples = input.samples,
                      .total_samples = input.total_samples,
                      .trail = {}};
  if (!weight.is_complete()) {
    grad.summed = weight.shards;
    grad.num_summed = weight.num_shards;
  }
  return grad;
}

WeightGrad Model::weight_grad(const Activation& input, const Weight& weight) const {
  WeightGrad grad{.layer = input.layer,
                  .layers = training_.layers,
                  .samples = input.samples,
                  .total_samples = input.total_samples,
                  .trail = {}};
  if (!weight.is_complete()) {
    grad.shards = weight.shards;
    grad.num_shards = weight.num_shards;
  }
  return grad;
}

std::pair<WeightGrad, ActivationGrad> Model::backward(int layer, const Activation& input,
                                                      const ActivationGrad& grad,
                                                      const Weight& weight) {
  begin_call(Kind::backward, layer);
  check_backward(layer, input, grad, weight);
  WeightGrad of_weight = weight_grad(input, weight);
  ActivationGrad of_input = input_grad(input, weight);
  make(of_weight, -1);
  make(of_input, -1);
  compute(Kind::backward, {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.trail.first, grad.trail.first, weight.trail.first},
           .writes = {of_weight.trail.first, of_input.trail.first}});
  return {std::move(of_weight), std::move(of_input)};
}

ActivationGrad Model::backward_input(int layer, const Activation& input, const ActivationGrad& grad,
                                     const Weight& weight) {
  begin_call(Kind::backward_input, layer);
  check_backward(layer, input, grad, weight);
  ActivationGrad result = input_grad(input, weight);
  make(result, -1);
  compute(Kind::backward_input, {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.trail.first, grad.trail.first, weight.trail.first},
           .writes = {result.trail.first, -1}});
  return result;
}

WeightGrad Model::backward_weight(int layer, const Activation& input, const ActivationGrad& grad,
                                  const Weight& weight) {
  begin_call(Kind::backward_weight, layer);
  check_backward(layer, input, grad, weight);
  WeightGrad result = weight_grad(input, weight);
  make(result, -1);
  compute(Kind::backward_weight, {input.samples.size(), weight.shards.size(), weight.num_shards},
          {.reads = {input.trail.first, grad.trail.first, -1}, .writes = {result.trail.first, -1}});
  return result;
}

std::pair<Weight, OptState> Model::update(int layer, const WeightGrad& grad, const Weight& weight,
                                          const OptState& opt_state) {
  begin_call(Kind::update, layer);
  require_layer(layer);
  require(grad, grad.layer == layer, "the gradient of this layer's weight");
  require(weight, weight.layer == layer, "the weight of this layer");
  require(opt_state, opt_state.layer == layer, "the optimizer state of this layer");
  if (!grad.samples.covers(grad.total_samples)) {
    refuse("D615", fmt::format("{} misses samples", describe(grad)),
           fmt::format("an update needs the gradient of all {} samples", grad.total_samples),
           "sum it over the ranks that have the other samples: `co_await model.all_reduce(..)`");
  }
  const auto alike = [&](const IndexSet& shards, int of) {
    return of == weight.num_shards && shards == weight.shards;
  };
  require(grad, grad.is_complete() || alike(grad.shards, grad.num_shards),
          "the shards of the weight, or all");
  require(opt_state, alike(opt_state.shards, opt_state.num_shards), "the shards of the weight");
  require(opt_state, opt_state.step == weight.step, "the step of the weight");
  Weight new_weight = weight;
  OptState new_state = opt_state;
  ++new_weight.step;
  ++new_state.step;
  const ValueNumber old_weight = weight.trail.first;
  const ValueNumber old_state = opt_state.trail.first;
  make(new_weight, old_weight);
  make(new_state, old_state);
  compute(Kind::update, {0, weight.shards.size(), weight.num_shards},
          {.reads = {grad.trail.first, weight.trail.first, opt_state.trail.first},
           .writes = {new_weight.trail.first, new_state.trail.first}});
  return {std::move(new_weight), std::move(new_state)};
}

}  // namespace shiplap::strategy
