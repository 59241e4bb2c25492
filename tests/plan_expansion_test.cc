// Properties of expansion: it depends on the meaning of a program, not on how it is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "flat_text.h"
#include "random_plan.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

std::vector<Plan> sound_plans() {
  std::vector<Plan> plans;
  for (const auto& entry : std::filesystem::directory_iterator("examples/plans")) {
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    plans.push_back(parse_text(text, entry.path().string()));
  }
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    plans.push_back(parse_text(random_sound_text(seed), "seed " + std::to_string(seed)));
  }
  return plans;
}

void expect_same_expansions(const Plan& a, const Plan& b, std::size_t which) {
  for (std::int32_t rank = 0; rank < a.mesh.ranks(); ++rank) {
    ASSERT_EQ(expansion_text(a, Rank(rank)), expansion_text(b, Rank(rank)))
        << "plan " << which << " rank " << rank << "\n"
        << to_text(a) << "\n----\n"
        << to_text(b);
  }
}

template <class Change>
void expect_no_difference(const Change& change) {
  const std::vector<Plan> plans = sound_plans();
  for (std::size_t k = 0; k < plans.size(); ++k) {
    Plan changed = plans[k];
    change(changed);
    expect_same_expansions(plans[k], changed, k);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Expansion, MostRandomPlansOfThisTestAreSound) {
  std::size_t sound = 0;
  const std::vector<Plan> plans = sound_plans();
  for (const Plan& plan : plans) {
    const std::string text = expansion_text(plan, Rank(std::int32_t{0}));
    sound += text.starts_with("refused") ? 0 : 1;
  }
  EXPECT_GT(sound * 10, plans.size() * 8);
}

TEST(Expansion, IsThatOfThePlanReadAgain) {
  expect_no_difference([](Plan& plan) { plan = parse_text(to_text(plan), "again"); });
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Plan plan = random_plan(seed);
    expect_same_expansions(plan, parse_text(to_text(plan), "again"), seed);
  }
}

TEST(Expansion, DoesNotDependOnTheOrderOfPrograms) {
  expect_no_difference([](Plan& plan) { std::ranges::reverse(plan.programs); });
}

// One block per iteration, in which the counter is a `let`.
void unroll(std::vector<Statement>& body) {
  std::vector<Statement> result;
  for (Statement& statement : body) {
    if (auto* when = std::get_if<When>(&statement.node)) unroll(when->body);
    auto* repeat = std::get_if<Repeat>(&statement.node);
    if (repeat == nullptr || !repeat->count.is_literal()) {
      result.push_back(std::move(statement));
      continue;
    }
    unroll(repeat->body);
    for (std::int64_t k = 0; k < repeat->count.literal(); ++k) {
      When once{.condition = {{0, Comparator::equal, 0}}};
      once.body.push_back({Let{.variable = repeat->variable, .value = k}});
      once.body.insert(once.body.end(), repeat->body.begin(), repeat->body.end());
      result.push_back({std::move(once)});
    }
  }
  body = std::move(result);
}

TEST(Expansion, OfALoopIsThatOfItsBodyWrittenOutByHand) {
  expect_no_difference([](Plan& plan) {
    for (Program& program : plan.programs) unroll(program.body);
  });
}

// A block whose condition always holds changes nothing; one whose condition never holds is empty.
TEST(Expansion, ABlockUnderACertainConditionIsItsContent) {
  expect_no_difference([](Plan& plan) {
    for (Program& program : plan.programs) {
      When always{.condition = {{Expr::rank(), Comparator::greater_equal, 0}}};
      always.body = std::move(program.body);
      When never{.condition = {{Expr::rank(), Comparator::less, 0}}, .body = always.body};
      program.body.clear();
      program.body.push_back({std::move(never)});
      program.body.push_back({std::move(always)});
    }
  });
}

}  // namespace
}  // namespace shiplap::plan
