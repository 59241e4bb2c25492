// check beside the oracle: on every small plan they must come to the same end.
//
// check stops at the first stage at which a plan fails: matching, order, races, values. So the
// first stage is what is compared, under eager sends and under rendezvous.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/plan/plan.h"

namespace shiplap::oracle {

class Comparison {
 public:
  // `name` is how to find the plan again.
  void look(const std::string& name, const std::string& text);

  [[nodiscard]] std::int64_t plans() const { return plans_; }
  [[nodiscard]] std::int64_t disagreements() const { return disagreements_; }
  // A few plans on which they disagree, and what both say.
  [[nodiscard]] const std::vector<std::string>& examples() const { return examples_; }
  // How many plans, with what ends.
  [[nodiscard]] std::string summary() const;

 private:
  bool agrees(const std::string& name, const plan::Plan& plan, const check::Options& options,
              const std::string& expected);

  std::int64_t plans_ = 0;
  std::int64_t disagreements_ = 0;
  std::vector<std::string> examples_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace shiplap::oracle
