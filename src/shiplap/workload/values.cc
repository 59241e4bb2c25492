#include "shiplap/workload/values.h"

#include <fmt/format.h>

#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::workload {
namespace {

[[noreturn]] void refuse(const char* code, std::string what, std::string why, std::string help) {
  throw InputError(Diagnostic{
      .code = code, .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

std::string part(const IndexSet& shards, std::int64_t of) {
  if (of == 1 && shards.covers(1)) return "";
  if (shards.covers(of)) return fmt::format(", all {} shards", of);
  return fmt::format(", shard{} {} of {}", shards.size() == 1 ? "" : "s", to_string(shards), of);
}

std::string of_samples(const IndexSet& samples, std::int64_t total) {
  if (samples.covers(total)) return fmt::format("all {} samples", total);
  return fmt::format("sample{} {} of {}", samples.size() == 1 ? "" : "s", to_string(samples),
                     total);
}

Bytes share(Bytes whole, const IndexSet& shards, std::int64_t of) {
  return {whole.count * shards.size() / of};
}

template <class T>
T cut(const T& value, int shard, int num_shards) {
  if (!value.is_complete()) {
    refuse("D612", fmt::format("{} cannot be cut: it is not complete", describe(value)),
           "only what is complete can be cut into shards",
           "gather its shards first: `co_await model.all_gather(..)`");
  }
  if (num_shards < 1 || shard < 0 || shard >= num_shards) {
    refuse("D610", fmt::format("there is no shard {} of {}", shard, num_shards),
           "shards count from 0", "cut with the rank's position in its group");
  }
  T result = value;
  result.shards = IndexSet(std::int64_t{shard});
  result.num_shards = num_shards;
  const bool stored = value.trail.how == Trail::How::made;
  result.trail = {.how = stored ? Trail::How::shard : Trail::How::none, .first = value.trail.first};
  return result;
}

// Puts the shards of two values together that are the same in all else.
template <class T>
T together(const T& a, const T& b) {
  T other = b;
  other.shards = a.shards;
  other.num_shards = a.num_shards;
  if (!(other == a) || a.num_shards != b.num_shards) {
    refuse("D610", fmt::format("{} and {} do not belong together", describe(a), describe(b)),
           "only shards of the same value can be put together",
           "gather the same layer at the same step on every rank");
  }
  T result = a;
  result.shards = a.shards.united(b.shards);
  result.trail = {};
  return result;
}

Trail sum_of(const Trail& a, const Trail& b) {
  if (a.how != Trail::How::made || b.how != Trail::How::made) return {};
  return {.how = Trail::How::sum, .first = a.first, .second = b.first};
}

template <class T>
void require_like(const T& a, const T& b, bool alike) {
  if (alike) return;
  refuse("D610", fmt::format("{} and {} cannot be added", describe(a), describe(b)),
         "only gradients of the same layer and the same shards can be added",
         "add gradients of one layer only, before they are cut or after they are gathered");
}

}  // namespace

std::string describe(const Weight& value) {
  return fmt::format("the weight of layer {}{}, step {}", value.layer,
                     part(value.shards, value.num_shards), value.step);
}

std::string describe(const OptState& value) {
  return fmt::format("the optimizer state of layer {}{}, step {}", value.layer,
                     part(value.shards, value.num_shards), value.step);
}

std::string describe(const WeightGrad& value) {
  return fmt::format("the weight gradient of layer {}{}, {}", value.layer,
                     part(value.shards, value.num_shards),
                     of_samples(value.samples, value.total_samples));
}

std::string describe(const Activation& value) {
  return fmt::format("the activation of layer {}{}, {}", value.layer,
                     part(value.shards, value.num_shards),
                     of_samples(value.samples, value.total_samples));
}

std::string describe(const ActivationGrad& value) {
  const std::string sum =
      value.is_complete()
          ? ""
          : fmt::format(", contributions {} of {}", to_string(value.summed), value.num_summed);
  return fmt::format("the activation gradient of layer {}{}, {}", value.layer, sum,
                     of_samples(value.samples, value.total_samples));
}

Weight Weight::shard(int index, int of) const { return cut(*this, index, of); }
OptState OptState::shard(int index, int of) const { return cut(*this, index, of); }
WeightGrad WeightGrad::shard(int index, int of) const { return cut(*this, index, of); }
// The features of an activation lie in memory as the ranks that wrote them put them together: cut
// in another way it is a value, but no rank has it.
Activation Activation::shard(int index, int of) const {
  Activation result = cut(*this, index, of);
  if (of != num_shards) result.trail = {};
  return result;
}

Weight Weight::combine(const Weight& other) const { return together(*this, other); }
OptState OptState::combine(const OptState& other) const { return together(*this, other); }
WeightGrad WeightGrad::combine(const WeightGrad& other) const { return together(*this, other); }
Activation Activation::combine(const Activation& other) const { return together(*this, other); }

WeightGrad operator+(const WeightGrad& a, const WeightGrad& b) {
  require_like(a, b,
               a.layer == b.layer && a.shards == b.shards && a.num_shards == b.num_shards &&
                   a.total_samples == b.total_samples);
  if (a.samples.overlaps(b.samples)) {
    refuse("D611", fmt::format("{} and {} share samples", describe(a), describe(b)),
           "a sample that is in both would be counted twice",
           "give every microbatch, and every rank, samples of its own");
  }
  WeightGrad sum = a;
  sum.samples = a.samples.united(b.samples);
  sum.trail = sum_of(a.trail, b.trail);
  return sum;
}

ActivationGrad operator+(const ActivationGrad& a, const ActivationGrad& b) {
  require_like(a, b,
               a.layer == b.layer && a.samples == b.samples && a.num_summed == b.num_summed &&
                   a.total_samples == b.total_samples);
  if (a.summed.overlaps(b.summed)) {
    refuse("D611", fmt::format("{} and {} share contributions", describe(a), describe(b)),
           "a contribution that is in both would be counted twice",
           "let each rank hold another shard of the weight");
  }
  ActivationGrad sum = a;
  sum.summed = a.summed.united(b.summed);
  sum.trail = sum_of(a.trail, b.trail);
  return sum;
}

Bytes Weight::memory(const ModelShape& shape) const {
  return share(shape.weight(), shards, num_shards);
}
Bytes OptState::memory(const ModelShape& shape) const {
  return share(shape.opt_state(), shards, num_shards);
}
Bytes WeightGrad::memory(const ModelShape& shape) const {
  return share(shape.weight(), shards, num_shards);
}
Bytes Activation::memory(const ModelShape& shape) const {
  return share(samples.size() * shape.activation(), shards, num_shards);
}
Bytes ActivationGrad::memory(const ModelShape& shape) const {
  return samples.size() * shape.activation();
}

}  // namespace shiplap::workload
