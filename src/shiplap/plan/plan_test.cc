#include "shiplap/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::plan {
namespace {

AxisId axis(std::size_t k) { return AxisId(k); }

// The definition of selects(), written out.
bool brute_force_selects(const Selector& selector, const Mesh& mesh, std::int32_t rank) {
  const auto positions = mesh.positions(Rank(rank));
  for (const SelectorTerm& term : selector.terms) {
    const std::int64_t here = term.axis.exists() ? positions[term.axis.index()] : rank;
    bool found = false;
    for (const PositionRange& range : term.positions) {
      for (std::int64_t k = range.first; k <= range.last; ++k) found = found || k == here;
    }
    if (!found) return false;
  }
  return true;
}

Mesh random_mesh(Random& random) {
  Mesh mesh;
  for (std::int64_t k = random.between(1, 5); k > 0; --k) {
    mesh.axes.push_back({std::string(1, static_cast<char>('a' + k)), random.between(1, 4)});
  }
  for (std::int64_t k = random.between(0, 3); k > 0; --k) {
    Alias alias{.name = "alias"};
    std::vector<AxisId> order;
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) order.push_back(axis(a));
    random.shuffle(order);
    alias.axes.assign(order.begin(), order.begin() + random.between(1, std::ssize(order) + 1));
    mesh.aliases.push_back(alias);
  }
  return mesh;
}

Selector random_selector(Random& random, const Mesh& mesh) {
  Selector selector;
  for (std::int64_t k = random.between(0, 4); k > 0; --k) {
    const std::int64_t ids = std::ssize(mesh.axes) + std::ssize(mesh.aliases);
    SelectorTerm term{.axis = AxisId(static_cast<std::int32_t>(random.between(-1, ids)))};
    const std::int64_t size = term.axis.exists() ? mesh.size(term.axis) : mesh.ranks();
    for (std::int64_t n = random.between(1, 4); n > 0; --n) {
      const std::int64_t first = random.between(0, size);
      term.positions.push_back({first, random.between(first, size)});
    }
    selector.terms.push_back(term);
  }
  return selector;
}

TEST(Selector, MeansTheRanksThatStandThereInEveryTerm) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Mesh mesh = random_mesh(random);
    const Selector selector = random_selector(random, mesh);
    for (std::int32_t rank = 0; rank < mesh.ranks(); ++rank) {
      ASSERT_EQ(selects(selector, mesh, Rank(rank)), brute_force_selects(selector, mesh, rank))
          << "seed " << seed << " rank " << rank;
    }
  }
}

TEST(Assignment, AgreesWithAskingEverySelectorAboutEveryRank) {
  int sound = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    Plan plan{.mesh = random_mesh(random)};
    for (std::int64_t k = random.between(0, 4); k > 0; --k) {
      plan.programs.push_back({.name = "p", .on = random_selector(random, plan.mesh)});
    }
    for (std::int64_t k = random.between(0, 2); k > 0; --k) {
      plan.spares.push_back(random_selector(random, plan.mesh));
    }
    const Assignment assignment = assign_programs(plan);
    bool wrong = false;
    for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
      ProgramId first;
      int claims = 0;
      for (std::size_t k = 0; k < plan.programs.size(); ++k) {
        if (!brute_force_selects(plan.programs[k].on, plan.mesh, rank)) continue;
        if (claims++ == 0) first = ProgramId(k);
      }
      for (const Selector& spare : plan.spares) {
        claims += brute_force_selects(spare, plan.mesh, rank) ? 1 : 0;
      }
      wrong = wrong || claims != 1;
      ASSERT_EQ(assignment.program_of[rank].exists(), first.exists());
      if (first.exists()) {
        ASSERT_EQ(assignment.program_of[rank], first) << "seed " << seed;
      }
    }
    ASSERT_EQ(!assignment.problems.empty(), wrong) << "seed " << seed;
    sound += wrong ? 0 : 1;
  }
  EXPECT_GT(sound, 100);  // or the test is weak
}

Selector at(AxisId id, std::int64_t first, std::int64_t last) {
  return {{{.axis = id, .positions = {{first, last}}}}};
}

TEST(Assignment, SaysWhichProgramsClaimARankTwice) {
  const Plan plan{.mesh = {.axes = {{"pp", 4}}},
                  .programs = {{.name = "first", .on = at(axis(0), 0, 2)},
                               {.name = "last", .on = at(axis(0), 2, 3)}}};
  const Assignment assignment = assign_programs(plan);
  ASSERT_EQ(assignment.problems.size(), 1U);
  EXPECT_EQ(assignment.problems[0].code, "D108");
  EXPECT_EQ(assignment.problems[0].what,
            "rank 2 is claimed by program `first` and by program `last`");
  EXPECT_EQ(assignment.problems[0].where.rank, 2);
}

TEST(Assignment, SaysThatASpareRankRunsAProgramToo) {
  const Plan plan{
      .mesh = {.axes = {{"pp", 2}}}, .programs = {{.name = "all"}}, .spares = {at(AxisId(), 1, 1)}};
  const Assignment assignment = assign_programs(plan);
  ASSERT_EQ(assignment.problems.size(), 1U);
  EXPECT_EQ(assignment.problems[0].what, "rank 1 is claimed by program `all` and by `spare`");
}

TEST(Assignment, SaysHowManyRanksHaveNoProgram) {
  Plan plan{.mesh = {.axes = {{"dp", 2}, {"pp", 4}}},
            .programs = {{.name = "first", .on = at(axis(1), 0, 1)}}};
  Assignment assignment = assign_programs(plan);
  ASSERT_EQ(assignment.problems.size(), 1U);
  EXPECT_EQ(assignment.problems[0].what, "4 ranks have no program");
  EXPECT_EQ(assignment.problems[0].where.rank, 2);
  EXPECT_NE(assignment.problems[0].help.find("dp=0 pp=2"), std::string::npos);
  plan.spares = {at(AxisId(), 2, 3), at(AxisId(), 7, 7)};
  assignment = assign_programs(plan);
  ASSERT_EQ(assignment.problems.size(), 1U);
  EXPECT_EQ(assignment.problems[0].what, "rank 6 has no program");
}

TEST(Assignment, ASpareRankHasNoProgramAndThatIsFine) {
  const Plan plan{.mesh = {.axes = {{"pp", 2}}}, .spares = {{}}};
  const Assignment assignment = assign_programs(plan);
  EXPECT_TRUE(assignment.problems.empty());
  EXPECT_EQ(assignment.program_of, (std::vector<ProgramId>(2)));
}

TEST(Assignment, AMillionRanksAreNotLookedAtOnceForEachPosition) {
  // 64 programs that differ in the position on an alias, and a selector with the same ranks 1000
  // times: both took minutes or gigabytes when every term was compared with every rank.
  Plan plan{.mesh = {.axes = {{"dp", 1 << 14}, {"cp", 8}, {"pp", 8}},
                     .aliases = {{"stage", {axis(2), axis(1)}}}}};
  for (std::int64_t k = 0; k < 64; ++k) {
    plan.programs.push_back({.name = "p" + std::to_string(k), .on = at(axis(3), k, k)});
  }
  const Assignment assignment = assign_programs(plan);
  EXPECT_TRUE(assignment.problems.empty());
  EXPECT_EQ(assignment.program_of[8 + 3], ProgramId(std::int32_t{3 * 8 + 1}));  // pp=3 cp=1

  Selector repeated{{{.axis = AxisId()}}};
  repeated.terms[0].positions.assign(1000, {0, plan.mesh.ranks() - 1});
  plan.programs = {{.name = "all", .on = repeated}};
  EXPECT_TRUE(assign_programs(plan).problems.empty());
}

}  // namespace
}  // namespace shiplap::plan
