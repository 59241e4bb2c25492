// compute_metadata_kv: the tables of keys and values, compared with buffers written out word by
// word.
#include <gtest/gtest.h>

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

std::size_t max_copies(const Routing& routing) {
  std::size_t most = 1;
  for (const auto& [word, spots] : spots_of(keys_of(routing.attention))) {
    most = std::max(most, spots.size());
  }
  return most;
}

void expect_right(const Routing& routing) {
  const MetadataPair kv = compute_metadata_kv(routing);
  EXPECT_EQ(received_words(routing, kv.forward), keys_of(routing.attention));
  EXPECT_EQ(at(kv.forward.max_cp()), max_copies(routing));
  EXPECT_EQ(kv.forward.arrival(), ArrivalMode::placed);
  EXPECT_EQ(kv.reverse.arrival(), ArrivalMode::summed);
  EXPECT_EQ(kv.reverse.max_cp(), 0);

  // Every copy goes back to where its word lives.
  const auto homes = spots_of(words_of(routing.home));
  const auto back = destinations(kv.reverse);
  const Text keys = keys_of(routing.attention);
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    ASSERT_EQ(back[rank].size(), keys[rank].size());
    for (std::size_t i = 0; i < keys[rank].size(); ++i) {
      ASSERT_EQ(back[rank][i], homes.at(keys[rank][i])) << "rank " << rank << ", key " << i;
    }
  }

  EXPECT_EQ(lengths_of(kv.forward), lengths_of(compute_metadata(routing).forward));
}

// ---- What it DOES

TEST(ComputeMetadataKv, GivesEveryItemItsDocumentUpToItsEndInOrder) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    expect_right(any_routing(random));
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadataKv, DoesSoForLongDocumentsOverManyRanks) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    expect_right(any_routing(random, {.ranks = 17, .documents = 12, .longest = 61}));
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

TEST(ComputeMetadataKv, DoesNotShareKeysOfTwoItemsOnOneRank) {
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
