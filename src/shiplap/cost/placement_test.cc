#include "shiplap/cost/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace shiplap::cost {
namespace {

using testing::HasSubstr;

plan::Mesh mesh_of(const std::vector<plan::Axis>& axes) {
  plan::Mesh mesh;
  for (const plan::Axis& axis : axes) mesh.axes.push_back(axis);
  return mesh;
}

std::optional<Diagnostic> warning_for(const std::vector<plan::Axis>& axes) {
  return tensor_parallel_warning(mesh_of(axes), hardware::find_system("h100_80g_nvl8"));
}

// By the definition: the nodes of every rank of every group.
std::int64_t counted_nodes(const plan::Mesh& mesh, plan::AxisId axis, std::int64_t per_node) {
  std::size_t most = 0;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    std::set<std::int64_t> nodes;
    for (std::int64_t k = 0; k < mesh.size(axis); ++k) {
      nodes.insert(mesh.moved(Rank(rank), axis, k).value / per_node);
    }
    most = std::max(most, nodes.size());
  }
  return static_cast<std::int64_t>(most);
}

TEST(NodesOfGroup, IsTheNumberOfNodesOfItsRanks) {
  for (const std::int64_t a : {1, 2, 3, 8}) {
    for (const std::int64_t b : {1, 2, 5}) {
      for (const std::int64_t c : {1, 4, 6}) {
        const plan::Mesh mesh = mesh_of({{"dp", a}, {"tp", b}, {"pp", c}});
        for (const std::size_t axis : {0, 1, 2}) {
          for (const std::int64_t per_node : {1, 3, 4, 8, 100}) {
            EXPECT_EQ(nodes_of_group(mesh, plan::AxisId(axis), per_node),
                      counted_nodes(mesh, plan::AxisId(axis), per_node));
          }
        }
      }
    }
  }
}

TEST(TensorParallelWarning, NamesTheOrderThatStaysWithinNodes) {
  EXPECT_EQ(warning_for({{"dp", 16}, {"pp", 4}, {"tp", 8}}), std::nullopt);
  const auto warning = warning_for({{"tp", 8}, {"pp", 4}, {"dp", 16}});
  ASSERT_TRUE(warning.has_value());
  EXPECT_EQ(warning->code, "D634");
  EXPECT_EQ(warning->severity, Severity::warning);
  EXPECT_EQ(warning->what, "a `tp` group of 8 ranks spans 8 nodes");
  EXPECT_THAT(warning->why, HasSubstr("64 apart"));
  EXPECT_EQ(warning->help, "put `tp` last: pp=4,dp=16,tp=8");
}

TEST(TensorParallelWarning, SaysIfNoOrderAvoidsIt) {
  EXPECT_EQ(warning_for({{"tp", 16}}).value_or(Diagnostic{}).help, "take a `tp` that divides 8");
  EXPECT_EQ(warning_for({{"dp", 4}, {"tp", 6}}).value_or(Diagnostic{}).what,
            "a `tp` group of 6 ranks spans 2 nodes");
  EXPECT_EQ(warning_for({{"tp", 16}, {"dp", 8}}).value_or(Diagnostic{}).help,
            "put `tp` last: dp=8,tp=16; it then spans 2 nodes");
}

TEST(TensorParallelWarning, NeedsAnAxisAndNodes) {
  EXPECT_EQ(warning_for({{"dp", 64}}), std::nullopt);
  EXPECT_EQ(warning_for({{"tp", 1}, {"dp", 64}}), std::nullopt);
  hardware::System one = hardware::find_system("h100_80g_nvl8");
  one.networks.resize(1);
  EXPECT_EQ(tensor_parallel_warning(mesh_of({{"tp", 64}}), one), std::nullopt);
}

}  // namespace
}  // namespace shiplap::cost
