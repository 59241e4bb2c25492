#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "shiplap/comm/monitored_communicator_internal.h"

namespace shiplap::comm {
namespace {

// All ranks time out at about the same time, and then probe.
constexpr double kCulpritWithin = 1.5;

std::uint64_t hash_combine(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

MonitoredCommunicator::MonitoredCommunicator(FailureDetector& detector, Members members,
                                             std::string name)
    : MessageCommunicator({.rank = members.rank,
                           .size = static_cast<int>(members.world_ranks.size()),
                           .name = std::move(name)}),
      detector_(detector),
      members_(std::move(members)) {}

WaitState MonitoredCommunicator::wait_state(const std::string& operation) const {
  return {.text = fmt::format("{} of `{}`", operation, name()),
          .group = in_collective() ? members_.group : 0};
}

std::string MonitoredCommunicator::operation(std::string_view verb, int peer, int tag) const {
  if (in_collective()) return describe(current());
  return fmt::format("{} rank {} (tag {})", verb, world_rank(peer), tag);
}

void MonitoredCommunicator::throw_if_rank_failed(double time) {
  if (!detector_.any_failed()) return;
  const auto failed = detector_.failed_among(members_.world_ranks);
  if (!failed) return;
  // An abort without a culprit is usually followed by one with a culprit.
  const double due = failed->since + (failed->culprit == kNobody ? kCulpritWithin : 0);
  if (due > time) return;
  throw_failed(*failed);
}

void MonitoredCommunicator::throw_failed(const FailedRank& failed) {
  // Another rank reports this one, which has not failed: the link may be broken.
  const int self = detector_.rank();
  const bool is_self = failed.culprit == self && failed.rank != self;
  fail_aborted(failed.rank, is_self ? kNobody : failed.culprit, failed.reason);
}

MissingRanks MonitoredCommunicator::find_missing(const std::string& operation, int peer) {
  const WaitState state = wait_state(operation);
  MissingRanks missing = in_collective() ? detector_.probe_group(members_.group, collectives(),
                                                                 members_.world_ranks, state)
                                         : detector_.trace_wait_chain(world_rank(peer), state);
  // All ranks that this one reaches may be healthy: the broken link may be between two others,
  // which will report it.
  if (!missing.culprit) detector_.await_culprit(members_.world_ranks, state, kCulpritWithin);
  return missing;
}

std::uint64_t MonitoredCommunicator::next_group(int colour) const {
  return hash_combine(hash_combine(members_.group, static_cast<std::uint64_t>(collectives())),
                      static_cast<std::uint64_t>(colour));
}

std::vector<int> MonitoredCommunicator::exchange_colours(int colour, int key) {
  if (!checked()) check_agreement(gather_fingerprints(current()));
  struct Choice {
    int colour = 0;
    int key = 0;
  };
  const Choice local{.colour = colour, .key = key};
  std::vector<Choice> all(size());
  all_gather_control(std::as_bytes(std::span(&local, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<std::pair<int, int>> chosen;  // key and rank
  for (int rank = 0; rank < size(); ++rank) {
    const Choice& choice = all[rank];
    if (choice.colour == colour) chosen.emplace_back(choice.key, rank);
  }
  std::ranges::sort(chosen);
  std::vector<int> ranks;
  for (const auto& [ignored, rank] : chosen) ranks.push_back(rank);
  return ranks;
}

MonitoredCommunicator::Members MonitoredCommunicator::members_of(const std::vector<int>& ranks,
                                                                 int colour) const {
  Members members{.group = next_group(colour)};
  for (const int rank : ranks) {
    if (rank == this->rank()) members.rank = static_cast<int>(members.world_ranks.size());
    members.world_ranks.push_back(world_rank(rank));
  }
  return members;
}

void MonitoredCommunicator::close() {
  begin_collective({.kind = Fingerprint::Kind::end});
  if (!checked()) check_agreement(gather_fingerprints(current()));
}

void abort_peers_on_exception(FailureDetector& detector, const std::function<void()>& work) {
  try {
    work();
  } catch (const RankFailed& error) {
    detector.abort_peers(error.rank(), error.diagnostic().why);
    throw;
  } catch (const TimeoutError& error) {
    detector.abort_peers(error.culprit().value_or(Communicator::kNobody), error.what());
    throw;
  } catch (const Failure& error) {
    detector.abort_peers(error.culprit().value_or(detector.rank()), error.what());
    throw;
  } catch (const std::exception& error) {
    detector.abort_peers(detector.rank(), error.what());
    throw;
  } catch (...) {
    detector.abort_peers(detector.rank(), "unknown exception");
    throw;
  }
}

}  // namespace shiplap::comm
