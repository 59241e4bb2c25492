#include <algorithm>
#include <optional>
#include <utility>

#include "shiplap/sim/circle_internal.h"

namespace shiplap::sim {
namespace {

using State = Clock::State;

// An operation, or the call of several: whoever waits in it waits for the same members, so they
// are looked at once.
struct Node {
  Place place;
  std::int32_t call = -1;
  friend bool operator==(const Node&, const Node&) = default;
};

// A search by depth for a node that is reached from itself.
class Search {
 public:
  Search(const LinkedProgram& linked, const Clock& clock)
      : linked_(linked), clock_(clock), seen_(linked.links.size() + linked.calls.size()) {}

  std::vector<Node> circle() {
    for (std::size_t rank = 0; rank < linked_.ranks.size(); ++rank) {
      const auto count = std::ssize(linked_.template_of(static_cast<std::int32_t>(rank)).steps);
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
    const std::size_t index = node.call < 0
                                  ? linked_.index(node.place)
                                  : linked_.links.size() + static_cast<std::size_t>(node.call);
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
    if (node.call >= 0) return absent(linked_.calls[node.call]);
    const Place place = node.place;
    const Step& step = linked_.step(place);
    if (clock_.state(place) == State::waiting) return before(place);
    switch (step.act) {
      case Act::send:
      case Act::receive:
        if (linked_.link(place).exists()) return {{.place = linked_.link(place)}};
        return {};
      case Act::collective:
      case Act::exchange:
        return {{.call = linked_.call_of[linked_.index(place)]}};
      case Act::batch:
        return members(place);
      case Act::timed:
      case Act::moment:
        return {};
    }
    return {};
  }

  [[nodiscard]] std::vector<Node> absent(const Call& call) const {
    std::vector<Node> result;
    for (Place place = call.first; place.exists(); place = linked_.link(place)) {
      if (clock_.state(place) == State::waiting) result.push_back({.place = place});
    }
    return result;
  }

  [[nodiscard]] std::vector<Node> before(Place place) const {
    const RankTemplate& rank_template = linked_.template_of(place.rank);
    const Step& step = rank_template[place.operation];
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
      const Place earlier{place.rank, rank_template.after[at]};
      if (clock_.state(earlier) != State::complete) result.push_back({.place = earlier});
    }
    return result;
  }

  [[nodiscard]] std::vector<Node> members(Place batch) const {
    const RankTemplate& rank_template = linked_.template_of(batch.rank);
    std::vector<Node> result;
    const Releases& releases = rank_template.releases[batch.operation];
    for (std::int32_t k = releases.first; k < releases.at_end; ++k) {
      const Place member{batch.rank, rank_template.successors[k]};
      const bool waits = rank_template[member.operation].member &&
                         rank_template[member.operation].gate == batch.operation;
      if (waits && clock_.state(member) != State::complete) result.push_back({.place = member});
    }
    return result;
  }

  const LinkedProgram& linked_;
  const Clock& clock_;
  std::vector<Seen> seen_;
  std::vector<Visit> path_;
};

}  // namespace

std::vector<Wait> find_circle(const LinkedProgram& linked, const Clock& clock) {
  const std::vector<Node> circle = Search(linked, clock).circle();
  const auto started = [&](const Node& node) {
    if (node.call >= 0) return false;
    return clock.state(node.place) == State::started && linked.step(node.place).act != Act::batch;
  };
  const auto first = std::ranges::find_if(circle, started);
  std::vector<Wait> waits;
  const auto count = std::ssize(circle);
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    const auto at = [&](std::ptrdiff_t ahead) -> const Node& {
      return circle[(first - circle.begin() + k + ahead) % count];
    };
    if (!started(at(0))) continue;
    const Node& awaited = at(1).call >= 0 ? at(2) : at(1);
    waits.push_back({at(0).place, awaited.place});
  }
  return waits;
}

}  // namespace shiplap::sim
