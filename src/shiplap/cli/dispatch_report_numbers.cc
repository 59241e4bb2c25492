#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "shiplap/base/error.h"
#include "shiplap/cli/dispatch_report_internal.h"

namespace shiplap::cli::dispatch_page {
namespace {

constexpr int kMostLanes = 64;
constexpr std::size_t kSomeRanks = 8;  // of each kind, where not all ranks can be drawn

Exchange exchange_of(const dispatch::Metadata& metadata, std::int64_t row_bytes,
                     int ranks_per_node) {
  ensure(row_bytes > 0, "the report of a dispatch knows how many bytes a token has");
  Exchange result{.flows = dispatch::flows(metadata), .row_bytes = row_bytes};
  result.summary = dispatch::summarize(result.flows, ranks_per_node);
  return result;
}

std::map<std::int32_t, Places> places_of(const dispatch::Routing& routing) {
  std::map<std::int32_t, Places> places;
  for (int rank = 0; rank < routing.home.world_size(); ++rank) {
    for (const Segment& segment : routing.home.of(rank)) {
      Places& place = places[segment.document];
      place.tokens += segment.length;
      if (segment.length > 0) place.home.insert(rank);
    }
    for (const Segment& item : routing.attention.of(rank)) {
      Places& place = places[item.document];
      if (item.length == 0) continue;
      ++place.items;
      place.attention.insert(rank);
    }
  }
  return places;
}

}  // namespace

Numbers numbers_of(const DispatchReport& about) {
  const int ranks = about.dispatch.world_size();
  Numbers result{.ranks = ranks, .ranks_per_node = about.ranks_per_node};
  result.q = exchange_of(about.dispatch.q.forward, about.q_row_bytes, about.ranks_per_node);
  result.kv = exchange_of(about.dispatch.kv.forward, about.kv_row_bytes, about.ranks_per_node);
  result.documents = places_of(about.routing);
  for (const auto& [document, places] : result.documents) {
    result.tokens += places.tokens;
    result.items += places.items;
    result.most_items = std::max(result.most_items, places.items);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    result.pairs.push_back(dispatch::causal_pairs(about.dispatch.attention, rank));
  }
  result.mean_pairs = std::accumulate(result.pairs.begin(), result.pairs.end(), 0.0) / ranks;
  result.busiest = static_cast<int>(std::ranges::max_element(result.pairs) - result.pairs.begin());
  return result;
}

Drawn drawn_ranks(const Numbers& about) {
  std::vector<int> all(at(about.ranks));
  std::iota(all.begin(), all.end(), 0);
  if (about.ranks <= kMostLanes) return {.ranks = all};
  std::set<int> some(all.begin(), all.begin() + kSomeRanks);
  std::ranges::stable_sort(all, {}, [&](int rank) { return about.pairs[rank]; });
  some.insert(all.begin(), all.begin() + kSomeRanks);
  some.insert(all.end() - kSomeRanks, all.end());
  return {.ranks = {some.begin(), some.end()},
          .limit = fmt::format(" Of {} ranks {} are drawn: the first {}, and the {} with the least "
                               "and the {} with the most attention work.",
                               with_separators(about.ranks), some.size(), kSomeRanks, kSomeRanks,
                               kSomeRanks)};
}

std::vector<Range> ranges_at_home(const DispatchReport& about, int rank) {
  std::vector<Range> ranges;
  std::uint32_t offset = 0;
  for (const Segment& segment : about.routing.home.of(rank)) {
    if (segment.length > 0) ranges.push_back({.segment = segment, .offset = offset});
    offset += segment.length;
  }
  return ranges;
}

std::vector<Range> ranges_at_attention(const DispatchReport& about, int rank) {
  const std::span<const std::uint32_t> q = about.dispatch.attention.cu_seqlens_q(rank);
  const std::span<const std::uint32_t> kv = about.dispatch.attention.cu_seqlens_kv(rank);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    const Segment& item = about.routing.attention.of(rank)[i];
    if (item.length == 0) continue;
    ranges.push_back(
        {.segment = item, .offset = q[i], .keys = kv[i + 1] - kv[i], .keys_offset = kv[i]});
  }
  return ranges;
}

}  // namespace shiplap::cli::dispatch_page
