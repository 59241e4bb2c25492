#include "shiplap/plan/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "shiplap/plan/value.h"

namespace shiplap::plan {
namespace {

using testing::ElementsAre;

constexpr std::string_view kKernels[] = {"forward",         "loss",  "backward", "backward_input",
                                         "backward_weight", "update"};

// "Weight", "Activation+1", "OptState?".
std::vector<std::string> to_strings(std::span<const Operand> operands) {
  std::vector<std::string> result;
  for (const Operand& operand : operands) {
    std::string text(operand.kind);
    if (operand.layer != 0) text += "+" + std::to_string(operand.layer);
    result.push_back(text + (operand.optional ? "?" : ""));
  }
  return result;
}

TEST(KernelRule, IsFoundByItsName) {
  for (const std::string_view kernel : kKernels) {
    const KernelRule* rule = find_kernel_rule(kernel);
    ASSERT_NE(rule, nullptr) << kernel;
    EXPECT_EQ(rule->kernel, kernel);
  }
}

TEST(KernelRule, OfOtherNamesIsNone) {
  for (const std::string_view kernel :
       {"", "Forward", "forward ", "for", "attention", "other", "zero", "add", "scale", "cast"}) {
    EXPECT_EQ(find_kernel_rule(kernel), nullptr) << kernel;
  }
  EXPECT_EQ(find_kernel_rule(kOpaqueKernel), nullptr);
  EXPECT_NE(find_kernel_rule(kUpdateKernel), nullptr);
}

TEST(KernelRule, OfALayerTakesItsInputAndMakesTheNext) {
  const KernelRule& forward = *find_kernel_rule("forward");
  EXPECT_THAT(to_strings(forward.reads), ElementsAre("Activation", "Weight"));
  EXPECT_THAT(to_strings(forward.writes), ElementsAre("Activation+1"));
  const KernelRule& loss = *find_kernel_rule("loss");
  EXPECT_THAT(to_strings(loss.reads), ElementsAre("Activation"));
  EXPECT_THAT(to_strings(loss.writes), ElementsAre("ActivationGrad"));
}

// The outputs of backward_input and backward_weight together are those of backward, and each reads
// the gradient of the output.
TEST(KernelRule, OfBackwardIsThatOfItsHalves) {
  const KernelRule& whole = *find_kernel_rule("backward");
  EXPECT_THAT(to_strings(whole.reads), ElementsAre("Activation", "ActivationGrad+1", "Weight"));
  std::vector<std::string> made;
  for (const char* half : {"backward_input", "backward_weight"}) {
    const KernelRule& rule = *find_kernel_rule(half);
    std::set<std::string_view> kinds;
    for (const Operand& operand : rule.reads) {
      kinds.insert(operand.kind);
      EXPECT_EQ(operand.layer, operand.kind == "ActivationGrad" ? 1 : 0) << half;
      EXPECT_TRUE(operand.kind != "ActivationGrad" || !operand.optional) << half;
    }
    EXPECT_EQ(kinds, (std::set<std::string_view>{"Activation", "ActivationGrad", "Weight"}));
    for (const std::string& made_here : to_strings(rule.writes)) made.push_back(made_here + "?");
  }
  EXPECT_EQ(to_strings(whole.writes), made);
}

TEST(KernelRule, OfUpdateKeepsEveryVersion) {
  const KernelRule& update = *find_kernel_rule(kUpdateKernel);
  EXPECT_THAT(to_strings(update.reads), ElementsAre("WeightGrad", "Weight", "OptState?"));
  EXPECT_THAT(to_strings(update.writes), ElementsAre("Weight", "OptState?"));
  for (const Operand& operand : update.writes) {
    EXPECT_TRUE(Tensor{.kind = std::string(operand.kind)}.has_versions()) << operand.kind;
  }
}

TEST(KernelRule, NamesEachKindOncePerSide) {
  for (const std::string_view kernel : kKernels) {
    const KernelRule& rule = *find_kernel_rule(kernel);
    for (const std::span<const Operand> side : {rule.reads, rule.writes}) {
      std::set<std::string_view> kinds;
      for (const Operand& operand : side) {
        EXPECT_TRUE(kinds.insert(operand.kind).second) << kernel << " " << operand.kind;
      }
      EXPECT_FALSE(side.empty()) << kernel;
    }
  }
}

TEST(Linear, AreFourKernels) {
  for (const std::string_view kernel : {"zero", "add", "scale", "cast"}) {
    EXPECT_TRUE(is_linear(kernel)) << kernel;
  }
  for (const std::string_view kernel : {"", "Add", "adds", "other", "update"}) {
    EXPECT_FALSE(is_linear(kernel)) << kernel;
  }
  for (const std::string_view kernel : kKernels) EXPECT_FALSE(is_linear(kernel)) << kernel;
}

}  // namespace
}  // namespace shiplap::plan
