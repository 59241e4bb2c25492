// The rules of the arithmetic: how often each was asked, and which one a plan breaks first.
#pragma once

#include <array>
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

inline constexpr std::array kRules{
    "addition: both were written",
    "addition: nothing is counted twice",
    "addition: one coefficient",
    "addition: the same cells",
    "contraction: operands of one shape",
    "contraction: reads a contribution once",
    "contraction: reads complete sums",
    "contraction: states no less than was computed",
    "contraction: states no more than was computed",
    "goal: holds",
    "linear: adds a contribution once",
    "linear: every dimension of the sum was read",
    "linear: no sum is taken apart",
    "linear: one tensor besides the one written",
    "linear: states the coefficient of the sum",
    "linear: states the contributions that were added",
    "linear: the same instance",
    "linear: the same version",
    "linear: what is summed over is whole",
    "memory: allocated once",
    "memory: freed by the end",
    "memory: used while it is allocated",
    "reads: holds",
    "scale: gradients of one scale",
    "scale: read as declared",
    "scale: states the one computed",
    "signature: an update makes the next version",
    "signature: an update of the layers of its gradients",
    "signature: loss of the last activation",
    "signature: one layer",
    "signature: operands of its kinds",
    "signature: weights of the version before",
    "statement: a step begins with old versions",
    "statement: names a contribution once",
    "zero: states zero",
};

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
