// check beside the oracle: on every small plan they must come to the same end.
//
// check stops at the first stage at which a plan fails: matching, order, races, values. So the
// first stage is what is compared, under eager sends and under rendezvous.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "oracle.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "small_plans.h"

namespace shiplap::oracle {
namespace {

const std::string kSound = "sound";
const std::string kMatching = "matching";
const std::string kOrder = "order";
const std::string kRace = "race";
const std::string kEither = "order or race";  // two findings about one rank: either comes first
const std::string kValues = "values";

std::string stage(const Verdict& verdict, check::Sends sends) {
  const bool waits =
      verdict.deadlock_eager || (sends == check::Sends::rendezvous && verdict.deadlock_rendezvous);
  if (!verdict.matched) return kMatching;
  if (waits) return kOrder;
  if (verdict.unordered && verdict.race) return kEither;
  if (verdict.unordered) return kOrder;
  if (verdict.race) return kRace;
  return verdict.values_wrong ? kValues : kSound;
}

bool same(const std::string& expected, const std::string& found) {
  return expected == found || (expected == kEither && (found == kOrder || found == kRace));
}

// That no value was looked at (D760) is no concern of the oracle's.
std::string stage_of(const std::string& code, bool followed_values) {
  if (code == "D760") return kSound;
  if (code == "D714" && followed_values) return kValues;  // seen by what was delivered
  if (code < "D720") return kMatching;
  if (code < "D730") return kOrder;
  return code == "D730" || code == "D731" ? kRace : kValues;
}

std::string stage(const check::Report& report) {
  const std::vector<std::string> order{kMatching, kOrder, kRace, kValues, kSound};
  std::size_t first = order.size() - 1;
  const bool followed = std::ranges::any_of(report.examined, [](const check::Examined& examined) {
    return examined.property == "statements" && examined.reached;
  });
  for (const check::Finding& finding : report.findings) {
    if (finding.diagnostic.severity != Severity::error) continue;
    const auto found = std::ranges::find(order, stage_of(finding.diagnostic.code, followed));
    first = std::min(first, static_cast<std::size_t>(found - order.begin()));
  }
  return order[first];
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Some rank that is no spare does nothing: check says so (D700) and no more.
bool is_idle(const plan::Plan& plan) {
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const plan::RankProgram program = plan::expand(plan, Rank(rank));
    if (program.program.exists() && program.operations.empty()) return true;
  }
  return false;
}

class Comparison {
 public:
  // `name` is how to find the plan again.
  void look(const std::string& name, const std::string& text) {
    const plan::Plan plan = plan::parse_text(text, "small.plan");
    Verdict verdict = judge(plan);
    if (is_idle(plan)) verdict.matched = false;
    const std::string eager = stage(verdict, check::Sends::eager);
    const std::string rendezvous = stage(verdict, check::Sends::rendezvous);
    ++plans_;
    ++counts_[eager];
    ++counts_[rendezvous];
    const bool agree =
        agrees(name + ", eager", plan, {.sends = check::Sends::eager}, eager) &&
        agrees(name + ", rendezvous", plan, {.sends = check::Sends::rendezvous}, rendezvous) &&
        agrees(name + ", both", plan, {}, rendezvous) &&
        agrees(name + ", without symmetry", plan, {.symmetry = false}, rendezvous);
    if (!agree) ++disagreements_;
  }

  void summarize(const std::string& title) const {
    std::cout << title << ": " << plans_ << " plans, each twice:";
    for (const auto& [what, count] : counts_) std::cout << " " << count << " " << what;
    std::cout << "; " << disagreements_ << " disagreements\n";
    EXPECT_EQ(disagreements_, 0U) << title;
  }

 private:
  bool agrees(const std::string& name, const plan::Plan& plan, const check::Options& options,
              const std::string& expected) {
    std::string found;
    std::string said;
    try {
      const check::Report report = check::check(plan, options);
      found = stage(report);
      for (const check::Finding& finding : report.findings) said += render(finding.diagnostic);
    } catch (const std::exception& error) {
      found = std::string("nothing but ") + error.what();
    }
    if (same(expected, found)) return true;
    constexpr std::size_t kMost = 3;
    if (disagreements_ < kMost) {
      ADD_FAILURE() << name << ": the oracle says " << expected << ", check says " << found << "\n"
                    << said << plan::to_text(plan);
    }
    return false;
  }

  std::size_t plans_ = 0;
  std::size_t disagreements_ = 0;
  std::map<std::string, int> counts_;
};

TEST(Agreement, OnAllSmallPlans) {
  for (const Family& family : families()) {
    Comparison comparison;
    std::size_t number = 0;
    for_each_plan(family, [&](const std::string& text) {
      comparison.look(family.name + " " + std::to_string(number++), text);
    });
    comparison.summarize(family.name);
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
  comparison.summarize("random");
}

}  // namespace
}  // namespace shiplap::oracle
