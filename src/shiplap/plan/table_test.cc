#include "shiplap/plan/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::plan {
namespace {

using Rows = std::vector<TableRow>;

Rows to_rows(std::span<const TableRow> span) { return {span.begin(), span.end()}; }

TEST(ExchangeTable, SortsByRankThenPeer) {
  const ExchangeTable table("t", {{2, 0, 0, 1}, {0, 1, 4, 1}, {0, 0, 5, 1}},
                            {{1, 0, 0, 1}, {0, 2, 0, 1}});
  EXPECT_EQ(to_rows(table.sends()), (Rows{{0, 0, 5, 1}, {0, 1, 4, 1}, {2, 0, 0, 1}}));
  EXPECT_EQ(to_rows(table.receives()), (Rows{{0, 2, 0, 1}, {1, 0, 0, 1}}));
}

TEST(ExchangeTable, MessagesBetweenTheSameTwoRanksKeepTheirOrder) {
  const ExchangeTable table("t", {{1, 0, 7, 1}, {0, 1, 9, 1}, {0, 1, 3, 1}, {0, 1, 5, 1}}, {});
  EXPECT_EQ(to_rows(table.sends_of(0)), (Rows{{0, 1, 9, 1}, {0, 1, 3, 1}, {0, 1, 5, 1}}));
}

TEST(ExchangeTable, TheOrderOfUnrelatedMessagesDecidesNothing) {
  const ExchangeTable a("t", {{0, 1, 0, 1}, {1, 0, 0, 1}}, {});
  const ExchangeTable b("t", {{1, 0, 0, 1}, {0, 1, 0, 1}}, {});
  EXPECT_EQ(a, b);
  EXPECT_NE(a, ExchangeTable("u", {{0, 1, 0, 1}, {1, 0, 0, 1}}, {}));
  EXPECT_NE(a, ExchangeTable("t", {}, {{0, 1, 0, 1}, {1, 0, 0, 1}}));
}

TEST(ExchangeTable, ARankWithoutMessagesHasNone) {
  const ExchangeTable table("t", {{1, 0, 0, 1}}, {{3, 0, 0, 1}});
  EXPECT_TRUE(table.sends_of(0).empty());
  EXPECT_TRUE(table.sends_of(2).empty());
  EXPECT_TRUE(table.sends_of(-1).empty());
  EXPECT_TRUE(table.receives_of(1).empty());
  EXPECT_TRUE(ExchangeTable().sends_of(0).empty());
}

TEST(ExchangeTable, EveryRankFindsExactlyItsOwnRows) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    Rows sends;
    for (std::int64_t k = random.between(0, 30); k > 0; --k) {
      sends.push_back({static_cast<std::int32_t>(random.between(0, 6)),
                       static_cast<std::int32_t>(random.between(0, 6)), random.between(0, 50), 1});
    }
    const ExchangeTable table("t", sends, sends);
    for (std::int32_t rank = 0; rank < 6; ++rank) {
      for (std::int32_t peer = 0; peer < 6; ++peer) {
        const auto between_them = [&](const TableRow& r) {
          return r.rank == rank && r.peer == peer;
        };
        Rows expected;
        std::ranges::copy_if(sends, std::back_inserter(expected), between_them);
        Rows found;
        std::ranges::copy_if(table.sends_of(rank), std::back_inserter(found), between_them);
        ASSERT_EQ(found, expected);
        ASSERT_EQ(to_rows(table.sends_of(rank)), to_rows(table.receives_of(rank)));
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::plan
