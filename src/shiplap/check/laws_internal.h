// The rules that a computation obeys by what it states alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/check/statement_internal.h"
#include "shiplap/check/trouble_internal.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/kernel.h"

namespace shiplap::check {

class Laws {
 public:
  Laws(const plan::Plan& plan, Statements& statements);
  // Adds what breaks a rule, once for each computation. Returns how many were looked at. Throws
  // Asymmetric.
  std::int64_t look(const plan::RankProgram& program, std::span<const SlopeId> slopes,
                    std::vector<Trouble>& troubles);

 private:
  // Where a dimension of one tensor is in another: its part, its sum, or nowhere.
  enum class Side : std::uint8_t { part, sum, nowhere };
  struct Found {
    Side side = Side::nowhere;
    plan::DimensionId dimension;
  };
  [[nodiscard]] Found find(const plan::Tensor& in, const std::string& name) const;
  [[nodiscard]] SumPart set_of(const plan::flat::Value& value, plan::DimensionId dimension) const;
  bool signature(const plan::flat::Operation& op, const plan::KernelRule& rule);
  bool side(const plan::flat::Operation& op, std::span<const plan::Operand> operands, bool reads,
            std::vector<std::int64_t>& layers);
  bool dimensions(const plan::flat::Access& read, const plan::flat::Access& write);
  bool partial(const plan::flat::Operation& op, const std::string& kernel);
  bool update(const plan::flat::Operation& op);
  // `zero` writes zero; `add`, `scale` and `cast` leave the contributions that they read.
  bool linear(const plan::flat::Operation& op, const std::string& kernel);
  bool keeps_sums(const plan::flat::Operation& op, const plan::flat::Access& write,
                  const std::string& kernel);
  // Rows that one computation writes twice; contributions that one value names twice.
  bool once(const plan::flat::Operation& op);
  bool distinct(const plan::flat::Value& value);
  void facts();
  void sizes(const plan::flat::Operation& op);
  bool apart(const plan::flat::Operation& op);
  void misshapen(std::string code, std::string what, std::string why, std::string help);
  // How many rows `to` must have; -1: none would do.
  [[nodiscard]] std::int64_t rows_due(const plan::flat::Operation& op,
                                      const plan::Collective& collective) const;
  bool tell(std::string code, std::string what, std::string why, std::string help);

  const plan::Plan& plan_;
  Statements& statements_;
  // Of the program that is looked at:
  const plan::RankProgram* program_ = nullptr;
  std::span<const SlopeId> slopes_;
  std::vector<Trouble>* troubles_ = nullptr;
  std::int32_t op_ = 0;
};

}  // namespace shiplap::check
