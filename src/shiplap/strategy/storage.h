// What a rank holds: five shelves of values, of which each has a place of its own. Only what lies
// here counts as memory and may be used.
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

// The places of one kind of value, by key. Keys stand close together, since looking them up is most
// of what a rank does here; places stay where they are, and those that were given up are used
// again.
template <class T>
class Shelf {
 public:
  explicit Shelf(Bookkeeper& keeper,
                 std::pmr::memory_resource& memory = *std::pmr::get_default_resource())
      : keeper_(&keeper), memory_(&memory), entries_(&memory), spare_(&memory) {}
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;
  ~Shelf() {
    for (const Entry& entry : entries_) destroy(entry.slot);
    for (Slot<T>* slot : spare_) destroy(slot);
  }

  // The place of that name, made if there is none. It stays where it is until it is erased.
  Slot<T>& operator[](Key key) {
    const auto at = find(key);
    if (at != entries_.end() && at->key == key) return *at->slot;
    return *entries_.insert(at, {.key = key, .slot = fresh(key)})->slot;
  }
  [[nodiscard]] bool contains(Key key) {
    const auto at = find(key);
    return at != entries_.end() && at->key == key && !at->slot->empty();
  }
  // Throws InputError D613 if nothing lies there.
  void erase(Key key) {
    const auto at = find(key);
    if (at == entries_.end() || at->key != key || at->slot->empty()) keeper_->nothing_there(key);
    at->slot->clear();
    spare_.push_back(at->slot);
    entries_.erase(at);
  }

  // By key; empty ones too.
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
  Slot<T>* fresh(Key key) {
    if (!spare_.empty()) {
      Slot<T>* const slot = spare_.back();
      spare_.pop_back();
      slot->rename(key);
      return slot;
    }
    void* const place = memory_->allocate(sizeof(Slot<T>), alignof(Slot<T>));
    return std::construct_at(static_cast<Slot<T>*>(place), *keeper_, key);
  }
  void destroy(Slot<T>* slot) {
    std::destroy_at(slot);
    memory_->deallocate(slot, sizeof(Slot<T>), alignof(Slot<T>));
  }

  Bookkeeper* keeper_;
  std::pmr::memory_resource* memory_;
  std::pmr::vector<Entry> entries_;
  std::pmr::vector<Slot<T>*> spare_;
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
