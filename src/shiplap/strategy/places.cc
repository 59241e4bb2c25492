#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shiplap/base/error.h"
#include "shiplap/strategy/places_internal.h"

namespace shiplap::strategy {
namespace {

using What = Step::What;

// Which of how many equal parts of a whole a value has.
struct ShardPart {
  std::int64_t first = 0;
  std::int64_t count = 1;
  std::int64_t of = 1;
};

ShardPart part_of(const IndexSet& shards, std::int64_t of) {
  if (shards.runs().size() != 1 || shards.runs().front().stride != 1) {
    throw InputError(Diagnostic{
        .code = "D625",
        .what = fmt::format("shards {} of {} cannot lie in one place", to_string(shards), of),
        .why = "in a plan the shards of a value are neighbours",
        .help = "gather along the last axis of the mesh first"});
  }
  return {.first = shards.runs().front().begin, .count = shards.size(), .of = of};
}

ShardPart part_of(const AnyValue& value) {
  if (const auto* w = std::get_if<workload::Weight>(&value))
    return part_of(w->shards, w->num_shards);
  if (const auto* o = std::get_if<workload::OptState>(&value)) {
    return part_of(o->shards, o->num_shards);
  }
  if (const auto* g = std::get_if<workload::WeightGrad>(&value)) {
    return part_of(g->shards, g->num_shards);
  }
  if (const auto* a = std::get_if<workload::Activation>(&value)) {
    return part_of(a->shards, a->num_shards);
  }
  return {};
}

// A list of free rows, first fit.
class RowList {
 public:
  std::int64_t take(std::int64_t count) {
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].count < count) continue;
      const std::int64_t begin = free_[i].begin;
      free_[i].begin += count;
      free_[i].count -= count;
      if (free_[i].count == 0) free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return begin;
    }
    // What is free at the end grows.
    std::int64_t begin = total_;
    if (!free_.empty() && free_.back().end() == total_) {
      begin = free_.back().begin;
      free_.pop_back();
    }
    total_ = begin + count;
    return begin;
  }
  void give(std::int64_t begin, std::int64_t count) {
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

class Finder {
 public:
  Finder(const Recording& recording, const Grain& grain) : recording_(recording), grain_(grain) {}

  Places find() {
    const std::size_t count = recording_.values.size();
    root_.resize(count);
    last_.resize(count);
    size_.assign(count, {});
    born_.assign(count, false);
    result_.rows.resize(count);
    result_.homes.resize(count);
    result_.kept.assign(count, false);
    for (std::size_t v = 0; v < count; ++v) chain(v);
    mark_kept();
    for (const Step& step : recording_.steps) {
      for (const ValueNumber v : step.writes) {
        if (v >= 0 && !born_[v]) born(static_cast<std::size_t>(v));
      }
      if (step.what == What::drop) died(static_cast<std::size_t>(step.reads[0]));
    }
    for (std::size_t p = 0; p < kPlaces; ++p) result_.total[p] = rows_[p].total();
    return std::move(result_);
  }

 private:
  // The part of the whole that is in some member.
  struct Home {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  [[nodiscard]] std::int64_t whole_rows(std::size_t v) const {
    const AnyValue& value = recording_.values[v].value;
    const Place place = place_of(value);
    if (place == Place::activations || place == Place::grad_activations) {
      const std::int64_t grain = place == Place::activations ? grain_.sample : 1;
      return grain * shown_samples(value).size();
    }
    return grain_.weight;
  }
  // Rows of the value, from the beginning of a home that has room for the whole.
  [[nodiscard]] Rows within_whole(std::size_t v) const {
    const ShardPart part = part_of(recording_.values[v].value);
    const std::int64_t unit = whole_rows(v) / part.of;
    return {.place = place_of(recording_.values[v].value),
            .begin = part.first * unit,
            .count = part.count * unit};
  }

  void chain(std::size_t v) {
    const ValueNumber before = recording_.values[v].in_place_of;
    root_[v] = before < 0 ? v : root_[before];
    last_[root_[v]] = v;
    const Rows own = within_whole(v);
    Home& home = size_[root_[v]];
    home = before < 0 ? Home{.begin = own.begin, .end = own.end()}
                      : Home{.begin = std::min(home.begin, own.begin),
                             .end = std::max(home.end, own.end())};
  }

  void mark_kept() {
    for (const Step& step : recording_.steps) {
      if (step.what != What::compute || step.kind != trace::Kind::load_weights) continue;
      for (const ValueNumber v : step.writes) {
        if (v >= 0) result_.kept[v] = true;
      }
    }
  }

  void born(std::size_t v) {
    born_[v] = true;
    const Home& home = size_[root_[v]];
    const Rows whole = within_whole(v);
    Rows& rows = result_.homes[v];
    if (root_[v] == v) {
      auto& list = rows_[static_cast<std::size_t>(whole.place)];
      const std::int64_t count = home.end - home.begin;
      rows = {.place = whole.place, .begin = list.take(count), .count = count};
    } else {
      rows = result_.homes[root_[v]];
    }
    result_.rows[v] = {
        .place = whole.place, .begin = rows.begin + whole.begin - home.begin, .count = whole.count};
  }

  // The home is free when the last that shares it is gone.
  void died(std::size_t v) {
    if (last_[root_[v]] != v) return;
    const Rows& home = result_.homes[v];
    rows_[static_cast<std::size_t>(home.place)].give(home.begin, home.count);
  }

  const Recording& recording_;
  Grain grain_;
  std::vector<std::size_t> root_;
  std::vector<std::size_t> last_;  // by root: the last value that shares its place
  std::vector<Home> size_;         // by root
  std::vector<bool> born_;
  std::array<RowList, kPlaces> rows_;
  Places result_;
};

}  // namespace

Place place_of(const AnyValue& value) {
  if (std::holds_alternative<workload::Weight>(value)) return Place::weights;
  if (std::holds_alternative<workload::OptState>(value)) return Place::opt_states;
  if (std::holds_alternative<workload::WeightGrad>(value)) return Place::grad_weights;
  if (std::holds_alternative<workload::Activation>(value)) return Place::activations;
  return Place::grad_activations;
}

Grain common_grain(const Grain& so_far, const Recording& recording) {
  Grain grain = so_far;
  for (const RecordedValue& recorded : recording.values) {
    const std::int64_t of = part_of(recorded.value).of;
    const bool sample = place_of(recorded.value) == Place::activations;
    std::int64_t& which = sample ? grain.sample : grain.weight;
    which = std::lcm(which, of);
    if (const auto* d = std::get_if<workload::ActivationGrad>(&recorded.value)) {
      grain.sample = std::lcm(grain.sample, std::int64_t{d->num_summed});
    }
  }
  return grain;
}

Places find_places(const Recording& recording, const Grain& grain) {
  return Finder(recording, grain).find();
}

}  // namespace shiplap::strategy
