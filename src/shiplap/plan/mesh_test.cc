#include "shiplap/plan/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::plan {
namespace {

AxisId axis(std::size_t k) { return AxisId(k); }
Rank rank(std::int64_t r) { return Rank(static_cast<std::int32_t>(r)); }

// Every mesh of one to four axes of sizes one to three; those with three axes or more have aliases,
// one of them against the order of the mesh.
std::vector<Mesh> small_meshes() {
  std::vector<Mesh> meshes;
  std::vector<IdVector<AxisId, Axis>> grown = {{}};
  for (int axes = 1; axes <= 4; ++axes) {
    std::vector<IdVector<AxisId, Axis>> next;
    for (const auto& shorter : grown) {
      for (std::int64_t size = 1; size <= 3; ++size) {
        next.push_back(shorter);
        next.back().push_back({std::string(1, static_cast<char>('a' + axes)), size});
      }
    }
    grown = next;
    for (const auto& list : grown) {
      meshes.push_back({.axes = list});
      if (axes < 3) continue;
      meshes.back().aliases = {{"forward", {axis(0), axis(2)}}, {"backward", {axis(2), axis(1)}}};
    }
  }
  return meshes;
}

// Counts like an odometer: an independent way to compute positions.
std::vector<std::vector<std::int64_t>> odometer(const Mesh& mesh) {
  std::vector<std::vector<std::int64_t>> all = {{}};
  for (const Axis& a : mesh.axes) {
    std::vector<std::vector<std::int64_t>> longer;
    for (const auto& prefix : all) {
      for (std::int64_t position = 0; position < a.size; ++position) {
        longer.push_back(prefix);
        longer.back().push_back(position);
      }
    }
    all = longer;
  }
  return all;
}

TEST(Mesh, TheLastAxisVariesFastest) {
  for (const Mesh& mesh : small_meshes()) {
    const auto expected = odometer(mesh);
    ASSERT_EQ(mesh.ranks(), std::ssize(expected));
    for (std::size_t r = 0; r < expected.size(); ++r) {
      std::vector<std::int64_t> positions = mesh.positions(rank(static_cast<std::int64_t>(r)));
      positions.resize(mesh.axes.size());
      EXPECT_EQ(positions, expected[r]);
    }
  }
}

TEST(Mesh, AnAliasCountsItsAxesWithTheLastNamedFastest) {
  const Mesh mesh{.axes = {{"a", 2}, {"b", 3}, {"c", 4}},
                  .aliases = {{"ac", {axis(0), axis(2)}}, {"ca", {axis(2), axis(0)}}}};
  EXPECT_EQ(mesh.size(axis(3)), 8);
  EXPECT_EQ(mesh.name(axis(3)), "ac");
  EXPECT_TRUE(mesh.is_alias(axis(3)));
  EXPECT_FALSE(mesh.is_alias(axis(2)));
  // rank 23 is a=1 b=2 c=3; rank 14 is a=1 b=0 c=2
  EXPECT_EQ(mesh.positions(rank(23)), (std::vector<std::int64_t>{1, 2, 3, 7, 7}));
  EXPECT_EQ(mesh.positions(rank(14)), (std::vector<std::int64_t>{1, 0, 2, 6, 5}));
}

TEST(Mesh, PositionsOnAllAxesNameOneRank) {
  for (const Mesh& mesh : small_meshes()) {
    for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
      const auto positions = mesh.positions(rank(r));
      Rank found = rank(0);
      std::int64_t by_strides = 0;
      for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
        found = mesh.moved(found, axis(k), positions[k]);
        by_strides += positions[k] * mesh.stride(axis(k));
      }
      EXPECT_EQ(found, rank(r));
      EXPECT_EQ(by_strides, r);
    }
  }
}

TEST(Mesh, MovingAlongAnAxisOrAliasChangesNothingElse) {
  for (const Mesh& mesh : small_meshes()) {
    const std::size_t ids = mesh.axes.size() + mesh.aliases.size();
    for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
      for (std::size_t id = 0; id < ids; ++id) {
        const auto free = mesh.axes_of(axis(id));
        for (std::int64_t position = 0; position < mesh.size(axis(id)); ++position) {
          const auto before = mesh.positions(rank(r));
          const auto after = mesh.positions(mesh.moved(rank(r), axis(id), position));
          ASSERT_EQ(after[id], position);
          for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
            const bool fixed = std::ranges::find(free, axis(k)) == free.end();
            ASSERT_TRUE(!fixed || after[k] == before[k]);
          }
        }
      }
    }
  }
}

TEST(Mesh, APositionBesideTheAxisBreaksAPromise) {
  const Mesh mesh{.axes = {{"a", 2}}};
  EXPECT_THROW((void)mesh.moved(rank(0), axis(0), 2), InternalError);
  EXPECT_THROW((void)mesh.moved(rank(0), axis(0), -1), InternalError);
}

// All ranks with the same position as `r` on all axes except `ids`, by linear search.
std::vector<Rank> brute_force_group(const Mesh& mesh, const std::vector<AxisId>& ids, Rank r) {
  std::set<AxisId> named;
  for (const AxisId id : ids) {
    for (const AxisId plain : mesh.axes_of(id)) named.insert(plain);
  }
  std::vector<Rank> members;
  for (std::int64_t other = 0; other < mesh.ranks(); ++other) {
    const auto theirs = mesh.positions(rank(other));
    const auto mine = mesh.positions(r);
    bool agrees = true;
    for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
      agrees = agrees && (named.contains(axis(k)) || theirs[k] == mine[k]);
    }
    if (agrees) members.push_back(rank(other));
  }
  return members;
}

std::vector<Rank> members(const RankSet& set) {
  std::vector<Rank> all;
  for (std::int64_t k = 0; k < set.size(); ++k) all.push_back(set[k]);
  return all;
}

TEST(Along, AgreesWithLookingAtEveryRank) {
  for (const Mesh& mesh : small_meshes()) {
    const std::size_t ids = mesh.axes.size() + mesh.aliases.size();
    for (std::size_t subset = 1; subset < (std::size_t{1} << ids); ++subset) {
      std::vector<AxisId> chosen;
      for (std::size_t k = ids; k-- > 0;) {
        if ((subset >> k & 1) != 0) chosen.push_back(axis(k));
      }
      for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
        const RankSet set = along(mesh, chosen, rank(r));
        const auto expected = brute_force_group(mesh, chosen, rank(r));
        ASSERT_EQ(members(set), expected);
        ASSERT_EQ(set, RankSet(expected));
      }
    }
  }
}

TEST(RankSet, FindIsTheInverseOfIndexing) {
  for (const Mesh& mesh : small_meshes()) {
    for (std::size_t subset = 1; subset < (std::size_t{1} << mesh.axes.size()); ++subset) {
      std::vector<AxisId> chosen;
      for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
        if ((subset >> k & 1) != 0) chosen.push_back(axis(k));
      }
      const RankSet set = along(mesh, chosen, rank(mesh.ranks() / 2));
      const auto all = members(set);
      for (std::int64_t r = -2; r < mesh.ranks() + 2; ++r) {
        const auto found = std::ranges::find(all, rank(r));
        ASSERT_EQ(set.find(rank(r)), found == all.end() ? -1 : found - all.begin());
      }
    }
  }
}

TEST(RankSet, ListsFindTheirRanksToo) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Rank> pool;
    for (int r = 0; r < 9; ++r) pool.push_back(rank(r));
    random.shuffle(pool);
    const std::vector<Rank> listed(pool.begin(), pool.begin() + random.between(1, 6));
    const RankSet set(listed);
    ASSERT_EQ(members(set), listed);
    for (int r = -1; r < 11; ++r) {
      const auto found = std::ranges::find(listed, rank(r));
      ASSERT_EQ(set.find(rank(r)), found == listed.end() ? -1 : found - listed.begin());
    }
  }
}

TEST(RankSet, EqualityIsThatOfTheRanksInOrder) {
  // Every grid of up to three steps against every other, and against its own list.
  std::vector<RankSet> sets = {RankSet()};
  for (const std::int64_t first : {0, 1}) {
    for (const std::int64_t a : {1, 2, 3}) {
      for (const std::int64_t b : {1, 2, 3}) {
        sets.push_back(RankSet(rank(first), {{a, 3}, {b, 1}}));
        sets.push_back(RankSet(rank(first), {{a, 6}, {b, 2}, {1, 1}}));
        sets.push_back(RankSet(members(sets.back())));
      }
    }
  }
  sets.push_back(RankSet({rank(2), rank(0), rank(1)}));
  sets.push_back(RankSet({rank(2), rank(1), rank(0)}));
  sets.push_back(RankSet({rank(0), rank(1), rank(2)}));
  for (const RankSet& a : sets) {
    for (const RankSet& b : sets) EXPECT_EQ(a == b, members(a) == members(b));
  }
}

TEST(RankSet, APositionBesideTheGroupBreaksAPromise) {
  const RankSet set(rank(0), {{.count = 4, .stride = 2}});
  EXPECT_THROW((void)set[4], InternalError);
  EXPECT_THROW((void)set[-1], InternalError);
  EXPECT_THROW((void)RankSet()[0], InternalError);
  EXPECT_EQ(RankSet().find(rank(0)), -1);
}

}  // namespace
}  // namespace shiplap::plan
