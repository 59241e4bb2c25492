// Operations, groups and contents as text for diagnostics.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shiplap/base/diagnostic.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {

// "4 times too large", "8 times too small". REQUIRES: they differ.
[[nodiscard]] std::string format_factor(const plan::Ratio& found, const plan::Ratio& due);

class Formatter {
 public:
  explicit Formatter(const Job& job) : job_(job) {}

  // "b[1]: compute backward".
  [[nodiscard]] std::string operation(OperationId place);
  [[nodiscard]] Where where(OperationId place);
  // "rank 3 in `b[1]: compute backward`".
  [[nodiscard]] std::string at(OperationId place);
  [[nodiscard]] std::string group(const CallGroup& group, OperationId place) const;
  // "G[1] shard 2, sum over sample 0-3".
  [[nodiscard]] std::string content(const Piece& piece) const;
  [[nodiscard]] std::string tensor(const Piece& piece) const;
  // "1/8".
  [[nodiscard]] std::string scale(const Piece& piece) const;
  // "4 times too large".
  [[nodiscard]] std::string factor(const Piece& found, const Piece& due) const;
  // "g[4 +4]".
  [[nodiscard]] std::string row_range(std::int32_t rank, const RowRange& row_range) const;
  // Dimensions of the cells, the one that changes slowest first: "tok, then head".
  [[nodiscard]] std::string order(const Piece& piece) const;
  // Contributions: "sample 4-7".
  [[nodiscard]] std::string boxes(const Piece& piece, const Boxes& boxes) const;

 private:
  [[nodiscard]] const plan::Ratio& scale_of(const Piece& piece) const;
  // Names only the dimensions that the box does not cover entirely.
  [[nodiscard]] std::string box(const Piece& piece, const Box& box) const;

  const plan::RankProgram& program(std::int32_t rank);

  const Job& job_;
  std::map<std::int32_t, plan::RankProgram> programs_;
};

// "0, 1, 2 and 5 more".
[[nodiscard]] std::string format_ranks(const std::vector<std::int32_t>& ranks);

}  // namespace shiplap::check
