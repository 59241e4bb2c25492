// The storage of a rank: five maps of values. Only stored values count as memory and may be used.
//
//   auto& [weights, opt_states, activations, grad_activations, grad_weights] = model.storage();
//   std::tie(weights[l], opt_states[l]) = model.load_weights(l);
//   activations[{l, microbatch}] = model.forward(..);
//   activations.erase({l, microbatch});
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/workload/values.h"

namespace shiplap::strategy {

using workload::Activation;
using workload::ActivationGrad;
using workload::OptState;
using workload::Weight;
using workload::WeightGrad;

// The key of a slot: one number or two, such as layer and microbatch.
struct Key {
  std::int32_t first = 0;
  std::int32_t second = -1;
  Key(int one) : first(one) {}  // NOLINT(google-explicit-constructor): weights[l]
  Key(int one, int two) : first(one), second(two) {}
  friend auto operator<=>(const Key&, const Key&) = default;
};

// Is notified of every change of storage. `before` is the previous value of the slot, or null;
// store() sets the provenance under which `value` is stored.
class StorageObserver {
 public:
  StorageObserver() = default;
  StorageObserver(const StorageObserver&) = delete;
  StorageObserver& operator=(const StorageObserver&) = delete;

  virtual void store(Weight& value, const Weight* before) = 0;
  virtual void store(OptState& value, const OptState* before) = 0;
  virtual void store(Activation& value, const Activation* before) = 0;
  virtual void store(ActivationGrad& value, const ActivationGrad* before) = 0;
  virtual void store(WeightGrad& value, const WeightGrad* before) = 0;
  virtual void drop(const workload::Provenance& provenance, Bytes bytes) = 0;
  [[nodiscard]] virtual const workload::ModelShape& shape() const = 0;
  // Throws InputError D613.
  [[noreturn]] virtual void throw_empty_slot(Key key) const = 0;

 protected:
  ~StorageObserver() = default;
};

// A slot of a ValueMap. Converts to its value.
template <class T>
class Slot {
 public:
  Slot(StorageObserver& observer, Key key) : observer_(&observer), key_(key) {}
  Slot(const Slot&) = delete;
  Slot(Slot&&) = delete;
  Slot& operator=(Slot&&) = delete;
  ~Slot() = default;

  Slot& operator=(T value) {
    observer_->store(value, full_ ? &value_ : nullptr);
    value_ = std::move(value);
    full_ = true;
    return *this;
  }
  // Stores a copy of the other slot's value.
  Slot& operator=(const Slot& other) {  // NOLINT(bugprone-unhandled-self-assignment)
    if (this != &other) *this = T(other.value());
    return *this;
  }

  [[nodiscard]] const T& value() const {
    if (!full_) observer_->throw_empty_slot(key_);
    return value_;
  }
  operator const T&() const { return value(); }  // NOLINT(google-explicit-constructor)
  const T* operator->() const { return &value(); }
  [[nodiscard]] bool empty() const { return !full_; }
  [[nodiscard]] Key key() const { return key_; }
  void rename(Key key) { key_ = key; }

  void clear() {
    if (!full_) return;
    observer_->drop(value_.provenance, value_.memory(observer_->shape()));
    full_ = false;
  }

  friend T operator+(const Slot& a, const T& b) { return a.value() + b; }

 private:
  StorageObserver* observer_;
  Key key_;
  bool full_ = false;
  T value_;
};

// A sorted map from keys to slots of one type of value. Keys are contiguous in memory, since
// lookups dominate; slots have stable addresses, and erased ones are reused.
template <class T>
class ValueMap {
 public:
  explicit ValueMap(StorageObserver& observer,
                    std::pmr::memory_resource& memory = *std::pmr::get_default_resource())
      : observer_(&observer), memory_(&memory), entries_(&memory), free_slots_(&memory) {}
  ValueMap(const ValueMap&) = delete;
  ValueMap& operator=(const ValueMap&) = delete;
  ~ValueMap() {
    for (const Entry& entry : entries_) destroy(entry.slot);
    for (Slot<T>* slot : free_slots_) destroy(slot);
  }

  // Returns the slot of `key`, creating it if needed. The reference is valid until erase(key).
  Slot<T>& operator[](Key key) {
    const auto at = find(key);
    if (at != entries_.end() && at->key == key) return *at->slot;
    return *entries_.insert(at, {.key = key, .slot = new_slot(key)})->slot;
  }
  [[nodiscard]] bool contains(Key key) {
    const auto at = find(key);
    return at != entries_.end() && at->key == key && !at->slot->empty();
  }
  // Throws InputError D613 if the slot is empty.
  void erase(Key key) {
    const auto at = find(key);
    if (at == entries_.end() || at->key != key || at->slot->empty())
      observer_->throw_empty_slot(key);
    at->slot->clear();
    free_slots_.push_back(at->slot);
    entries_.erase(at);
  }

  // In the order of keys, including empty slots.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Entry& entry : entries_) visit(entry.key, *entry.slot);
  }

 private:
  struct Entry {
    Key key;
    Slot<T>* slot;
  };

  auto find(Key key) { return std::ranges::lower_bound(entries_, key, {}, &Entry::key); }
  Slot<T>* new_slot(Key key) {
    if (!free_slots_.empty()) {
      Slot<T>* const slot = free_slots_.back();
      free_slots_.pop_back();
      slot->rename(key);
      return slot;
    }
    void* const memory = memory_->allocate(sizeof(Slot<T>), alignof(Slot<T>));
    return std::construct_at(static_cast<Slot<T>*>(memory), *observer_, key);
  }
  void destroy(Slot<T>* slot) {
    std::destroy_at(slot);
    memory_->deallocate(slot, sizeof(Slot<T>), alignof(Slot<T>));
  }

  StorageObserver* observer_;
  std::pmr::memory_resource* memory_;
  std::pmr::vector<Entry> entries_;
  std::pmr::vector<Slot<T>*> free_slots_;
};

struct Storage {
  explicit Storage(StorageObserver& observer,
                   std::pmr::memory_resource& memory = *std::pmr::get_default_resource())
      : weights(observer, memory),
        opt_states(observer, memory),
        activations(observer, memory),
        grad_activations(observer, memory),
        grad_weights(observer, memory) {}
  ValueMap<Weight> weights;
  ValueMap<OptState> opt_states;
  ValueMap<Activation> activations;
  ValueMap<ActivationGrad> grad_activations;
  ValueMap<WeightGrad> grad_weights;
};

}  // namespace shiplap::strategy
