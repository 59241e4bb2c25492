// Mutations that start from the rules of docs/check.md: for each rule, edits of a sound plan that
// break it, at every statement where they fit.
//
// An edit replaces a few statements by others, and takes care that all that comes after finds what
// it found before; so only the rule at that place is broken. What the kernel `other` states is
// assumed, which makes it the adapter: it turns one value into another and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::mutations {

using Statements = std::vector<plan::Statement>;

// A statement of a plan, loops and all.
struct Site {
  const plan::Plan& plan;
  const plan::Program& program;
  const Statements& block;
  std::size_t index = 0;
  [[nodiscard]] const plan::Statement& statement() const { return block[index]; }
};

// Replaces `count` statements from the site on.
struct Edit {
  Statements with;
  std::size_t count = 1;
  // Declared for it: the last ones of their kind.
  IdVector<plan::TensorId, plan::Tensor> tensors;
  IdVector<plan::BufferId, plan::Buffer> buffers;
  // All tensors of the plan, if some are declared otherwise.
  IdVector<plan::TensorId, plan::Tensor> redeclared;
};

// How many ranks an edit concerns.
enum class Extent : std::uint8_t {
  all,     // a program as it is written, so all ranks that run it
  one,     // a rank of the unrolled plan
  corner,  // the ranks at the last position of an axis
};

struct RuleMutation {
  std::string rule;
  std::string name;
  std::vector<std::string> codes;  // or "assumed K": sound, but a kernel K is listed as assumed
  std::vector<Edit> (*edits)(const Site& site) = nullptr;
  std::vector<Extent> extents = {Extent::all, Extent::one, Extent::corner};
};
[[nodiscard]] const std::vector<RuleMutation>& all_rule_mutations();

struct RuleMutant {
  plan::Plan plan;
  std::string where;  // program, statement, which edit
};

// At most `max_count`, chosen at random from all.
[[nodiscard]] std::vector<RuleMutant> rule_mutants(const RuleMutation& mutation,
                                                   const plan::Plan& plan, Extent extent,
                                                   std::size_t max_count, std::uint64_t seed);

}  // namespace shiplap::mutations
