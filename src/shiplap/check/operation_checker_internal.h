// Checks that need one operation only: shapes of its regions, rows written twice, kernel contracts.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shiplap/check/kernel_contracts_internal.h"
#include "shiplap/check/violation_internal.h"
#include "shiplap/plan/expand.h"

namespace shiplap::check {

class OperationChecker {
 public:
  OperationChecker(const plan::Plan& plan, Statements& statements);
  // Appends the violations of one rank's program, at most one for each computation. Throws
  // Asymmetric.
  void check_program(const plan::RankProgram& program, std::span<const SlopeId> slopes,
                     std::vector<Violation>& violations);
  // Appends violations that depend on the programs of all ranks.
  void finish(std::vector<Violation>& violations) const;
  // Computations that were checked against the contracts of their kernels.
  [[nodiscard]] std::int64_t computations() const { return computations_; }
  // Computations whose output no contract derives from their operands, by kernel.
  [[nodiscard]] const std::map<std::string, std::int64_t>& assumed() const { return assumed_; }

 private:
  // These two return false if a computation writes rows twice, or a value names a contribution
  // twice.
  bool check_written_once(const plan::flat::Operation& op);
  bool check_distinct(const plan::flat::Value& value);
  void check_facts();
  void check_sizes(const plan::flat::Operation& op);
  bool regions_allowed(const plan::flat::Operation& op);
  void report_shape(std::string code, std::string what, std::string why, std::string help);
  [[nodiscard]] bool splits_rows(const plan::flat::Operation& op,
                                 const plan::Collective& collective) const;
  void report_split(const plan::flat::Operation& op, const plan::Collective& collective);
  // How many rows `to` must have; -1: no number is correct.
  [[nodiscard]] std::int64_t expected_rows(const plan::flat::Operation& op,
                                           const plan::Collective& collective) const;
  [[nodiscard]] Violation make_violation(std::string code, std::string what, std::string why,
                                         std::string help) const;
  bool report(std::string code, std::string what, std::string why, std::string help);

  const plan::Plan& plan_;
  KernelContracts contracts_;
  std::int64_t computations_ = 0;
  std::map<std::string, std::int64_t> assumed_;
  std::map<std::int32_t, Violation> given_new_;  // by tensor: a rank is given its new version
  // Of the current program:
  const plan::RankProgram* program_ = nullptr;
  std::vector<Violation>* violations_ = nullptr;
  std::int32_t op_ = 0;
};

}  // namespace shiplap::check
