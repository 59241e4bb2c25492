// Problem: most ranks of a large world execute the same calls (SPMD). A recording per rank would
// store the same steps again for every rank, and to_plan would have to compare them all.
//
// Idea: split a recording into its structure (Tape) and its numbers, and share the structure while
// it is recorded. A tape is append-only. A rank is a cursor on a tape (Tapes::Position):
// - at the end of the tape, the rank appends its step;
// - elsewhere it compares its step with the one on the tape and advances if they are equal;
// - if they differ, the rank diverges: branch() returns a tape with the common prefix and the new
//   step. Branches are looked up by a hash of position and step and then compared, so ranks that
//   diverge in the same way at the same step share again (hash-consing of tape prefixes).
// So the tapes are the paths of a prefix tree (trie) of recorded programs, each stored in full.
//
// Invariants:
// - Ranks with equal positions have equal steps; to_plan relies on it to group them.
// - Numbers are not part of the comparison: layer, samples and shards of a value, peer and tag of a
//   message. They are appended to the rank's own lists, in the order of the tape, and recording()
//   reads them back in this order. The *number* of runs of a set is structure (ValueShape::runs).
// - A tape records events that change earlier steps (`take`, `in_place`) as steps of their own,
//   since a shared prefix must not change; recording() folds them back.
#include "shiplap/strategy/recorder.h"

#include <functional>
#include <type_traits>
#include <utility>

#include "shiplap/base/cancellation.h"

namespace shiplap::strategy {
namespace {

class Hash {
 public:
  void mix(std::int64_t word) {
    hash_ = (hash_ ^ static_cast<std::uint64_t>(word)) * 0x9E3779B97F4A7C15U;
    hash_ ^= hash_ >> 31U;
  }
  [[nodiscard]] std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0;
};

void mix(Hash& hash, const Step& step) {
  hash.mix(static_cast<std::int64_t>(step.type));
  hash.mix(static_cast<std::int64_t>(step.kind));
  hash.mix(step.group);
  hash.mix(step.comm_step);
  hash.mix(step.channel);
  for (const ValueNumber v : step.reads) hash.mix(v);
  for (const ValueNumber v : step.writes) hash.mix(v);
  hash.mix(static_cast<std::int64_t>(step.work.flop));
  hash.mix(step.parts);
}

void mix(Hash& hash, const ValueShape& shape) {
  hash.mix(shape.type);
  for (const std::uint32_t runs : shape.runs) hash.mix(runs);
  hash.mix(shape.step);
  hash.mix(shape.of_samples);
  hash.mix(shape.of_shards);
}

template <class Item>
std::uint64_t hash_of(const Tapes::Position& from, const Item& item) {
  Hash hash;
  hash.mix(static_cast<std::int64_t>(std::hash<const void*>{}(from.tape)));
  hash.mix(from.steps);
  hash.mix(from.values);
  mix(hash, item);
  return hash.value();
}

// Pointers to the fields of any type of value; null if it does not have the field.
template <class Set, class Number>
struct Fields {
  Number* layer = nullptr;
  Number* layers = nullptr;
  Number* step = nullptr;
  Number* of_samples = nullptr;
  Number* of_shards = nullptr;
  std::array<Set*, 2> sets{};
};

template <class Set, class Number, class Any>
Fields<Set, Number> fields_of(Any& any) {
  Fields<Set, Number> fields;
  std::visit(
      [&](auto& value) {
        if constexpr (requires { value.layer; }) {
          fields.layer = &value.layer;
          fields.layers = &value.layers;
        }
        if constexpr (requires { value.step; }) fields.step = &value.step;
        if constexpr (requires { value.samples; }) {
          fields.of_samples = &value.total_samples;
          fields.sets[0] = &value.samples;
        }
        if constexpr (requires { value.num_shards; }) {
          fields.of_shards = &value.num_shards;
          fields.sets[1] = &value.shards;
        } else if constexpr (requires { value.num_summed; }) {
          fields.of_shards = &value.num_summed;
          fields.sets[1] = &value.summed;
        }
      },
      any);
  return fields;
}

AnyValue empty_value(std::size_t type) {
  switch (type) {
    case 1:
      return workload::Weight{};
    case 2:
      return workload::OptState{};
    case 3:
      return workload::WeightGrad{};
    case 4:
      return workload::Activation{};
    default:
      return workload::ActivationGrad{};
  }
}
static_assert(std::is_same_v<std::variant_alternative_t<4, AnyValue>, workload::Activation>);

// Reads a set of `runs` runs from the front of `numbers`.
IndexSet read_set(std::size_t runs, std::span<const std::int32_t>& numbers) {
  if (runs == 0) return {};
  const std::span<const std::int32_t> of_set = numbers.first(3 * runs);
  numbers = numbers.subspan(3 * runs);
  if (runs == 1) return IndexSet::range(of_set[0], of_set[1], of_set[2]);
  std::vector<std::int32_t> indices;
  for (std::size_t r = 0; r < of_set.size(); r += 3) {
    for (std::int32_t k = 0; k < of_set[r + 1]; ++k) {
      indices.push_back(of_set[r] + k * of_set[r + 2]);
    }
  }
  return IndexSet(std::move(indices));
}

}  // namespace

template <class Item>
Tape& Tapes::branch(const Position& from, const Item& item, std::vector<Item> Tape::* list) {
  const std::uint64_t hash = hash_of(from, item);
  const bool is_step = std::is_same_v<Item, Step>;
  const auto index = static_cast<std::size_t>(is_step ? from.steps : from.values);
  const auto [begin, end] = branches_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const std::vector<Item>& there = it->second.to->*list;
    if (it->second.from == from && there.size() > index && there[index] == item) {
      return *it->second.to;
    }
  }
  auto tape = std::make_unique<Tape>();
  tape->steps.assign(from.tape->steps.begin(), from.tape->steps.begin() + from.steps);
  tape->values.assign(from.tape->values.begin(), from.tape->values.begin() + from.values);
  (*tape.*list).push_back(item);
  all_.push_back(std::move(tape));
  branches_.emplace(hash, Branch{.from = from, .to = all_.back().get()});
  return *all_.back();
}

template <class Item>
void Recorder::append(const Item& item, std::vector<Item> Tape::* list, std::int32_t& at) {
  std::vector<Item>& all = at_.tape->*list;
  if (at == std::ssize(all)) {
    all.push_back(item);
  } else if (!(all[at] == item)) {
    at_.tape = &tapes_->branch(at_, item, list);
  }
  ++at;
}

std::int32_t Recorder::add(Step step) {
  if (step.peer >= 0) {
    messages_.push_back(std::exchange(step.peer, 0));
    messages_.push_back(std::exchange(step.tag, 0));
  }
  append(step, &Tape::steps, at_.steps);
  return at_.steps - 1;
}

void Recorder::add(const AnyValue& value) {
  throw_if_cancelled();
  const auto fields = fields_of<const IndexSet, const std::int32_t>(value);
  ValueShape shape{.type = static_cast<std::uint8_t>(value.index()), .layers = *fields.layers};
  if (fields.step != nullptr) shape.step = *fields.step;
  if (fields.of_samples != nullptr) shape.of_samples = *fields.of_samples;
  if (fields.of_shards != nullptr) shape.of_shards = *fields.of_shards;
  numbers_.push_back(*fields.layer);
  for (std::size_t s = 0; s < fields.sets.size(); ++s) {
    if (fields.sets[s] == nullptr) continue;
    shape.runs[s] = static_cast<std::uint32_t>(fields.sets[s]->runs().size());
    for (const IndexSet::Run& run : fields.sets[s]->runs()) {
      numbers_.insert(numbers_.end(), {run.begin, run.count, run.stride});
    }
  }
  append(shape, &Tape::values, at_.values);
}

Recording Recorder::recording() const {
  Recording all;
  all.steps.assign(at_.tape->steps.begin(), at_.tape->steps.begin() + at_.steps);
  std::span<const std::int32_t> numbers = numbers_;
  for (std::int32_t v = 0; v < at_.values; ++v) {
    const ValueShape& shape = at_.tape->values[v];
    AnyValue& value =
        all.values.emplace_back(RecordedValue{.value = empty_value(shape.type)}).value;
    const auto fields = fields_of<IndexSet, std::int32_t>(value);
    *fields.layers = shape.layers;
    if (fields.step != nullptr) *fields.step = shape.step;
    if (fields.of_samples != nullptr) *fields.of_samples = shape.of_samples;
    if (fields.of_shards != nullptr) *fields.of_shards = shape.of_shards;
    *fields.layer = numbers.front();
    numbers = numbers.subspan(1);
    for (std::size_t s = 0; s < fields.sets.size(); ++s) {
      if (fields.sets[s] != nullptr) *fields.sets[s] = read_set(shape.runs[s], numbers);
    }
  }
  std::size_t message = 0;
  for (Step& step : all.steps) {
    if (step.peer >= 0) {
      step.peer = messages_[message++];
      step.tag = messages_[message++];
    }
    if (step.type == StepType::take) {
      all.steps[step.comm_step].writes[0] = std::exchange(step.writes[0], -1);
    } else if (step.type == StepType::in_place) {
      all.values[std::exchange(step.writes[0], -1)].in_place_of = step.reads[0];
    }
  }
  return all;
}

}  // namespace shiplap::strategy
