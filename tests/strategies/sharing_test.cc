// Ranks that share a program: the shared program, expanded for a rank, equals the rank's own
// program, number by number.
#include <gtest/gtest.h>

#include <string>

#include "../flat_text.h"
#include "cases.h"
#include "shiplap/plan/expand.h"
#include "shiplap/strategy/rank_program_internal.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap::strategy {
namespace {

plan::Plan plan_of_one_rank(const plan::Plan& shared, plan::Program program, std::int64_t rank) {
  plan::Plan plan = shared;
  plan.lists.clear();
  plan.programs.clear();
  program.name = "own";
  program.on.terms = {{.axis = {}, .positions = {{.first = rank, .last = rank}}}};
  plan.programs.push_back(std::move(program));
  return plan;
}

void expect_what_each_rank_did(const Case& c, const hardware::System& system) {
  SCOPED_TRACE(testing::Message() << c);
  const auto trainer = trained(c, system);
  const plan::Plan shared = to_plan(*trainer);
  GrainBuilder grains;
  for (const auto& model : trainer->models()) grains.add(model->recording());
  const Grain grain = grains.build();
  const Tensors tensors(trainer->training(), grain);
  const LayerClasses classes(trainer->world().shape);
  const LoweringContext lowering{
      .dist = trainer->dist(), .grain = grain, .classes = classes, .tensors = tensors};
  for (const auto& model : trainer->models()) {
    const plan::Plan own = plan_of_one_rank(
        shared, rank_program(lowering, model->rank(), model->recording()), model->rank());
    const plan::RankProgram a = plan::expand(own, Rank(model->rank()), plan::ProgramId(0));
    const plan::RankProgram b = plan::expand(shared, Rank(model->rank()));
    ASSERT_EQ(plan::flat_text(a), plan::flat_text(b)) << "rank " << model->rank();
  }
}

class Sharing : public testing::TestWithParam<int> {};

TEST_P(Sharing, TheSharedProgramSaysWhatEachRankDid) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const Case& c : all_cases(GetParam())) expect_what_each_rank_did(c, system);
}

// Of more than 64 ranks with equal steps, only a sample is lowered.
TEST(Sharing, HoldsForRanksThatWereNotLowered) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const StrategyInfo& entry : strategies()) {
    // One that is interleaved would need as many microbatches as stages.
    if (entry.axes.empty() || entry.split == WorkSplit::chunks) continue;
    const bool pipeline = entry.axes.front() == "pp" && entry.axes.size() == 1;
    const int chunks = entry.split == WorkSplit::two_chunks ? 2 : 1;
    const int layers = pipeline ? 128 * chunks : 2;
    const int batch = pipeline ? 2 : 128;
    expect_what_each_rank_did(
        {.strategy = entry.name, .size = {.ranks = 128, .layers = layers, .batch = batch}}, system);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sharing, testing::Values(1, 2, 4, 8));

TEST(Sharing, RanksThatDoTheSameShareOneProgram) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const std::string name : {"ddp", "ddp_overlap", "zero1", "zero2", "fsdp", "weight_sharded",
                                 "tensor_parallel", "tensor_parallel_fsdp"}) {
    const Case c{.strategy = name, .size = {.ranks = 64, .layers = 4, .batch = 128}};
    SCOPED_TRACE(name);
    const plan::Plan plan = to_plan(*trained(c, system));
    EXPECT_EQ(plan.programs.size(), 1U);
    EXPECT_TRUE(plan.lists.empty());
  }
  const Case pipeline{.strategy = "1f1b", .size = {.ranks = 8, .layers = 8, .batch = 16}};
  EXPECT_EQ(to_plan(*trained(pipeline, system)).programs.size(), 8U);
}

}  // namespace
}  // namespace shiplap::strategy
