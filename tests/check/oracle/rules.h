// The rules of the arithmetic: how often each was asked, and which one a plan breaks first.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace shiplap::oracle {

struct RuleCount {
  std::int64_t held = 0;
  std::int64_t broken = 0;  // 1 at most, in one plan: it ends there
};
using RuleCounts = std::map<std::string, RuleCount>;  // by the name of the rule

class RuleBroken : public std::runtime_error {
 public:
  explicit RuleBroken(const std::string& rule) : std::runtime_error(rule) {}
};

class Rules {
 public:
  // Throws RuleBroken unless it holds.
  void require(const std::string& rule, bool holds) {
    RuleCount& count = counts_[rule];
    ++(holds ? count.held : count.broken);
    if (!holds) throw RuleBroken(rule);
  }
  [[nodiscard]] const RuleCounts& counts() const { return counts_; }

 private:
  RuleCounts counts_;
};

}  // namespace shiplap::oracle
