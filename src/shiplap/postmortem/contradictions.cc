#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shiplap/postmortem/contradictions_internal.h"

namespace shiplap::postmortem {
namespace {

using dump::Call;
using dump::CallKind;
using dump::GroupId;

const dump::Signature& signature_of(const Progress& progress, Place place) {
  const Unit& unit = progress.units(place.rank)[at(place.unit)];
  return progress.job().signatures[progress.call(place.rank, unit).signature];
}

std::int64_t created(const Progress& progress, Place place) {
  return progress.call(place.rank, progress.units(place.rank)[at(place.unit)]).created_ns;
}

void finish(const Progress& progress, Mismatch& mismatch) {
  if (!mismatch.first_is_usual) {
    std::ranges::stable_sort(mismatch.sides, {}, [](const auto& side) {
      return std::pair(-std::ssize(side), side.front().rank);
    });
  }
  mismatch.since_ns = created(progress, mismatch.sides.front().front());
  for (const auto& side : mismatch.sides) {
    for (const Place place : side) {
      mismatch.since_ns = std::min(mismatch.since_ns, created(progress, place));
    }
  }
}

bool is_exchange(const std::string& operation) {
  return operation.starts_with("all_to_all") || operation.starts_with("alltoall");
}

// The splits of an exchange add up if all that is sent is received.
bool adds_up(const Progress& progress, const std::vector<Place>& places) {
  std::int64_t balance = 0;
  for (const Place place : places) {
    const dump::Signature& signature = signature_of(progress, place);
    balance += elements(signature.input_sizes) - elements(signature.output_sizes);
  }
  return balance == 0;
}

// Ranks that pass as much as most others, and each of those that do not. Tokens are routed by data,
// so the sizes of healthy ranks may differ as well; then nobody stands out.
std::vector<std::vector<Place>> by_elements(const Progress& progress,
                                            const std::vector<Place>& places) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Place>> sides;
  for (const Place place : places) {
    const dump::Signature& signature = signature_of(progress, place);
    sides[{elements(signature.input_sizes), elements(signature.output_sizes)}].push_back(place);
  }
  std::vector<std::vector<Place>> result;
  for (auto& [sizes, side] : sides) result.push_back(std::move(side));
  if (result.size() == 1) {
    result.clear();
    for (const Place place : places) result.push_back({place});
  }
  return result;
}

// Two sides of equal size: the one that passes what most such calls of the job pass is right.
void put_usual_first(const Progress& progress, Mismatch& mismatch) {
  if (mismatch.sides.size() != 2 || mismatch.sides[0].size() != mismatch.sides[1].size()) return;
  const auto count = [&](Place place) {
    const Unit& unit = progress.units(place.rank)[at(place.unit)];
    const dump::SignatureId wanted = progress.call(place.rank, unit).signature;
    std::int64_t found = 0;
    for (const dump::RankDump& dump : progress.job().ranks) {
      found += std::ranges::count(dump.calls, wanted, &Call::signature);
    }
    return found;
  };
  const std::int64_t first = count(mismatch.sides[0].front());
  const std::int64_t second = count(mismatch.sides[1].front());
  if (std::max(first, second) < 2 * std::min(first, second)) return;
  if (second > first) std::swap(mismatch.sides[0], mismatch.sides[1]);
  mismatch.first_is_usual = true;
}

std::optional<Mismatch> mismatch_at(const Progress& progress, GroupId id, std::int64_t sequence,
                                    std::vector<Place>& places) {
  const GroupProgress& group = progress.group(id);
  places.clear();
  bool differ = false;
  for (const MemberCalls& member : group.members) {
    const std::int32_t unit = member.unit(sequence);
    if (unit < 0) continue;
    const Unit& found = progress.units(member.rank)[at(unit)];
    if (found.last > found.first) return std::nullopt;  // a batch: its calls may differ
    places.push_back({member.rank, unit});
    const auto signature = [&](Place place) {
      return progress.call(place.rank, progress.units(place.rank)[at(place.unit)]).signature;
    };
    differ |= signature(places.back()) != signature(places.front());
  }
  if (places.size() < 2) return std::nullopt;
  const std::string& operation = signature_of(progress, places.front()).operation;
  const bool all_present = places.size() == group.members.size();
  if (!differ && !(is_exchange(operation) && all_present)) return std::nullopt;
  Mismatch mismatch{.group = id};
  for (const Place place : places) {
    const dump::Signature& mine = signature_of(progress, place);
    const auto side = std::ranges::find_if(mismatch.sides, [&](const std::vector<Place>& some) {
      return contradiction(signature_of(progress, some.front()), mine) == Divergence::none;
    });
    if (side == mismatch.sides.end()) {
      if (!mismatch.sides.empty() && mismatch.divergence == Divergence::none) {
        mismatch.divergence =
            contradiction(signature_of(progress, mismatch.sides.front().front()), mine);
      }
      mismatch.sides.push_back({place});
    } else {
      side->push_back(place);
    }
  }
  if (mismatch.sides.size() == 1) {
    if (!all_present || !is_exchange(operation) || adds_up(progress, places)) return std::nullopt;
    mismatch.divergence = Divergence::splits;
    mismatch.sides = by_elements(progress, places);
    put_usual_first(progress, mismatch);
  }
  finish(progress, mismatch);
  return mismatch;
}

// Messages from one rank to another over one group.
struct Ends {
  std::vector<Place> sends;
  std::vector<std::int32_t> send_calls;
  std::vector<Place> receives;
  std::vector<std::int32_t> receive_calls;
};

void find_message_mismatches(const Progress& progress, std::vector<Mismatch>& found) {
  std::map<std::tuple<std::int32_t, std::int32_t, GroupId>, Ends> pairs;
  for (std::int32_t rank = 0; rank < progress.world(); ++rank) {
    const std::vector<Unit>& units = progress.units(rank);
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (!units[u].is_p2p) continue;
      for (std::int32_t k = units[u].first; k <= units[u].last; ++k) {
        const Call& call = progress.dump(rank)->calls[at(k)];
        if (call.peer < 0) continue;
        const Place place{rank, static_cast<std::int32_t>(u)};
        if (call.kind == CallKind::send) {
          Ends& ends = pairs[{rank, call.peer, call.group}];
          ends.sends.push_back(place);
          ends.send_calls.push_back(k);
        } else if (call.kind == CallKind::receive) {
          Ends& ends = pairs[{call.peer, rank, call.group}];
          ends.receives.push_back(place);
          ends.receive_calls.push_back(k);
        }
      }
    }
  }
  for (const auto& [pair, ends] : pairs) {
    if (ends.sends.empty() || ends.receives.empty()) continue;
    const auto [from, to, group] = pair;
    const bool whole = !progress.dump(from)->evicted && !progress.dump(to)->evicted;
    const auto first_pending = [&](const std::vector<Place>& places) {
      const auto first = std::ranges::find_if(places, [&](Place place) {
        return !progress.units(place.rank)[at(place.unit)].complete;
      });
      return static_cast<std::size_t>(first - places.begin());
    };
    std::size_t s = whole ? 0 : first_pending(ends.sends);
    std::size_t r = whole ? 0 : first_pending(ends.receives);
    for (; s < ends.sends.size() && r < ends.receives.size(); ++s, ++r) {
      const auto& job = progress.job();
      const Call& send = progress.dump(from)->calls[at(ends.send_calls[s])];
      const Call& receive = progress.dump(to)->calls[at(ends.receive_calls[r])];
      const dump::Signature& sent = job.signatures[send.signature];
      const dump::Signature& received = job.signatures[receive.signature];
      const dump::Sizes& out = sent.input_sizes.empty() ? sent.output_sizes : sent.input_sizes;
      const dump::Sizes& in =
          received.output_sizes.empty() ? received.input_sizes : received.output_sizes;
      const auto& out_types = sent.input_types.empty() ? sent.output_types : sent.input_types;
      const auto& in_types =
          received.output_types.empty() ? received.input_types : received.output_types;
      Divergence divergence = Divergence::none;
      if (elements(out) != elements(in)) divergence = Divergence::size;
      if (!out_types.empty() && !in_types.empty() && out_types.front() != in_types.front()) {
        divergence = Divergence::dtype;
      }
      if (divergence == Divergence::none) continue;
      Mismatch mismatch{
          .divergence = divergence, .group = group, .sides = {{ends.sends[s]}, {ends.receives[r]}}};
      finish(progress, mismatch);
      found.push_back(std::move(mismatch));
      break;
    }
  }
}

}  // namespace

bool Mismatch::has_majority() const {
  std::int64_t all = 0;
  for (const auto& side : sides) all += std::ssize(side);
  return first_is_usual || (!sides.empty() && 2 * std::ssize(sides.front()) > all);
}

std::vector<Mismatch> find_mismatches(const Progress& progress) {
  std::vector<Mismatch> found;
  std::vector<Place> places;
  for (std::size_t k = 0; k < progress.groups(); ++k) {
    const GroupProgress& group = progress.group(GroupId(k));
    std::int64_t calls = 0;
    for (const MemberCalls& member : group.members) calls += std::ssize(member.units);
    if (group.end - group.first > calls) continue;  // the numbers are damaged
    for (std::int64_t sequence = group.first; sequence < group.end; ++sequence) {
      std::optional<Mismatch> mismatch = mismatch_at(progress, GroupId(k), sequence, places);
      if (!mismatch) continue;
      found.push_back(std::move(*mismatch));
      break;  // what follows is shifted
    }
  }
  find_message_mismatches(progress, found);
  std::ranges::stable_sort(found, {}, &Mismatch::since_ns);
  return found;
}

}  // namespace shiplap::postmortem
