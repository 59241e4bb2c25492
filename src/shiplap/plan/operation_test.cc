#include "shiplap/plan/operation.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <vector>

namespace shiplap::plan {
namespace {

TEST(Word, DiffersForEveryAction) {
  std::vector<Action> actions = {Compute{},  Copy{},     Send{}, Receive{},
                                 Exchange{}, Allocate{}, Free{}, Batch{}};
  for (int k = 0; k <= static_cast<int>(CollectiveKind::barrier); ++k) {
    actions.emplace_back(Collective{.kind = static_cast<CollectiveKind>(k)});
  }
  std::set<std::string_view> words;
  for (const Action& action : actions) words.insert(keyword(action));
  EXPECT_EQ(words.size(), actions.size());
  EXPECT_TRUE(words.contains("reduce_scatter"));
}

TEST(Operation, WhereItWasReadTellsNoTwoApart) {
  EXPECT_EQ(Operation{.origin = {3}}, Operation{.origin = {4}});
  EXPECT_NE(Operation{.label = "a"}, Operation{.label = "b"});
  EXPECT_NE(Operation{.stream = StreamId(std::int32_t{1})}, Operation{});
}

TEST(Statement, IsEqualIfItsBlockIs) {
  const Statement inner{Let{.variable = "i", .value = 1}};
  const Statement other{Let{.variable = "i", .value = 2}};
  EXPECT_EQ((Statement{Repeat{.variable = "k", .body = {inner}}}),
            (Statement{Repeat{.variable = "k", .origin = {7}, .body = {inner}}}));
  EXPECT_NE((Statement{Repeat{.variable = "k", .body = {inner}}}),
            (Statement{Repeat{.variable = "k", .body = {other}}}));
  EXPECT_NE((Statement{Repeat{.variable = "k"}}), (Statement{Repeat{.variable = "m"}}));
  EXPECT_NE((Statement{Repeat{.count = 1}}), (Statement{Repeat{.count = 2}}));
  EXPECT_NE((Statement{When{.body = {inner}}}), (Statement{When{.body = {other}}}));
  EXPECT_NE((Statement{When{.condition = {{1, Comparator::equal, 1}}}}), (Statement{When{}}));
  EXPECT_NE((Statement{Operation{.action = Batch{{inner}}}}),
            (Statement{Operation{.action = Batch{{other}}}}));
}

}  // namespace
}  // namespace shiplap::plan
