// How a Model keeps book of what it holds.
#include <fmt/format.h>

#include <utility>

#include "shiplap/strategy/model.h"

namespace shiplap::strategy {
namespace {

using workload::Trail;

}  // namespace

void Model::release_loose() {
  for (const ValueNumber number : loose_) {
    Known& known = known_[number];
    if (known.places > 0 || known.gone) continue;
    known.gone = true;
    record({.what = Step::What::drop, .reads = {number, -1, -1}});
  }
  loose_.clear();
}

std::int32_t Model::record(const Step& step) {
  dist_.changed();
  return recorder_.add(step);
}

// The first place of a result. Where it takes that of what it was made from, it needs no memory of
// its own.
template <class T>
Model::Placed Model::place_fresh(T& value, ValueNumber before) {
  const ValueNumber number = value.trail.first;
  const bool in_place = known_[number].source >= 0 && known_[number].source == before;
  if (in_place) {
    record({.what = Step::What::in_place, .reads = {before, -1, -1}, .writes = {number, -1}});
  }
  return {.number = number, .in_place = in_place};
}

// A copy, a shard or a sum of what is stored.
template <class T>
Model::Placed Model::place_derived(T& value, ValueNumber before) {
  const Trail from = value.trail;
  const auto alive = [&](ValueNumber n) { return n < 0 || !known_[n].gone; };
  if (!alive(from.first) || !alive(from.second)) {
    refuse_between("D613", fmt::format("{} is made from something that is gone", describe(value)),
                   "a result has to be stored before the next call", "store it at once");
  }
  const auto held = [&](ValueNumber n) { return n >= 0 && known_[n].held; };
  if (held(from.first) || held(from.second)) refuse_held(describe(value));
  const bool sum = from.how == Trail::How::sum;
  const bool in_place =
      from.how != Trail::How::made && (before == from.first || (sum && before == from.second));
  const auto number = static_cast<ValueNumber>(known_.size());
  known_.push_back({.bytes = value.memory(shape())});
  value.trail = {.how = Trail::How::made, .first = number};
  recorder_.add(value);
  if (in_place) {
    record({.what = Step::What::in_place, .reads = {before, -1, -1}, .writes = {number, -1}});
    const ValueNumber read = sum && before == from.first ? from.second : from.first;
    record({.what = sum ? Step::What::add : Step::What::keep_shard,
            .reads = {read, -1, -1},
            .writes = {number, -1}});
    return {.number = number, .in_place = true};
  }
  record({.what = Step::What::cast, .reads = {from.first, -1, -1}, .writes = {number, -1}});
  if (sum)
    record({.what = Step::What::add, .reads = {from.second, -1, -1}, .writes = {number, -1}});
  return {.number = number, .in_place = false};
}

template <class T>
void Model::store_value(T& value, const T* before) {
  const ValueNumber old = before == nullptr ? -1 : before->trail.first;
  const Trail from = value.trail;
  if (from.how == Trail::How::none || from.first >= static_cast<ValueNumber>(known_.size())) {
    refuse_between("D613", fmt::format("{} was made by no call of this rank", describe(value)),
                   "storage holds what calls return, their shards, and the sum of two of them",
                   "store each sum or shard before you go on with it");
  }
  const bool made = from.how == Trail::How::made;
  if (made && from.first == old) return;
  const bool fresh = made && known_[from.first].places == 0;
  if (fresh && known_[from.first].gone) {
    refuse_between("D613", fmt::format("{} was not stored in time", describe(value)),
                   "a result has to be stored before the next call", "store it at once");
  }
  if (before != nullptr && known_[old].readers > 0) {
    refuse_read(describe(*before));
  }
  const auto [number, in_place] = fresh ? place_fresh(value, old) : place_derived(value, old);
  known_[number].places = 1;
  memory_ += known_[number].bytes;
  if (before == nullptr) return;
  // What is replaced in place leaves no hole.
  Known& gone = known_[old];
  gone.places = 0;
  gone.gone = true;
  memory_ = memory_ - gone.bytes;
  if (!in_place) record({.what = Step::What::drop, .reads = {old, -1, -1}});
}

void Model::store(Weight& value, const Weight* before) { store_value(value, before); }
void Model::store(OptState& value, const OptState* before) { store_value(value, before); }
void Model::store(Activation& value, const Activation* before) {
  if (value.trail.how == Trail::How::none && !value.is_complete()) {
    refuse_between(
        "D610", fmt::format("{} cannot be stored", describe(value)),
        "the features of an activation lie as the ranks that wrote them put them together",
        "cut it as it was gathered, or let a layer whose weight is cut write it");
  }
  store_value(value, before);
}
void Model::store(ActivationGrad& value, const ActivationGrad* before) {
  store_value(value, before);
}
void Model::store(WeightGrad& value, const WeightGrad* before) { store_value(value, before); }

void Model::drop(const Trail& trail, Bytes bytes) {
  Known& known = known_[trail.first];
  if (known.readers > 0) {
    refuse_read("what is erased");
  }
  known.places = 0;
  known.gone = true;
  memory_ = memory_ - bytes;
  record({.what = Step::What::drop, .reads = {trail.first, -1, -1}});
}

}  // namespace shiplap::strategy
