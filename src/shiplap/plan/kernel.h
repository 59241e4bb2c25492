// The operands of known kernels, one rule each. A kernel without a rule is only checked against the
// rules that apply to all kernels (docs/check.md).
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace shiplap::plan {

// Tensors of a kind, at the layer of the computation plus `layer`.
struct Operand {
  std::string_view kind;  // "Activation"
  int layer = 0;
  bool optional = false;
};

struct KernelRule {
  std::string_view kernel;
  std::span<const Operand> reads;
  std::span<const Operand> writes;
};

// The kernels that have a rule, those that are linear, and the opaque one.
[[nodiscard]] std::vector<std::string_view> kernel_names();

// Returns null if there is none.
[[nodiscard]] const KernelRule* find_kernel_rule(std::string_view kernel);

// Whether it may read a partial sum: `zero`, `add`, `scale`, `cast`.
[[nodiscard]] bool is_linear(std::string_view kernel);

// The contents that it declares are not checked.
inline constexpr std::string_view kOpaqueKernel = "other";
inline constexpr std::string_view kUpdateKernel = "update";

}  // namespace shiplap::plan
