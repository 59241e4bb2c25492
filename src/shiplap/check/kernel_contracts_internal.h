// The contract of each kernel: what a computation may state that it writes, given what it reads.
//
// There are three kinds of kernels. `add`, `cast`, `scale` and `zero` are linear in the
// contributions of a sum. All others are contractions as in einsum: a point of the output is
// computed if every operand was read there, over the whole extent of the dimensions that the output
// does not have. Kernels of a training step (plan/kernel.h) also fix the kinds, layers, versions
// and scales of their operands. `other` is opaque: it has no contract.
//
// Both rules are about sets of points: the coordinates of a tensor's part and of its sum together.
// The output must state exactly what is computed; it may state a slice of the part.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "shiplap/check/statement_internal.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/kernel.h"

namespace shiplap::check {

struct ContractViolation {
  std::string code;
  std::string what;
  std::string why;
  std::string help;
};

// The dimensions of one tensor in another, by name.
struct DimensionMap {
  std::vector<int> place;  // by dimension of the first: its index in the second; -1: nowhere
  bool same_mask = false;
};

class KernelContracts {
 public:
  KernelContracts(const plan::Plan& plan, Statements& statements);

  // Returns the first violation of a computation, if any. `slopes` has one entry for each run of
  // the expansion, or none. Throws Asymmetric.
  [[nodiscard]] std::optional<ContractViolation> check(const plan::RankProgram& program,
                                                       std::span<const SlopeId> slopes,
                                                       const plan::flat::Operation& op);
  // Whether it writes something that no contract derives from its operands (docs/check.md).
  [[nodiscard]] bool is_assumed(const plan::flat::Operation& op);
  // Tensors of which the computations checked so far write a new version.
  [[nodiscard]] const std::set<std::int32_t>& updated_tensors() const { return updated_; }

 private:
  friend class KernelCheck;
  // The properties of a computation that do not depend on the rank.
  struct StaticInfo {
    const plan::KernelRule* rule = nullptr;
    bool simple = false;  // a contraction whose kinds, versions and scales are correct
    bool assumed = false;
    std::vector<int> layers;  // by access: offset from the computation's layer
  };
  const StaticInfo& static_info(const plan::flat::Operation& op);
  [[nodiscard]] bool assumes(const plan::Compute& compute) const;
  // Whether the operands leave a dimension, the layer or the version of an output undetermined.
  [[nodiscard]] bool has_unread_dimension(const plan::Compute& compute,
                                          const plan::Access& write) const;
  [[nodiscard]] bool names_layers(const plan::Compute& compute, bool is_linear) const;
  [[nodiscard]] bool names_versions(const plan::Compute& compute) const;
  [[nodiscard]] const plan::Tensor& tensor_of(const plan::Access& access) const {
    return plan_.tensors[access.value.tensor];
  }
  [[nodiscard]] bool keeps_kinds_and_scales(const plan::Compute& compute,
                                            const plan::KernelRule* rule) const;
  // Whether the contract holds, by the fast path; false: undecided.
  [[nodiscard]] bool fast_path_holds(const plan::RankProgram& program,
                                     std::span<const SlopeId> slopes,
                                     const plan::flat::Operation& op);
  // Whether it has one run for each dimension; returns them in `runs`.
  [[nodiscard]] bool one_run_each(const plan::RankProgram& program,
                                  const plan::flat::Access& access,
                                  std::span<const plan::flat::Run>& runs) const;
  [[nodiscard]] const DimensionMap& map(plan::TensorId from, plan::TensorId to);

  const plan::Plan& plan_;
  Statements& statements_;
  std::unordered_map<std::uint64_t, DimensionMap> maps_;  // by both tensors
  std::unordered_map<const plan::Operation*, StaticInfo> static_info_;
  std::set<std::int32_t> updated_;       // tensors
  std::vector<std::size_t> stated_run_;  // by dimension of the output
};

}  // namespace shiplap::check
