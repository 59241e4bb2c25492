// Values that update each other in place (RecordedValue::in_place_of) form an alias set and share
// one range of rows, as large as the union of its members. The range is allocated first fit when
// its first value is written and freed when its last value is dropped.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shiplap/base/error.h"
#include "shiplap/strategy/row_allocation_internal.h"

namespace shiplap::strategy {
namespace {

// `count` of `of` equal shards, from `first` on.
struct ShardRange {
  std::int64_t first = 0;
  std::int64_t count = 1;
  std::int64_t of = 1;
};

ShardRange shard_range(const IndexSet& shards, std::int64_t of) {
  if (shards.runs().size() != 1 || shards.runs().front().stride != 1) {
    throw InputError(
        Diagnostic{.code = "D625",
                   .what = fmt::format("shards {} of {} are not contiguous", to_string(shards), of),
                   .why = "in a plan the shards of a value are contiguous rows",
                   .help = "gather along the innermost axis of the shards first"});
  }
  return {.first = shards.runs().front().begin, .count = shards.size(), .of = of};
}

ShardRange shard_range(const AnyValue& value) {
  if (const auto* w = std::get_if<workload::Weight>(&value))
    return shard_range(w->shards, w->num_shards);
  if (const auto* o = std::get_if<workload::OptState>(&value)) {
    return shard_range(o->shards, o->num_shards);
  }
  if (const auto* g = std::get_if<workload::WeightGrad>(&value)) {
    return shard_range(g->shards, g->num_shards);
  }
  if (const auto* a = std::get_if<workload::Activation>(&value)) {
    return shard_range(a->shards, a->num_shards);
  }
  return {};
}

// A first-fit free list of rows, which grows at the end.
class FreeList {
 public:
  std::int64_t allocate(std::int64_t count) {
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].count < count) continue;
      const std::int64_t begin = free_[i].begin;
      free_[i].begin += count;
      free_[i].count -= count;
      if (free_[i].count == 0) free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return begin;
    }
    // Extends the free range at the end, if there is one.
    std::int64_t begin = total_;
    if (!free_.empty() && free_.back().end() == total_) {
      begin = free_.back().begin;
      free_.pop_back();
    }
    total_ = begin + count;
    return begin;
  }
  void free(std::int64_t begin, std::int64_t count) {
    const auto next = std::ranges::find_if(free_, [&](const Rows& r) { return r.begin > begin; });
    auto at = free_.insert(next, {.begin = begin, .count = count});
    if (at + 1 != free_.end() && at->end() == (at + 1)->begin) {
      at->count += (at + 1)->count;
      free_.erase(at + 1);
    }
    if (at != free_.begin() && (at - 1)->end() == at->begin) {
      (at - 1)->count += at->count;
      free_.erase(at);
    }
  }
  [[nodiscard]] std::int64_t total() const { return total_; }

 private:
  std::vector<Rows> free_;
  std::int64_t total_ = 0;
};

class RowAllocator {
 public:
  RowAllocator(const Recording& recording, const Grain& grain, const LayerClasses& classes)
      : recording_(recording),
        grain_(grain),
        classes_(classes),
        rows_(classes.count() * kBufferKinds) {}

  RowAllocation run() {
    const std::size_t count = recording_.values.size();
    root_.resize(count);
    last_.resize(count);
    storage_.assign(count, {});
    allocated_.assign(count, false);
    result_.rows.resize(count);
    result_.storage.resize(count);
    result_.kept.assign(count, false);
    for (std::size_t v = 0; v < count; ++v) join_alias_set(v);
    mark_kept();
    for (const Step& step : recording_.steps) {
      for (const ValueNumber v : step.writes) {
        if (v >= 0 && !allocated_[v]) allocate(static_cast<std::size_t>(v));
      }
      if (step.type == StepType::drop) release(static_cast<std::size_t>(step.reads[0]));
    }
    for (const FreeList& list : rows_) result_.total.push_back(list.total());
    return std::move(result_);
  }

 private:
  // The union of the rows of an alias set, relative to the whole value.
  struct StorageRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  [[nodiscard]] std::int64_t whole_rows(std::size_t v) const {
    const AnyValue& value = recording_.values[v].value;
    const BufferKind buffer = buffer_kind(value);
    if (buffer == BufferKind::activations || buffer == BufferKind::grad_activations) {
      const std::int64_t grain = buffer == BufferKind::activations ? grain_.sample : 1;
      return grain * shown_samples(value).size();
    }
    return grain_.weight;
  }
  // The rows of the value, relative to the whole value.
  [[nodiscard]] Rows within_whole(std::size_t v) const {
    const ShardRange part = shard_range(recording_.values[v].value);
    const std::int64_t unit = whole_rows(v) / part.of;
    const AnyValue& value = recording_.values[v].value;
    return {.buffer = {.kind = buffer_kind(value), .layer_class = classes_.of(value)},
            .begin = part.first * unit,
            .count = part.count * unit};
  }

  void join_alias_set(std::size_t v) {
    const ValueNumber before = recording_.values[v].in_place_of;
    root_[v] = before < 0 ? v : root_[before];
    last_[root_[v]] = v;
    const Rows local = within_whole(v);
    StorageRange& range = storage_[root_[v]];
    range = before < 0 ? StorageRange{.begin = local.begin, .end = local.end()}
                       : StorageRange{.begin = std::min(range.begin, local.begin),
                                      .end = std::max(range.end, local.end())};
  }

  void mark_kept() {
    for (const Step& step : recording_.steps) {
      if (step.type != StepType::compute || step.kind != trace::EventKind::load_weights) continue;
      for (const ValueNumber v : step.writes) {
        if (v >= 0) result_.kept[v] = true;
      }
    }
  }

  void allocate(std::size_t v) {
    allocated_[v] = true;
    const StorageRange& range = storage_[root_[v]];
    const Rows whole = within_whole(v);
    Rows& rows = result_.storage[v];
    if (root_[v] == v) {
      auto& list = rows_[whole.buffer.index()];
      const std::int64_t count = range.end - range.begin;
      rows = {.buffer = whole.buffer, .begin = list.allocate(count), .count = count};
    } else {
      rows = result_.storage[root_[v]];
    }
    result_.rows[v] = {.buffer = whole.buffer,
                       .begin = rows.begin + whole.begin - range.begin,
                       .count = whole.count};
  }

  // Frees the rows when the last member of the alias set is dropped.
  void release(std::size_t v) {
    if (last_[root_[v]] != v) return;
    const Rows& range = result_.storage[v];
    rows_[range.buffer.index()].free(range.begin, range.count);
  }

  const Recording& recording_;
  Grain grain_;
  std::vector<std::size_t> root_;
  std::vector<std::size_t> last_;      // by root: the last member of the alias set
  std::vector<StorageRange> storage_;  // by root
  std::vector<bool> allocated_;
  const LayerClasses& classes_;
  std::vector<FreeList> rows_;  // by BufferKey::index()
  RowAllocation result_;
};

}  // namespace

BufferKind buffer_kind(const AnyValue& value) {
  if (std::holds_alternative<workload::Weight>(value)) return BufferKind::weights;
  if (std::holds_alternative<workload::OptState>(value)) return BufferKind::opt_states;
  if (std::holds_alternative<workload::WeightGrad>(value)) return BufferKind::grad_weights;
  if (std::holds_alternative<workload::Activation>(value)) return BufferKind::activations;
  return BufferKind::grad_activations;
}

LayerClasses::LayerClasses(const workload::ModelShape& shape) {
  for (std::size_t k = 0; k < shape.layers.size(); ++k) {
    const auto found = std::ranges::find(weights_, shape.weight(k));
    class_of_.push_back(static_cast<std::int32_t>(found - weights_.begin()));
    if (found == weights_.end()) weights_.push_back(shape.weight(k));
  }
  if (weights_.empty()) weights_.push_back(shape.weight());
}

std::int32_t LayerClasses::of(const AnyValue& value) const {
  const BufferKind kind = buffer_kind(value);
  const bool in_first =
      class_of_.empty() || kind == BufferKind::activations || kind == BufferKind::grad_activations;
  return in_first ? 0 : class_of_.at(layer_of(value));
}

void GrainBuilder::add(const Recording& recording) {
  for (const RecordedValue& recorded : recording.values) {
    const ShardRange range = shard_range(recorded.value);
    if (const auto* d = std::get_if<workload::ActivationGrad>(&recorded.value)) {
      features_ = std::lcm(features_, std::int64_t{d->num_summed});
    } else if (buffer_kind(recorded.value) == BufferKind::activations) {
      features_ = std::lcm(features_, range.of);
    } else {
      shards_.insert({.count = range.count, .of = range.of});
    }
  }
}

Grain GrainBuilder::build() const {
  Grain grain{.weight = features_, .sample = features_};
  for (const Shards& shards : shards_) grain.weight = std::lcm(grain.weight, shards.of);
  // Whether they are whole tensor-parallel shards, or parts of one.
  const auto nests = [&](const Shards& shards) {
    const std::int64_t inner = shards.of / features_;
    return features_ % shards.of == 0 ||
           (shards.of % features_ == 0 && (shards.count % inner == 0 || inner % shards.count == 0));
  };
  if (features_ > 1 && !std::ranges::all_of(shards_, nests)) grain.sample = grain.weight;
  return grain;
}

RowAllocation allocate_rows(const Recording& recording, const Grain& grain,
                            const LayerClasses& classes) {
  return RowAllocator(recording, grain, classes).run();
}

}  // namespace shiplap::strategy
