#include "shiplap/strategy/dist.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/text.h"
#include "shiplap/strategy/model.h"
#include "shiplap/strategy/timeline_internal.h"

namespace shiplap::strategy {
namespace {

using trace::EventKind;

// A bump allocator that frees everything at once. Chunks have one size and come from the heap;
// growing chunks would be mapped anew for every world.
class Arena : public std::pmr::memory_resource {
 private:
  static constexpr std::size_t kChunk = std::size_t{1} << 16;

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    free_ = (free_ + alignment - 1) / alignment * alignment;
    if (chunks_.empty() || free_ + bytes > kChunk) {
      chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max(kChunk, bytes)));
      free_ = 0;
    }
    void* const result = chunks_.back().get() + free_;
    free_ += bytes;
    return result;
  }
  void do_deallocate(void* /*memory*/, std::size_t /*bytes*/, std::size_t /*alignment*/) override {}
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t free_ = 0;  // in the last chunk
};

plan::Mesh checked_mesh(const std::vector<plan::Axis>& axes) {
  std::int64_t ranks = 1;
  for (const plan::Axis& axis : axes) {
    const bool fits = axis.size >= 1 && axis.size <= plan::kMaxRanks / ranks;
    if (!fits) {
      throw InputError(Diagnostic{
          .code = "D622",
          .what = fmt::format("invalid mesh: axis `{}` has size {}", axis.name, axis.size),
          .why = fmt::format("every axis has at least one position, and there are at most {} ranks",
                             with_separators(plan::kMaxRanks)),
          .help = "give each axis a size of at least 1"});
    }
    ranks *= axis.size;
    if (!plan::is_name(axis.name)) {
      throw InputError(Diagnostic{
          .code = "D622",
          .what = fmt::format("`{}` cannot be the name of an axis", axis.name),
          .why =
              "a name has letters, digits and underscores, and is not a keyword of the plan format",
          .help = "use dp, pp, tp, .."});
    }
    const bool twice = std::ranges::count(axes, axis.name, &plan::Axis::name) > 1;
    if (!twice) continue;
    throw InputError(Diagnostic{.code = "D622",
                                .what = fmt::format("the mesh has two axes `{}`", axis.name),
                                .why = "groups of ranks are named by the axes they run along",
                                .help = "give each axis a name of its own"});
  }
  return {.axes = IdVector<plan::AxisId, plan::Axis>(axes), .aliases = {}};
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) result.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

}  // namespace

// ---------------------------------------------------------------- Barrier

void Barrier::arrive(Await& await) {
  ranks_.push_back(await.rank);
  (last_ == nullptr ? first_ : last_->next) = &await;
  last_ = &await;
  if (static_cast<int>(ranks_.size()) == target_) reset();
}

void Barrier::reset() {
  engine::Waiter* const first = std::exchange(first_, nullptr);
  last_ = nullptr;
  ranks_.clear();
  if (first != nullptr) scheduler_.wake(*first);
}

// ---------------------------------------------------------------- groups

struct Dist::PendingCollective {
  std::vector<PendingOp*> members;  // by position; null: not arrived
  std::int64_t arrived = 0;
  PendingOp* first = nullptr;  // to arrive
};

// All groups along the same axes, on one channel.
struct Dist::Group {
  struct Instance {
    std::int32_t finished = 0;  // collectives before those that are open
    std::vector<PendingCollective> open;
  };
  std::vector<plan::AxisId> axes;
  std::vector<std::string> names;  // under which it was requested
  std::string channel;
  std::int64_t size = 1;
  std::vector<std::int32_t> instance_of;  // by rank
  std::vector<std::int32_t> position_of;
  std::vector<Instance> instances;
};

Dist::Dist(World world)
    : arena_(std::make_unique<Arena>()),
      world_(std::move(world)),
      mesh_(checked_mesh(world_.mesh)),
      ranks_(mesh_.ranks()),
      predictor_(ranks_, world_.system, world_.shape),
      models_(ranks_, nullptr) {}

Dist::~Dist() = default;

std::int32_t Dist::group(std::string_view axes, std::string_view channel) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]->channel == channel && std::ranges::count(groups_[i]->names, axes) > 0) {
      return static_cast<std::int32_t>(i);
    }
  }
  const std::vector<plan::AxisId> ids = parse_axes(axes);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]->axes != ids || groups_[i]->channel != channel) continue;
    groups_[i]->names.emplace_back(axes);
    return static_cast<std::int32_t>(i);
  }
  auto group = std::make_unique<Group>();
  group->names.emplace_back(axes);
  group->channel = channel;
  group->axes = ids;
  for (const plan::AxisId axis : group->axes) group->size *= mesh_.size(axis);
  group->instance_of.assign(ranks_, -1);
  group->position_of.assign(ranks_, 0);
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    if (group->instance_of[rank] >= 0) continue;
    const plan::RankSet members = plan::along(mesh_, group->axes, Rank(rank));
    for (std::int64_t p = 0; p < members.size(); ++p) {
      group->instance_of[members[p].index()] = static_cast<std::int32_t>(group->instances.size());
      group->position_of[members[p].index()] = static_cast<std::int32_t>(p);
    }
    group->instances.emplace_back();
  }
  groups_.push_back(std::move(group));
  return static_cast<std::int32_t>(groups_.size() - 1);
}

// Returns sorted, distinct ids.
std::vector<plan::AxisId> Dist::parse_axes(std::string_view axes) const {
  std::vector<plan::AxisId> ids;
  std::vector<std::string> known;
  for (const plan::Axis& axis : mesh_.axes) known.push_back(axis.name);
  for (const std::string_view word : split_words(axes)) {
    const auto found = std::ranges::find(known, word);
    if (found == known.end()) {
      throw InputError(Diagnostic{.code = "D621",
                                  .what = fmt::format("the mesh has no axis `{}`", word),
                                  .why = fmt::format("its axes are {}", fmt::join(known, ", ")),
                                  .help = suggest(word, known)});
    }
    ids.emplace_back(static_cast<std::size_t>(found - known.begin()));
  }
  if (ids.empty()) {
    for (std::size_t i = 0; i < mesh_.axes.size(); ++i) ids.emplace_back(i);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::int64_t Dist::group_size(std::int32_t group) const { return groups_[group]->size; }
std::int64_t Dist::group_position(std::int32_t group, int rank) const {
  return groups_[group]->position_of[rank];
}
const std::vector<plan::AxisId>& Dist::group_axes(std::int32_t group) const {
  return groups_[group]->axes;
}
const std::string& Dist::group_channel(std::int32_t group) const { return groups_[group]->channel; }
std::int32_t Dist::channel(std::string_view name) {
  const auto number = std::ranges::find(channels_, name) - channels_.begin();
  if (number == std::ssize(channels_)) channels_.emplace_back(name);
  return static_cast<std::int32_t>(number);
}
const std::string& Dist::channel_name(std::int32_t channel) const { return channels_[channel]; }
std::string Dist::group_name(std::int32_t group) const {
  const Group& g = *groups_[group];
  return g.size == ranks_ ? "all ranks" : g.names.front();
}

std::int32_t Dist::next_seq(int rank) {
  next_seq_.resize(ranks_, 0);
  return next_seq_[rank]++;
}

std::int32_t Dist::checked_rank(int rank) const {
  if (rank >= 0 && rank < ranks_) return rank;
  throw InputError(
      Diagnostic{.code = "D621",
                 .what = fmt::format("there is no rank {} in a world of {}", rank, ranks_),
                 .why = "ranks count from 0",
                 .help = fmt::format("use a rank from 0 to {}", ranks_ - 1)});
}

void Dist::throw_type_mismatch(const PendingOp& received) {
  throw InputError(
      Diagnostic{.code = "D616",
                 .where = {.rank = received.rank, .operation = std::string(name(received.kind))},
                 .what = fmt::format("rank {} sent {}", received.peer, describe(received.out)),
                 .why = "a receive names the type of the incoming value",
                 .help = "receive the type that is sent"});
}

Dist::Work Dist::work(EventKind kind, const Extent& extent) {
  using Pass = cost::RuntimePredictor::Pass;
  const auto [samples, held, of, layer] = extent;
  const bool has_parts = !world_.shape.layers.empty();
  switch (kind) {
    case EventKind::load_weights:
      return {predictor_.load_work(held, of, layer)};
    case EventKind::update:
      return {predictor_.update_work(held, of, layer)};
    case EventKind::forward:
      if (has_parts) return work_of_parts(Pass::forward, extent);
      return {predictor_.forward_work(samples, held, of)};
    case EventKind::backward_input:
      if (has_parts) return work_of_parts(Pass::backward_input, extent);
      return {predictor_.backward_half_work(samples, held, of)};
    case EventKind::backward_weight:
      if (has_parts) return work_of_parts(Pass::backward_weight, extent);
      return {predictor_.backward_half_work(samples, held, of)};
    case EventKind::backward:
      if (has_parts) return work_of_parts(Pass::backward, extent);
      return {predictor_.backward_work(samples, held, of)};
    default:
      return {{.kernel_class = ""}};  // zero cost
  }
}

// Equal layers have equal works, so a large model has few of them.
Dist::Work Dist::work_of_parts(cost::RuntimePredictor::Pass pass, const Extent& extent) {
  const auto [known, is_new] = known_parts_.try_emplace({pass, extent});
  if (is_new) {
    std::vector<cost::PartCost> all =
        predictor_.part_works(pass, extent.layer, extent.samples, extent.held, extent.of);
    if (!all.empty()) {
      known->second.last = all.back().work;
      all.pop_back();
    }
    const auto found = std::ranges::find(parts_, all);
    known->second.parts = static_cast<std::int32_t>(found - parts_.begin());
    if (found == parts_.end()) parts_.push_back(std::move(all));
  }
  return known->second;
}

const std::vector<cost::PartCost>& Dist::parts(std::int32_t number) const {
  static const std::vector<cost::PartCost> kNone;
  return number < 0 ? kNone : parts_[number];
}

void Dist::attach(const Model& model) {
  models_[model.rank()] = &model;
  invalidate_timeline();
}

void Dist::detach(const Model& model) {
  if (models_[model.rank()] == &model) models_[model.rank()] = nullptr;
}

const Timeline& Dist::timeline() const {
  if (!timeline_) timeline_ = replay(*this);
  return *timeline_;
}

// ---------------------------------------------------------------- pending operations

// A completed op may start its successor on the stream, and so on: a work list avoids deep
// recursion.
void Dist::start(PendingOp& op) {
  to_start_.push_back(&op);
  if (std::exchange(starting_, true)) return;
  while (!to_start_.empty() && !problem_) {
    PendingOp& next = *to_start_.back();
    to_start_.pop_back();
    if (next.kind == EventKind::send || next.kind == EventKind::recv) {
      post(next);
    } else {
      join(next);
    }
  }
  starting_ = false;
}

void Dist::report(Diagnostic diagnostic) {
  if (!problem_) problem_ = std::move(diagnostic);
}

void Dist::on_complete(PendingOp& op) {
  op.complete = true;
  if (op.next_on_stream != nullptr) to_start_.push_back(std::exchange(op.next_on_stream, nullptr));
}

void Dist::join(PendingOp& op) {
  Group& group = *groups_[op.group];
  const auto rank = static_cast<std::size_t>(op.rank);
  const auto instance = static_cast<std::size_t>(group.instance_of[rank]);
  Group::Instance& where = group.instances[instance];
  const auto ahead = static_cast<std::size_t>(op.seq - where.finished);
  if (where.open.size() <= ahead) where.open.resize(ahead + 1);
  PendingCollective& collective = where.open[ahead];
  if (collective.members.empty()) collective.members.resize(group.size);
  collective.members[group.position_of[rank]] = &op;
  if (collective.first == nullptr) collective.first = &op;
  const PendingOp& first = *collective.first;
  if (first.kind != op.kind || first.in.index() != op.in.index()) {
    report({.code = "D616",
            .where = {.rank = op.rank,
                      .operation = fmt::format("{}({})", name(op.kind), describe(op.in))},
            .what = fmt::format("collective mismatch: rank {} is in {} of {}, rank {} in {} of {}",
                                op.rank, name(op.kind), describe(op.in), first.rank,
                                name(first.kind), describe(first.in)),
            .why = fmt::format("both are collective number {} on {}", op.seq, group_name(op.group)),
            .help = "call the same collectives in the same order on all ranks of a group"});
    return;
  }
  if (++collective.arrived == group.size) finish(group, instance, collective);
}

void Dist::finish(Group& group, std::size_t instance, PendingCollective& collective) {
  try {
    combine(collective);
  } catch (const InputError& error) {
    Diagnostic wrong = error.diagnostics().front();
    wrong.where.rank = collective.first->rank;
    wrong.where.operation =
        fmt::format("{}(layer {}) over {}", name(collective.first->kind),
                    layer_of(collective.first->in), group_name(collective.first->group));
    report(std::move(wrong));
    return;
  }
  engine::Waiter* to_wake = nullptr;
  for (std::size_t i = collective.members.size(); i-- > 0;) {
    PendingOp& op = *collective.members[i];
    on_complete(op);
    if (!op.awaited) continue;
    op.next = to_wake;
    to_wake = &op;
  }
  if (to_wake != nullptr) scheduler_.wake(*to_wake);
  // Collectives of a group complete in order, since every rank joins them in order.
  Group::Instance& where = group.instances[instance];
  where.open.erase(where.open.begin());
  ++where.finished;
}

namespace {

template <class T>
const T& at(const PendingOp* op) {
  return std::get<T>(op->in);
}

// Returns the union of the members' sets. Throws InputError D611 if two of them overlap.
template <class T>
IndexSet unite_all(std::span<PendingOp* const> members, IndexSet T::* set, const char* thing) {
  std::vector<const IndexSet*> sets;
  sets.reserve(members.size());
  for (const PendingOp* member : members) sets.push_back(&(at<T>(member).*set));
  Union all = unite(sets);
  if (all.duplicate < 0) return std::move(all.set);
  std::vector<int> holders;
  for (const PendingOp* member : members) {
    if ((at<T>(member).*set).contains(all.duplicate)) holders.push_back(member->rank);
  }
  throw InputError(
      Diagnostic{.code = "D611",
                 .what = fmt::format("{} {} is contributed by both rank {} and rank {}", thing,
                                     all.duplicate, holders.at(0), holders.at(1)),
                 .why = "it would be counted twice",
                 .help = "give every rank of the group distinct samples or shards"});
}

// Throws InputError D610 unless all members are equal except for the set `differs`.
template <class T>
void require_alike(std::span<PendingOp* const> members, IndexSet T::* differs) {
  const T& first = at<T>(members.front());
  for (const PendingOp* member : members.subspan(1)) {
    T other = at<T>(member);
    other.*differs = first.*differs;
    if (other == first) continue;
    throw InputError(Diagnostic{
        .code = "D610",
        .what = fmt::format("mismatch: rank {} passes {}, rank {} passes {}", members.front()->rank,
                            describe(members.front()->in), member->rank, describe(member->in)),
        .why = "the values of a collective must match",
        .help = "use the same layer, step and number of shards on all ranks"});
  }
}

// A gather concatenates in group order, so the shards must be in this order: else D610.
template <class T>
void require_order(std::span<PendingOp* const> members, IndexSet T::* set) {
  for (std::size_t i = 1; i < members.size(); ++i) {
    const IndexSet& before = at<T>(members[i - 1]).*set;
    const IndexSet& here = at<T>(members[i]).*set;
    const bool follows =
        before.size() == here.size() && before.runs().back().last() < here.runs().front().begin;
    if (follows) continue;
    throw InputError(Diagnostic{
        .code = "D610",
        .what = fmt::format(
            "wrong shard order: rank {} passes {}, and rank {}, next in the group, passes {}",
            members[i - 1]->rank, describe(members[i - 1]->in), members[i]->rank,
            describe(members[i]->in)),
        .why = "a gather concatenates in group order, so each rank needs as many shards as the "
               "previous rank, and later ones",
        .help = "load the shard of the rank's position in the group: `model.position(\"dp\")`"});
  }
}

template <class T>
void combine_as(std::span<PendingOp* const> members, IndexSet T::* set, const char* thing) {
  require_alike<T>(members, set);
  T whole = at<T>(members.front());
  whole.*set = unite_all<T>(members, set, thing);
  whole.provenance = {};
  if (members.front()->kind == EventKind::all_gather) require_order<T>(members, set);
  if (members.front()->kind != EventKind::reduce_scatter) {
    for (PendingOp* member : members) member->out = whole;
    return;
  }
  if constexpr (workload::Gatherable<T>) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      members[i]->out = whole.shard(static_cast<int>(i), static_cast<int>(members.size()));
    }
  }
}

}  // namespace

void Dist::combine(const PendingCollective& collective) {
  const std::span<PendingOp* const> members = collective.members;
  const bool gathers = members.front()->kind == EventKind::all_gather;
  if (members.front()->kind == EventKind::barrier) return;
  const AnyValue& first = members.front()->in;
  if (std::holds_alternative<workload::Weight>(first)) {
    combine_as<workload::Weight>(members, &workload::Weight::shards, "shard");
  } else if (std::holds_alternative<workload::OptState>(first)) {
    combine_as<workload::OptState>(members, &workload::OptState::shards, "shard");
  } else if (std::holds_alternative<workload::Activation>(first)) {
    combine_as<workload::Activation>(members, &workload::Activation::shards, "shard");
  } else if (std::holds_alternative<workload::ActivationGrad>(first)) {
    combine_as<workload::ActivationGrad>(members, &workload::ActivationGrad::summed,
                                         "contribution");
  } else if (gathers) {
    combine_as<workload::WeightGrad>(members, &workload::WeightGrad::shards, "shard");
  } else {
    combine_as<workload::WeightGrad>(members, &workload::WeightGrad::samples, "sample");
  }
}

void Dist::post(PendingOp& op) {
  if (op.kind == EventKind::send) {
    send(op, mailboxes_[{op.rank, op.peer, op.channel, op.tag}]);
  } else {
    receive(op, mailboxes_[{op.peer, op.rank, op.channel, op.tag}]);
  }
}

// Completes `op` and wakes its rank if it waits.
void Dist::complete_and_wake(PendingOp& op) {
  on_complete(op);
  op.next = nullptr;
  if (op.awaited) scheduler_.wake(op);
}

void Dist::send(PendingOp& op, Mailbox& box) {
  const bool eager = is_eager(op);
  if (!box.receives.empty()) {
    PendingOp& receiver = *box.receives.front();
    box.receives.erase(box.receives.begin());
    match(op, receiver);
    if (!eager) return;
  } else if (eager) {
    auto copy = std::make_unique<PendingOp>(op);
    copy->next_on_stream = nullptr;
    PendingOp* const queued = copy.get();
    box.sends.push_back({.op = queued, .copy = std::move(copy)});
  } else {
    box.sends.push_back({.op = &op, .copy = nullptr});
    return;
  }
  complete_and_wake(op);
}

void Dist::receive(PendingOp& op, Mailbox& box) {
  if (box.sends.empty()) {
    box.receives.push_back(&op);
    return;
  }
  const QueuedSend queued = std::move(box.sends.front());
  box.sends.erase(box.sends.begin());
  match(*queued.op, op);
}

void Dist::match(PendingOp& send, PendingOp& receive) {
  receive.out = send.in;
  if (!is_eager(send)) complete_and_wake(send);
  complete_and_wake(receive);
}

// ---------------------------------------------------------------- reports

std::vector<int> Dist::missing_ranks(const PendingOp& op) const {
  if (op.kind == EventKind::send || op.kind == EventKind::recv) return {op.peer};
  const Group& group = *groups_[op.group];
  const auto rank = static_cast<std::size_t>(op.rank);
  const auto instance = static_cast<std::size_t>(group.instance_of[rank]);
  const Group::Instance& where = group.instances[instance];
  const auto ahead = static_cast<std::size_t>(op.seq - where.finished);
  std::vector<int> missing;
  for (int other = 0; other < ranks_; ++other) {
    const auto index = static_cast<std::size_t>(other);
    if (group.instance_of[index] != group.instance_of[rank]) continue;
    const bool open = ahead < where.open.size() && !where.open[ahead].members.empty();
    if (!open || where.open[ahead].members[group.position_of[index]] == nullptr) {
      missing.push_back(other);
    }
  }
  return missing;
}

}  // namespace shiplap::strategy
