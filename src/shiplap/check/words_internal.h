// Operations, groups and contents as people name them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shiplap/base/diagnostic.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {

class Words {
 public:
  explicit Words(const Job& job) : job_(job) {}

  // "b[1]: compute backward".
  [[nodiscard]] std::string operation(Place place);
  [[nodiscard]] Where where(Place place);
  // "rank 3 in `b[1]: compute backward`".
  [[nodiscard]] std::string at(Place place);
  [[nodiscard]] std::string group(const CallGroup& group, Place place) const;
  // "G[1] shard 2, sum over sample 0-3".
  [[nodiscard]] std::string content(const Piece& piece) const;
  [[nodiscard]] std::string tensor(const Piece& piece) const;
  // "1/8".
  [[nodiscard]] std::string scale(const Piece& piece) const;
  // "g[4 +4]".
  [[nodiscard]] std::string zone(std::int32_t rank, const Zone& zone) const;
  // Dimensions of the cells, the one that changes slowest first: "tok, then head".
  [[nodiscard]] std::string order(const Piece& piece) const;
  // Contributions: "sample 4-7".
  [[nodiscard]] std::string boxes(const Piece& piece, const Boxes& boxes) const;

 private:
  // Only dimensions of which it has a part.
  [[nodiscard]] std::string box(const Piece& piece, const Box& box) const;

  const Job& job_;
  std::map<std::int32_t, plan::RankProgram> programs_;
};

// "0, 1, 2 and 5 more".
[[nodiscard]] std::string some_ranks(const std::vector<std::int32_t>& ranks);

}  // namespace shiplap::check
