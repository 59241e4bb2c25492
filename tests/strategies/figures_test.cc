// Reference times of strategies without a pipeline, of the last commit at which strategies had a
// clock of their own. They are those of its replay; a test of that commit compared the replay with
// the clock, to 1e-9. Both shared only the costs of single operations. Pipelines have changed
// since: pipeline_clock_test.cc has a clock for them. The machines are those of that commit, so
// files in Calculon's format give the same times as ever.
#include <gtest/gtest.h>

#include "cases.h"
#include "shiplap/hardware/system.h"

namespace shiplap::strategy {
namespace {

struct Figure {
  const char* strategy;
  double h100;  // seconds on h100_80g_nvl8
  double a100;  // on a100_80g
};

// 8 ranks, 16 layers, 16 samples.
constexpr Figure kFigures[] = {
    {"single", 0.05581153549113796, 0.14405786103313514},
    {"gradient_accumulation", 0.0348131600921817, 0.07175357081918993},
    {"ddp", 0.03468318449969956, 0.07134139821918384},
    {"ddp_overlap", 0.03146750660964742, 0.06636332593200434},
    {"weight_sharded", 0.01416064847885257, 0.02874858234017704},
    {"zero1", 0.012394624383126069, 0.026179546196587314},
    {"zero2", 0.010788600287399577, 0.023770510052997542},
    {"fsdp", 0.007975357577111567, 0.018953567283766775},
    {"tensor_parallel", 0.026035829196801284, 0.04664635341710008},
};

TEST(Figures, AreThoseThatAgreedWithAClock) {
  for (const Figure& figure : kFigures) {
    SCOPED_TRACE(figure.strategy);
    const bool alone = find_strategy(figure.strategy).axes.empty();
    const Case c{.strategy = figure.strategy,
                 .size = {.ranks = alone ? 1 : 8, .layers = 16, .batch = 16}};
    const double h100 =
        trained(c, hardware::find_system("tests/hardware/h100_80g_nvl8.json"))->time().value;
    const double a100 =
        trained(c, hardware::find_system("tests/hardware/a100_80g.json"))->time().value;
    EXPECT_NEAR(h100, figure.h100, 1e-9 * figure.h100);
    EXPECT_NEAR(a100, figure.a100, 1e-9 * figure.a100);
  }
}

}  // namespace
}  // namespace shiplap::strategy
