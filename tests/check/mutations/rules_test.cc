// A plan that breaks one rule is rejected for that rule: SHIPLAP_MUTATION_PLANS=40 for more plans,
// SHIPLAP_RULE_MUTANTS=20 for more mutants of each, SHIPLAP_RULE=cast for rules and mutations that
// have this in their name.
#include "rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "rules_score.h"

namespace shiplap::mutations {
namespace {

std::int64_t number(const char* name, std::int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoll(text, nullptr, 10);
}

void print(const RuleMutation& mutation, const RuleScore& score) {
  std::cout << "| " << mutation.rule << " | " << mutation.name << " | " << score.mutants << " | "
            << score.found << " | " << score.named << " | " << score.harmless << " |";
  for (const auto& [code, count] : score.codes) std::cout << " " << code;
  if (!score.other_codes.empty()) std::cout << ", but also";
  for (const auto& [code, count] : score.other_codes) std::cout << " " << count << "x " << code;
  std::cout << " |\n";
}

TEST(BrokenRules, AreFoundAndNamed) {
  const RuleSample sample{
      .plans = std::max<std::int64_t>(1, number("SHIPLAP_MUTATION_PLANS", 12) / 2),
      .mutants = static_cast<std::size_t>(number("SHIPLAP_RULE_MUTANTS", 3))};
  const char* only = std::getenv("SHIPLAP_RULE");
  const std::vector<Sound> sound = rule_plans(static_cast<std::size_t>(150 * sample.plans));
  RuleScoring scoring(sound);
  std::cout << "| rule | mutation | mutants | found | named | harmless | codes |\n";
  for (const RuleMutation& mutation : all_rule_mutations()) {
    if (only != nullptr && (mutation.rule + ", " + mutation.name).find(only) == std::string::npos) {
      continue;
    }
    const RuleScore score = scoring.score(mutation, sample);
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
