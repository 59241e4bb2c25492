// What a plan states about rows, as contents.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "shiplap/check/content_internal.h"
#include "shiplap/plan/expand.h"

namespace shiplap::check {

// A value of one rank's expansion. `slopes` has one entry for each run of the expansion, or none.
struct Statement {
  const plan::RankProgram& program;
  const plan::flat::Value& value;
  std::span<const SlopeId> slopes;
};

class Statements {
 public:
  explicit Statements(Contents& contents);

  // What so many rows hold then, from the top: one piece, or several where a mask clips the sums of
  // some cells.
  void state(const Statement& statement, std::int64_t rows, Pieces& out);
  // Whether the sum has all contributions there are.
  [[nodiscard]] bool complete(const Statement& statement, std::int64_t rows);

 private:
  [[nodiscard]] SumBox box_of(const Statement& statement) const;
  // The sum of a statement that no mask clips; what was asked for lately is found without work.
  [[nodiscard]] SumId sum_of(const Statement& statement);
  [[nodiscard]] SumBox whole_box(const plan::Tensor& tensor) const;
  void mask(const Statement& statement, const SumBox& box, Pieces& out, Content content);
  [[nodiscard]] SumId sum_of_row(const plan::Tensor& tensor, const SumBox& box,
                                 std::span<const std::int64_t> cells);
  [[nodiscard]] std::vector<SumBox> clipped(const plan::Tensor& tensor, const SumBox& box,
                                            std::span<const std::int64_t> cell);
  void clip(const plan::Tensor& tensor, const plan::MaskTerm& term,
            std::span<const std::int64_t> cell, std::vector<SumBox>& boxes);
  [[nodiscard]] std::int64_t entry(const plan::MaskSide& side, std::int64_t coordinate) const;
  // Coordinates of one side that agree with a number on the other.
  const IndexSet& allowed(const plan::Tensor& tensor, const plan::MaskTerm& term, bool free_left,
                          std::int64_t fixed);

  struct Recent {
    plan::TensorId tensor;
    std::vector<Run> runs;
    SumId sum;
  };

  Contents& contents_;
  std::vector<Recent> recent_ = std::vector<Recent>(std::size_t{1} << 10U);
  std::vector<Run> part_;
  std::vector<Run> summed_;
  std::vector<SumId> full_;  // by tensor, without a mask
  std::map<std::tuple<const plan::MaskTerm*, bool, std::int64_t>, IndexSet> allowed_;
};

}  // namespace shiplap::check
