// check against the oracle: on every small plan both must have the same verdict.
//
// check stops at the first stage at which a plan fails: matching, order, races, values. So the
// first stage is what is compared, under eager sends and under rendezvous.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rules.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/plan.h"

namespace shiplap::oracle {

class Comparison {
 public:
  // Where check runs: a crash in a separate process counts as a disagreement.
  enum class Process : std::uint8_t { same, own };
  explicit Comparison(Process process = Process::same) : process_(process) {}

  // `name` is how to find the plan again.
  void compare(const std::string& name, const std::string& text);

  [[nodiscard]] std::int64_t plans() const { return plans_; }
  [[nodiscard]] std::int64_t disagreements() const { return disagreements_; }
  // A few plans on which they disagree, and both verdicts.
  [[nodiscard]] const std::vector<std::string>& examples() const { return examples_; }
  // How many plans, with what ends.
  [[nodiscard]] std::string summary() const;

  // Disagreements of one cause: the rule that the oracle sees broken, the code that check gives.
  struct Cause {
    std::int64_t count = 0;
    std::vector<std::pair<std::string, std::string>> plans;  // name and text of the first few
  };
  [[nodiscard]] const std::map<std::string, Cause>& causes() const { return causes_; }
  // By rule: in how many plans it was asked and held, and how many plans it ended.
  [[nodiscard]] const RuleCounts& rules() const { return rules_; }

 private:
  Process process_;
  std::int64_t plans_ = 0;
  std::int64_t disagreements_ = 0;
  std::vector<std::string> examples_;
  std::map<std::string, std::int64_t> counts_;
  std::map<std::string, Cause> causes_;
  RuleCounts rules_;
};

// In a process of its own. Returns the cause; "" if they agree, or if the text has no meaning.
[[nodiscard]] std::string disagreement(const std::string& text);

}  // namespace shiplap::oracle
