#include "shiplap/run/agreement.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace shiplap::run {
namespace {

using Hashes = std::vector<std::int64_t>;

const std::vector<TableField> kFields{{.name = "lengths"}, {.name = "ranks"}};

std::string said(const Hashes& hashes, const std::vector<int>& ranks) {
  const auto found = metadata_mismatch(kFields, hashes, ranks);
  return found ? found->what : "";
}

TEST(Agreement, IsSilentWhenAllHoldTheSame) {
  EXPECT_EQ(said({1, 2, 1, 2, 1, 2}, {0, 1, 2}), "");
  EXPECT_EQ(said({1, 2}, {5}), "");
}

TEST(Agreement, NamesTheRankAndTheFieldThatDiffer) {
  EXPECT_EQ(said({1, 2, 1, 7, 1, 2}, {0, 4, 8}),
            "metadata mismatch between ranks: rank 4 in ranks");
  const auto found = metadata_mismatch(kFields, Hashes{1, 2, 1, 7, 1, 2}, std::vector{0, 4, 8});
  EXPECT_EQ(found.value_or(Diagnostic()).where.rank, 4);
}

TEST(Agreement, TakesTheFirstOfEquallyManyToBeRight) {
  EXPECT_EQ(said({1, 2, 3, 2}, {0, 1}), "metadata mismatch between ranks: rank 1 in lengths");
}

TEST(Agreement, CountsWhatItDoesNotList) {
  Hashes hashes(40, 1);
  std::vector<int> ranks;
  for (int r = 0; r < 20; ++r) ranks.push_back(r);
  for (std::size_t r = 0; r < 8; ++r) hashes[2 * r] = static_cast<std::int64_t>(100 + r);
  EXPECT_NE(said(hashes, ranks).find(" and 2 more"), std::string::npos);
}

TEST(TableFields, AreNamedByTableAndDifferWithTheSeed) {
  dispatch::RandomDispatch random{
      .world_size = 3, .total_seq_len = 20, .num_seqs = 3, .max_cp_degree = 3, .seed = 1};
  const auto one = table_fields(create_qkv_dispatch(random));
  random.seed = 2;
  const auto two = table_fields(create_qkv_dispatch(random));
  ASSERT_EQ(one.size(), two.size());
  std::set<std::string> differ;
  std::set<std::string> names;
  for (std::size_t k = 0; k < one.size(); ++k) {
    EXPECT_EQ(one[k].name, two[k].name);
    names.insert(one[k].name);
    if (one[k].hash != two[k].hash) differ.insert(one[k].name);
  }
  EXPECT_EQ(names.size(), one.size());
  EXPECT_TRUE(differ.contains("q_forward dst_rank"));
  EXPECT_TRUE(differ.contains("attention layout"));
  EXPECT_FALSE(differ.contains("q_forward world_size"));
}

}  // namespace
}  // namespace shiplap::run
