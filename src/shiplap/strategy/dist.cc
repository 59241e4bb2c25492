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

using trace::Kind;

// Hands out memory one piece after another, and gives it back as a whole. Chunks stay of one size,
// so that they come from the heap: those that grow would be mapped anew for every world.
class Arena : public std::pmr::memory_resource {
 private:
  static constexpr std::size_t kChunk = std::size_t{1} << 16;

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    free_ = (free_ + alignment - 1) / alignment * alignment;
    if (chunks_.empty() || free_ + bytes > kChunk) {
      chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max(kChunk, bytes)));
      free_ = 0;
    }
    void* const place = chunks_.back().get() + free_;
    free_ += bytes;
    return place;
  }
  void do_deallocate(void* /*place*/, std::size_t /*bytes*/, std::size_t /*alignment*/) override {}
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
          .what = fmt::format("an axis `{}` of size {} makes no mesh", axis.name, axis.size),
          .why = fmt::format("every axis has at least one position, and there are at most {} ranks",
                             with_separators(plan::kMaxRanks)),
          .help = "give each axis a size from 1 up"});
    }
    ranks *= axis.size;
    if (!plan::is_name(axis.name)) {
      throw InputError(Diagnostic{
          .code = "D622",
          .what = fmt::format("`{}` cannot be the name of an axis", axis.name),
          .why = "a name has letters, digits and underscores, and is no word of the plan format",
          .help = "call it dp, pp, tp, .."});
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

std::vector<std::string_view> words(std::string_view text) {
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

struct Dist::Meeting {
  std::vector<Flight*> members;  // by position; null: not there yet
  std::int64_t arrived = 0;
  Flight* first = nullptr;  // to arrive
};

// All groups along the same axes, on one channel.
struct Dist::Group {
  struct Instance {
    std::int32_t finished = 0;  // meetings before those that are open
    std::vector<Meeting> open;
  };
  std::vector<plan::AxisId> axes;
  std::vector<std::string> names;  // by which it was asked for
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
  const std::vector<plan::AxisId> ids = axes_called(axes);
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

// Sorted, each once.
std::vector<plan::AxisId> Dist::axes_called(std::string_view axes) const {
  std::vector<plan::AxisId> ids;
  std::vector<std::string> known;
  for (const plan::Axis& axis : mesh_.axes) known.push_back(axis.name);
  for (const std::string_view word : words(axes)) {
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

std::int32_t Dist::next_number(int rank) {
  numbers_.resize(ranks_, 0);
  return numbers_[rank]++;
}

std::int32_t Dist::present(int rank) const {
  if (rank >= 0 && rank < ranks_) return rank;
  throw InputError(
      Diagnostic{.code = "D621",
                 .what = fmt::format("there is no rank {} in a world of {}", rank, ranks_),
                 .why = "ranks count from 0",
                 .help = fmt::format("say a rank from 0 to {}", ranks_ - 1)});
}

void Dist::refuse_other(const Flight& received) {
  throw InputError(
      Diagnostic{.code = "D616",
                 .where = {.rank = received.rank, .operation = std::string(name(received.kind))},
                 .what = fmt::format("rank {} sent {}", received.peer, describe(received.out)),
                 .why = "a receive names the kind of value that comes",
                 .help = "receive what is sent"});
}

cost::ComputeWork Dist::work(Kind kind, std::int64_t samples, std::int64_t held,
                             std::int64_t of) const {
  switch (kind) {
    case Kind::load_weights:
      return predictor_.load_work(held, of);
    case Kind::forward:
      return predictor_.forward_work(samples, held, of);
    case Kind::backward_input:
    case Kind::backward_weight:
      return predictor_.backward_half_work(samples, held, of);
    case Kind::backward:
      return predictor_.backward_work(samples, held, of);
    case Kind::update:
      return predictor_.update_work(held, of);
    default:
      return {.kernel_class = ""};  // it takes no time
  }
}

void Dist::enter(const Model& model) {
  models_[model.rank()] = &model;
  changed();
}

void Dist::leave(const Model& model) {
  if (models_[model.rank()] == &model) models_[model.rank()] = nullptr;
}

const Timeline& Dist::timeline() const {
  if (!timeline_) timeline_ = replay(*this);
  return *timeline_;
}

// ---------------------------------------------------------------- flights

// One flight that lands may let another start, and so on: a list instead of a deep recursion.
void Dist::start(Flight& flight) {
  to_start_.push_back(&flight);
  if (std::exchange(starting_, true)) return;
  while (!to_start_.empty() && !problem_) {
    Flight& next = *to_start_.back();
    to_start_.pop_back();
    if (next.kind == Kind::send || next.kind == Kind::recv) {
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

void Dist::land(Flight& flight) {
  flight.complete = true;
  if (flight.behind != nullptr) to_start_.push_back(std::exchange(flight.behind, nullptr));
}

void Dist::join(Flight& flight) {
  Group& group = *groups_[flight.group];
  const auto rank = static_cast<std::size_t>(flight.rank);
  const auto instance = static_cast<std::size_t>(group.instance_of[rank]);
  Group::Instance& where = group.instances[instance];
  const auto ahead = static_cast<std::size_t>(flight.number - where.finished);
  if (where.open.size() <= ahead) where.open.resize(ahead + 1);
  Meeting& meeting = where.open[ahead];
  if (meeting.members.empty()) meeting.members.resize(group.size);
  meeting.members[group.position_of[rank]] = &flight;
  if (meeting.first == nullptr) meeting.first = &flight;
  const Flight& first = *meeting.first;
  if (first.kind != flight.kind || first.in.index() != flight.in.index()) {
    report({.code = "D616",
            .where = {.rank = flight.rank,
                      .operation = fmt::format("{}({})", name(flight.kind), describe(flight.in))},
            .what = fmt::format("rank {} is in {} of {}, rank {} in {} of {}", flight.rank,
                                name(flight.kind), describe(flight.in), first.rank,
                                name(first.kind), describe(first.in)),
            .why = fmt::format("both are number {} on {}, and so meet", flight.number,
                               group_name(flight.group)),
            .help = "let all ranks of a group do the same collectives in the same order"});
    return;
  }
  if (++meeting.arrived == group.size) finish(group, instance, meeting);
}

void Dist::finish(Group& group, std::size_t instance, Meeting& meeting) {
  try {
    combine(meeting);
  } catch (const InputError& error) {
    Diagnostic wrong = error.diagnostics().front();
    wrong.where.rank = meeting.first->rank;
    wrong.where.operation =
        fmt::format("{}(layer {}) over {}", name(meeting.first->kind), layer_of(meeting.first->in),
                    group_name(meeting.first->group));
    report(std::move(wrong));
    return;
  }
  engine::Waiter* to_wake = nullptr;
  for (std::size_t i = meeting.members.size(); i-- > 0;) {
    Flight& flight = *meeting.members[i];
    land(flight);
    if (!flight.awaited) continue;
    flight.next = to_wake;
    to_wake = &flight;
  }
  if (to_wake != nullptr) scheduler_.wake(*to_wake);
  // Meetings end in order, as their members come in order.
  Group::Instance& where = group.instances[instance];
  where.open.erase(where.open.begin());
  ++where.finished;
}

namespace {

template <class T>
const T& at(const Flight* flight) {
  return std::get<T>(flight->in);
}

// The set that all members make together. Throws InputError D611 where two have the same.
template <class T>
IndexSet unite_all(std::span<Flight* const> members, IndexSet T::* set, const char* thing) {
  std::vector<const IndexSet*> sets;
  sets.reserve(members.size());
  for (const Flight* member : members) sets.push_back(&(at<T>(member).*set));
  Union all = unite(sets);
  if (all.twice < 0) return std::move(all.set);
  std::vector<int> holders;
  for (const Flight* member : members) {
    if ((at<T>(member).*set).contains(all.twice)) holders.push_back(member->rank);
  }
  throw InputError(
      Diagnostic{.code = "D611",
                 .what = fmt::format("{} {} is in what rank {} and rank {} bring", thing, all.twice,
                                     holders.at(0), holders.at(1)),
                 .why = "it would be counted twice",
                 .help = "give every rank of the group samples, or shards, of its own"});
}

// Compares with the first member by the operation itself, which knows what fits together.
template <class T>
void require_alike(std::span<Flight* const> members, IndexSet T::* differs) {
  const T& first = at<T>(members.front());
  for (const Flight* member : members.subspan(1)) {
    T other = at<T>(member);
    other.*differs = first.*differs;
    if (other == first) continue;
    throw InputError(Diagnostic{
        .code = "D610",
        .what = fmt::format("rank {} brings {}, rank {} brings {}", members.front()->rank,
                            describe(members.front()->in), member->rank, describe(member->in)),
        .why = "what ranks bring together must belong together",
        .help = "use the same layer, step and number of shards on all ranks"});
  }
}

// A gather puts the pieces together in the order of the group: so must their shards be.
template <class T>
void require_order(std::span<Flight* const> members, IndexSet T::* set) {
  for (std::size_t i = 1; i < members.size(); ++i) {
    const IndexSet& before = at<T>(members[i - 1]).*set;
    const IndexSet& here = at<T>(members[i]).*set;
    const bool follows =
        before.size() == here.size() && before.runs().back().last() < here.runs().front().begin;
    if (follows) continue;
    throw InputError(Diagnostic{
        .code = "D610",
        .what = fmt::format("rank {} brings {}, and rank {}, which comes next in the group, {}",
                            members[i - 1]->rank, describe(members[i - 1]->in), members[i]->rank,
                            describe(members[i]->in)),
        .why = "pieces are put together in the order of the group, so each rank has as many shards "
               "as the one before it, and later ones",
        .help = "load the shard of the rank's position in the group: `model.position(\"dp\")`"});
  }
}

template <class T>
void combine_as(std::span<Flight* const> members, IndexSet T::* set, const char* thing) {
  require_alike<T>(members, set);
  T whole = at<T>(members.front());
  whole.*set = unite_all<T>(members, set, thing);
  whole.trail = {};
  if (members.front()->kind == Kind::all_gather) require_order<T>(members, set);
  if (members.front()->kind != Kind::reduce_scatter) {
    for (Flight* member : members) member->out = whole;
    return;
  }
  if constexpr (workload::Gatherable<T>) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      members[i]->out = whole.shard(static_cast<int>(i), static_cast<int>(members.size()));
    }
  }
}

}  // namespace

void Dist::combine(const Meeting& meeting) {
  const std::span<Flight* const> members = meeting.members;
  const bool gathers = members.front()->kind == Kind::all_gather;
  if (members.front()->kind == Kind::barrier) return;
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

void Dist::post(Flight& flight) {
  if (flight.kind == Kind::send) {
    send(flight, mailboxes_[{flight.rank, flight.peer, flight.channel, flight.tag}]);
  } else {
    receive(flight, mailboxes_[{flight.peer, flight.rank, flight.channel, flight.tag}]);
  }
}

// Complete, and awake if somebody waits.
void Dist::arrive(Flight& flight) {
  land(flight);
  flight.next = nullptr;
  if (flight.awaited) scheduler_.wake(flight);
}

void Dist::send(Flight& flight, Mailbox& box) {
  const bool eager = is_eager(flight);
  if (!box.receives.empty()) {
    Flight& receiver = *box.receives.front();
    box.receives.erase(box.receives.begin());
    settle(flight, receiver);
    if (!eager) return;
  } else if (eager) {
    auto copy = std::make_unique<Flight>(flight);
    copy->behind = nullptr;
    Flight* const letter = copy.get();
    box.sends.push_back({.flight = letter, .copy = std::move(copy)});
  } else {
    box.sends.push_back({.flight = &flight, .copy = nullptr});
    return;
  }
  arrive(flight);
}

void Dist::receive(Flight& flight, Mailbox& box) {
  if (box.sends.empty()) {
    box.receives.push_back(&flight);
    return;
  }
  const Letter letter = std::move(box.sends.front());
  box.sends.erase(box.sends.begin());
  settle(*letter.flight, flight);
}

void Dist::settle(Flight& send, Flight& receive) {
  receive.out = send.in;
  if (!is_eager(send)) arrive(send);
  arrive(receive);
}

// ---------------------------------------------------------------- reports

std::vector<int> Dist::missing_ranks(const Flight& flight) const {
  if (flight.kind == Kind::send || flight.kind == Kind::recv) return {flight.peer};
  const Group& group = *groups_[flight.group];
  const auto rank = static_cast<std::size_t>(flight.rank);
  const auto instance = static_cast<std::size_t>(group.instance_of[rank]);
  const Group::Instance& where = group.instances[instance];
  const auto ahead = static_cast<std::size_t>(flight.number - where.finished);
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
