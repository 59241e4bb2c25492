// check beside the oracle, on all plans of some families and on random ones.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "comparison.h"
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

// All of them, or one of so many: unoptimized, all take minutes.
TEST(Agreement, OnAllSmallPlans) {
  const std::uint64_t every = from_environment("SHIPLAP_ORACLE_EVERY", 1);
  for (const Family& family : families()) {
    Comparison comparison;
    std::size_t number = 0;
    for_each_plan(family, [&](const std::string& text) {
      if (++number % every == 0) comparison.look(family.name + " " + std::to_string(number), text);
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
    comparison.look("seed " + std::to_string(seed + k), random_small(seed + k));
  }
  summarize("random", comparison);
}

}  // namespace
}  // namespace shiplap::oracle
