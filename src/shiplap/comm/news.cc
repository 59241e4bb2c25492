#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shiplap/comm/news_internal.h"

namespace shiplap::comm {
namespace {

constexpr double kAnswersWithin = 0.5;
constexpr double kFresh = 0.1;  // how long a waiter counts as waiting after it last said so
constexpr std::size_t kLongestAccount = 400;

}  // namespace

void News::set_ranks(int own, int count) {
  rank_ = own;
  everybody_.resize(static_cast<std::size_t>(count));
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

// ---- notices

void News::say(const Doing& doing) { said_[doing.group] = {.text = doing.text, .time = time()}; }

// Threads of this process may wait in several groups: the one that reads the question need not be
// the one it is about.
Notice News::answer_to(std::uint64_t group) {
  Notice answer{.kind = Notice::Kind::answer, .group = group};
  const auto own = arrived_.find(group);
  if (own != arrived_.end()) answer.arrived = own->second;
  const double fresh = time() - kFresh;
  auto said = said_.find(group);
  answer.waits = said != said_.end() && said->second.time > fresh ? 1 : 0;
  if (answer.waits == 0) {
    said = std::ranges::max_element(said_, {}, [](const auto& one) { return one.second.time; });
  }
  if (said != said_.end()) {
    said->second.text.copy(answer.text.data(), answer.text.size() - 1);
  }
  return answer;
}

void News::handle(const Notice& notice, int from) {
  const std::string text(notice.text.data());
  switch (notice.kind) {
    case Notice::Kind::question:
      others_[{notice.group, from}] = {
          .arrived = notice.arrived, .waits = notice.waits != 0, .doing = text};
      send(answer_to(notice.group), {{from}});
      return;
    case Notice::Kind::answer:
      others_[{notice.group, from}] = {
          .arrived = notice.arrived, .waits = notice.waits != 0, .doing = text};
      return;
    case Notice::Kind::leaving:
      if (notice.run < run_) return;
      lose(from, {.rank = notice.root, .reason = text, .since = time(), .run = notice.run});
      return;
    case Notice::Kind::farewell:
      heard_farewell(from);
      return;
  }
}

// ---- the lost

void News::lose(int rank, const Lost& lost) {
  const auto [known, is_new] = lost_.try_emplace(rank, lost);
  known->second.is_dead = known->second.is_dead || lost.is_dead;
  anybody_lost_ = true;
}

std::optional<News::Lost> News::lost_among(std::span<const int> ranks) {
  if (!anybody_lost_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, lost] : lost_) {
    if (std::ranges::find(ranks, rank) != ranks.end()) return lost;
  }
  return std::nullopt;
}

void News::forget_who_left() {
  ++run_;
  std::erase_if(lost_,
                [&](const auto& one) { return !one.second.is_dead && one.second.run < run_; });
  anybody_lost_ = !lost_.empty();
}

void News::leave(int root, const std::string& reason) {
  Notice notice{.kind = Notice::Kind::leaving, .root = root, .run = run_};
  reason.copy(notice.text.data(), notice.text.size() - 1);
  send(notice, everybody_);
  // Other threads of this process may wait too.
  const std::lock_guard lock(mutex_);
  lose(rank_, {.rank = root, .reason = reason, .since = time(), .run = run_});
}

// ---- the roll call

void News::set_arrived(std::uint64_t group, std::int64_t count) {
  const std::lock_guard lock(mutex_);
  arrived_[group] = count;
}

News::Progress News::progress_of(std::uint64_t group, int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = others_.find({group, rank});
  return found == others_.end() ? Progress{} : found->second;
}

News::RollCall News::call_roll(std::uint64_t group, std::int64_t count, std::span<const int> ranks,
                               const Doing& doing) {
  if (ranks.size() > kLargestRollCall) return {};
  Notice question{
      .kind = Notice::Kind::question, .group = group, .waits = doing.group == group ? 1 : 0};
  {
    const std::lock_guard lock(mutex_);
    const auto own = arrived_.find(group);
    if (own != arrived_.end()) question.arrived = own->second;
  }
  doing.text.copy(question.text.data(), question.text.size() - 1);
  send(question, ranks);
  const auto all_known = [&] {
    return std::ranges::all_of(
        ranks, [&](int rank) { return rank == rank_ || progress_of(group, rank).arrived >= 0; });
  };
  for (const double end = time() + kAnswersWithin; time() < end && !all_known();) {
    serve(doing);
    pause_briefly();
  }
  std::vector<int> behind;
  RollCall result;
  for (const int rank : ranks) {
    const Progress progress = progress_of(group, rank);
    if (rank == rank_ || progress.arrived >= count) continue;
    (progress.waits ? behind : result.missing).push_back(rank);
  }
  if (result.missing.empty()) result.missing = behind;
  std::string silent;
  for (const int rank : result.missing) {
    const Progress progress = progress_of(group, rank);
    if (progress.arrived < 0) {
      silent += fmt::format("{}{}", silent.empty() ? "" : ", ", rank);
    } else if (result.about.size() < kLongestAccount) {
      result.about +=
          fmt::format("{}rank {} is in {}", result.about.empty() ? "" : "; ", rank, progress.doing);
    }
  }
  if (!silent.empty()) {
    result.about += fmt::format("{}no answer from {}: computing, stopped or gone",
                                result.about.empty() ? "" : "; ", silent);
  }
  return result;
}

}  // namespace shiplap::comm
