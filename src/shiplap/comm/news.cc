#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <ranges>

#include "shiplap/comm/news_internal.h"

namespace shiplap::comm {
namespace {

constexpr double kAnswersWithin = 0.5;
// Of a chain; whoever does not answer is blamed, so it is longer, and few are asked.
constexpr double kLinkAnswersWithin = 1;
constexpr double kFresh = 0.1;  // how long a waiter counts as waiting after it last said so
constexpr double kFollowWithin = 3;
constexpr std::size_t kLongestAccount = 400;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

}  // namespace

void News::set_ranks(int own, int count) {
  rank_ = own;
  everybody_.resize(count);
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

// ---- notices

void News::say(const Doing& doing) { said_[doing.group] = {.text = doing.text, .time = time()}; }

void News::count_awaited(int rank, int change) {
  const std::lock_guard lock(awaited_mutex_);
  const auto found = awaited_.try_emplace(rank).first;
  found->second += change;
  if (found->second == 0) awaited_.erase(found);
}

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
  const std::lock_guard lock(awaited_mutex_);
  std::ranges::copy(awaited_ | std::views::keys | std::views::take(answer.awaited.size()),
                    answer.awaited.begin());
  if (awaited_.size() > answer.awaited.size()) answer.awaited.back() = Notice::kMore;
  return answer;
}

News::Progress News::progress_in(const Notice& notice) {
  Progress progress{.arrived = notice.arrived,
                    .waits = notice.waits != 0,
                    .awaits_more = notice.awaited.back() == Notice::kMore,
                    .doing = notice.text.data()};
  std::ranges::copy_if(notice.awaited, std::back_inserter(progress.awaited),
                       [](int rank) { return rank >= 0; });
  return progress;
}

void News::handle(const Notice& notice, int from) {
  const std::string text(notice.text.data());
  switch (notice.kind) {
    case Notice::Kind::question:
    case Notice::Kind::answer: {
      Progress& known = others_[{notice.group, from}];
      known = progress_in(notice);
      known.time = time();
      std::erase_if(known.awaited, [&](int rank) { return rank >= size(); });
      if (notice.kind == Notice::Kind::question) send(answer_to(notice.group), {{from}});
      return;
    }
    case Notice::Kind::leaving: {
      if (notice.run < run_) return;
      const int root = notice.root < size() ? std::max(notice.root, -1) : from;
      lose(from, {.rank = root, .reason = text, .since = time(), .run = notice.run});
      return;
    }
    case Notice::Kind::farewell:
      heard_farewell(from);
      return;
  }
}

// ---- the lost

void News::lose(int rank, const Lost& lost) {
  const auto [known, is_new] = lost_.try_emplace(rank, lost);
  known->second.left = rank;
  known->second.is_dead = known->second.is_dead || lost.is_dead;
  anybody_lost_ = true;
}

std::optional<News::Lost> News::lost_among(std::span<const int> ranks) {
  if (!anybody_lost_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  std::optional<Lost> found;
  for (const auto& [rank, lost] : lost_) {
    if (std::ranges::find(ranks, rank) == ranks.end()) continue;
    if (lost.rank >= 0) return lost;
    if (!found) found = lost;
  }
  return found;
}

void News::await_culprit(std::span<const int> ranks, const Doing& doing, double seconds) {
  for (const double end = time() + seconds; time() < end;) {
    if (const auto lost = lost_among(ranks); lost && lost->rank >= 0) return;
    serve(doing);
    pause_briefly();
  }
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

// What is known of some ranks.
class News::Account {
 public:
  void add(int rank, const Progress& progress) {
    if (progress.arrived < 0) {
      append(silent_text_, ", ", fmt::to_string(rank));
      silent_.push_back(rank);
    } else {
      add(fmt::format("rank {} is in {}", rank, progress.doing));
    }
  }
  void add_lost(int rank, const Lost& lost) {
    add(fmt::format("rank {} has left: {}", rank, lost.reason));
    if (lost.rank >= 0) silent_.push_back(lost.rank);
  }
  // The only one of `missing` that did not answer: others may wait themselves.
  [[nodiscard]] std::optional<int> culprit(const std::vector<int>& missing) const {
    std::optional<int> found;
    for (const int rank : missing) {
      if (!contains(silent_, rank)) continue;
      if (found) return std::nullopt;
      found = rank;
    }
    return found;
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    if (!silent_text_.empty()) {
      all = fmt::format("no answer from {}: computing, stopped or gone", silent_text_);
    }
    if (!text_.empty()) append(all, "; ", text_);
    return all;
  }

 private:
  void add(const std::string& what) {
    if (text_.size() < kLongestAccount) append(text_, "; ", what);
  }
  static void append(std::string& all, const char* between, const std::string& one) {
    if (!all.empty()) all += between;
    all += one;
  }
  std::string text_;
  std::string silent_text_;
  std::vector<int> silent_;
};

void News::set_arrived(std::uint64_t group, std::int64_t count) {
  const std::lock_guard lock(mutex_);
  arrived_[group] = count;
  ended_groups_.erase(group);  // one with the same number has begun
}

void News::end_group(std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  said_.erase(group);
  others_.erase(others_.lower_bound({group, std::numeric_limits<int>::min()}),
                others_.upper_bound({group, std::numeric_limits<int>::max()}));
  if (ended_groups_.insert(group).second) ended_in_order_.push_back(group);
  if (ended_in_order_.size() <= kEndedGroupsKept) return;
  const std::uint64_t oldest = ended_in_order_.front();
  ended_in_order_.pop_front();
  if (ended_groups_.erase(oldest) > 0) arrived_.erase(oldest);
}

News::Progress News::progress_of(std::uint64_t group, int rank, double since) {
  const std::lock_guard lock(mutex_);
  const auto found = others_.find({group, rank});
  return found == others_.end() || found->second.time < since ? Progress{} : found->second;
}

void News::ask(std::uint64_t group, std::span<const int> ranks, const Doing& doing, double since,
               double within) {
  Notice question;
  {
    const std::lock_guard lock(mutex_);
    say(doing);
    question = answer_to(group);
  }
  question.kind = Notice::Kind::question;
  send(question, ranks);
  const auto all_known = [&] {
    return std::ranges::all_of(ranks, [&](int rank) {
      return rank == rank_ || progress_of(group, rank, since).arrived >= 0 ||
             lost_among({&rank, 1}) || has_ended(rank);
    });
  };
  for (const double end = time() + within; time() < end && !all_known();) {
    serve(doing);
    pause_briefly();
  }
}

News::RollCall News::call_roll(std::uint64_t group, std::int64_t count, std::span<const int> ranks,
                               const Doing& doing) {
  if (ranks.size() > kLargestRollCall) return {};
  ask(group, ranks, doing, 0, kAnswersWithin);
  std::vector<int> behind;
  RollCall result;
  for (const int rank : ranks) {
    const Progress progress = progress_of(group, rank);
    if (rank == rank_ || progress.arrived >= count || has_ended(rank)) continue;
    (progress.waits ? behind : result.missing).push_back(rank);
  }
  if (result.missing.empty()) result.missing = behind;
  Account account;
  for (const int rank : result.missing) account.add(rank, progress_of(group, rank));
  result.about = account.text();
  result.culprit = account.culprit(result.missing);
  return result;
}

News::Progress News::own_progress(const Doing& doing) {
  const std::lock_guard lock(mutex_);
  say(doing);
  return progress_in(answer_to(0));
}

// Step by step: those who answer say for whom they wait, and those are asked next. Everybody's
// deadline passes at about the same time: who asks is asked as well.
News::RollCall News::follow(int awaited, const Doing& doing) {
  const double begin = time();
  RollCall result;
  Account account;
  const Progress own = own_progress(doing);
  std::vector<int> next = own.awaited;
  if (!contains(next, awaited)) next.push_back(awaited);
  std::vector<int> asked;
  bool is_cut = own.awaits_more;
  while (!next.empty()) {
    if (asked.size() + next.size() > kLargestRollCall || time() > begin + kFollowWithin) {
      is_cut = true;
      break;
    }
    ask(0, next, doing, begin, kLinkAnswersWithin);
    asked.insert(asked.end(), next.begin(), next.end());
    std::vector<int> after;
    for (const int rank : next) {
      const auto lost = lost_among({&rank, 1});
      if (lost) {
        account.add_lost(rank, *lost);
        const int who = lost->rank >= 0 ? lost->rank : rank;
        if (!contains(result.missing, who)) result.missing.push_back(who);
        continue;
      }
      const Progress progress = rank == rank_ ? own : progress_of(0, rank, begin);
      account.add(rank, progress);
      is_cut = is_cut || progress.awaits_more;
      if (progress.awaited.empty() && !contains(result.missing, rank)) {
        result.missing.push_back(rank);
      }
      std::ranges::copy_if(progress.awaited, std::back_inserter(after), [&](int other) {
        return !contains(asked, other) && !contains(after, other);
      });
    }
    next = std::move(after);
  }
  result.about = account.text();
  if (result.missing.empty()) {
    result.missing = {awaited};
    if (!is_cut) result.about = "ranks wait for each other: " + result.about;
  } else if (!is_cut) {
    result.culprit = account.culprit(result.missing);
  }
  return result;
}

}  // namespace shiplap::comm
