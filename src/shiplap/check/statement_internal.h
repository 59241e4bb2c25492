// From statements of a plan about rows to contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
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

// The coordinates that a statement names, by dimension of the part and of the sum, starting with
// dimension `first`. Throws Asymmetric.
[[nodiscard]] Box box_of(const plan::Tensor& tensor, const Statement& statement,
                         std::size_t first = 0);
// "new W[3]"
[[nodiscard]] std::string name_of(const plan::Tensor& tensor, const plan::flat::Value& value);

class Statements {
 public:
  explicit Statements(Contents& contents);

  // Appends what the rows hold: one piece, or several if a mask clips the sums of some cells.
  void evaluate(const Statement& statement, std::int64_t rows, Pieces& out);
  // The points of a box that the mask of the tensor leaves. A point has coordinates of the part and
  // of the sum. Throws Asymmetric.
  [[nodiscard]] Boxes unmasked(const plan::Tensor& tensor, const Box& box);
  [[nodiscard]] bool is_masked_out(const plan::Tensor& tensor, const Box& box);

 private:
  [[nodiscard]] Box sum_box(const Statement& statement) const;
  // The sum of a statement without a mask; recent results are cached.
  [[nodiscard]] SumId sum_of(const Statement& statement);
  [[nodiscard]] Box whole_box(const plan::Tensor& tensor) const;
  void mask(const Statement& statement, const Box& box, Pieces& out, Content content);
  [[nodiscard]] SumId sum_of_row(const plan::Tensor& tensor, const Box& box,
                                 std::span<const std::int64_t> cells);
  [[nodiscard]] Boxes clipped(const plan::Tensor& tensor, const Box& box,
                              std::span<const std::int64_t> cell);
  void clip(const plan::Tensor& tensor, const plan::MaskTerm& term,
            std::span<const std::int64_t> cell, Boxes& boxes);
  // Calls visit(cell, boxes of its contributions) for the coordinates of the dimensions of the part
  // that the mask names, until it returns false.
  template <class Visit>
  void for_each_cell(const plan::Tensor& tensor, const Box& box, const Visit& visit);
  [[nodiscard]] std::int64_t entry(const plan::MaskSide& side, std::int64_t coordinate) const;
  struct Entry {
    std::int64_t number = 0;
    std::int32_t coordinate = 0;
    std::int32_t following = 0;  // length of the run of consecutive coordinates before it
  };
  const std::vector<Entry>& sorted(const plan::Tensor& tensor, const plan::MaskSide& side);
  // Coordinates of one side that satisfy the term with a fixed number on the other side.
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
  std::map<const plan::MaskSide*, std::vector<Entry>> sorted_;
  std::map<std::tuple<const plan::MaskSide*, std::ptrdiff_t, std::ptrdiff_t>, IndexSet> allowed_;
  std::int64_t indices_ = 0;  // in cached sets that are no range
};

}  // namespace shiplap::check
