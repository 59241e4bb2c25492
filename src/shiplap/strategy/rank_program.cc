#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shiplap/strategy/rank_program_internal.h"

namespace shiplap::strategy {
namespace {

using plan::Access;
using trace::Kind;
using What = Step::What;

constexpr std::array<const char*, kPlaces> kBufferNames{"w", "o", "g", "a", "d"};

plan::Work free_of_charge() { return {.kernel_class = "", .flop = 0, .bytes = 0, .type = {}}; }

// The shards `of` another value, cut out of one that has more of them.
template <class T>
T narrowed(const T& whole, const IndexSet& shards, std::int32_t num_shards) {
  T part = whole;
  part.shards = shards;
  part.num_shards = num_shards;
  return part;
}

class ProgramWriter {
 public:
  ProgramWriter(const Lowering& lowering, int rank, const Recording& recording)
      : lowering_(lowering),
        rank_(rank),
        record_(recording),
        places_(find_places(record_, lowering.grain)) {}

  plan::Program write(std::vector<std::int32_t>* steps) {
    declare_buffers();
    if (const Model* model = lowering_.dist.models()[rank_]) {
      program_.streams.insert(program_.streams.end(), model->streams().begin() + 1,
                              model->streams().end());
    }
    if (repeated()) require_repeatable();
    for (std::size_t v = 0; v < record_.values.size(); ++v) {
      if (places_.kept[v]) fact(static_cast<ValueNumber>(v));
    }
    step_items_.assign(record_.steps.size(), -1);
    for (std::size_t s = 0; s < record_.steps.size(); ++s) {
      step(s);
      if (steps != nullptr) steps->resize(items_.size(), static_cast<std::int32_t>(s));
    }
    release_rest();
    finish();
    return std::move(program_);
  }

 private:
  struct Item {
    plan::Operation operation;
    std::vector<std::int32_t> after;  // items
    bool named = false;
  };

  [[nodiscard]] bool repeated() const { return lowering_.purpose == Lowered::to_be_repeated; }

  // ---------------------------------------------------------------- regions and values

  void declare_buffers() {
    const workload::ModelShape& shape = lowering_.dist.world().shape;
    const Bytes weight{shape.weight().count / lowering_.grain.weight};
    const Bytes sample{shape.activation().count / lowering_.grain.sample};
    const std::array<Bytes, kPlaces> row{weight, shape.moments * weight, weight, sample,
                                         shape.activation()};
    for (std::size_t p = 0; p < kPlaces; ++p) {
      buffers_[p] = plan::BufferId(program_.buffers.size());
      if (places_.total[p] == 0) continue;
      program_.buffers.push_back({.name = kBufferNames[p],
                                  .rows = places_.total[p],
                                  .row_bytes = row[p].count,
                                  .type = shape.datatype});
    }
  }

  [[nodiscard]] plan::Region region(const Rows& rows) const {
    return {.buffer = buffers_[static_cast<std::size_t>(rows.place)],
            .list = {},
            .kind = plan::Region::Kind::rows,
            .begin = rows.begin,
            .count = rows.count};
  }
  [[nodiscard]] const Rows& rows(ValueNumber v) const { return places_.rows[v]; }
  [[nodiscard]] const AnyValue& any(ValueNumber v) const { return record_.values[v].value; }
  [[nodiscard]] Access access(Access::Kind kind, ValueNumber v) const {
    return {.kind = kind,
            .origin = {},
            .region = region(rows(v)),
            .value = lowering_.tensors.value(any(v))};
  }
  // Reads of `v` only the shards that `like` has.
  [[nodiscard]] Access narrow_read(ValueNumber v, ValueNumber like) const {
    const auto narrow = [&](const auto& whole, const auto& small) {
      if (whole.num_shards == small.num_shards && whole.shards == small.shards) {
        return access(Access::Kind::reads, v);
      }
      Rows part = rows(v);
      const std::int64_t unit = part.count / small.num_shards;
      part.begin += small.shards.runs().front().begin * unit;
      part.count = small.shards.size() * unit;
      const AnyValue value = narrowed(whole, small.shards, small.num_shards);
      return Access{.kind = Access::Kind::reads,
                    .origin = {},
                    .region = region(part),
                    .value = lowering_.tensors.value(value)};
    };
    const auto by_weight = [&](const auto& whole) {
      if (const auto* w = std::get_if<Weight>(&any(like))) return narrow(whole, *w);
      if (const auto* o = std::get_if<OptState>(&any(like))) return narrow(whole, *o);
      return narrow(whole, std::get<WeightGrad>(any(like)));
    };
    if (const auto* w = std::get_if<Weight>(&any(v))) return by_weight(*w);
    if (const auto* o = std::get_if<OptState>(&any(v))) return by_weight(*o);
    if (const auto* g = std::get_if<WeightGrad>(&any(v))) return by_weight(*g);
    if (const auto* a = std::get_if<Activation>(&any(v))) {
      return narrow(*a, std::get<Activation>(any(like)));
    }
    return access(Access::Kind::reads, v);
  }

  void fact(ValueNumber v) {
    program_.body.push_back({plan::Fact{.kind = plan::Fact::Kind::keep,
                                        .origin = {},
                                        .region = region(rows(v)),
                                        .value = lowering_.tensors.value(any(v))}});
  }

  // A step begins with the old weights where it ends with the new ones.
  void require_repeatable() const {
    std::vector<ValueNumber> last(record_.values.size());  // that takes its place, or itself
    for (std::size_t v = last.size(); v-- > 0;) {
      last[v] = std::max(last[v], static_cast<ValueNumber>(v));
      const ValueNumber before = record_.values[v].in_place_of;
      if (before < 0) continue;
      ValueNumber& of_before = last[before];
      of_before = std::max(of_before, last[v]);
    }
    std::vector<bool> is_dropped(record_.values.size(), false);
    for (const Step& step : record_.steps) {
      if (step.what == What::drop) is_dropped[step.reads[0]] = true;
    }
    for (std::size_t v = 0; v < last.size(); ++v) {
      if (!places_.kept[v]) continue;
      const ValueNumber end = last[v];
      const bool dropped = is_dropped[end];
      const auto* w = std::get_if<Weight>(&any(end));
      const auto* o = std::get_if<OptState>(&any(end));
      const int updates = w != nullptr ? w->step : (o != nullptr ? o->step : 0);
      const Rows& begin = places_.rows[v];
      const bool same = rows(end).begin == begin.begin && rows(end).count == begin.count;
      if (!dropped && updates == 1 && same) continue;
      const char* why = dropped        ? "it is dropped"
                        : updates == 0 ? "it is never updated"
                        : !same        ? "in the end other shards of it are there"
                                       : "it is updated more than once";
      throw InputError(Diagnostic{
          .code = "D625",
          .where = {.rank = rank_},
          .what = fmt::format("the step cannot be repeated with {}: {}",
                              describe(record_.values[v].value), why),
          .why = "a plan is a step that runs again and again: what was loaded must in the end, "
                 "updated once, lie where it lay",
          .help = "store the result of `update` where the loaded value is stored"});
    }
  }

  // ---------------------------------------------------------------- items

  std::int32_t emit(plan::Action action, std::int32_t stream = 0, bool async = false) {
    Item item;
    item.operation.action = std::move(action);
    item.operation.stream = plan::StreamId(stream);
    item.operation.async = async;
    const auto index = static_cast<std::int32_t>(items_.size());
    item.after = waits_;
    if (stream > 0) {
      // Not before `main` got here: after the last that it completed, and all it has waited for.
      item.after.insert(item.after.begin(), waited_.begin(), waited_.end());
      if (last_main_ >= 0) item.after.insert(item.after.begin(), last_main_);
    } else if (async) {
      waited_.insert(waited_.end(), waits_.begin(), waits_.end());
      waits_.clear();
    } else {
      waited_.clear();
      waits_.clear();
      last_main_ = index;
    }
    items_.push_back(std::move(item));
    return index;
  }
  void allocate(const Rows& rows) { emit(plan::Allocate{.rows = region(rows)}); }
  void release(const Rows& rows) { emit(plan::Free{.rows = region(rows)}); }

  // The rows of `whole` before and behind `inner`. Either may be none, on the ranks that have the
  // first or the last shard: that all ranks say both lets them share a program.
  template <class Act>
  void outside(const Rows& whole, const Rows& inner, const Act& act) {
    act(Rows{.place = whole.place, .begin = whole.begin, .count = inner.begin - whole.begin});
    act(Rows{.place = whole.place, .begin = inner.end(), .count = whole.end() - inner.end()});
  }
  void make_room(ValueNumber v) {
    if (v < 0 || places_.kept[v]) return;
    const ValueNumber before = record_.values[v].in_place_of;
    if (before < 0) {
      allocate(rows(v));
    } else if (rows(before).count < rows(v).count) {
      outside(rows(v), rows(before), [&](const Rows& r) { allocate(r); });
    }
  }
  // After an operation whose result is smaller than what lay there.
  void give_back(ValueNumber v) {
    if (v < 0) return;
    const ValueNumber before = record_.values[v].in_place_of;
    if (before >= 0 && rows(before).count > rows(v).count) {
      outside(rows(before), rows(v), [&](const Rows& r) { release(r); });
    }
  }

  void compute(std::string kernel, std::vector<Access> accesses, plan::Work work) {
    emit(plan::Compute{.kernel = std::move(kernel), .accesses = std::move(accesses)});
    items_.back().operation.work = std::move(work);
  }

  [[nodiscard]] plan::Work work_of(const Step& step) const {
    if (step.work.kernel_class.empty()) return free_of_charge();
    const workload::ModelShape& shape = lowering_.dist.world().shape;
    return {.kernel_class = std::string(step.work.kernel_class),
            .flop = static_cast<std::int64_t>(step.work.flop),
            .bytes = static_cast<std::int64_t>(step.work.bytes),
            .type = shape.datatype};
  }

  void logged_step(const Step& step) {
    if (repeated()) {
      throw InputError(Diagnostic{
          .code = "D625",
          .where = {.rank = rank_, .operation = std::string(name(step.kind))},
          .what = fmt::format("a {} that was only logged cannot be carried out", name(step.kind)),
          .why =
              "`log_event` has no values, and a plan says of every computation what it reads and "
              "writes",
          .help = "call it instead of logging it"});
    }
    compute(std::string(name(step.kind)), {}, work_of(step));
  }

  void compute_step(const Step& step) {
    for (const ValueNumber v : step.writes) make_room(v);
    std::vector<Access> accesses;
    const bool loads = step.kind == Kind::load_weights;
    for (const ValueNumber v :
         loads ? std::array{step.writes[0], step.writes[1], -1} : step.reads) {
      if (v < 0) continue;
      accesses.push_back(step.kind == Kind::update ? narrow_read(v, step.reads[1])
                                                   : access(Access::Kind::reads, v));
    }
    for (const ValueNumber v : step.writes) {
      if (v >= 0) accesses.push_back(access(Access::Kind::writes, v));
    }
    const bool batch = step.kind == Kind::compute;
    compute(batch ? "read_batch" : std::string(name(step.kind)), std::move(accesses),
            work_of(step));
  }

  void cast(const Step& step) {
    make_room(step.writes[0]);
    Access from = narrow_read(step.reads[0], step.writes[0]);
    Access to = access(Access::Kind::writes, step.writes[0]);
    to.value = from.value;
    compute("cast", {std::move(from), std::move(to)}, free_of_charge());
  }

  void communicate(std::size_t index) {
    const Step& step = record_.steps[index];
    const ValueNumber result = step.writes[0];
    if (step.kind != Kind::send && result < 0) {
      if (!repeated()) return;  // it is not complete
      throw InputError(
          Diagnostic{.code = "D623",
                     .where = {.rank = rank_, .operation = std::string(name(step.kind))},
                     .what = fmt::format("nobody waits for the result of a {}", name(step.kind)),
                     .why = "what is started must be waited for, or its result has no place",
                     .help = "`co_await` what the start_ call returned, and store it"});
    }
    make_room(result);
    if (step.peer >= 0) {
      message(index);
    } else {
      plan::Collective collective;
      collective.kind = trace::collective_of(step.kind);
      collective.from = region(rows(step.reads[0]));
      collective.to = region(rows(result));
      collective.over.axes = lowering_.dist.group_axes(step.group);
      collective.over.channel = lowering_.dist.group_channel(step.group);
      step_items_[index] = emit(std::move(collective), step.stream, step.async);
    }
    if (step.stream == 0 && !step.async) {
      give_back(result);
    } else {
      give_back_later_[static_cast<std::int32_t>(index)] = result;
    }
  }

  void message(std::size_t index) {
    const Step& step = record_.steps[index];
    const plan::Peer peer{.axis = {}, .wrap = false, .where = step.peer};
    const std::string& channel = lowering_.dist.channel_name(step.channel);
    if (step.kind == Kind::send) {
      plan::Send send{.from = region(rows(step.reads[0])), .peer = peer, .tag = step.tag};
      send.channel = channel;
      step_items_[index] = emit(std::move(send), 0, step.async);
    } else {
      plan::Receive receive{.to = region(rows(step.writes[0])), .peer = peer, .tag = step.tag};
      receive.channel = channel;
      step_items_[index] = emit(std::move(receive), 0, step.async);
    }
  }

  void step(std::size_t index) {
    const Step& step = record_.steps[index];
    switch (step.what) {
      case What::compute:
        return compute_step(step);
      case What::communicate:
        return communicate(index);
      case What::wait: {
        const std::int32_t item = step_items_[step.of];
        waits_.push_back(item);
        items_[item].named = true;
        const auto later = give_back_later_.find(step.of);
        if (later != give_back_later_.end()) give_back(later->second);
        return;
      }
      case What::cast:
        return cast(step);
      case What::add: {
        Access sum = access(Access::Kind::adds, step.writes[0]);
        sum.value = lowering_.tensors.value(any(step.reads[0]));
        return compute("add", {access(Access::Kind::reads, step.reads[0]), std::move(sum)},
                       free_of_charge());
      }
      case What::keep_shard:
        return give_back(step.writes[0]);
      case What::drop:
        return release(rows(step.reads[0]));
      case What::log:
        return logged_step(step);
      case What::take:
      case What::in_place:
        return;
    }
  }

  // What is still stored when the strategy ends, or was never stored, is freed there. Loaded
  // weights and optimizer states, and what took their places, stay for the next step.
  void release_rest() {
    std::vector<bool> kept = places_.kept;
    std::vector<bool> alive(record_.values.size(), false);
    for (const Step& step : record_.steps) {
      for (const ValueNumber v : step.writes) {
        if (v >= 0) alive[v] = true;
      }
    }
    for (std::size_t v = 0; v < alive.size(); ++v) {
      const ValueNumber before = record_.values[v].in_place_of;
      if (before < 0) continue;
      kept[v] = kept[before];
      alive[before] = false;
    }
    for (const Step& step : record_.steps) {
      if (step.what == What::drop) alive[step.reads[0]] = false;
    }
    for (std::size_t v = 0; v < alive.size(); ++v) {
      if (alive[v] && !kept[v]) release(places_.rows[v]);
    }
  }

  // Names those that others refer to, and turns the list into statements.
  void finish() {
    for (const Item& item : items_) {
      for (const std::int32_t other : item.after) items_[other].named = true;
    }
    std::map<std::string, std::int64_t, std::less<>> count;
    for (Item& item : items_) {
      if (!item.named) continue;
      std::string name(word(item.operation.action));
      if (const auto* c = std::get_if<plan::Compute>(&item.operation.action)) name = c->kernel;
      const std::int64_t number = count[name]++;
      item.operation.name = {.name = std::move(name), .indices = {number}};
    }
    for (Item& item : items_) {
      for (const std::int32_t other : item.after) {
        item.operation.after.push_back(items_[other].operation.name);
      }
    }
    for (Item& item : items_) program_.body.push_back({std::move(item.operation)});
  }

  const Lowering& lowering_;
  int rank_;
  const Recording& record_;
  Places places_;
  plan::Program program_;
  std::array<plan::BufferId, kPlaces> buffers_;
  std::vector<Item> items_;
  std::vector<std::int32_t> step_items_;
  std::vector<std::int32_t> waits_;   // of `main`, for the next operation on it
  std::vector<std::int32_t> waited_;  // since last_main_, by what does not complete on `main`
  std::map<std::int32_t, ValueNumber> give_back_later_;  // by step
  std::int32_t last_main_ = -1;
};

}  // namespace

plan::Program rank_program(const Lowering& lowering, int rank, const Recording& recording,
                           std::vector<std::int32_t>* steps) {
  return ProgramWriter(lowering, rank, recording).write(steps);
}

}  // namespace shiplap::strategy
