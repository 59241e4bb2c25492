#include "shiplap/cli/replay_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "shiplap/sim/conditions.h"

namespace shiplap::cli {
namespace {

// "3=1.2,5=2".
std::vector<sim::RankFactor> parse_rank_factors(const std::string& flag, const std::string& text) {
  std::vector<sim::RankFactor> result;
  for (const std::string& word : parse_list(text)) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::optional<std::int64_t> rank = parse_integer(word.substr(0, equals));
    const std::optional<double> factor =
        parse_decimal(word.substr(std::min(equals + 1, word.size())));
    if (!rank || !factor) {
      throw_flag_error(flag, fmt::format("expected a rank and a number, found `{}`", word),
                       fmt::format("for example `{} 3=0.5`", flag));
    }
    result.push_back({.rank = *rank, .factor = *factor});
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
    sim::add_slow_ranks(parse_rank_factors("--slow-ranks", *flags.slow_ranks), ranks,
                        "--slow-ranks", options);
  }
  if (!flags.slow_links) return;
  if (!options.shares_links) {
    throw_flag_error("--slow-links", "without `--links shared` no link can be full",
                     "add `--links shared`");
  }
  sim::add_slow_links(parse_rank_factors("--slow-links", *flags.slow_links), ranks, "--slow-links",
                      options);
}

}  // namespace shiplap::cli
