// What a computation may state to write, given its kernel and what it states to read.
//
// There are three kinds of kernels. `add`, `cast`, `scale` and `zero` are linear in the
// contributions of a sum. All others are contractions, the rule of an einsum: a point of the output
// is computed if every operand was read there, over the whole of the dimensions that the output
// does not have. Those of a training step (plan/kernel.h) also have operands of certain kinds,
// layers, versions and scales. `other` is opaque: nothing is asked of it.
//
// Both rules are about sets of points: the coordinates of a tensor's part and of its sum together.
// What is computed must be what is stated, no more and no less; of the part, a slice may be stated.
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

struct BrokenContract {
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

  // The first contract that a computation breaks, if any. `slopes` has one entry for each run of
  // the expansion, or none. Throws Asymmetric.
  [[nodiscard]] std::optional<BrokenContract> check(const plan::RankProgram& program,
                                                    std::span<const SlopeId> slopes,
                                                    const plan::flat::Operation& op);
  // Whether it writes something that no contract derives from what it reads: docs/check.md lists
  // what that is.
  [[nodiscard]] bool is_assumed(const plan::flat::Operation& op);
  // Those of which a new version is made, by the computations that were asked for so far.
  [[nodiscard]] const std::set<std::int32_t>& updated_tensors() const { return updated_; }

 private:
  friend class KernelCheck;
  // What is known of a computation before any rank is looked at.
  struct Static {
    const plan::KernelRule* rule = nullptr;
    bool plain = false;  // a contraction whose kinds, versions and scales are as they must be
    bool assumed = false;
    std::vector<int> layers;  // by access: how far its layer is from the computation's
  };
  const Static& static_part(const plan::flat::Operation& op);
  [[nodiscard]] bool assumes(const plan::Compute& compute) const;
  // What it writes that nothing says which it reads: a dimension; a layer; a version.
  [[nodiscard]] bool has_unread_dimension(const plan::Compute& compute,
                                          const plan::Access& write) const;
  [[nodiscard]] bool names_layers(const plan::Compute& compute, bool is_linear) const;
  [[nodiscard]] bool names_versions(const plan::Compute& compute) const;
  [[nodiscard]] const plan::Tensor& tensor_of(const plan::Access& access) const {
    return plan_.tensors[access.value.tensor];
  }
  [[nodiscard]] bool keeps_kinds_and_scales(const plan::Compute& compute,
                                            const plan::KernelRule* rule) const;
  // Whether the contract holds, where that is plain to see.
  [[nodiscard]] bool holds_plainly(const plan::RankProgram& program,
                                   std::span<const SlopeId> slopes,
                                   const plan::flat::Operation& op);
  // Whether it has one run for each dimension, and which.
  [[nodiscard]] bool one_run_each(const plan::RankProgram& program,
                                  const plan::flat::Access& access,
                                  std::span<const plan::flat::Run>& runs) const;
  [[nodiscard]] const DimensionMap& map(plan::TensorId from, plan::TensorId to);

  const plan::Plan& plan_;
  Statements& statements_;
  std::unordered_map<std::uint64_t, DimensionMap> maps_;  // by both tensors
  std::unordered_map<const plan::Operation*, Static> static_;
  std::set<std::int32_t> updated_;       // tensors
  std::vector<std::size_t> stated_run_;  // by dimension of what is written
};

}  // namespace shiplap::check
