// compute_metadata_kv: the tables of keys and values, compared with buffers written out word by
// word.
#include <gtest/gtest.h>

#include <set>

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using ByRank = std::vector<std::vector<Segment>>;

Routing routing(const ByRank& home, const ByRank& attention) {
  return {.home = Layout(home), .attention = Layout(attention)};
}

// What lies in the buffers of keys after the way there, word by word. A place that nothing reaches
// or that two reach fails the test.
Text received_words(const Routing& routing, const Metadata& forward) {
  const Text home = words_of(routing.home);
  Text received(home.size());
  for (int rank = 0; rank < forward.world_size(); ++rank) {
    received[rank].resize(forward.num_total_recv_tokens(rank));
  }
  for (const auto& [to, from] : sources(forward)) {
    EXPECT_EQ(from.size(), 1U) << "rank " << to.rank << ", token " << to.offset;
    if (to.offset >= received[to.rank].size()) {
      ADD_FAILURE() << "outside: rank " << to.rank << ", token " << to.offset;
      continue;
    }
    received[to.rank][to.offset] = home[from[0].rank][from[0].offset];
  }
  return received;
}

std::size_t max_copies(const Text& keys) {
  std::size_t most = 1;
  for (const auto& [word, spots] : spots_of(keys)) most = std::max(most, spots.size());
  return most;
}

// The buffers of keys if items share them: items of a rank that have a word in common, directly or
// through others, are merged into the first of them.
Text shared_keys_of(const Layout& attention, const std::string& mask) {
  const auto lengths = document_lengths(attention);
  Text text(at(attention.world_size()));
  for (int rank = 0; rank < attention.world_size(); ++rank) {
    std::vector<std::set<Word>> groups;
    for (const Segment& item : attention.of(rank)) {
      const auto keys = keys_of(item, mask, lengths.at(item.document));
      if (!keys.empty()) groups.emplace_back(keys.begin(), keys.end());
    }
    for (std::size_t a = 0; a < groups.size();) {
      bool merged = false;
      for (std::size_t b = a + 1; b < groups.size() && !merged; ++b) {
        merged =
            std::ranges::any_of(groups[b], [&](const Word& w) { return groups[a].contains(w); });
        if (!merged) continue;
        groups[a].merge(groups[b]);
        groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(b));
      }
      if (!merged) ++a;
    }
    for (const auto& group : groups)
      text[rank].insert(text[rank].end(), group.begin(), group.end());
  }
  return text;
}

struct Asked {
  std::string mask = "causal";
  bool shares_keys = false;

  [[nodiscard]] DispatchOptions options() const {
    return {.mask = parse_mask(mask), .shares_keys = shares_keys};
  }
};

void expect_layout(const Routing& routing, const Asked& asked, const Text& keys) {
  const AttentionLayout layout = compute_attention_layout(routing, asked.options());
  const auto lengths = document_lengths(routing.attention);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    EXPECT_EQ(layout.num_kv_tokens(rank), keys[rank].size());
    const auto items = routing.attention.of(rank);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const KeyRange range = layout.keys(rank, static_cast<int>(i));
      ASSERT_LE(range.end, keys[rank].size());
      EXPECT_EQ(std::vector<Word>(keys[rank].begin() + static_cast<std::ptrdiff_t>(range.begin),
                                  keys[rank].begin() + static_cast<std::ptrdiff_t>(range.end)),
                keys_of(items[i], asked.mask, lengths.at(items[i].document)))
          << "rank " << rank << ", item " << i;
    }
  }
}

void expect_right(const Routing& routing, const Asked& asked = {}) {
  const MetadataPair kv = compute_metadata_kv(routing, asked.options());
  const Text keys = asked.shares_keys ? shared_keys_of(routing.attention, asked.mask)
                                      : keys_of(routing.attention, asked.mask);
  EXPECT_EQ(received_words(routing, kv.forward), keys);
  EXPECT_EQ(at(kv.forward.max_cp()), max_copies(keys));
  EXPECT_EQ(kv.forward.arrival(), ArrivalMode::placed);
  EXPECT_EQ(kv.reverse.arrival(), ArrivalMode::summed);
  EXPECT_EQ(kv.reverse.max_cp(), 0);

  // Every copy goes back to where its word lives.
  const auto homes = spots_of(words_of(routing.home));
  const auto back = destinations(kv.reverse);
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    ASSERT_EQ(back[rank].size(), keys[rank].size());
    for (std::size_t i = 0; i < keys[rank].size(); ++i) {
      ASSERT_EQ(back[rank][i], homes.at(keys[rank][i])) << "rank " << rank << ", key " << i;
    }
  }
  if (asked.mask == "causal" || asked.mask == "full") {
    EXPECT_EQ(lengths_of(kv.forward), lengths_of(compute_metadata(routing).forward));
  }
  expect_layout(routing, asked, keys);
}

// ---- What it DOES

TEST(ComputeMetadataKv, GivesEveryItemItsDocumentUpToItsEndInOrder) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    expect_right(any_routing(random));
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadataKv, GivesEveryItemTheKeysThatItsMaskAsksFor) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random);
    const auto masks = all_masks();
    expect_right(routing, {.mask = masks[seed % masks.size()]});
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadataKv, SharesKeysOfItemsOnOneRankIfAsked) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random, {.ranks = 3, .documents = 3, .longest = 12});
    const auto masks = all_masks();
    expect_right(routing, {.mask = masks[seed % masks.size()], .shares_keys = true});
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadataKv, SendsASharedKeyToARankOnce) {
  const MetadataPair kv =
      compute_metadata_kv(routing({{{0, 0, 4}}}, {{{0, 0, 2}, {0, 2, 2}}}), {.shares_keys = true});
  EXPECT_EQ(rows_of(kv.forward), (Rows{{{2, {{0, 0}}}, {2, {{0, 2}}}}}));
  EXPECT_EQ(kv.forward.max_cp(), 1);
}

TEST(ComputeMetadataKv, CutsRowsWhereAWindowBegins) {
  // Tokens 2 and 3 of the first item are in the window of the second.
  const MetadataPair kv = compute_metadata_kv(
      routing({{{0, 0, 6}}, {}}, {{{0, 0, 4}}, {{0, 4, 2}}}), {.mask = Mask::window(3)});
  EXPECT_EQ(rows_of(kv.forward), (Rows{{{2, {{0, 0}}}, {2, {{0, 2}, {1, 0}}}, {2, {{1, 2}}}}, {}}));
}

TEST(ComputeMetadataKv, DoesSoForLongDocumentsOverManyRanks) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random, {.ranks = 17, .documents = 12, .longest = 61});
    expect_right(routing);
    expect_right(routing, {.mask = "window:5", .shares_keys = true});
    expect_right(routing, {.mask = "prefix:9", .shares_keys = seed % 2 == 0});
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadataKv, GivesARowACopyForItsOwnItemAndForEveryLaterOne) {
  const MetadataPair kv =
      compute_metadata_kv(routing({{{0, 0, 5}}, {}}, {{{0, 3, 2}}, {{0, 0, 1}, {0, 1, 2}}}));
  // Rank 0 holds keys 0..4 of the last item; rank 1 holds 0 of the first, then 0..2 of the second.
  EXPECT_EQ(rows_of(kv.forward),
            (Rows{{{1, {{1, 0}, {1, 1}, {0, 0}}}, {2, {{1, 2}, {0, 1}}}, {2, {{0, 3}}}}, {}}));
  EXPECT_EQ(kv.forward.max_cp(), 3);
  EXPECT_EQ(destinations(kv.reverse)[1],
            (std::vector<std::vector<Spot>>{{{0, 0}}, {{0, 0}}, {{0, 1}}, {{0, 2}}}));
}

TEST(ComputeMetadataKv, GivesAnEmptyItemNoKeys) {
  expect_right(routing({{{0, 0, 3}}}, {{{0, 2, 0}, {0, 0, 3}, {0, 3, 0}}}));
}

TEST(ComputeMetadataKv, GivesWholeDocumentsOneCopy) {
  const ByRank home{{{0, 0, 3}, {1, 0, 2}}, {}};
  const Routing whole = routing(home, {{{1, 0, 2}}, {{0, 0, 3}}});
  EXPECT_EQ(compute_metadata_kv(whole).forward.max_cp(), 1);
  EXPECT_EQ(destinations(compute_metadata_kv(whole).forward),
            destinations(compute_metadata(whole).forward));
}

TEST(ComputeMetadataKv, RefusesWhatTheQueriesRefuse) {
  const auto rejected = [](const ByRank& home, const ByRank& attention) {
    return thrown_codes([&] { (void)compute_metadata_kv(routing(home, attention)); });
  };
  const ByRank whole{{{0, 0, 4}}, {}};
  EXPECT_EQ(rejected(whole, {{{0, 0, 4}}, {{0, 1, 1}}}), Codes{"D405"});
  EXPECT_EQ(rejected(whole, {{{0, 1, 3}}, {}}), Codes{"D408"});
  EXPECT_EQ(rejected(whole, {{{0, 0, 3}}, {}}), Codes{"D401"});
  EXPECT_EQ(rejected(whole, {{{0, 0, 4}}}), Codes{"D401"});
}

TEST(ComputeMetadataKv, RefusesMoreKeysOnARankThanThirtyTwoBitsCount) {
  // The queries fit, but both halves of the document on one rank need three halves of keys.
  const std::uint32_t half = 0x80000000;
  EXPECT_EQ(thrown_codes([&] {
              (void)compute_metadata_kv(
                  routing({{{0, 0, kMax32}}}, {{{0, 0, half}, {0, half, kMax32 - half}}}));
            }),
            Codes{"D410"});
}

// ---- What it does NOT do

TEST(ComputeMetadataKv, DoesNotShareKeysOfTwoItemsOnOneRankUnlessAsked) {
  // A kernel call reads its keys in one run, so the first half is there twice.
  const MetadataPair kv = compute_metadata_kv(routing({{{0, 0, 4}}}, {{{0, 0, 2}, {0, 2, 2}}}));
  EXPECT_EQ(kv.forward.num_total_recv_tokens(0), 6U);
}

TEST(ComputeMetadataKv, DoesNotSendKeysToEarlierItems) {
  const MetadataPair kv =
      compute_metadata_kv(routing({{{0, 0, 4}}, {}}, {{{0, 0, 2}}, {{0, 2, 2}}}));
  const auto sent = destinations(kv.forward);
  EXPECT_EQ(sent[0][3], (std::vector<Spot>{{1, 3}}));
}

}  // namespace
}  // namespace shiplap::dispatch
