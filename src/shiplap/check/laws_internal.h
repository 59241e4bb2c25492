// The rules that a computation obeys by what it states alone.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shiplap/check/kernel_contracts_internal.h"
#include "shiplap/check/trouble_internal.h"
#include "shiplap/plan/expand.h"

namespace shiplap::check {

class Laws {
 public:
  Laws(const plan::Plan& plan, Statements& statements);
  // Adds what breaks a rule, once for each computation. Throws Asymmetric.
  void look(const plan::RankProgram& program, std::span<const SlopeId> slopes,
            std::vector<Trouble>& troubles);
  // Adds what only all ranks together break.
  void finish(std::vector<Trouble>& troubles) const;
  // Computations that were held against the contracts of their kernels.
  [[nodiscard]] std::int64_t computations() const { return computations_; }
  // Those that state what no contract derives from what they read, by kernel.
  [[nodiscard]] const std::map<std::string, std::int64_t>& assumed() const { return assumed_; }

 private:
  // Rows that one computation writes twice; contributions that one value names twice.
  bool once(const plan::flat::Operation& op);
  bool distinct(const plan::flat::Value& value);
  void facts();
  void sizes(const plan::flat::Operation& op);
  bool apart(const plan::flat::Operation& op);
  void misshapen(std::string code, std::string what, std::string why, std::string help);
  [[nodiscard]] bool is_cut(const plan::flat::Operation& op,
                            const plan::Collective& collective) const;
  void misshapen_cut(const plan::flat::Operation& op, const plan::Collective& collective);
  // How many rows `to` must have; -1: none would do.
  [[nodiscard]] std::int64_t rows_due(const plan::flat::Operation& op,
                                      const plan::Collective& collective) const;
  [[nodiscard]] Trouble trouble(std::string code, std::string what, std::string why,
                                std::string help) const;
  bool tell(std::string code, std::string what, std::string why, std::string help);

  const plan::Plan& plan_;
  KernelContracts contracts_;
  std::int64_t computations_ = 0;
  std::map<std::string, std::int64_t> assumed_;
  std::map<std::int32_t, Trouble> begins_new_;  // tensors of which a rank is given one
  // Of the program that is looked at:
  const plan::RankProgram* program_ = nullptr;
  std::vector<Trouble>* troubles_ = nullptr;
  std::int32_t op_ = 0;
};

}  // namespace shiplap::check
