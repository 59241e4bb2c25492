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
                   .help = "gather along the last axis of the mesh first"});
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
  RowAllocator(const Recording& recording, const Grain& grain)
      : recording_(recording), grain_(grain) {}

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
    for (std::size_t p = 0; p < kBufferKinds; ++p) result_.total[p] = rows_[p].total();
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
    return {.buffer = buffer_kind(recording_.values[v].value),
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
      auto& list = rows_[static_cast<std::size_t>(whole.buffer)];
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
    rows_[static_cast<std::size_t>(range.buffer)].free(range.begin, range.count);
  }

  const Recording& recording_;
  Grain grain_;
  std::vector<std::size_t> root_;
  std::vector<std::size_t> last_;      // by root: the last member of the alias set
  std::vector<StorageRange> storage_;  // by root
  std::vector<bool> allocated_;
  std::array<FreeList, kBufferKinds> rows_;
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

Grain common_grain(const Grain& so_far, const Recording& recording) {
  Grain grain = so_far;
  for (const RecordedValue& recorded : recording.values) {
    const std::int64_t of = shard_range(recorded.value).of;
    const bool sample = buffer_kind(recorded.value) == BufferKind::activations;
    std::int64_t& which = sample ? grain.sample : grain.weight;
    which = std::lcm(which, of);
    if (const auto* d = std::get_if<workload::ActivationGrad>(&recorded.value)) {
      grain.sample = std::lcm(grain.sample, std::int64_t{d->num_summed});
    }
  }
  return grain;
}

RowAllocation allocate_rows(const Recording& recording, const Grain& grain) {
  return RowAllocator(recording, grain).run();
}

}  // namespace shiplap::strategy
