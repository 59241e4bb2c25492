#include "shiplap/dispatch/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/dispatch/findings_internal.h"

namespace shiplap::dispatch {
namespace {

constexpr std::uint64_t kMaxTokens = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void throw_invalid_argument(std::string what, std::string help = "") {
  throw InputError(Diagnostic{.code = "D400", .what = std::move(what), .help = std::move(help)});
}

void check_ranks(int world_size) {
  if (world_size < 1) throw_invalid_argument(fmt::format("invalid world size {}", world_size));
}

// A segment and its rank, for sorting by document.
struct RankedSegment {
  Segment segment;
  int rank = 0;
};

std::vector<RankedSegment> by_document(const Layout& layout) {
  std::vector<RankedSegment> placed;
  placed.reserve(layout.all().size());
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const Segment& segment : layout.of(rank)) placed.push_back({segment, rank});
  }
  std::ranges::stable_sort(placed, {}, [](const RankedSegment& one) {
    return std::pair(one.segment.document, one.segment.begin);
  });
  return placed;
}

struct DocumentEnd {
  std::int32_t document = 0;
  std::uint64_t end = 0;
};

class LayoutCheck {
 public:
  LayoutCheck(std::string_view name, const Layout& layout, Findings& found)
      : name_(name), layout_(layout), found_(found) {}

  // Returns where each document ends.
  std::vector<DocumentEnd> documents() {
    std::vector<DocumentEnd> ends;
    for (const RankedSegment& placed : by_document(layout_)) {
      const Segment& segment = placed.segment;
      if (segment.document < 0) {
        add("D401", placed.rank, fmt::format("invalid document number {}", segment.document));
        continue;
      }
      if (ends.empty() || ends.back().document != segment.document) {
        ends.push_back({.document = segment.document});
      }
      compare(placed, ends.back().end);
      ends.back().end = std::max(ends.back().end, segment.end());
    }
    return ends;
  }

  void sizes() {
    for (int rank = 0; rank < layout_.world_size(); ++rank) {
      if (const std::uint64_t tokens = layout_.tokens(rank); tokens > kMaxTokens) {
        add("D410", rank, fmt::format("{} tokens do not fit 32 bits", tokens));
      }
    }
  }

 private:
  void compare(const RankedSegment& placed, std::uint64_t so_far) {
    const Segment& segment = placed.segment;
    if (segment.begin > so_far) {
      add("D408", placed.rank,
          fmt::format("missing tokens: {} to {} of document {}", so_far, segment.begin,
                      segment.document));
    } else if (segment.begin < so_far && segment.length > 0) {
      add("D405", placed.rank,
          fmt::format("duplicate tokens: {} to {} of document {}", segment.begin,
                      std::min(so_far, segment.end()), segment.document));
    }
    if (segment.end() > kMaxTokens) {
      add("D410", placed.rank,
          fmt::format("the tokens of document {} do not fit 32 bits", segment.document));
    }
  }

  void add(std::string_view code, int rank, std::string what) {
    found_.add({.code = std::string(code),
                .where = {.rank = rank, .operation = fmt::format("layout {}", name_)},
                .what = std::move(what)});
  }

  std::string_view name_;
  const Layout& layout_;
  Findings& found_;
};

Diagnostic differ(std::int32_t document, std::uint64_t home, std::uint64_t attention) {
  return {
      .code = "D401",
      .what = fmt::format("length mismatch: document {} has {} tokens at home and {} at attention",
                          document, home, attention),
      .why = "a dispatch neither creates nor drops tokens"};
}

void compare_documents(const std::vector<DocumentEnd>& home,
                       const std::vector<DocumentEnd>& attention, Findings& found) {
  const auto only_in = [&](std::int32_t document, std::string_view where) {
    found.add({.code = "D401",
               .what = fmt::format("document {} is only {}", document, where),
               .why = "a dispatch neither creates nor drops tokens"});
  };
  auto h = home.begin();
  auto a = attention.begin();
  while (h != home.end() || a != attention.end()) {
    if (a == attention.end() || (h != home.end() && h->document < a->document)) {
      only_in((h++)->document, "at home");
    } else if (h == home.end() || a->document < h->document) {
      only_in((a++)->document, "at attention");
    } else {
      if (h->end != a->end) found.add(differ(h->document, h->end, a->end));
      ++h;
      ++a;
    }
  }
}

}  // namespace

Layout::Layout(const std::vector<std::vector<Segment>>& by_rank) {
  check_ranks(static_cast<int>(by_rank.size()));
  first_.reserve(by_rank.size() + 1);
  for (const std::vector<Segment>& segments : by_rank) {
    segments_.insert(segments_.end(), segments.begin(), segments.end());
    first_.push_back(static_cast<std::uint32_t>(segments_.size()));
  }
}

std::uint64_t Layout::tokens(int rank) const {
  std::uint64_t tokens = 0;
  for (const Segment& segment : of(rank)) tokens += segment.length;
  return tokens;
}

std::vector<Diagnostic> validate(const Routing& routing) {
  Findings found;
  if (routing.home.world_size() != routing.attention.world_size() ||
      routing.home.world_size() < 1) {
    found.add({.code = "D401",
               .what = fmt::format("rank count mismatch: {} at home and {} at attention",
                                   routing.home.world_size(), routing.attention.world_size())});
    return found.take("routing");
  }
  LayoutCheck home("home", routing.home, found);
  LayoutCheck attention("attention", routing.attention, found);
  home.sizes();
  attention.sizes();
  const std::vector<DocumentEnd> at_home = home.documents();
  compare_documents(at_home, attention.documents(), found);
  return found.take("routing");
}

std::vector<std::vector<std::uint32_t>> gen_seq_lens(const SequenceCounts& counts,
                                                     std::uint64_t seed) {
  check_ranks(counts.world_size);
  if (counts.num_seqs < 1)
    throw_invalid_argument(fmt::format("invalid number of sequences: {}", counts.num_seqs));
  const auto wanted = static_cast<std::size_t>(counts.num_seqs);
  if (counts.total_len < wanted) {
    throw_invalid_argument(
        fmt::format("{} tokens are too few for {} sequences", counts.total_len, wanted),
        "every sequence has at least one token");
  }
  const Random random(seed);
  std::vector<std::vector<std::uint32_t>> lengths(counts.world_size);
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    // Distinct cuts between 1 and total_len - 1 by Floyd's sampling algorithm, in time proportional
    // to the cuts (Bentley, "Programming pearls: a sample of brilliance", 1987).
    Random rank_random = random.split(rank);
    std::unordered_set<std::uint32_t> cuts;
    for (std::uint32_t last = counts.total_len - static_cast<std::uint32_t>(wanted) + 1;
         last < counts.total_len; ++last) {
      const auto cut = static_cast<std::uint32_t>(rank_random.between(1, std::int64_t{last} + 1));
      if (!cuts.insert(cut).second) cuts.insert(last);
    }
    std::vector<std::uint32_t>& ends = lengths[rank];
    ends.assign(cuts.begin(), cuts.end());
    ends.push_back(counts.total_len);
    std::ranges::sort(ends);
    std::adjacent_difference(ends.begin(), ends.end(), ends.begin());
  }
  return lengths;
}

Layout pack_documents(std::span<const std::uint32_t> lengths, int world_size) {
  check_ranks(world_size);
  const std::uint64_t total = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const std::uint64_t room = (total + ranks - 1) / ranks;
  if (room > kMaxTokens) {
    throw InputError(Diagnostic{
        .code = "D410", .what = fmt::format("{} tokens on a rank do not fit 32 bits", room)});
  }
  std::vector<std::vector<Segment>> by_rank(world_size);
  std::size_t rank = 0;
  std::uint64_t used = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    std::uint32_t begin = 0;
    do {
      if (used == room && rank + 1 < by_rank.size() && lengths[d] > 0) {
        ++rank;
        used = 0;
      }
      const auto length =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(lengths[d] - begin, room - used));
      by_rank[rank].push_back(
          {.document = static_cast<std::int32_t>(d), .begin = begin, .length = length});
      begin += length;
      used += length;
    } while (begin < lengths[d]);
  }
  return Layout(by_rank);
}

std::vector<Segment> cut_documents(std::span<const std::uint32_t> lengths,
                                   std::span<const int> cp_degree) {
  if (cp_degree.size() != lengths.size()) {
    throw_invalid_argument(fmt::format("shape mismatch: {} documents and {} CP degrees",
                                       lengths.size(), cp_degree.size()));
  }
  std::vector<Segment> items;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    if (cp_degree[d] < 1) {
      throw_invalid_argument(
          fmt::format("document {} has an invalid CP degree: {}", d, cp_degree[d]));
    }
    const std::uint64_t length = lengths[d];
    const std::uint64_t pieces =
        std::clamp<std::uint64_t>(length, 1, static_cast<std::uint64_t>(cp_degree[d]));
    for (std::uint64_t k = 0; k < pieces; ++k) {
      const std::uint64_t begin = length * k / pieces;
      items.push_back({.document = static_cast<std::int32_t>(d),
                       .begin = static_cast<std::uint32_t>(begin),
                       .length = static_cast<std::uint32_t>(length * (k + 1) / pieces - begin)});
    }
  }
  return items;
}

Layout assign_randomly(std::span<const Segment> items, int world_size, std::uint64_t seed) {
  check_ranks(world_size);
  Random random(seed);
  std::vector<std::vector<Segment>> by_rank(world_size);
  for (const Segment& item : items) {
    by_rank[random.between(0, world_size)].push_back(item);
  }
  return Layout(by_rank);
}

}  // namespace shiplap::dispatch
