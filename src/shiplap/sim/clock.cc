#include <algorithm>

#include "shiplap/cost/price.h"
#include "shiplap/sim/clock_internal.h"

namespace shiplap::sim {

Clock::Clock(Job& job, Bytes eager)
    : job_(job),
      eager_(eager),
      time_(job.links.size()),
      state_(job.links.size()),
      gatherings_(job.meetings.size()) {
  missing_.reserve(job.links.size());
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const std::vector<std::int32_t>& inputs = job.skeleton(static_cast<std::int32_t>(rank)).inputs;
    missing_.insert(missing_.end(), inputs.begin(), inputs.end());
  }
}

void Clock::run() {
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < job_.ranks.size(); ++rank) {
    const auto count = std::ssize(job_.skeleton(static_cast<std::int32_t>(rank)).steps);
    for (std::int32_t k = 0; k < count; ++k, ++at) {
      // One that had to wait may have been through already.
      const bool free = missing_[at] == 0 && state_[at] == State::waiting;
      if (free) ready_.push_back({static_cast<std::int32_t>(rank), k});
      while (!ready_.empty()) {
        const Place place = ready_.back();
        ready_.pop_back();
        begin(place);
      }
    }
  }
}

void Clock::begin(Place place) {
  const std::size_t index = job_.index(place);
  const double time = time_[index];
  const Skeleton& skeleton = job_.skeleton(place.rank);
  const Step& step = skeleton[place.operation];
  state_[index] = State::started;
  if (step.act == Act::batch) missing_[index] = static_cast<std::int32_t>(step.detail);
  const Releases& releases = skeleton.releases[place.operation];
  release(place.rank, releases.first, releases.at_end, time);
  switch (step.act) {
    case Act::timed:
    case Act::moment:
      return finish(place, time, step.price);
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
  const Place other = job_.link(place);
  const Place send = sends ? place : other;
  const Place receive = sends ? other : place;
  const auto is_eager = [&](const Step& sent) {
    return eager_.count > 0 && sent.bytes <= eager_.count;
  };
  if (sends && is_eager(step)) finish(place, start(place).value, 0);
  if (!other.exists() || state(other) == State::waiting) return;

  const Step& sent = job_.step(send);
  if (!fit(*job_.plan, sent, job_.step(receive))) misfits_.push_back({send, receive});
  const double time = std::max(start(send), start(receive)).value;
  const double duration =
      cost::message_time(*job_.system, {sent.bytes}, Rank(send.rank), Rank(receive.rank)).value;
  if (!is_eager(sent)) finish(send, time, duration);
  finish(receive, time, duration);
}

void Clock::begin_meeting(Place place) {
  const auto id = static_cast<std::size_t>(job_.meeting_of[job_.index(place)]);
  const Meeting& meeting = job_.meetings[id];
  Gathering& gathering = gatherings_[id];
  gathering.time = std::max(gathering.time, start(place).value);
  ++gathering.started;
  if (gathering.started == job_.group(meeting).ranks.size()) gather(meeting, gathering.time);
}

// Everybody is there.
void Clock::gather(const Meeting& meeting, double time) {
  const Step& reference = job_.step(meeting.first);
  Misfit misfit{.first = meeting.first};
  for (Place place = meeting.first; place.exists(); place = job_.link(place)) {
    if (fit(*job_.plan, reference, job_.step(place))) continue;
    if (misfit.second.exists()) ++misfit.more;
    if (!misfit.second.exists()) misfit.second = place;
  }
  if (misfit.second.exists()) misfits_.push_back(misfit);
  const Group& group = job_.group(meeting);
  const bool shared = !misfit.second.exists() && reference.act == Act::collective;
  const double together = shared ? price(reference, group) : 0;
  for (Place place = meeting.first; place.exists(); place = job_.link(place)) {
    finish(place, time, shared ? together : price(job_.step(place), group));
  }
}

double Clock::price(const Step& step, const Group& group) const {
  if (step.act == Act::exchange) return step.price;
  const auto& collective = std::get<plan::Collective>(step.source->action);
  return cost::collective_time(*job_.system, collective.kind, {step.bytes}, group.reach).value;
}

void Clock::finish(Place place, double time, double duration) {
  const Skeleton& skeleton = job_.skeleton(place.rank);
  const Step& step = skeleton[place.operation];
  state_[job_.index(place)] = State::complete;
  ++complete_;
  if (step.event >= 0) {
    trace::Event& event = job_.event(place);
    event.time = {time};
    event.duration = {duration};
  }
  const double complete = time + duration;
  end_ = std::max(end_, complete);
  const Releases& releases = skeleton.releases[place.operation];
  release(place.rank, releases.at_end, releases.last, complete);
  if (step.member) finish_member({place.rank, step.gate}, complete);
}

void Clock::finish_member(Place batch, double time) {
  const std::size_t index = job_.index(batch);
  time_[index] = std::max(time_[index], time);
  if (--missing_[index] == 0) finish(batch, time_[index], 0);
}

void Clock::release(std::int32_t rank, std::int32_t first, std::int32_t last, double time) {
  const std::vector<std::int32_t>& successors = job_.skeleton(rank).successors;
  for (std::int32_t k = first; k < last; ++k) {
    const Place place{rank, successors[k]};
    const std::size_t index = job_.index(place);
    time_[index] = std::max(time_[index], time);
    if (--missing_[index] == 0) ready_.push_back(place);
  }
}

}  // namespace shiplap::sim
