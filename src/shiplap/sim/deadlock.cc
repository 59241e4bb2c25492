#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/sim/circle_internal.h"
#include "shiplap/sim/deadlock_internal.h"
#include "shiplap/sim/words_internal.h"

namespace shiplap::sim {
namespace {

using State = Clock::State;

constexpr std::size_t kMostNotes = 8;
constexpr std::size_t kLongestCircle = 6;

class Report {
 public:
  Report(const LinkedProgram& linked, const Clock& clock)
      : linked_(linked), clock_(clock), words_(linked) {
    first_wait_.resize(linked.ranks.size());
    for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
      first_wait_[rank] = first_wait(static_cast<std::int32_t>(rank));
      if (first_wait_[rank].exists()) stuck_.push_back(first_wait_[rank]);
    }
    ensure(!stuck_.empty(), "a deadlock has ranks that wait");
  }

  std::vector<Diagnostic> problems() {
    std::vector<Diagnostic> result{head()};
    for (std::size_t k = 0; k < std::min(stuck_.size(), kMostNotes); ++k) {
      result.push_back({.code = "D630",
                        .severity = Severity::note,
                        .where = words_.where(stuck_[k]),
                        .what = sentence(stuck_[k])});
    }
    if (stuck_.size() > kMostNotes) {
      const auto more = static_cast<std::int64_t>(stuck_.size() - kMostNotes);
      result.push_back({.code = "D630",
                        .severity = Severity::note,
                        .what = fmt::format("{} more ranks wait", with_separators(more))});
    }
    return result;
  }

 private:
  // The first operation of a rank that has started and cannot be completed; none if it is done.
  [[nodiscard]] Place first_wait(std::int32_t rank) const {
    const RankTemplate& rank_template = linked_.template_of(rank);
    for (std::int32_t k = 0; k < std::ssize(rank_template.steps); ++k) {
      const bool waits = clock_.state({rank, k}) == State::started;
      if (waits && rank_template[k].act != Act::batch) return {rank, k};
    }
    return {};
  }

  Diagnostic head() {
    const std::vector<Wait> circle = find_circle(linked_, clock_);
    const Place first = circle.empty() ? stuck_.front() : circle.front().waiting;
    Diagnostic diagnostic{.code = "D630", .where = words_.where(first)};
    diagnostic.what = fmt::format("nothing can go on: {} of {} ranks wait for ever",
                                  with_separators(std::ssize(stuck_)),
                                  with_separators(std::ssize(linked_.ranks)));
    diagnostic.why = circle.empty() ? sentence(first) : in_words(circle);
    diagnostic.help =
        circle.empty()
            ? "every send needs a receive with its channel and tag, and every member of a group "
              "makes the same calls on it, equally often"
            : "let one of them do it in the other order, put what must happen together into a "
              "`batch`, or on streams of their own";
    return diagnostic;
  }

  std::string in_words(const std::vector<Wait>& circle) {
    std::string text = "a circle: ";
    for (std::size_t k = 0; k < std::min(circle.size(), kLongestCircle); ++k) {
      const Wait& wait = circle[k];
      text += fmt::format("{}rank {} waits in `{}` for `{}` of rank {}", k == 0 ? "" : ", ",
                          wait.waiting.rank, words_.operation(wait.waiting),
                          words_.operation(wait.awaited), wait.awaited.rank);
      const Place next = circle[(k + 1) % circle.size()].waiting;
      text += fmt::format(", which comes after `{}`", words_.operation(next));
    }
    if (circle.size() > kLongestCircle) {
      text += fmt::format(", and so on over {} operations", with_separators(std::ssize(circle)));
    }
    return text;
  }

  std::string sentence(Place place) {
    const std::string head =
        fmt::format("rank {} waits in `{}` ", place.rank, words_.operation(place));
    const Step& step = linked_.step(place);
    const bool message = step.act == Act::send || step.act == Act::receive;
    return head + (message ? other_end(place) : members(place));
  }

  std::string other_end(Place place) {
    const Place other = linked_.link(place);
    if (other.exists()) {
      return fmt::format("for `{}` of rank {}, {}", words_.operation(other), other.rank,
                         doing(other.rank));
    }
    const bool sends = linked_.step(place).act == Act::send;
    const std::int32_t peer = peer_of(place);
    return fmt::format("for a {} of rank {}, which has none for it and {}",
                       sends ? "receive" : "send", peer,
                       done(peer) ? "has finished its program" : "waits itself");
  }

  // Events keep the peer of a message.
  [[nodiscard]] std::int32_t peer_of(Place place) const {
    const auto event = static_cast<std::size_t>(linked_.step(place).event);
    return linked_.trace.ranks[place.rank].events[event].peer;
  }

  std::string members(Place place) {
    const Call& call = linked_.call(place);
    std::vector<std::int32_t> absent = absent_ranks(call);
    const auto more = std::ssize(absent) - 1;
    std::string text = fmt::format("over {} for rank {}", words_.group(place), absent.front());
    text += more > 0 ? fmt::format(" and {} more; rank {} ", with_separators(more), absent.front())
                     : std::string(", which ");
    const bool finished = done(absent.front());
    return text + (finished ? "has finished its program" : doing_itself(absent.front()));
  }

  // Members that have not started it, in order of rank.
  [[nodiscard]] std::vector<std::int32_t> absent_ranks(const Call& call) const {
    std::vector<std::int32_t> here;
    for (Place place = call.first; place.exists(); place = linked_.link(place)) {
      if (clock_.state(place) != State::waiting) here.push_back(place.rank);
    }
    std::vector<std::int32_t> absent;
    const plan::RankSet& ranks = linked_.group(call).ranks;
    for (std::int64_t k = 0; k < ranks.size(); ++k) {
      if (!std::ranges::binary_search(here, ranks[k].value)) absent.push_back(ranks[k].value);
    }
    std::ranges::sort(absent);
    return absent;
  }

  [[nodiscard]] bool done(std::int32_t rank) const { return !first_wait_[rank].exists(); }
  std::string doing(std::int32_t rank) {
    return done(rank) ? "which has finished its program" : "which " + doing_itself(rank);
  }
  std::string doing_itself(std::int32_t rank) {
    return fmt::format("waits in `{}`", words_.operation(first_wait_[rank]));
  }

  const LinkedProgram& linked_;
  const Clock& clock_;
  Words words_;
  std::vector<Place> first_wait_;  // by rank
  std::vector<Place> stuck_;
};

}  // namespace

std::vector<Diagnostic> deadlock_problems(const LinkedProgram& linked, const Clock& clock) {
  return Report(linked, clock).problems();
}

}  // namespace shiplap::sim
