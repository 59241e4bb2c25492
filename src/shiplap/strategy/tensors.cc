#include <fmt/format.h>

#include "shiplap/base/error.h"
#include "shiplap/strategy/rank_program_internal.h"

namespace shiplap::strategy {
namespace {

using plan::DimensionId;
using plan::Value;

struct TensorInfo {
  BufferKind buffer;
  const char* name;
  const char* kind;
};
constexpr std::array<TensorInfo, kBufferKinds> kTensorInfos{
    {{BufferKind::weights, "W", plan::kWeight},
     {BufferKind::opt_states, "O", plan::kOptState},
     {BufferKind::grad_weights, "G", "WeightGrad"},
     {BufferKind::activations, "A", "Activation"},
     {BufferKind::grad_activations, "D", "ActivationGrad"}}};

bool is_weight_like(BufferKind buffer) {
  return buffer == BufferKind::weights || buffer == BufferKind::opt_states ||
         buffer == BufferKind::grad_weights;
}

// Adds the runs of one dimension. One index of the set is `unit` coordinates of the plan.
void add_runs(Value& value, DimensionId dimension, const IndexSet& set, std::int64_t unit) {
  for (const IndexSet::Run& run : set.runs()) {
    ensure(unit == 1 || run.stride == 1, "shards that are split further are contiguous");
    value.runs.push_back({.dimension = dimension,
                          .list = {},
                          .begin = run.begin * unit,
                          .count = run.count * unit,
                          .stride = run.stride});
  }
}

[[noreturn]] void throw_straddling_shards(const IndexSet& shards, std::int64_t of) {
  throw InputError(
      Diagnostic{.code = "D625",
                 .what = fmt::format("shards {} of {} belong to several tensor-parallel ranks",
                                     to_string(shards), of),
                 .why = "in a plan a value has whole tensor-parallel shards, or parts of one",
                 .help = "gather along the innermost axis of the shards first"});
}

}  // namespace

Tensors::Tensors(const Training& training, const Grain& grain)
    : split_(grain.sample > 1), inner_(split_ ? grain.weight / grain.sample : 1), grain_(grain) {
  const int parities = split_ ? 2 : 1;
  for (const TensorInfo& info : kTensorInfos) {
    for (int parity = 0; parity < parities; ++parity) {
      const bool weights = is_weight_like(info.buffer);
      plan::Tensor tensor;
      tensor.name = split_ ? fmt::format("{}{}", info.name, parity) : info.name;
      tensor.kind = info.kind;
      tensor.instances = training.layers + (weights ? 0 : 1);
      // Features that the layer writes, and those that it reads.
      const std::string written = split_ ? fmt::format("f{}", 1 - parity) : "shard";
      const std::string read = fmt::format("f{}", parity);
      const plan::Dimension sample{.name = "sample", .size = training.batch};
      if (weights) tensor.part.push_back({.name = written, .size = grain.weight / inner_});
      if (weights && inner_ > 1) tensor.part.push_back({.name = "shard", .size = inner_});
      if (info.buffer == BufferKind::activations && split_) {
        tensor.part.push_back({.name = read, .size = grain.sample});
      }
      if (!weights) tensor.part.push_back(sample);
      if (info.buffer == BufferKind::grad_weights) tensor.sum.push_back(sample);
      if (info.buffer == BufferKind::grad_activations && split_) {
        tensor.sum.push_back({.name = written, .size = grain.sample});
      }
      tensors_.push_back(std::move(tensor));
    }
  }
}

plan::TensorId Tensors::tensor(BufferKind buffer, std::int64_t layer) const {
  const auto kind = static_cast<std::size_t>(buffer);
  return plan::TensorId(split_ ? kind * 2 + static_cast<std::size_t>(layer % 2) : kind);
}

// Adds the shards of a weight. Those that are sharded along two axes have a dimension for each.
void Tensors::add_shards(Value& value, const IndexSet& shards, std::int64_t of) const {
  const DimensionId outer(std::size_t{0});
  if (shards.covers(of)) return;
  if (inner_ == 1) return add_runs(value, outer, shards, grain_.weight / of);
  const std::int64_t begin = shards.runs().front().begin * (grain_.weight / of);
  const std::int64_t count = shards.size() * (grain_.weight / of);
  const std::int64_t feature = begin / inner_;
  const auto add = [&](DimensionId dimension, std::int64_t first, std::int64_t size) {
    value.runs.push_back(
        {.dimension = dimension, .list = {}, .begin = first, .count = size, .stride = 1});
  };
  if (begin % inner_ == 0 && count % inner_ == 0) return add(outer, feature, count / inner_);
  if (feature != (begin + count - 1) / inner_) throw_straddling_shards(shards, of);
  add(outer, feature, 1);
  add(DimensionId(std::size_t{1}), begin % inner_, count);
}

plan::Value Tensors::value(const AnyValue& any) const {
  const BufferKind buffer = buffer_kind(any);
  // The gradient of the output of layer l is that of the input of layer l+1.
  const std::int64_t layer = layer_of(any) + (buffer == BufferKind::grad_activations ? 1 : 0);
  Value value;
  value.tensor = tensor(buffer, layer);
  value.indexed = true;
  value.index = layer;
  if (const auto* w = std::get_if<Weight>(&any)) {
    add_shards(value, w->shards, w->num_shards);
    value.is_new = w->step > 0;
  } else if (const auto* o = std::get_if<OptState>(&any)) {
    add_shards(value, o->shards, o->num_shards);
    value.is_new = o->step > 0;
  } else if (const auto* g = std::get_if<WeightGrad>(&any)) {
    add_shards(value, g->shards, g->num_shards);
    if (!g->samples.covers(g->total_samples)) {
      value.sum = plan::Sum::some;
      add_runs(value, DimensionId(inner_ > 1 ? std::size_t{2} : std::size_t{1}), g->samples, 1);
    }
  } else if (const auto* a = std::get_if<Activation>(&any)) {
    // Features of a tensor-parallel activation are the outer dimension: this is their memory
    // layout.
    if (a->num_shards > 1) {
      add_runs(value, DimensionId(std::size_t{0}), a->shards, grain_.sample / a->num_shards);
    }
    add_runs(value, DimensionId(split_ ? std::size_t{1} : std::size_t{0}), a->samples, 1);
  } else if (const auto* d = std::get_if<ActivationGrad>(&any)) {
    add_runs(value, DimensionId(std::size_t{0}), d->samples, 1);
    if (!d->is_complete()) {
      value.sum = plan::Sum::some;
      add_runs(value, DimensionId(std::size_t{1}), d->summed, grain_.sample / d->num_summed);
    }
  }
  return value;
}

}  // namespace shiplap::strategy
