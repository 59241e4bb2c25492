// The catalogue of planted bugs: 54 ways to break a sound plan, each with the expected finding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/plan/plan.h"

namespace shiplap::mutations {

class Draft;
struct Outcome;

// What the first finding must be: one of the codes at one of the places.
struct Expected {
  std::vector<std::string> codes;
  std::vector<check::OperationId> places;
  bool only_rendezvous = false;
};

struct Mutant {
  plan::Plan plan;
  Expected expected;
  std::string what;  // was done, and where
};

struct Mutation {
  int number = 0;  // as in the catalogue
  std::string name;
  std::optional<Outcome> (*apply)(Draft& draft, class Planter& planter) = nullptr;
};
[[nodiscard]] const std::vector<Mutation>& all_mutations();

// `unrolled`: what plan::unrolled gives. None: there is no place for this bug in this plan.
[[nodiscard]] std::optional<Mutant> mutated(const Mutation& mutation, const plan::Plan& unrolled,
                                            std::uint64_t seed);

// Whether the finding is what was expected.
[[nodiscard]] bool is_expected(const check::Finding& finding, const Expected& expected);

}  // namespace shiplap::mutations
