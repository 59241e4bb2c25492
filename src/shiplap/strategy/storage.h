// What a rank holds: five shelves of values, of which each has a place of its own. Only what lies
// here counts as memory and may be used.
//
//   auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
//   std::tie(weights[l], opt_states[l]) = model.load_weights(l);
//   activations[{l, microbatch}] = model.forward(..);
//   activations.erase({l, microbatch});
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "shiplap/base/units.h"
#include "shiplap/workload/values.h"

namespace shiplap::strategy {

using workload::Activation;
using workload::ActivationGrad;
using workload::OptState;
using workload::Weight;
using workload::WeightGrad;

// The name of a place: one number or two, such as layer and microbatch.
struct Key {
  std::int32_t first = 0;
  std::int32_t second = -1;
  Key(int one) : first(one) {}  // NOLINT(google-explicit-constructor): weights[l]
  Key(int one, int two) : first(one), second(two) {}
  friend auto operator<=>(const Key&, const Key&) = default;
};

// Whoever keeps book of what is stored. `before` is what lay in the place, if anything did; `value`
// gets the identity under which it lies there.
class Bookkeeper {
 public:
  Bookkeeper() = default;
  Bookkeeper(const Bookkeeper&) = delete;
  Bookkeeper& operator=(const Bookkeeper&) = delete;

  virtual void store(Weight& value, const Weight* before) = 0;
  virtual void store(OptState& value, const OptState* before) = 0;
  virtual void store(Activation& value, const Activation* before) = 0;
  virtual void store(ActivationGrad& value, const ActivationGrad* before) = 0;
  virtual void store(WeightGrad& value, const WeightGrad* before) = 0;
  virtual void drop(const workload::Trail& trail, Bytes bytes) = 0;
  [[nodiscard]] virtual const workload::ModelShape& shape() const = 0;
  // Throws InputError D613: nothing lies there.
  [[noreturn]] virtual void nothing_there(Key key) const = 0;

 protected:
  ~Bookkeeper() = default;
};

// A place on a shelf. Reads as the value that lies in it.
template <class T>
class Slot {
 public:
  Slot(Bookkeeper& keeper, Key key) : keeper_(&keeper), key_(key) {}
  Slot(const Slot&) = delete;
  Slot(Slot&&) = delete;
  Slot& operator=(Slot&&) = delete;
  ~Slot() = default;

  Slot& operator=(T value) {
    keeper_->store(value, full_ ? &value_ : nullptr);
    value_ = std::move(value);
    full_ = true;
    return *this;
  }
  // What lies in another place, once more.
  Slot& operator=(const Slot& other) {  // NOLINT(bugprone-unhandled-self-assignment)
    if (this != &other) *this = T(other.value());
    return *this;
  }

  [[nodiscard]] const T& value() const {
    if (!full_) keeper_->nothing_there(key_);
    return value_;
  }
  operator const T&() const { return value(); }  // NOLINT(google-explicit-constructor)
  const T* operator->() const { return &value(); }
  [[nodiscard]] bool empty() const { return !full_; }
  [[nodiscard]] Key key() const { return key_; }

  void clear() {
    if (!full_) return;
    keeper_->drop(value_.trail, value_.memory(keeper_->shape()));
    full_ = false;
  }

  friend T operator+(const Slot& a, const T& b) { return a.value() + b; }

 private:
  Bookkeeper* keeper_;
  Key key_;
  bool full_ = false;
  T value_;
};

template <class T>
class Shelf {
 public:
  explicit Shelf(Bookkeeper& keeper) : keeper_(&keeper) {}
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  // The place of that name, made if there is none. It stays where it is until it is erased.
  Slot<T>& operator[](Key key) { return slots_.try_emplace(key, *keeper_, key).first->second; }
  [[nodiscard]] bool contains(Key key) const {
    const auto found = slots_.find(key);
    return found != slots_.end() && !found->second.empty();
  }
  // Throws InputError D613 if nothing lies there.
  void erase(Key key) {
    const auto found = slots_.find(key);
    if (found == slots_.end() || found->second.empty()) keeper_->nothing_there(key);
    found->second.clear();
    slots_.erase(found);
  }
  // By key; empty ones too.
  [[nodiscard]] const std::map<Key, Slot<T>>& slots() const { return slots_; }

 private:
  Bookkeeper* keeper_;
  std::map<Key, Slot<T>> slots_;
};

struct Storage {
  explicit Storage(Bookkeeper& keeper)
      : weights(keeper),
        opt_states(keeper),
        activations(keeper),
        grad_activations(keeper),
        grad_weights(keeper) {}
  Shelf<Weight> weights;
  Shelf<OptState> opt_states;
  Shelf<Activation> activations;
  Shelf<ActivationGrad> grad_activations;
  Shelf<WeightGrad> grad_weights;
};

}  // namespace shiplap::strategy
