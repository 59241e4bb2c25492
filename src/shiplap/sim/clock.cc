#include <algorithm>

#include "shiplap/cost/price.h"
#include "shiplap/sim/clock_internal.h"

namespace shiplap::sim {
namespace {

constexpr std::int64_t kProgressInterval = 65'536;

}  // namespace

Clock::Clock(LinkedProgram& linked, const hardware::System& system, Bytes eager)
    : linked_(linked),
      system_(system),
      eager_(eager),
      time_(linked.matches.size()),
      state_(linked.matches.size()),
      gatherings_(linked.matching.calls) {
  for (const GroupCalls& group : linked.matching.groups)
    reaches_.push_back(cost::reach_of(group.ranks));
  missing_.reserve(linked.matches.size());
  for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
    const std::vector<std::int32_t>& inputs =
        linked.template_of(static_cast<std::int32_t>(rank)).inputs;
    missing_.insert(missing_.end(), inputs.begin(), inputs.end());
  }
}

void Clock::run(const ProgressCallback& progress) {
  ProgressTicker ticker(
      progress, {.what = "replaying operations", .unit = "operations", .total = std::ssize(state_)},
      kProgressInterval);
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < linked_.ranks.size(); ++rank) {
    const auto count = std::ssize(linked_.template_of(static_cast<std::int32_t>(rank)).steps);
    for (std::int32_t k = 0; k < count; ++k, ++at) {
      // One that had to wait may have been through already.
      const bool free = missing_[at] == 0 && state_[at] == State::waiting;
      if (free) ready_.push_back({static_cast<std::int32_t>(rank), k});
      while (!ready_.empty()) {
        const Place place = ready_.back();
        ready_.pop_back();
        begin(place);
        ticker.advance_to(complete_);
      }
    }
  }
}

void Clock::begin(Place place) {
  const std::size_t index = linked_.index(place);
  const double time = time_[index];
  const RankTemplate& rank_template = linked_.template_of(place.rank);
  const Step& step = rank_template[place.operation];
  state_[index] = State::started;
  if (step.act == Act::batch) missing_[index] = static_cast<std::int32_t>(step.detail);
  const Releases& releases = rank_template.releases[place.operation];
  release(place.rank, releases.first, releases.at_end, time);
  switch (step.act) {
    case Act::compute:
    case Act::copy:
    case Act::allocate:
    case Act::free:
      return finish(place, time, step.cost);
    case Act::batch:
      if (step.detail == 0) finish(place, time, 0);
      return;
    case Act::send:
    case Act::receive:
      return begin_message(place, step);
    case Act::collective:
    case Act::exchange:
      return begin_meeting(place);
  }
}

void Clock::begin_message(Place place, const Step& step) {
  const bool sends = step.act == Act::send;
  const Place other = linked_.other_end(place);
  const Place send = sends ? place : other;
  const Place receive = sends ? other : place;
  const auto is_eager = [&](const Step& sent) {
    return eager_.count > 0 && sent.bytes <= eager_.count;
  };
  if (sends && is_eager(step)) finish(place, start(place).value, 0);
  if (!other.exists() || state(other) == State::waiting) return;

  const Step& sent = linked_.step(send);
  if (!fit(*linked_.plan, sent, linked_.step(receive))) misfits_.push_back({send, receive});
  const double time = std::max(start(send), start(receive)).value;
  const double duration =
      cost::message_time(system_, {sent.bytes}, Rank(send.rank), Rank(receive.rank)).value;
  if (!is_eager(sent)) finish(send, time, duration);
  finish(receive, time, duration);
}

void Clock::begin_meeting(Place place) {
  const plan::Match match = linked_.match(place);
  const GroupCalls& group = linked_.matching.groups[match.with];
  Gathering& gathering = gatherings_[group.first + match.n];
  gathering.time = std::max(gathering.time, start(place).value);
  ++gathering.started;
  if (gathering.started == group.ranks.size()) gather(match, gathering.time);
}

// Everybody is there.
void Clock::gather(plan::Match match, double time) {
  const GroupCalls& group = linked_.matching.groups[match.with];
  const auto member = [&](std::size_t slot) { return group.call(slot, match.n); };
  const Step& reference = linked_.step(member(0));
  Misfit misfit{.first = member(0)};
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    if (fit(*linked_.plan, reference, linked_.step(member(slot)))) continue;
    if (misfit.second.exists()) ++misfit.more;
    if (!misfit.second.exists()) misfit.second = member(slot);
  }
  if (misfit.second.exists()) misfits_.push_back(misfit);
  const bool shared = !misfit.second.exists() && reference.act == Act::collective;
  const double together = shared ? duration_of(reference, match.with) : 0;
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    const Place place = member(slot);
    finish(place, time, shared ? together : duration_of(linked_.step(place), match.with));
  }
}

double Clock::duration_of(const Step& step, std::int32_t group) const {
  if (step.act == Act::exchange) return step.cost;
  const auto& collective = std::get<plan::Collective>(step.source->action);
  return cost::collective_time(system_, collective.kind, {step.bytes}, reaches_[group]).value;
}

void Clock::finish(Place place, double time, double duration) {
  const RankTemplate& rank_template = linked_.template_of(place.rank);
  const Step& step = rank_template[place.operation];
  state_[linked_.index(place)] = State::complete;
  ++complete_;
  if (step.event >= 0) {
    trace::Event& event = linked_.event(place);
    event.time = {time};
    event.duration = {duration};
  }
  const double complete = time + duration;
  end_ = std::max(end_, complete);
  const Releases& releases = rank_template.releases[place.operation];
  release(place.rank, releases.at_end, releases.last, complete);
  if (step.member) finish_member({place.rank, step.gate}, complete);
}

void Clock::finish_member(Place batch, double time) {
  const std::size_t index = linked_.index(batch);
  time_[index] = std::max(time_[index], time);
  if (--missing_[index] == 0) finish(batch, time_[index], 0);
}

void Clock::release(std::int32_t rank, std::int32_t first, std::int32_t last, double time) {
  const std::vector<std::int32_t>& successors = linked_.template_of(rank).successors;
  for (std::int32_t k = first; k < last; ++k) {
    const Place place{rank, successors[k]};
    const std::size_t index = linked_.index(place);
    time_[index] = std::max(time_[index], time);
    if (--missing_[index] == 0) ready_.push_back(place);
  }
}

}  // namespace shiplap::sim
