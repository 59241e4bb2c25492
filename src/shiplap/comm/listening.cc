#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "shiplap/comm/listening_internal.h"

namespace shiplap::comm {
namespace {

// Everybody's deadline passes at about the same time, and then come the roll calls.
constexpr double kCulpritWithin = 1.5;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

ListeningCommunicator::ListeningCommunicator(News& news, Members members, std::string name)
    : MessageCommunicator({.rank = members.own,
                           .size = static_cast<int>(members.world_ranks.size()),
                           .name = std::move(name)}),
      news_(news),
      members_(std::move(members)) {}

News::Doing ListeningCommunicator::doing(const std::string& operation) const {
  return {.text = fmt::format("{} of `{}`", operation, name()),
          .group = in_collective() ? members_.group : 0};
}

std::string ListeningCommunicator::operation(std::string_view verb, int peer, int tag) const {
  if (in_collective()) return describe(current());
  return fmt::format("{} rank {} (tag {})", verb, world_rank(peer), tag);
}

void ListeningCommunicator::check_lost(double time) {
  if (!news_.anybody_lost()) return;
  const auto lost = news_.lost_among(members_.world_ranks);
  if (!lost) return;
  // Who gave up for no known rank is soon followed by one that knows.
  const double due = lost->since + (lost->rank == kNobody ? kCulpritWithin : 0);
  if (due > time) return;
  fail_lost(*lost);
}

void ListeningCommunicator::fail_lost(const News::Lost& lost) {
  // Others may have given up because of this rank, which knows of no fault: a link may be broken.
  const bool because_of_us = lost.rank == news_.rank() && lost.left != news_.rank();
  fail_left(lost.left, because_of_us ? kNobody : lost.rank, lost.reason);
}

News::RollCall ListeningCommunicator::call_roll(const std::string& operation, int peer) {
  News::RollCall roll = in_collective() ? news_.call_roll(members_.group, collectives(),
                                                          members_.world_ranks, doing(operation))
                                        : news_.follow(world_rank(peer), doing(operation));
  // All that this rank hears of may be well: between two others a link can be broken, and they
  // know.
  if (!roll.culprit) news_.await_culprit(members_.world_ranks, doing(operation), kCulpritWithin);
  return roll;
}

std::uint64_t ListeningCommunicator::next_group(int colour) const {
  return mixed(mixed(members_.group, static_cast<std::uint64_t>(collectives())),
               static_cast<std::uint64_t>(colour));
}

std::vector<int> ListeningCommunicator::choose_part(int colour, int key) {
  if (!checked()) judge(compare(current()));
  struct Choice {
    int colour = 0;
    int key = 0;
  };
  const Choice own{.colour = colour, .key = key};
  std::vector<Choice> all(size());
  gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<std::pair<int, int>> chosen;  // key and rank
  for (int rank = 0; rank < size(); ++rank) {
    const Choice& choice = all[rank];
    if (choice.colour == colour) chosen.emplace_back(choice.key, rank);
  }
  std::ranges::sort(chosen);
  std::vector<int> part;
  for (const auto& [ignored, rank] : chosen) part.push_back(rank);
  return part;
}

ListeningCommunicator::Members ListeningCommunicator::members_of(const std::vector<int>& part,
                                                                 int colour) const {
  Members members{.group = next_group(colour)};
  for (const int rank : part) {
    if (rank == this->rank()) members.own = static_cast<int>(members.world_ranks.size());
    members.world_ranks.push_back(world_rank(rank));
  }
  return members;
}

void ListeningCommunicator::close() {
  begin({.kind = Fingerprint::Kind::end});
  if (!checked()) judge(compare(current()));
}

void tell_if_it_fails(News& news, const std::function<void()>& work) {
  try {
    work();
  } catch (const RankFailed& error) {
    news.leave(error.rank(), error.diagnostic().why);
    throw;
  } catch (const DeadlinePassed& error) {
    news.leave(error.culprit().value_or(Communicator::kNobody), error.what());
    throw;
  } catch (const Failure& error) {
    news.leave(error.culprit().value_or(news.rank()), error.what());
    throw;
  } catch (const std::exception& error) {
    news.leave(news.rank(), error.what());
    throw;
  } catch (...) {
    news.leave(news.rank(), "an exception of no known type");
    throw;
  }
}

}  // namespace shiplap::comm
