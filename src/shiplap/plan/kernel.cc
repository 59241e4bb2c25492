#include "shiplap/plan/kernel.h"

#include <algorithm>
#include <array>

namespace shiplap::plan {
namespace {

constexpr std::array kForwardReads{Operand{"Activation", 0}, Operand{"Weight", 0}};
constexpr std::array kForwardWrites{Operand{"Activation", 1}};
constexpr std::array kLossReads{Operand{"Activation", 0}};
constexpr std::array kLossWrites{Operand{"ActivationGrad", 0}};
constexpr std::array kBackwardReads{Operand{"Activation", 0}, Operand{"ActivationGrad", 1},
                                    Operand{"Weight", 0}};
constexpr std::array kBackwardWrites{Operand{"ActivationGrad", 0, true},
                                     Operand{"WeightGrad", 0, true}};
constexpr std::array kInputReads{Operand{"ActivationGrad", 1}, Operand{"Weight", 0},
                                 Operand{"Activation", 0, true}};
constexpr std::array kInputWrites{Operand{"ActivationGrad", 0}};
constexpr std::array kWeightReads{Operand{"Activation", 0}, Operand{"ActivationGrad", 1},
                                  Operand{"Weight", 0, true}};
constexpr std::array kWeightWrites{Operand{"WeightGrad", 0}};
constexpr std::array kUpdateReads{Operand{"WeightGrad", 0}, Operand{"Weight", 0},
                                  Operand{"OptState", 0, true}};
constexpr std::array kUpdateWrites{Operand{"Weight", 0}, Operand{"OptState", 0, true}};

constexpr std::array kRules{
    KernelRule{"forward", kForwardReads, kForwardWrites},
    KernelRule{"loss", kLossReads, kLossWrites},
    KernelRule{"backward", kBackwardReads, kBackwardWrites},
    KernelRule{"backward_input", kInputReads, kInputWrites},
    KernelRule{"backward_weight", kWeightReads, kWeightWrites},
    KernelRule{kUpdateKernel, kUpdateReads, kUpdateWrites},
};

constexpr std::array<std::string_view, 4> kLinear{"zero", "add", "scale", "cast"};

}  // namespace

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names;
  for (const KernelRule& rule : kRules) names.push_back(rule.kernel);
  names.insert(names.end(), kLinear.begin(), kLinear.end());
  names.push_back(kOpaqueKernel);
  return names;
}

const KernelRule* find_kernel_rule(std::string_view kernel) {
  const auto found = std::ranges::find(kRules, kernel, &KernelRule::kernel);
  return found == kRules.end() ? nullptr : &*found;
}

bool is_linear(std::string_view kernel) {
  return std::ranges::find(kLinear, kernel) != kLinear.end();
}

}  // namespace shiplap::plan
