#include "shiplap/sim/conditions.h"

#include <fmt/format.h>

#include <cstddef>
#include <set>

#include "shiplap/base/argument_error.h"

namespace shiplap::sim {
namespace {

constexpr double kMinFactor = 1e-6;
constexpr double kMaxFactor = 1e6;

void check(std::span<const RankFactor> given, std::int64_t ranks, const std::string& argument,
           double highest) {
  std::set<std::int64_t> seen;
  for (const auto& [rank, factor] : given) {
    if (rank < 0 || rank >= ranks) {
      throw_argument_error(argument, fmt::format("there is no rank {}", rank),
                           fmt::format("the plan has the ranks 0 to {}", ranks - 1));
    }
    if (!seen.insert(rank).second) {
      throw_argument_error(argument, fmt::format("rank {} is given twice", rank), "give it once");
    }
    if (factor >= kMinFactor && factor <= highest) continue;
    throw_argument_error(argument, fmt::format("rank {}: expected a number from {} to {}, found {}",
                                               rank, kMinFactor, highest, factor));
  }
}

}  // namespace

void add_slow_ranks(std::span<const RankFactor> given, std::int64_t ranks,
                    const std::string& argument, ReplayOptions& options) {
  check(given, ranks, argument, kMaxFactor);
  for (const auto& [rank, factor] : given) {
    options.slow_ranks.push_back({.rank = static_cast<std::int32_t>(rank), .factor = factor});
  }
}

void add_slow_links(std::span<const RankFactor> given, std::int64_t ranks,
                    const std::string& argument, ReplayOptions& options) {
  if (!given.empty() && !options.shares_links) {
    throw_argument_error(argument, "no link can be full: links are not shared", "share them");
  }
  check(given, ranks, argument, 1);
  for (const auto& [rank, share] : given) {
    options.slow_links.push_back({.rank = static_cast<std::int32_t>(rank), .share = share});
  }
}

std::vector<std::string> describe_conditions(const ReplayOptions& options) {
  std::vector<std::string> result;
  if (options.shares_links) result.emplace_back("contention between transfers");
  if (options.one_queue) result.emplace_back("one hardware queue");
  const auto count = [&](std::size_t many, const std::string& what) {
    if (many > 0) result.push_back(fmt::format("{} slow {}{}", many, what, many == 1 ? "" : "s"));
  };
  count(options.slow_ranks.size(), "rank");
  count(options.slow_links.size(), "link");
  return result;
}

}  // namespace shiplap::sim
