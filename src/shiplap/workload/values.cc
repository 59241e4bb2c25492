#include "shiplap/workload/values.h"

#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::workload {
namespace {

[[noreturn]] void throw_error(const char* code, std::string what, std::string why,
                              std::string help) {
  throw InputError(Diagnostic{
      .code = code, .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

std::string format_shards(const IndexSet& shards, std::int64_t of) {
  if (of == 1 && shards.covers(1)) return "";
  if (shards.covers(of)) return fmt::format(", all {} shards", of);
  return fmt::format(", shard{} {} of {}", shards.size() == 1 ? "" : "s", to_string(shards), of);
}

std::string format_samples(const IndexSet& samples, std::int64_t total) {
  if (samples.covers(total)) return fmt::format("all {} samples", total);
  return fmt::format("sample{} {} of {}", samples.size() == 1 ? "" : "s", to_string(samples),
                     total);
}

Bytes shard_bytes(Bytes whole, const IndexSet& shards, std::int64_t of) {
  return {whole.count * shards.size() / of};
}

bool is_consecutive(const IndexSet& set) {
  return set.runs().size() == 1 && set.runs().front().stride == 1;
}

template <class T>
void check_complete(const T& value) {
  if (value.is_complete()) return;
  throw_error("D612", fmt::format("{} cannot be sharded: it is not complete", describe(value)),
              "only complete activations can be sharded",
              "gather its shards first: `co_await model.all_gather(..)`");
}

// Part `shard` of `parts` of consecutive shards, which are sharded more finely if their number does
// not divide.
template <class T>
void split_shards(T& value, std::int64_t shard, std::int64_t parts) {
  if (!is_consecutive(value.shards)) {
    throw_error(
        "D612",
        fmt::format("{} cannot be sharded: its shards are not consecutive", describe(value)),
        "shards that are sharded again are consecutive",
        "gather along the innermost axis of the shards first");
  }
  const std::int64_t held = value.shards.size();
  const std::int64_t finer = parts / std::gcd(held, parts);
  const std::int64_t count = held * finer / parts;
  if (value.num_shards > std::numeric_limits<std::int32_t>::max() / finer) {
    throw_error("D610", fmt::format("{} cannot be sharded in {}", describe(value), parts),
                "the product of the numbers of shards is at most 2^31 - 1", "take fewer shards");
  }
  const std::int64_t first = value.shards.runs().front().begin * finer;
  value.shards = IndexSet::range(first + shard * count, count);
  value.num_shards = static_cast<std::int32_t>(value.num_shards * finer);
}

template <class T>
T take_shard(const T& value, int shard, int num_shards) {
  if (num_shards < 1 || shard < 0 || shard >= num_shards) {
    throw_error("D610", fmt::format("there is no shard {} of {}", shard, num_shards),
                "shards count from 0", "shard by the rank's position in its group");
  }
  T result = value;
  if (value.is_complete()) {
    result.shards = IndexSet(std::int64_t{shard});
    result.num_shards = num_shards;
  } else {
    split_shards(result, shard, num_shards);
  }
  const bool stored = value.provenance.kind == Provenance::Kind::result;
  result.provenance = {.kind = stored ? Provenance::Kind::shard : Provenance::Kind::none,
                       .first = value.provenance.first};
  return result;
}

// Throws D610 unless both values agree in everything except their shards.
template <class T>
T combine_shards(const T& a, const T& b) {
  T other = b;
  other.shards = a.shards;
  other.num_shards = a.num_shards;
  if (!(other == a) || a.num_shards != b.num_shards) {
    throw_error("D610", fmt::format("{} and {} do not match", describe(a), describe(b)),
                "only shards of the same value can be combined",
                "gather the same layer at the same step on every rank");
  }
  T result = a;
  result.shards = a.shards.united(b.shards);
  result.provenance = {};
  return result;
}

Provenance sum_of(const Provenance& a, const Provenance& b) {
  if (a.kind != Provenance::Kind::result || b.kind != Provenance::Kind::result) return {};
  return {.kind = Provenance::Kind::sum, .first = a.first, .second = b.first};
}

template <class T>
void check_addable(const T& a, const T& b, bool alike) {
  if (alike) return;
  throw_error(
      "D610", fmt::format("{} and {} cannot be added", describe(a), describe(b)),
      "only gradients of the same layer and the same shards can be added",
      "add gradients of one layer only, before they are sharded or after they are gathered");
}

}  // namespace

std::string describe(const Weight& value) {
  return fmt::format("the weight of layer {}{}, step {}", value.layer,
                     format_shards(value.shards, value.num_shards), value.step);
}

std::string describe(const OptState& value) {
  return fmt::format("the optimizer state of layer {}{}, step {}", value.layer,
                     format_shards(value.shards, value.num_shards), value.step);
}

std::string describe(const WeightGrad& value) {
  return fmt::format("the weight gradient of layer {}{}, {}", value.layer,
                     format_shards(value.shards, value.num_shards),
                     format_samples(value.samples, value.total_samples));
}

std::string describe(const Activation& value) {
  return fmt::format("the activation of layer {}{}, {}", value.layer,
                     format_shards(value.shards, value.num_shards),
                     format_samples(value.samples, value.total_samples));
}

std::string describe(const ActivationGrad& value) {
  const std::string sum =
      value.is_complete()
          ? ""
          : fmt::format(", contributions {} of {}", to_string(value.summed), value.num_summed);
  return fmt::format("the activation gradient of layer {}{}, {}", value.layer, sum,
                     format_samples(value.samples, value.total_samples));
}

Weight Weight::shard(int index, int of) const { return take_shard(*this, index, of); }
OptState OptState::shard(int index, int of) const { return take_shard(*this, index, of); }
WeightGrad WeightGrad::shard(int index, int of) const { return take_shard(*this, index, of); }
// The ranks that wrote an activation determine the layout of its features. Sharded in another way
// it is still a value, but no rank stores it.
Activation Activation::shard(int index, int of) const {
  check_complete(*this);
  Activation result = take_shard(*this, index, of);
  if (of != num_shards) result.provenance = {};
  return result;
}

Weight Weight::combine(const Weight& other) const { return combine_shards(*this, other); }
OptState OptState::combine(const OptState& other) const { return combine_shards(*this, other); }
WeightGrad WeightGrad::combine(const WeightGrad& other) const {
  return combine_shards(*this, other);
}
Activation Activation::combine(const Activation& other) const {
  return combine_shards(*this, other);
}

Features features_of(const Weight& weight) {
  if (weight.is_complete()) return {};
  if (!is_consecutive(weight.shards)) {
    return {.parts = weight.shards, .num_parts = weight.num_shards};
  }
  const std::int64_t begin = weight.shards.runs().front().begin;
  const std::int64_t count = weight.shards.size();
  const std::int64_t unit = std::gcd(std::gcd(begin, count), std::int64_t{weight.num_shards});
  return {.parts = IndexSet::range(begin / unit, count / unit),
          .num_parts = static_cast<std::int32_t>(weight.num_shards / unit)};
}

WeightGrad operator+(const WeightGrad& a, const WeightGrad& b) {
  check_addable(a, b,
                a.layer == b.layer && a.shards == b.shards && a.num_shards == b.num_shards &&
                    a.total_samples == b.total_samples);
  if (a.samples.overlaps(b.samples)) {
    throw_error("D611", fmt::format("{} and {} share samples", describe(a), describe(b)),
                "a sample that is in both would be counted twice",
                "give every microbatch and every rank distinct samples");
  }
  WeightGrad sum = a;
  sum.samples = a.samples.united(b.samples);
  sum.provenance = sum_of(a.provenance, b.provenance);
  return sum;
}

ActivationGrad operator+(const ActivationGrad& a, const ActivationGrad& b) {
  check_addable(a, b,
                a.layer == b.layer && a.samples == b.samples && a.num_summed == b.num_summed &&
                    a.total_samples == b.total_samples);
  if (a.summed.overlaps(b.summed)) {
    throw_error("D611", fmt::format("{} and {} share contributions", describe(a), describe(b)),
                "a contribution that is in both would be counted twice",
                "give each rank a different shard of the weight");
  }
  ActivationGrad sum = a;
  sum.summed = a.summed.united(b.summed);
  sum.provenance = sum_of(a.provenance, b.provenance);
  return sum;
}

Bytes Weight::memory(const ModelShape& shape) const {
  return shard_bytes(shape.weight(layer), shards, num_shards);
}
Bytes OptState::memory(const ModelShape& shape) const {
  return shard_bytes(shape.opt_state(layer), shards, num_shards);
}
Bytes WeightGrad::memory(const ModelShape& shape) const {
  return shard_bytes(shape.weight(layer), shards, num_shards);
}
Bytes Activation::memory(const ModelShape& shape) const {
  return shard_bytes(samples.size() * shape.activation(), shards, num_shards);
}
Bytes ActivationGrad::memory(const ModelShape& shape) const {
  return samples.size() * shape.activation();
}

}  // namespace shiplap::workload
