#include "shiplap/plan/symmetry.h"

#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/error.h"
#include "shiplap/plan/link.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

Plan parsed(const std::string& text) { return parse_text("shiplap-plan 1\n" + text, "test.plan"); }

// A pipeline of two stages; `body` is what every rank does besides.
Plan with(const std::string& body) {
  return parsed("mesh pp=2 dp=3 tp=2\ntensor A Activation sample 6\nprogram all on all\n" +
                std::string("  buffer x rows 4 row_bytes 4 f32\n") + body);
}

std::vector<std::int32_t> axes_of(const Symmetry& symmetry) {
  std::vector<std::int32_t> axes;
  for (const AxisId axis : symmetry.axes) axes.push_back(axis.value);
  return axes;
}

TEST(Symmetry, FixesTheAxesThatDecideWhatARankDoes) {
  using Axes = std::vector<std::int32_t>;
  EXPECT_EQ(axes_of(find_symmetry(with("  all_reduce x over dp\n"))), (Axes{0, 1, 2}));
  EXPECT_EQ(axes_of(find_symmetry(with("  when pp=0\n    send x to pp+1\n  end\n"))), (Axes{1, 2}));
  EXPECT_EQ(axes_of(find_symmetry(with("  all_reduce x[tp +1] over dp\n"))), (Axes{0, 1}));
  EXPECT_EQ(axes_of(find_symmetry(with("  all_reduce x over dp{0, 2}\n"))), (Axes{0, 2}));
  EXPECT_EQ(axes_of(find_symmetry(with("  send x to rank 0\n"))), (Axes{0, 1, 2}));
  EXPECT_EQ(axes_of(find_symmetry(with("  all_reduce x over ranks{0, 2}\n"))), Axes{});
}

TEST(Symmetry, FixesWorkThatDiffersIfItMustBeTheSame) {
  const Plan plan =
      with("  compute k work gemm 10*dp flop 0 bytes\n    reads x = A sample dp +1\n");
  EXPECT_EQ(axes_of(find_symmetry(plan)).size(), 3U);
  EXPECT_EQ(axes_of(find_symmetry(plan, {.same_work = true})), (std::vector<std::int32_t>{0, 2}));
}

TEST(Symmetry, RepresentativesAreAtPositionZero) {
  Symmetry symmetry = find_symmetry(with("  when pp=0\n    send x to pp+1\n  end\n"));
  EXPECT_EQ(symmetry.class_size(), 6);
  EXPECT_EQ(symmetry.representative(11), 6);
  EXPECT_TRUE(symmetry.is_representative(6));
  symmetry.drop_smallest();
  EXPECT_EQ(symmetry.class_size(), 3);
  EXPECT_EQ(symmetry.representative(11), 7);
}

TEST(Symmetry, LinksRepresentativesAlone) {
  const Plan plan = with("  all_reduce x over (pp, dp)\n  all_gather x[0 +1] to x[2 +2] over tp\n");
  const Symmetry symmetry = find_symmetry(plan);
  const LinkedProgram linked = link(plan, {.symmetry = symmetry});
  EXPECT_TRUE(linked.is_linked(0));
  EXPECT_FALSE(linked.is_linked(1));
  EXPECT_EQ(linked.matches.size(), 2U);
  ASSERT_EQ(linked.matching.groups.size(), 2U);
  for (const GroupCalls& group : linked.matching.groups) {
    EXPECT_TRUE(group.complete);
    EXPECT_EQ(group.callers.size(), 1U);
  }
}

// Ranks that a representative stands for and that do not do what it does.
TEST(Symmetry, ThrowsIfRanksAreUnlike) {
  const auto link_of = [](const std::string& body) {
    const Plan plan = with(body);
    return link(plan, {.symmetry = find_symmetry(plan)});
  };
  EXPECT_THROW((void)link_of("  send x to rank (rank+1)\n"), Asymmetric);
  EXPECT_THROW((void)link_of("  send x to rank 0\n"), Asymmetric);
  EXPECT_THROW((void)link_of("  broadcast x over dp\n"), Asymmetric);  // one is the root
  EXPECT_THROW((void)link_of("  broadcast x over dp root 1\n"), Asymmetric);
}

TEST(Symmetry, FindsErrorsThatOnlyTheLastRankHas) {
  const Plan plan = with("  compute k\n    reads x = A sample 3*dp +1\n");
  EXPECT_THROW((void)link(plan, {.symmetry = find_symmetry(plan)}), InputError);
}

TEST(Symmetry, NamesTheAxisAlongWhichRanksDiffer) {
  const Plan plan =
      with("  compute k work gemm 10*dp flop 0 bytes\n    reads x = A sample dp +1\n");
  const LinkOptions options{
      .cost = [](const RankProgram&, const flat::Operation& op) { return op.work.flop; },
      .symmetry = find_symmetry(plan)};
  try {
    (void)link(plan, options);
    FAIL();
  } catch (const Asymmetric& unlike) {
    EXPECT_EQ(unlike.axis, AxisId(1));
  }
}

}  // namespace
}  // namespace shiplap::plan
