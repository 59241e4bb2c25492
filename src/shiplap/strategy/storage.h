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
#include <memory_resource>
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
  void rename(Key key) { key_ = key; }

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

// Places that were given up are used again, so that a rank's storage is one piece of memory.
template <class T>
class Shelf {
 public:
  explicit Shelf(Bookkeeper& keeper,
                 std::pmr::memory_resource& memory = *std::pmr::get_default_resource())
      : keeper_(&keeper), slots_(&memory) {}
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  // The place of that name, made if there is none. It stays where it is until it is erased.
  Slot<T>& operator[](Key key) {
    const auto found = slots_.lower_bound(key);
    if (found != slots_.end() && found->first == key) return found->second;
    if (spare_.empty()) return slots_.try_emplace(found, key, *keeper_, key)->second;
    spare_.key() = key;
    spare_.mapped().rename(key);
    return slots_.insert(found, std::move(spare_))->second;
  }
  [[nodiscard]] bool contains(Key key) const {
    const auto found = slots_.find(key);
    return found != slots_.end() && !found->second.empty();
  }
  // Throws InputError D613 if nothing lies there.
  void erase(Key key) {
    const auto found = slots_.find(key);
    if (found == slots_.end() || found->second.empty()) keeper_->nothing_there(key);
    found->second.clear();
    spare_ = slots_.extract(found);
  }
  // By key; empty ones too.
  [[nodiscard]] const std::pmr::map<Key, Slot<T>>& slots() const { return slots_; }

 private:
  Bookkeeper* keeper_;
  std::pmr::map<Key, Slot<T>> slots_;
  typename std::pmr::map<Key, Slot<T>>::node_type spare_;
};

struct Storage {
  explicit Storage(Bookkeeper& keeper,
                   std::pmr::memory_resource& memory = *std::pmr::get_default_resource())
      : weights(keeper, memory),
        opt_states(keeper, memory),
        activations(keeper, memory),
        grad_activations(keeper, memory),
        grad_weights(keeper, memory) {}
  Shelf<Weight> weights;
  Shelf<OptState> opt_states;
  Shelf<Activation> activations;
  Shelf<ActivationGrad> grad_activations;
  Shelf<WeightGrad> grad_weights;
};

}  // namespace shiplap::strategy
