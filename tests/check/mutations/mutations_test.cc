// Every planted bug is found, named rightly, and located: SHIPLAP_MUTATION_PLANS=40 for the full
// run, SHIPLAP_MUTATION=17 for one of them.
#include "mutations.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "families.h"
#include "score.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::mutations {
namespace {

std::int64_t setting(const char* name, std::int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoll(text, nullptr, 10);
}

void print(const Mutation& mutation, const Score& score) {
  std::cout << std::setw(3) << mutation.number << "  " << std::left << std::setw(46)
            << mutation.name << std::right << std::setw(4) << score.applied << std::setw(4)
            << score.caught << std::setw(4) << score.right << std::setw(4)
            << median(score.findings);
  for (const auto& [answer, count] : score.wrong) std::cout << "  " << count << "x " << answer;
  std::cout << "\n";
}

TEST(Mutations, EveryOneIsCaughtNamedAndLocated) {
  const std::int64_t plans = setting("SHIPLAP_MUTATION_PLANS", 6);
  const std::int64_t only = setting("SHIPLAP_MUTATION", 0);
  const std::vector<Sound> sound = sound_plans();
  Scoring scoring(sound);
  std::vector<std::size_t> all_findings;
  std::cout << "  #  mutation, on how many plans, caught, right, median findings, wrong answers\n";
  for (const Mutation& mutation : all_mutations()) {
    if (only != 0 && mutation.number != only) continue;
    const Score score = scoring.score(mutation, plans);
    print(mutation, score);
    all_findings.insert(all_findings.end(), score.findings.begin(), score.findings.end());
    EXPECT_EQ(score.applied, plans) << mutation.name;
    EXPECT_EQ(score.caught, score.applied) << mutation.name;
    EXPECT_EQ(score.right, score.applied) << mutation.name;
    EXPECT_LE(median(score.findings), 1U) << mutation.name;
  }
  std::cout << "median findings of all: " << median(all_findings) << "\n";
}

// The text is what people see of it, and other tools read.
TEST(Mutations, AreStillPlans) {
  const std::vector<Sound> sound = sound_plans();
  for (std::size_t k = 0; k < sound.size(); k += 29) {
    const plan::Plan unrolled = plan::unrolled(sound[k].plan);
    if (!is_small(unrolled)) continue;
    for (const Mutation& mutation : all_mutations()) {
      const auto mutant = mutated(mutation, unrolled, k);
      if (!mutant) continue;
      EXPECT_NE(mutant->plan, unrolled) << mutation.name << ", " << sound[k].name;
      EXPECT_FALSE(mutant->expected.places.empty()) << mutation.name << ", " << sound[k].name;
      EXPECT_EQ(plan::parse_text(plan::to_text(mutant->plan), "mutant.plan"), mutant->plan)
          << mutation.name << ", " << sound[k].name;
      for (std::int32_t rank = 0; rank < unrolled.mesh.ranks(); ++rank) {
        EXPECT_NO_THROW((void)plan::expand(mutant->plan, Rank(rank)))
            << mutation.name << ", " << sound[k].name << ", rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::mutations
