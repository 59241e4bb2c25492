// check against the oracle, on all plans of some families and on random ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "comparison.h"
#include "rules.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
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

// Removes all statements about values, also from blocks.
void remove_facts(std::vector<plan::Statement>& body) {
  std::erase_if(body, [](const plan::Statement& statement) {
    return std::holds_alternative<plan::Fact>(statement.node);
  });
  for (plan::Statement& statement : body) {
    if (auto* repeat = std::get_if<plan::Repeat>(&statement.node)) remove_facts(repeat->body);
    if (auto* when = std::get_if<plan::When>(&statement.node)) remove_facts(when->body);
    auto* operation = std::get_if<plan::Operation>(&statement.node);
    auto* compute = operation == nullptr ? nullptr : std::get_if<plan::Compute>(&operation->action);
    if (compute == nullptr) continue;
    for (plan::Access& access : compute->accesses) access.value = {};
  }
}

plan::Plan without_values(plan::Plan plan) {
  plan.declares_values = false;
  plan.tensors.clear();
  for (plan::Program& program : plan.programs) remove_facts(program.body);
  return plan::parse_text(plan::to_text(plan), "without_values.plan");
}

// Errors that can be found without values: by code, rank and operation.
std::multiset<std::string> findings_without_values(const check::Report& report) {
  std::multiset<std::string> found;
  for (const check::Finding& finding : report.findings) {
    const std::string& code = finding.diagnostic.code;
    if (code < "D732" && code != "D714") {  // D714: messages that swap their values
      found.insert(code + " rank " + std::to_string(finding.place.rank) + " operation " +
                   std::to_string(finding.place.operation));
    }
  }
  return found;
}

// A plan without its values has the same findings about matching, deadlock and order, and no
// others.
TEST(Agreement, WithoutValues) {
  const std::uint64_t plans = from_environment("SHIPLAP_ORACLE_PLANS", 3000);
  const std::uint64_t seed = from_environment("SHIPLAP_ORACLE_SEED", 1);
  std::uint64_t sound = 0;
  std::uint64_t unsound = 0;
  for (std::uint64_t k = seed; k < seed + plans; ++k) {
    const plan::Plan plan = plan::parse_text(random_small(k), "random.plan");
    check::Report with;
    check::Report without;
    try {
      with = check::check(plan, {});
      without = check::check(without_values(plan), {});
    } catch (const InputError&) {
      continue;  // cannot be expanded
    }
    const auto expected = findings_without_values(with);
    const bool only_values = expected.empty() && !with.sound();  // stages after it are unknown
    ASSERT_TRUE(only_values || findings_without_values(without) == expected)
        << "seed " << k << ": " << testing::PrintToString(expected) << " with values, "
        << testing::PrintToString(findings_without_values(without)) << " without\n"
        << to_text(without_values(plan));
    for (const check::Finding& finding : without.findings) {
      ASSERT_LT(finding.diagnostic.code, "D732") << "seed " << k;
    }
    (without.sound() ? sound : unsound) += 1;
  }
  std::cout << sound << " sound, " << unsound << " not\n";
  EXPECT_GT(sound, plans / 50);
  EXPECT_GT(unsound, plans / 50);
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
