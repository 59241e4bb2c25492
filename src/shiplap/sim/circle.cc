#include <algorithm>
#include <optional>
#include <utility>

#include "shiplap/sim/circle_internal.h"

namespace shiplap::sim {
namespace {

using State = Clock::State;

// An operation, or the meeting of several: whoever waits in it waits for the same members, so they
// are looked at once.
struct Node {
  Place place;
  std::int32_t meeting = -1;
  friend bool operator==(const Node&, const Node&) = default;
};

// A search by depth for a node that is reached from itself.
class Search {
 public:
  Search(const Job& job, const Clock& clock)
      : job_(job), clock_(clock), seen_(job.links.size() + job.meetings.size()) {}

  std::vector<Node> circle() {
    for (std::size_t rank = 0; rank < job_.ranks.size(); ++rank) {
      const auto count = std::ssize(job_.skeleton(static_cast<std::int32_t>(rank)).steps);
      for (std::int32_t k = 0; k < count; ++k) {
        const Place place{static_cast<std::int32_t>(rank), k};
        if (clock_.state(place) == State::complete || seen({place}) != Seen::no) continue;
        std::vector<Node> found = from({place});
        if (!found.empty()) return found;
      }
    }
    return {};
  }

 private:
  enum class Seen : std::uint8_t { no, on_path, done };
  struct Visit {
    Node node;
    std::vector<Node> targets;
    std::size_t next = 0;
  };

  Seen& seen(const Node& node) {
    const std::size_t index = node.meeting < 0
                                  ? job_.index(node.place)
                                  : job_.links.size() + static_cast<std::size_t>(node.meeting);
    return seen_[index];
  }

  std::vector<Node> from(const Node& start) {
    enter(start);
    while (!path_.empty()) {
      Visit& visit = path_.back();
      if (visit.next == visit.targets.size()) {
        seen(visit.node) = Seen::done;
        path_.pop_back();
        continue;
      }
      const Node target = visit.targets[visit.next++];
      if (seen(target) == Seen::on_path) return path_from(target);
      if (seen(target) == Seen::no) enter(target);
    }
    return {};
  }

  void enter(const Node& node) {
    seen(node) = Seen::on_path;
    path_.push_back({.node = node, .targets = targets(node)});
  }

  [[nodiscard]] std::vector<Node> path_from(const Node& node) const {
    std::vector<Node> result;
    auto it = std::ranges::find(path_, node, &Visit::node);
    for (; it != path_.end(); ++it) result.push_back(it->node);
    return result;
  }

  // What must happen first.
  [[nodiscard]] std::vector<Node> targets(const Node& node) const {
    if (node.meeting >= 0) return absent(job_.meetings[node.meeting]);
    const Place place = node.place;
    const Step& step = job_.step(place);
    if (clock_.state(place) == State::waiting) return before(place);
    switch (step.act) {
      case Act::send:
      case Act::receive:
        if (job_.link(place).exists()) return {{.place = job_.link(place)}};
        return {};
      case Act::collective:
      case Act::exchange:
        return {{.meeting = job_.meeting_of[job_.index(place)]}};
      case Act::batch:
        return members(place);
      case Act::timed:
      case Act::moment:
        return {};
    }
    return {};
  }

  [[nodiscard]] std::vector<Node> absent(const Meeting& meeting) const {
    std::vector<Node> result;
    for (Place place = meeting.first; place.exists(); place = job_.link(place)) {
      if (clock_.state(place) == State::waiting) result.push_back({.place = place});
    }
    return result;
  }

  [[nodiscard]] std::vector<Node> before(Place place) const {
    const Skeleton& skeleton = job_.skeleton(place.rank);
    const Step& step = skeleton[place.operation];
    std::vector<Node> result;
    const Place gate{place.rank, step.gate};
    if (step.gate >= 0) {
      const State state = clock_.state(gate);
      const bool open =
          state == State::complete || (step.opens_at_start && state != State::waiting);
      if (!open) result.push_back({.place = gate});
    }
    for (std::int32_t k = 0; k < step.after_count; ++k) {
      const auto at = static_cast<std::size_t>(step.after_first + k);
      const Place earlier{place.rank, skeleton.after[at]};
      if (clock_.state(earlier) != State::complete) result.push_back({.place = earlier});
    }
    return result;
  }

  [[nodiscard]] std::vector<Node> members(Place batch) const {
    const Skeleton& skeleton = job_.skeleton(batch.rank);
    std::vector<Node> result;
    const Releases& releases = skeleton.releases[batch.operation];
    for (std::int32_t k = releases.first; k < releases.at_end; ++k) {
      const Place member{batch.rank, skeleton.successors[k]};
      const bool waits =
          skeleton[member.operation].member && skeleton[member.operation].gate == batch.operation;
      if (waits && clock_.state(member) != State::complete) result.push_back({.place = member});
    }
    return result;
  }

  const Job& job_;
  const Clock& clock_;
  std::vector<Seen> seen_;
  std::vector<Visit> path_;
};

}  // namespace

std::vector<Wait> find_circle(const Job& job, const Clock& clock) {
  const std::vector<Node> circle = Search(job, clock).circle();
  const auto started = [&](const Node& node) {
    if (node.meeting >= 0) return false;
    return clock.state(node.place) == State::started && job.step(node.place).act != Act::batch;
  };
  const auto first = std::ranges::find_if(circle, started);
  std::vector<Wait> waits;
  const auto count = std::ssize(circle);
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    const auto at = [&](std::ptrdiff_t ahead) -> const Node& {
      return circle[(first - circle.begin() + k + ahead) % count];
    };
    if (!started(at(0))) continue;
    const Node& awaited = at(1).meeting >= 0 ? at(2) : at(1);
    waits.push_back({at(0).place, awaited.place});
  }
  return waits;
}

}  // namespace shiplap::sim
