// Which rank is slow?
//
// The problem. In a job that moves, all ranks are equally slow: they wait for one another. Clocks
// of hosts differ, so the times at which ranks enter a call cannot be compared.
//
// The idea. A call ends for all members at the same moment, so the time that the device of a rank
// spends in it is the time that it waited for the last one, which spends the least. In the end all
// ranks wait for the slow one, next to it or far away, and it waits for nobody: it is the one that
// waits much less than any other.
//
// The recorder measures this time only with TORCH_NCCL_ENABLE_TIMING=1. The times at which it saw a
// call start and end do not tell: it looks when the call has ended, and the CPU runs ahead of the
// device. So without these durations nobody is called slow.
//
// Rejected: to count how often a rank is the last. Ranks in a group with a slow one are last in
// their other groups.
#include <algorithm>
#include <vector>

#include "shiplap/postmortem/slowness_internal.h"

namespace shiplap::postmortem {
namespace {

constexpr double kMargin = 0.25;        // of the time
constexpr std::int64_t kMinCalls = 10;  // of each rank, with durations

class Waits {
 public:
  explicit Waits(const Progress& progress) : progress_(progress), waits_(at(progress.world())) {
    for (std::size_t k = 0; k < progress.groups(); ++k) add_group(dump::GroupId(k));
    for (const dump::RankDump& dump : progress.job().ranks) add_messages(dump.rank);
  }

  [[nodiscard]] std::optional<SlowRank> slowest() const {
    std::vector<Share> shares;
    for (const dump::RankDump& dump : progress_.job().ranks) {
      const Wait& wait = waits_[at(dump.rank)];
      if (wait.calls < kMinCalls) continue;
      shares.push_back({std::min(wait.ns / duration(dump), 1.0), dump.rank});
    }
    if (shares.size() < 2) return std::nullopt;
    std::ranges::sort(shares, {}, &Share::share);
    const double least = shares[0].share;
    const double next = shares[1].share;
    if (next - least < kMargin || next < 2 * least) return std::nullopt;
    const std::int32_t rank = shares[0].rank;
    return SlowRank{.rank = rank,
                    .others_wait = shares[shares.size() / 2].share,
                    .waits = least,
                    .unit = waits_[at(rank)].unit};
  }

 private:
  // How long a rank waited in calls, and its call that another one waited in for longest.
  struct Wait {
    double ns = 0;
    std::int64_t calls = 0;
    double longest_ns = 0;
    std::int32_t unit = -1;
  };
  struct Share {
    double share = 0;
    std::int32_t rank = -1;
  };
  // How long the device was in a call.
  struct Stay {
    double ns = 0;
    std::int32_t rank = -1;
    std::int32_t unit = -1;
  };

  void add_group(dump::GroupId id) {
    const GroupProgress& group = progress_.group(id);
    if (group.members.size() < 2) return;
    std::vector<Stay> stays;
    for (std::int64_t sequence = group.first; sequence < group.end; ++sequence) {
      stays.clear();
      for (const MemberCalls& member : group.members) {
        const std::int32_t unit = member.unit(sequence);
        const double ns = unit < 0 ? 0 : duration_of(member.rank, unit);
        if (ns > 0) stays.push_back({ns, member.rank, unit});
      }
      if (stays.size() == group.members.size()) add_call(stays);
    }
  }

  void add_call(const std::vector<Stay>& stays) {
    const auto [last, first] = std::ranges::minmax_element(stays, {}, &Stay::ns);
    for (const Stay& stay : stays) {
      waits_[at(stay.rank)].ns += stay.ns - last->ns;
      ++waits_[at(stay.rank)].calls;
    }
    Wait& wait = waits_[at(last->rank)];
    if (first->ns - last->ns <= wait.longest_ns) return;
    wait.longest_ns = first->ns - last->ns;
    wait.unit = last->unit;
  }

  // The transfer itself is short.
  void add_messages(std::int32_t rank) {
    const std::vector<Unit>& units = progress_.units(rank);
    for (std::size_t k = 0; k < units.size(); ++k) {
      const double ns = units[k].is_p2p ? duration_of(rank, static_cast<std::int32_t>(k)) : 0;
      if (ns == 0) continue;
      waits_[at(rank)].ns += ns;
      ++waits_[at(rank)].calls;
    }
  }

  [[nodiscard]] double duration_of(std::int32_t rank, std::int32_t index) const {
    const Unit& unit = progress_.units(rank)[at(index)];
    return static_cast<double>(progress_.dump(rank)->calls[at(unit.last)].duration_ns);
  }

  // From the first completed call to the last, as the recorder of the rank saw them end.
  [[nodiscard]] static double duration(const dump::RankDump& dump) {
    std::int64_t begin = INT64_MAX;
    std::int64_t end = 0;
    for (const dump::Call& call : dump.calls) {
      if (call.completed_ns == 0) continue;
      begin = std::min(begin, call.completed_ns);
      end = std::max(end, call.completed_ns);
    }
    return end > begin ? static_cast<double>(end - begin) : 1;
  }

  const Progress& progress_;
  std::vector<Wait> waits_;  // by rank
};

}  // namespace

std::optional<SlowRank> find_slow_rank(const Progress& progress) {
  return Waits(progress).slowest();
}

}  // namespace shiplap::postmortem
