// A plan that breaks one law is refused, for that law: SHIPLAP_MUTATION_PLANS=40 for more plans,
// SHIPLAP_LAW_MUTANTS=20 for more mutants of each, SHIPLAP_LAW=cast for laws and mutations that
// have this in their name.
#include "laws.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "laws_score.h"

namespace shiplap::mutations {
namespace {

std::int64_t number(const char* name, std::int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoll(text, nullptr, 10);
}

void print(const LawMutation& mutation, const LawScore& score) {
  std::cout << "| " << mutation.law << " | " << mutation.name << " | " << score.mutants << " | "
            << score.found << " | " << score.named << " | " << score.harmless << " |";
  for (const auto& [code, count] : score.codes) std::cout << " " << code;
  if (!score.other_codes.empty()) std::cout << ", but also";
  for (const auto& [code, count] : score.other_codes) std::cout << " " << count << "x " << code;
  std::cout << " |\n";
}

TEST(BrokenLaws, AreFoundAndNamed) {
  const LawSample sample{
      .plans = std::max<std::int64_t>(1, number("SHIPLAP_MUTATION_PLANS", 12) / 2),
      .mutants = static_cast<std::size_t>(number("SHIPLAP_LAW_MUTANTS", 3))};
  const char* only = std::getenv("SHIPLAP_LAW");
  const std::vector<Sound> sound = law_plans(static_cast<std::size_t>(150 * sample.plans));
  LawScoring scoring(sound);
  std::cout << "| law | mutation | mutants | found | named | harmless | codes |\n";
  for (const LawMutation& mutation : all_law_mutations()) {
    if (only != nullptr && (mutation.law + ", " + mutation.name).find(only) == std::string::npos) {
      continue;
    }
    const LawScore score = scoring.score(mutation, sample);
    print(mutation, score);
    EXPECT_GT(score.mutants, 0) << mutation.name;
    EXPECT_EQ(score.found, score.mutants) << mutation.name;
    EXPECT_EQ(score.named, score.found) << mutation.name;
    EXPECT_THAT(score.holes, testing::IsEmpty()) << mutation.name;
    EXPECT_THAT(score.asymmetric, testing::IsEmpty()) << mutation.name;
  }
}

}  // namespace
}  // namespace shiplap::mutations
