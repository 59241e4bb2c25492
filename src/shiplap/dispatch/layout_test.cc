// Layouts, and the ways to make one: pack_documents, cut_documents, assign_randomly.
#include "shiplap/dispatch/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using Lengths = std::vector<std::uint32_t>;
using ByRank = std::vector<std::vector<Segment>>;

Lengths any_lengths(Random& random) {
  Lengths lengths(at(random.between(0, 8)));
  for (std::uint32_t& length : lengths) length = static_cast<std::uint32_t>(random.between(0, 9));
  return lengths;
}

// All words, document after document.
std::vector<Word> all_words(const Lengths& lengths) {
  std::vector<Word> words;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    for (std::uint32_t i = 0; i < lengths[d]; ++i) {
      words.push_back({static_cast<std::int32_t>(d), i});
    }
  }
  return words;
}

Routing routing(const ByRank& home, const ByRank& attention) {
  return {.home = Layout(home), .attention = Layout(attention)};
}

// ---- What they DO

TEST(Layout, ListsTheSegmentsOfEachRankInOrder) {
  const ByRank by_rank{{{0, 0, 3}, {1, 2, 0}}, {}, {{0, 3, 4}}};
  const Layout layout(by_rank);
  EXPECT_EQ(layout.world_size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(std::vector<Segment>(layout.of(rank).begin(), layout.of(rank).end()), by_rank[rank]);
  }
  EXPECT_EQ(layout.all().size(), 3U);
  EXPECT_EQ(layout.first(0), 0U);
  EXPECT_EQ(layout.first(1), 2U);
  EXPECT_EQ(layout.first(2), 2U);
  EXPECT_EQ(layout.tokens(0), 3U);
  EXPECT_EQ(layout.tokens(1), 0U);
  EXPECT_EQ(layout.tokens(2), 4U);
}

TEST(Layout, CountsMoreThanThirtyTwoBits) {
  const Layout layout(ByRank{{{0, 0, kMax32}, {1, 0, kMax32}}});
  EXPECT_EQ(layout.tokens(0), 2 * std::uint64_t{kMax32});
  EXPECT_EQ((Segment{0, kMax32, kMax32}.end()), 2 * std::uint64_t{kMax32});
}

TEST(Layout, NeedsARank) {
  EXPECT_EQ(thrown_codes([] { (void)Layout(ByRank{}); }), Codes{"D400"});
}

TEST(ValidateRouting, AcceptsEverySoundOne) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const auto found = validate(any_routing(random));
    ASSERT_TRUE(found.empty()) << "seed " << seed << "\n" << render(found);
  }
}

// Removes, adds or moves one segment, and counts words to know what the answer must be.
TEST(ValidateRouting, FindsEveryTokenThatIsMissingOrThereTwice) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    Routing routing = any_routing(random);
    ByRank home(at(routing.home.world_size()));
    for (int rank = 0; rank < routing.home.world_size(); ++rank) {
      home[rank].assign(routing.home.of(rank).begin(), routing.home.of(rank).end());
    }
    auto& rank = home[random.between(0, static_cast<std::int64_t>(home.size()))];
    if (rank.empty()) continue;
    Segment& segment = rank[random.between(0, static_cast<std::int64_t>(rank.size()))];
    if (random.chance()) segment.begin += static_cast<std::uint32_t>(random.between(0, 2));
    if (random.chance()) segment.length += static_cast<std::uint32_t>(random.between(0, 2));
    if (random.chance() && segment.length > 0) --segment.length;
    routing.home = Layout(home);
    bool same = true;  // as at attention, once each
    const auto at_home = spots_of(words_of(routing.home));
    const auto wanted = spots_of(words_of(routing.attention));
    same = at_home.size() == wanted.size();
    for (const auto& [word, spots] : at_home) {
      same = same && spots.size() == 1 && wanted.contains(word);
    }
    if (same && segment.length == 0) continue;  // a placeholder may have left its document
    ASSERT_EQ(validate(routing).empty(), same) << "seed " << seed << "\n"
                                               << render(validate(routing));
    wrong += same ? 0 : 1;
  }
  EXPECT_GT(wrong, 900);
}

TEST(ValidateRouting, SaysInWhichLayoutAndOnWhichRank) {
  const auto found = validate(routing({{{0, 0, 2}}, {}}, {{{0, 0, 2}}, {{0, 1, 1}}}));
  ASSERT_EQ(codes(found), Codes{"D405"});
  EXPECT_EQ(found[0].where.rank, 1);
  EXPECT_EQ(found[0].where.operation, "layout attention");
}

TEST(ValidateRouting, KnowsEachKindOfFlaw) {
  const ByRank whole{{{0, 0, 2}}, {}};
  EXPECT_EQ(codes(validate(Routing{})), Codes{"D401"});
  EXPECT_EQ(codes(validate(routing(whole, {{{0, 0, 2}}}))), Codes{"D401"});
  EXPECT_EQ(codes(validate(routing(whole, {{}, {}}))), Codes{"D401"});
  EXPECT_EQ(codes(validate(routing({{}, {}}, whole))), Codes{"D401"});
  EXPECT_EQ(codes(validate(routing(whole, {{{0, 0, 3}}, {}}))), Codes{"D401"});
  EXPECT_EQ(codes(validate(routing(whole, {{{0, 0, 2}}, {{0, 5, 0}}}))), (Codes{"D401", "D408"}));
}

TEST(PackDocuments, LaysDocumentAfterDocumentEquallyOnRanks) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Lengths lengths = any_lengths(random);
    const auto world = at(random.between(1, 7));
    const std::vector<Word> words = all_words(lengths);
    const std::size_t room = (words.size() + world - 1) / world;
    Text expected(world);
    for (std::size_t i = 0; i < words.size(); ++i) expected[i / room].push_back(words[i]);
    const Layout layout = pack_documents(lengths, static_cast<int>(world));
    ASSERT_EQ(words_of(layout), expected) << "seed " << seed;
    std::set<std::int32_t> documents;
    for (const Segment& segment : layout.all()) documents.insert(segment.document);
    ASSERT_EQ(documents.size(), lengths.size()) << "an empty one is lost, seed " << seed;
  }
}

TEST(PackDocuments, CutsOnlyWhereARankIsFull) {
  const Layout layout = pack_documents(Lengths{3, 0, 5}, 2);
  EXPECT_EQ(layout, Layout(ByRank{{{0, 0, 3}, {1, 0, 0}, {2, 0, 1}}, {{2, 1, 4}}}));
}

TEST(PackDocuments, RefusesNoRanksAndTooManyTokens) {
  EXPECT_EQ(thrown_codes([] { (void)pack_documents(Lengths{1}, 0); }), Codes{"D400"});
  EXPECT_EQ(thrown_codes([] { (void)pack_documents(Lengths{kMax32, 1}, 1); }), Codes{"D410"});
  EXPECT_EQ(pack_documents(Lengths{kMax32, kMax32}, 2).tokens(1), kMax32);
}

TEST(CutDocuments, GivesItemsThatAreEqualButForOneToken) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Lengths lengths = any_lengths(random);
    std::vector<int> degrees(lengths.size());
    for (int& degree : degrees) degree = static_cast<int>(random.between(1, 6));
    const std::vector<Segment> items = cut_documents(lengths, degrees);
    ASSERT_EQ(words_of(Layout({items})).front(), all_words(lengths)) << "seed " << seed;
    std::map<std::int32_t, Lengths> by_document;
    for (const Segment& item : items) by_document[item.document].push_back(item.length);
    ASSERT_EQ(by_document.size(), lengths.size()) << "seed " << seed;
    for (const auto& [document, pieces] : by_document) {
      const std::uint32_t length = lengths[document];
      ASSERT_EQ(pieces.size(),
                std::max<std::size_t>(1, std::min<std::size_t>(length, at(degrees[document]))));
      ASSERT_LE(*std::ranges::max_element(pieces) - *std::ranges::min_element(pieces), 1U);
    }
  }
}

TEST(CutDocuments, CutsTheLongestDocumentExactly) {
  const std::vector<Segment> items = cut_documents(Lengths{kMax32}, std::vector<int>{7});
  std::uint64_t reached = 0;
  for (const Segment& item : items) {
    EXPECT_EQ(item.begin, reached);
    EXPECT_NEAR(item.length, kMax32 / 7.0, 1.0);
    reached = item.end();
  }
  EXPECT_EQ(reached, kMax32);
}

TEST(CutDocuments, RefusesDegreesThatCannotBe) {
  const auto rejected = [](const std::vector<int>& degrees) {
    return thrown_codes([&] { (void)cut_documents(Lengths{5, 5}, degrees); });
  };
  EXPECT_EQ(rejected({1, 0}), Codes{"D400"});
  EXPECT_EQ(rejected({-1, 1}), Codes{"D400"});
  EXPECT_EQ(rejected({1}), Codes{"D400"});
}

TEST(AssignRandomly, GivesEveryItemToARankAndKeepsTheirOrder) {
  const std::vector<Segment> items = cut_documents(Lengths(50, 9), std::vector<int>(50, 3));
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Layout layout = assign_randomly(items, 5, seed);
    ASSERT_EQ(layout, assign_randomly(items, 5, seed));
    ASSERT_EQ(layout.all().size(), items.size());
    for (int rank = 0; rank < 5; ++rank) {
      ASSERT_FALSE(layout.of(rank).empty());
      ASSERT_TRUE(std::ranges::is_sorted(layout.of(rank), {}, [](const Segment& item) {
        return std::pair(item.document, item.begin);
      }));
    }
  }
  EXPECT_NE(assign_randomly(items, 5, 0), assign_randomly(items, 5, 1));
  EXPECT_EQ(thrown_codes([&] { (void)assign_randomly(items, 0, 0); }), Codes{"D400"});
}

// ---- What they do NOT do

TEST(Layout, DoesNotJudgeItsSegments) {
  EXPECT_NO_THROW((void)Layout(ByRank{{{-5, 7, 3}, {-5, 7, 3}}}));
}

TEST(PackDocuments, DoesNotKeepDocumentsWhole) {
  EXPECT_EQ(pack_documents(Lengths{4}, 4).of(3).size(), 1U);
}

TEST(CutDocuments, DoesNotBalanceTheWorkOfItems) {
  // Equal queries; but under a causal mask the last item sees all keys.
  const std::vector<Segment> items = cut_documents(Lengths{8}, std::vector<int>{2});
  EXPECT_EQ(items[0].length, items[1].length);
  EXPECT_EQ(keys_of(items[1]).size(), 2 * keys_of(items[0]).size());
}

TEST(AssignRandomly, DoesNotGiveRanksEquallyMany) {
  const std::vector<Segment> items = cut_documents(Lengths(10, 1), std::vector<int>(10, 1));
  int unequal = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Layout layout = assign_randomly(items, 2, seed);
    unequal += layout.of(0).size() != layout.of(1).size() ? 1 : 0;
  }
  EXPECT_GT(unequal, 0);
}

}  // namespace
}  // namespace shiplap::dispatch
