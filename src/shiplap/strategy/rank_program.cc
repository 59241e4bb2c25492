#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shiplap/plan/kernel.h"
#include "shiplap/strategy/rank_program_internal.h"

namespace shiplap::strategy {
namespace {

using plan::Access;
using trace::EventKind;

constexpr std::array<const char*, kBufferKinds> kBufferNames{"w", "o", "g", "a", "d"};

plan::Work zero_cost() { return {.kernel_class = "", .flop = 0, .bytes = 0, .type = {}}; }

// Returns `whole` restricted to some of its shards.
template <class T>
T narrowed(const T& whole, const IndexSet& shards, std::int32_t num_shards) {
  T part = whole;
  part.shards = shards;
  part.num_shards = num_shards;
  return part;
}

class ProgramWriter {
 public:
  ProgramWriter(const LoweringContext& lowering, int rank, const Recording& recording)
      : lowering_(lowering),
        rank_(rank),
        record_(recording),
        allocation_(allocate_rows(record_, lowering.grain, lowering.classes)) {}

  plan::Program write(std::vector<std::int32_t>* steps) {
    declare_buffers();
    if (const Model* model = lowering_.dist.models()[rank_]) {
      program_.streams.insert(program_.streams.end(), model->streams().begin() + 1,
                              model->streams().end());
    }
    if (for_execution()) check_repeatable();
    for (std::size_t v = 0; v < record_.values.size(); ++v) {
      if (allocation_.kept[v]) add_keep_fact(static_cast<ValueNumber>(v));
    }
    step_items_.assign(record_.steps.size(), -1);
    for (std::size_t s = 0; s < record_.steps.size(); ++s) {
      step(s);
      if (steps != nullptr) steps->resize(items_.size(), static_cast<std::int32_t>(s));
    }
    free_remaining();
    finish();
    return std::move(program_);
  }

 private:
  struct Item {
    plan::Operation operation;
    std::vector<std::int32_t> after;  // items
    bool named = false;
  };

  [[nodiscard]] bool for_execution() const {
    return lowering_.purpose == LoweringPurpose::execution;
  }

  // ---------------------------------------------------------------- regions and values

  void declare_buffers() {
    const workload::ModelShape& shape = lowering_.dist.world().shape;
    const Bytes sample{shape.activation().count / lowering_.grain.sample};
    buffers_.resize(allocation_.total.size());
    for (std::size_t k = 0; k < lowering_.classes.count(); ++k) {
      const Bytes weight = row_of_weight(lowering_.classes.weight(k));
      const std::array<Bytes, kBufferKinds> row{weight, shape.moments * weight, weight, sample,
                                                shape.activation()};
      for (std::size_t kind = 0; kind < kBufferKinds; ++kind) {
        const std::size_t p = k * kBufferKinds + kind;
        buffers_[p] = plan::BufferId(program_.buffers.size());
        if (allocation_.total[p] == 0) continue;
        const std::string number = k == 0 ? "" : std::to_string(k + 1);
        program_.buffers.push_back({.name = kBufferNames[kind] + number,
                                    .rows = allocation_.total[p],
                                    .row_bytes = row[kind].count,
                                    .type = shape.datatype});
      }
    }
  }

  // Shards of a layer of parts may need padding, to whole elements.
  [[nodiscard]] Bytes row_of_weight(Bytes weight) const {
    const workload::ModelShape& shape = lowering_.dist.world().shape;
    const std::int64_t rows = lowering_.grain.weight;
    if (shape.layers.empty()) return {weight.count / rows};
    const std::int64_t element = bytes_of(shape.datatype);
    return {(weight.count / element + rows - 1) / rows * element};
  }

  [[nodiscard]] plan::Region region(const Rows& rows) const {
    return {.buffer = buffers_[rows.buffer.index()],
            .list = {},
            .kind = plan::Region::Kind::rows,
            .begin = rows.begin,
            .count = rows.count};
  }
  [[nodiscard]] const Rows& rows(ValueNumber v) const { return allocation_.rows[v]; }
  [[nodiscard]] const AnyValue& any(ValueNumber v) const { return record_.values[v].value; }
  [[nodiscard]] Access access(Access::Kind kind, ValueNumber v) const {
    return {.kind = kind,
            .origin = {},
            .region = region(rows(v)),
            .value = lowering_.tensors.value(any(v))};
  }
  // Reads only the shards of `v` that `like` has.
  [[nodiscard]] Access narrow_read(ValueNumber v, ValueNumber like) const {
    const auto narrow = [&](const auto& whole, const auto& small) {
      if (whole.num_shards == small.num_shards && whole.shards == small.shards) {
        return access(Access::Kind::reads, v);
      }
      Rows part = rows(v);
      const std::int64_t all = part.count / whole.shards.size() * whole.num_shards;
      const auto offset = [all](const auto& value) {
        return all / value.num_shards * value.shards.runs().front().begin;
      };
      part.begin += offset(small) - offset(whole);
      part.count = all / small.num_shards * small.shards.size();
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

  void add_keep_fact(ValueNumber v) {
    program_.body.push_back({plan::Fact{.kind = plan::Fact::Kind::keep,
                                        .origin = {},
                                        .region = region(rows(v)),
                                        .value = lowering_.tensors.value(any(v))}});
  }

  // The updated weights must end in the rows of the loaded ones.
  void check_repeatable() const {
    std::vector<ValueNumber> last(record_.values.size());  // of its alias set
    for (std::size_t v = last.size(); v-- > 0;) {
      last[v] = std::max(last[v], static_cast<ValueNumber>(v));
      const ValueNumber before = record_.values[v].in_place_of;
      if (before < 0) continue;
      ValueNumber& of_before = last[before];
      of_before = std::max(of_before, last[v]);
    }
    std::vector<bool> is_dropped(record_.values.size(), false);
    for (const Step& step : record_.steps) {
      if (step.type == StepType::drop) is_dropped[step.reads[0]] = true;
    }
    for (std::size_t v = 0; v < last.size(); ++v) {
      if (!allocation_.kept[v]) continue;
      const ValueNumber end = last[v];
      const bool dropped = is_dropped[end];
      const auto* w = std::get_if<Weight>(&any(end));
      const auto* o = std::get_if<OptState>(&any(end));
      const int updates = w != nullptr ? w->step : (o != nullptr ? o->step : 0);
      const Rows& begin = allocation_.rows[v];
      const bool same = rows(end).begin == begin.begin && rows(end).count == begin.count;
      if (!dropped && updates == 1 && same) continue;
      throw InputError(Diagnostic{
          .code = "D625",
          .where = {.rank = rank_},
          .what = fmt::format("the step cannot be repeated with {}: {}",
                              describe(record_.values[v].value),
                              dropped        ? "it is dropped"
                              : updates == 0 ? "it is never updated"
                              : !same        ? "it ends with other shards"
                                             : "it is updated more than once"),
          .why = "a plan is a step that is repeated: a loaded value must end updated once, in the "
                 "same rows",
          .help = !dropped && updates > 0 && !same
                      ? "load only the shards that are updated: `load_weights(layer, shard, ranks)`"
                      : "store its update in its place: the result of `update`, or of `all_gather` "
                        "of the updated shards; or gather it instead of loading it"});
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
      // Ordered after the current position of `main`: its last completed operation, and all waits
      // since.
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

  // Visits the rows of `whole` before and after `inner`. One of them is empty on the ranks that
  // have the first or the last shard; all ranks emit both, so that they can share a program.
  template <class Visit>
  void for_each_outside(const Rows& whole, const Rows& inner, const Visit& visit) {
    visit(Rows{.buffer = whole.buffer, .begin = whole.begin, .count = inner.begin - whole.begin});
    visit(Rows{.buffer = whole.buffer, .begin = inner.end(), .count = whole.end() - inner.end()});
  }
  void allocate_result(ValueNumber v) {
    if (v < 0 || allocation_.kept[v]) return;
    const ValueNumber before = record_.values[v].in_place_of;
    if (before < 0) {
      allocate(rows(v));
    } else if (rows(before).count < rows(v).count) {
      for_each_outside(rows(v), rows(before), [&](const Rows& r) { allocate(r); });
    }
  }
  // Frees the rest of the operand's rows, if the result is smaller.
  void free_shrunk_rows(ValueNumber v) {
    if (v < 0) return;
    const ValueNumber before = record_.values[v].in_place_of;
    if (before >= 0 && rows(before).count > rows(v).count) {
      for_each_outside(rows(before), rows(v), [&](const Rows& r) { release(r); });
    }
  }

  void compute(std::string kernel, std::vector<Access> accesses, plan::Work work) {
    emit(plan::Compute{.kernel = std::move(kernel), .accesses = std::move(accesses)});
    items_.back().operation.work = std::move(work);
  }

  [[nodiscard]] plan::Work work_of(const cost::ComputeWork& work) const {
    if (work.kernel_class.empty()) return zero_cost();
    const workload::ModelShape& shape = lowering_.dist.world().shape;
    return {.kernel_class = std::string(work.kernel_class),
            .flop = static_cast<std::int64_t>(work.flop),
            .bytes = static_cast<std::int64_t>(work.bytes),
            .type = shape.datatype};
  }

  void logged_step(const Step& step) {
    if (for_execution()) {
      throw InputError(Diagnostic{
          .code = "D625",
          .where = {.rank = rank_, .operation = std::string(name(step.kind))},
          .what = fmt::format("a {} that was only logged cannot be executed", name(step.kind)),
          .why = "`log_event` has no values, and a plan states what every computation reads and "
                 "writes",
          .help = "call it instead of logging it"});
    }
    compute_parts(step);
    compute(std::string(name(step.kind)), {}, work_of(step.work));
  }

  // The parts of a layer before the last one, which states the values.
  void compute_parts(const Step& step) {
    for (const cost::PartCost& part : lowering_.dist.parts(step.parts)) {
      compute(std::string(plan::kOpaqueKernel), {}, work_of(part.work));
      items_.back().operation.label = part.name;
    }
  }

  void compute_step(const Step& step) {
    for (const ValueNumber v : step.writes) allocate_result(v);
    std::vector<Access> accesses;
    const bool loads = step.kind == EventKind::load_weights;
    for (const ValueNumber v :
         loads ? std::array{step.writes[0], step.writes[1], -1} : step.reads) {
      if (v < 0) continue;
      accesses.push_back(step.kind == EventKind::update ? narrow_read(v, step.reads[1])
                                                        : access(Access::Kind::reads, v));
    }
    for (const ValueNumber v : step.writes) {
      if (v >= 0) accesses.push_back(access(Access::Kind::writes, v));
    }
    compute_parts(step);
    const bool batch = step.kind == EventKind::compute;
    compute(batch ? "read_batch" : std::string(name(step.kind)), std::move(accesses),
            work_of(step.work));
  }

  void cast(const Step& step) {
    allocate_result(step.writes[0]);
    Access from = narrow_read(step.reads[0], step.writes[0]);
    Access to = access(Access::Kind::writes, step.writes[0]);
    to.value = from.value;
    compute("cast", {std::move(from), std::move(to)}, zero_cost());
  }

  void communicate(std::size_t index) {
    const Step& step = record_.steps[index];
    const ValueNumber result = step.writes[0];
    if (step.kind != EventKind::send && result < 0) {
      if (!for_execution()) return;  // incomplete
      throw InputError(
          Diagnostic{.code = "D623",
                     .where = {.rank = rank_, .operation = std::string(name(step.kind))},
                     .what = fmt::format("the result of a {} is never awaited", name(step.kind)),
                     .why = "a started communication must be awaited, or its result is not stored",
                     .help = "`co_await` what the start_ call returned, and store it"});
    }
    allocate_result(result);
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
      free_shrunk_rows(result);
    } else {
      deferred_frees_[static_cast<std::int32_t>(index)] = result;
    }
  }

  void message(std::size_t index) {
    const Step& step = record_.steps[index];
    const plan::Peer peer{.axis = {}, .wrap = false, .where = step.peer};
    const std::string& channel = lowering_.dist.channel_name(step.channel);
    if (step.kind == EventKind::send) {
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
    switch (step.type) {
      case StepType::compute:
        return compute_step(step);
      case StepType::communicate:
        return communicate(index);
      case StepType::wait: {
        const std::int32_t item = step_items_[step.comm_step];
        waits_.push_back(item);
        items_[item].named = true;
        const auto later = deferred_frees_.find(step.comm_step);
        if (later != deferred_frees_.end()) free_shrunk_rows(later->second);
        return;
      }
      case StepType::cast:
        return cast(step);
      case StepType::add: {
        Access sum = access(Access::Kind::adds, step.writes[0]);
        sum.value = lowering_.tensors.value(any(step.reads[0]));
        return compute("add", {access(Access::Kind::reads, step.reads[0]), std::move(sum)},
                       zero_cost());
      }
      case StepType::keep_shard:
        return free_shrunk_rows(step.writes[0]);
      case StepType::drop:
        return release(rows(step.reads[0]));
      case StepType::log:
        return logged_step(step);
      case StepType::take:
      case StepType::in_place:
        return;
    }
  }

  // Frees the values that are still stored at the end or were never stored. Loaded weights and
  // optimizer states, and values that alias them, stay for the next step.
  void free_remaining() {
    std::vector<bool> kept = allocation_.kept;
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
      if (step.type == StepType::drop) alive[step.reads[0]] = false;
    }
    for (std::size_t v = 0; v < alive.size(); ++v) {
      if (alive[v] && !kept[v]) release(allocation_.rows[v]);
    }
  }

  // Names the operations that others refer to, and writes the statements.
  void finish() {
    for (const Item& item : items_) {
      for (const std::int32_t other : item.after) items_[other].named = true;
    }
    std::map<std::string, std::int64_t, std::less<>> count;
    for (Item& item : items_) {
      if (!item.named) continue;
      std::string name(keyword(item.operation.action));
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

  const LoweringContext& lowering_;
  int rank_;
  const Recording& record_;
  RowAllocation allocation_;
  plan::Program program_;
  std::vector<plan::BufferId> buffers_;  // by BufferKey::index()
  std::vector<Item> items_;
  std::vector<std::int32_t> step_items_;
  std::vector<std::int32_t> waits_;   // waits that the next operation on `main` has to take
  std::vector<std::int32_t> waited_;  // waits since last_main_ that async operations took
  std::map<std::int32_t, ValueNumber> deferred_frees_;  // by step
  std::int32_t last_main_ = -1;
};

}  // namespace

plan::Program rank_program(const LoweringContext& lowering, int rank, const Recording& recording,
                           std::vector<std::int32_t>* steps) {
  return ProgramWriter(lowering, rank, recording).write(steps);
}

}  // namespace shiplap::strategy
