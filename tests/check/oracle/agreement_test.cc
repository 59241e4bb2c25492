// check against the oracle, on all plans of some families and on random ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "comparison.h"
#include "rules.h"
#include "shrink.h"
#include "small_plans.h"

namespace shiplap::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void summarize(const std::string& title, const Comparison& comparison) {
  std::cout << title << ": " << comparison.summary() << "\n";
  for (const std::string& example : comparison.examples()) ADD_FAILURE() << example;
  EXPECT_EQ(comparison.disagreements(), 0) << title;
}

// All of them, or every n-th: unoptimized, all take minutes.
TEST(Agreement, OnAllSmallPlans) {
  const std::uint64_t every = from_environment("SHIPLAP_ORACLE_EVERY", 1);
  for (const Family& family : families()) {
    Comparison comparison;
    std::size_t number = 0;
    for_each_plan(family, [&](const std::string& text) {
      if (++number % every == 0)
        comparison.compare(family.name + " " + std::to_string(number), text);
    });
    summarize(family.name, comparison);
  }
}

TEST(Agreement, OnRandomPlans) {
  const std::uint64_t plans = from_environment("SHIPLAP_ORACLE_PLANS", 3000);
  const std::uint64_t seed = from_environment("SHIPLAP_ORACLE_SEED", 1);
  std::cout << "SHIPLAP_ORACLE_PLANS=" << plans << " SHIPLAP_ORACLE_SEED=" << seed << "\n";
  Comparison comparison;
  for (std::uint64_t k = 0; k < plans; ++k) {
    comparison.compare("seed " + std::to_string(seed + k), random_small(seed + k));
  }
  summarize("random", comparison);
}

void print(const RuleCounts& rules) {
  for (const auto& [rule, count] : rules) {
    std::cout << "  held in " << count.held << " plans, broken in " << count.broken << ": " << rule
              << "\n";
  }
}

// Plans about values, with wrong statements and wrong operations. SHIPLAP_ORACLE_SHRINK=n
// prints n small plans for each cause of a disagreement.
TEST(Agreement, OnRandomValues) {
  const std::uint64_t plans = from_environment("SHIPLAP_ORACLE_PLANS", 3000);
  const std::uint64_t seed = from_environment("SHIPLAP_ORACLE_SEED", 1);
  std::cout << "SHIPLAP_ORACLE_PLANS=" << plans << " SHIPLAP_ORACLE_SEED=" << seed << "\n";
  const std::size_t shrinks = from_environment("SHIPLAP_ORACLE_SHRINK", 0);
  Comparison comparison(Comparison::Process::own);
  for (std::uint64_t k = 0; k < plans; ++k) {
    comparison.compare("seed " + std::to_string(seed + k), random_values(seed + k));
  }
  print(comparison.rules());
  for (const auto& [cause, example] : comparison.causes()) {
    std::cout << example.count << " times: " << cause << "\n";
    const auto keeps = [&](const std::string& text) { return disagreement(text) == cause; };
    for (std::size_t k = 0; k < std::min(shrinks, example.plans.size()); ++k) {
      std::cout << example.plans[k].first << "\n" << shrunk(example.plans[k].second, keeps) << "\n";
    }
  }
  summarize("random values", comparison);
}

}  // namespace
}  // namespace shiplap::oracle
