#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/execution.h"
#include "shiplap/sim/deadlock_internal.h"
#include "shiplap/sim/words_internal.h"

namespace shiplap::sim {
namespace {

using State = plan::Execution::State;
using Wait = plan::Execution::Wait;

constexpr std::size_t kMostNotes = 8;
constexpr std::size_t kLongestCircle = 6;

class Report {
 public:
  Report(const LinkedProgram& linked, const plan::Execution& execution)
      : linked_(linked), execution_(execution), words_(linked), stuck_(execution.stuck()) {
    ensure(!stuck_.empty(), "a deadlock has ranks that wait");
    first_wait_.resize(linked.ranks.size());
    for (const Place& place : stuck_) first_wait_[place.rank] = place;
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
  Diagnostic head() {
    const std::vector<Wait> circle = execution_.wait_cycle();
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
    const Place other = linked_.other_end(place);
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
    const std::vector<std::int32_t> absent = absent_ranks(place);
    const auto more = std::ssize(absent) - 1;
    std::string text = fmt::format("over {} for rank {}", words_.group(place), absent.front());
    text += more > 0 ? fmt::format(" and {} more; rank {} ", with_separators(more), absent.front())
                     : std::string(", which ");
    const bool finished = done(absent.front());
    return text + (finished ? "has finished its program" : doing_itself(absent.front()));
  }

  // Members that have not started it, in order of rank.
  [[nodiscard]] std::vector<std::int32_t> absent_ranks(Place call) const {
    const GroupCalls& group = linked_.group(call);
    const std::int32_t n = linked_.match(call).n;
    std::vector<std::int32_t> absent;
    for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
      const std::int32_t rank = group.ranks[k].value;
      const std::int32_t slot = group.slot_of(rank);
      const Place place = slot < 0 ? Place{} : group.call(slot, n);
      const bool here = place.exists() && execution_.state(place) != State::waiting;
      if (!here) absent.push_back(rank);
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
  const plan::Execution& execution_;
  Words words_;
  std::vector<Place> stuck_;
  std::vector<Place> first_wait_;  // by rank; none if it is done
};

}  // namespace

std::vector<Diagnostic> deadlock_problems(const LinkedProgram& linked, Bytes eager) {
  plan::Execution execution(linked, eager.count > 0 ? eager.count : plan::kAllRendezvous);
  ensure(!execution.run(), "the replay got stuck");
  return Report(linked, execution).problems();
}

}  // namespace shiplap::sim
