// Mapping tensors, compared with the tables of the layouts that they describe.
#include "shiplap/dispatch/key_mapping.h"

#include <gtest/gtest.h>

#include "shiplap/dispatch/testing_internal.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

// Documents cut into shards, which are the segments at home and the items of attention.
struct Sharded {
  Routing routing;
  KeyMapping mapping;
};

Sharded any_shards(Random& random, const std::string& mask) {
  const auto ranks = random.between(1, 5);
  std::vector<std::vector<Segment>> home(at(ranks));
  const auto documents = static_cast<std::int32_t>(random.between(0, 4));
  for (std::int32_t document = 0; document < documents; ++document) {
    const auto shards = random.between(1, 5);
    std::uint32_t begin = 0;
    for (std::int64_t k = 0; k < shards; ++k) {
      const auto length = static_cast<std::uint32_t>(random.between(1, 5));
      home[at(random.between(0, ranks))].push_back({document, begin, length});
      begin += length;
    }
  }
  for (auto& rank : home) random.shuffle(rank);
  const auto lengths = document_lengths(Layout(home));
  std::vector<std::vector<Segment>> attention(at(ranks));
  KeyMapping mapping;
  for (const auto& rank : home) {
    mapping.queries.seq_lens.emplace_back();
    mapping.queries.dst_rank.emplace_back();
    mapping.kv_context_size.emplace_back();
    mapping.kv_to_q_mapping.emplace_back();
    for (const Segment& shard : rank) {
      const auto to = random.between(0, ranks);
      attention[at(to)].push_back(shard);
      mapping.queries.seq_lens.back().push_back(shard.length);
      mapping.queries.dst_rank.back().push_back(static_cast<std::int32_t>(to));
      mapping.kv_context_size.back().push_back(shard.begin);
      auto& queries = mapping.kv_to_q_mapping.back().emplace_back();
      for (std::size_t r = 0; r < home.size(); ++r) {
        for (std::size_t s = 0; s < home[r].size(); ++s) {
          const Segment& other = home[r][s];
          if (other.document != shard.document) continue;
          const auto keys = keys_of(other, mask, lengths.at(other.document));
          if (std::ranges::find(keys, Word{shard.document, shard.begin}) == keys.end()) continue;
          queries.push_back({static_cast<std::int32_t>(r), static_cast<std::int32_t>(s)});
        }
      }
      random.shuffle(queries);
      if (random.chance()) queries.emplace_back();  // padding
    }
  }
  return {.routing = {.home = Layout(home), .attention = Layout(attention)}, .mapping = mapping};
}

// Where each token goes, without the order of its copies.
auto unordered(const Metadata& metadata) {
  auto all = destinations(metadata);
  for (auto& rank : all) {
    for (auto& spots : rank) std::ranges::sort(spots);
  }
  return all;
}

// ---- What it DOES

TEST(KeyMapping, GivesTheTablesOfTheLayoutsThatItDescribes) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const std::string mask = seed % 2 == 0 ? "causal" : "full";
    const Sharded sharded = any_shards(random, mask);
    ASSERT_TRUE(validate(sharded.mapping).empty()) << render(validate(sharded.mapping));
    const MetadataPair found = compute_metadata_kv(sharded.mapping);
    const QkvDispatch expected = compute_qkv_dispatch(sharded.routing, {.mask = parse_mask(mask)});
    ASSERT_EQ(unordered(found.forward), unordered(expected.kv.forward)) << "seed " << seed;
    ASSERT_EQ(unordered(found.reverse), unordered(expected.kv.reverse)) << "seed " << seed;
    const QkvDispatch whole{
        .q = compute_metadata(sharded.mapping.queries),
        .kv = found,
        .attention = compute_attention_layout(sharded.mapping, parse_mask(mask))};
    ASSERT_EQ(whole.attention, expected.attention);
    ASSERT_TRUE(validate(whole).empty()) << "seed " << seed << render(validate(whole));
  }
}

KeyMapping two_shards() {
  return {.queries = {.seq_lens = {{2}, {3}}, .dst_rank = {{1}, {0}}},
          .kv_context_size = {{0}, {2}},
          .kv_to_q_mapping = {{{{0, 0}, {1, 0}}}, {{{1, 0}}}}};
}

TEST(KeyMapping, PutsTheKeysOfAQueryShardInOnePiece) {
  const MetadataPair kv = compute_metadata_kv(two_shards());
  EXPECT_EQ(rows_of(kv.forward), (Rows{{{2, {{1, 0}, {0, 0}}}}, {{3, {{0, 2}}}}}));
  EXPECT_EQ(rows_of(kv.reverse), (Rows{{{2, {{0, 0}}}, {3, {{1, 0}}}}, {{2, {{0, 0}}}}}));
  EXPECT_EQ(kv.reverse.arrival(), ArrivalMode::summed);
}

// ---- What it does NOT do

Codes rejected(const KeyMapping& mapping) {
  EXPECT_EQ(codes(validate(mapping)), thrown_codes([&] { (void)compute_metadata_kv(mapping); }));
  return codes(validate(mapping));
}

TEST(KeyMapping, DoesNotAcceptTensorsOfOtherShapes) {
  KeyMapping wrong = two_shards();
  wrong.kv_context_size.pop_back();
  EXPECT_EQ(rejected(wrong), Codes{"D401"});
  wrong = two_shards();
  wrong.kv_to_q_mapping[0].emplace_back();
  EXPECT_EQ(rejected(wrong), Codes{"D401"});
  wrong = two_shards();
  wrong.queries.dst_rank[0][0] = 2;
  EXPECT_EQ(rejected(wrong), Codes{"D403"});
}

TEST(KeyMapping, DoesNotAcceptQueriesThatDoNotExist) {
  for (const KeyMapping::Shard shard :
       {KeyMapping::Shard{2, 0}, {0, 1}, {0, -1}, {-2, 0}, {1, 7}}) {
    KeyMapping wrong = two_shards();
    wrong.kv_to_q_mapping[0][0].push_back(shard);
    EXPECT_EQ(rejected(wrong), Codes{"D403"}) << shard.rank << " " << shard.seq;
  }
}

TEST(KeyMapping, DoesNotAcceptKeysWithAGapOrAnOverlap) {
  KeyMapping wrong = two_shards();
  wrong.kv_context_size[1][0] = 3;
  EXPECT_EQ(rejected(wrong), Codes{"D408"});
  wrong.kv_context_size[1][0] = 1;
  EXPECT_EQ(rejected(wrong), Codes{"D405"});
}

}  // namespace
}  // namespace shiplap::dispatch
