#include "shiplap/cli/replay_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"

namespace shiplap::cli {
namespace {

constexpr double kMinFactor = 1e-6;
constexpr double kMaxFactor = 1e6;

struct RankFactor {
  std::int32_t rank = 0;
  double factor = 1;
};

// "3=1.2,5=2". Factors are 1e-6 to `highest`.
std::vector<RankFactor> parse_rank_factors(const std::string& flag, const std::string& text,
                                           std::int64_t ranks, double highest) {
  std::vector<RankFactor> result;
  for (const std::string& word : parse_list(text)) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::optional<std::int64_t> rank = parse_integer(word.substr(0, equals));
    const std::optional<double> factor =
        parse_decimal(word.substr(std::min(equals + 1, word.size())));
    if (!rank || !factor || *factor < kMinFactor || *factor > highest) {
      throw_flag_error(flag,
                       fmt::format("expected a rank and a number from {} to {}, found `{}`",
                                   kMinFactor, highest, word),
                       fmt::format("for example `{} 3=0.5`", flag));
    }
    if (*rank < 0 || *rank >= ranks) {
      throw_flag_error(flag, fmt::format("there is no rank {}", *rank),
                       fmt::format("the plan has the ranks 0 to {}", ranks - 1));
    }
    if (std::ranges::find(result, *rank, &RankFactor::rank) != result.end()) {
      throw_flag_error(flag, fmt::format("rank {} is given twice", *rank), "give it once");
    }
    result.push_back({.rank = static_cast<std::int32_t>(*rank), .factor = *factor});
  }
  return result;
}

}  // namespace

void declare_replay(Flags& flags, ReplayFlags& options) {
  flags.text({.name = "--links",
              .value = "HOW",
              .help = "shared: transfers that cross a link at once share it; separate: each is as "
                      "fast as alone (separate)",
              .example = "shared",
              .values = Values::listed,
              .choices = {"separate", "shared"}},
             options.links);
  flags.text({.name = "--queues",
              .value = "HOW",
              .help = "one: the operations of all streams of a rank start in program order, as "
                      "with CUDA_DEVICE_MAX_CONNECTIONS=1; streams: a queue for each (streams)",
              .example = "one",
              .values = Values::listed,
              .choices = {"streams", "one"}},
             options.queues);
  flags.text({.name = "--slow-ranks",
              .value = "RANK=FACTOR",
              .help = "stragglers: their computations take so many times as long; a list",
              .example = "3=1.2"},
             options.slow_ranks);
  flags.text({.name = "--slow-links",
              .value = "RANK=SHARE",
              .help = "ranks whose adapter has a share of its bandwidth, with --links shared; a "
                      "list",
              .example = "3=0.5"},
             options.slow_links);
}

void set_replay(const ReplayFlags& flags, std::int64_t ranks, sim::ReplayOptions& options) {
  options.shares_links = flags.links == "shared";
  options.one_queue = flags.queues == "one";
  if (flags.slow_ranks) {
    for (const auto& [rank, factor] :
         parse_rank_factors("--slow-ranks", *flags.slow_ranks, ranks, kMaxFactor)) {
      options.slow_ranks.push_back({.rank = rank, .factor = factor});
    }
  }
  if (!flags.slow_links) return;
  if (!options.shares_links) {
    throw_flag_error("--slow-links", "without `--links shared` no link can be full",
                     "add `--links shared`");
  }
  for (const auto& [rank, share] :
       parse_rank_factors("--slow-links", *flags.slow_links, ranks, 1)) {
    options.slow_links.push_back({.rank = rank, .share = share});
  }
}

std::vector<std::string> describe_replay(const sim::ReplayOptions& options) {
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

}  // namespace shiplap::cli
