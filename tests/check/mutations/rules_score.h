// How check does on plans that break one rule: it must object, with one of the codes of that rule,
// with and without symmetry. A mutant that it calls sound is shown to the oracle: if that finds
// nothing either, the edit broke no rule there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "families.h"
#include "rules.h"

namespace shiplap::mutations {

struct RuleScore {
  std::int64_t mutants = 0;  // that break the rule
  std::int64_t found = 0;
  std::int64_t named = 0;     // by one of the codes of the rule
  std::int64_t harmless = 0;  // sound, as the oracle says too
  std::map<std::string, std::int64_t> codes;
  std::map<std::string, std::int64_t> other_codes;
  std::vector<std::string> holes;       // called sound, and are not
  std::vector<std::string> asymmetric;  // another verdict without symmetry
};

struct RuleSample {
  std::int64_t plans = 4;   // with a place for the mutation
  std::size_t mutants = 2;  // of each plan, for each extent
};

class RuleScoring {
 public:
  explicit RuleScoring(std::span<const Sound> sound) : sound_(sound) {}
  // An example of each hole, and of each code that is not one of the rule, is kept in
  // /tmp/mutations.
  [[nodiscard]] RuleScore score(const RuleMutation& mutation, const RuleSample& sample);

 private:
  std::span<const Sound> sound_;
  std::vector<plan::Plan> unrolled_;  // as far as they were needed
  std::vector<bool> usable_;          // small, and sound
};

// Sound plans of every family, and random ones about values and about meetings.
[[nodiscard]] std::vector<Sound> rule_plans(std::size_t most);

}  // namespace shiplap::mutations
