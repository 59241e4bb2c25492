// A summary of a plan: the ranks of each program, the traffic over each axis, the memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// A number that may differ from rank to rank.
struct MinMax {
  std::int64_t min = 0;
  std::int64_t max = 0;
  Rank max_rank;  // the first rank with the maximum
};

struct ProgramSummary {
  ProgramId program;
  std::int64_t ranks = 0;
  Rank first;                // the first rank that runs it; none if no rank does
  std::int64_t classes = 0;  // classes of equivalent ranks, of which one each was expanded
  MinMax operations;
  MinMax peak_bytes;  // of all buffers, with `allocate` and `free` in program order
};

// All operations of one kind over the same axes.
struct TrafficSummary {
  std::string axes;             // "dp", "dp tp"; "listed ranks" if the group has no axes
  std::string kind;             // "all_gather", "send", "exchange", ..
  std::int64_t operations = 0;  // over all ranks
  Bytes payload;                // the regions of the operations, over all ranks
  // The bytes that leave the ranks. Of an exchange, those to other ranks; of a collective of n
  // ranks on a result of S bytes, those of the ring algorithm: all_reduce 2(n-1)S in all, others
  // (n-1)S.
  Bytes sent;
  MinMax sent_per_rank;
};

struct Summary {
  std::int64_t ranks = 0;
  std::int64_t spares = 0;
  std::vector<ProgramSummary> programs;  // as in the plan
  std::vector<TrafficSummary> traffic;   // by bytes sent, descending
  // One rank of each class is expanded. If there are too many classes, some are left out, and the
  // totals cover only `ranks_counted`.
  std::int64_t ranks_counted = 0;
  [[nodiscard]] bool complete() const { return ranks_counted == ranks - spares; }
};

// Expands about `operations` operations at most. Throws as expand() does.
[[nodiscard]] Summary summarize(const Plan& plan, std::int64_t operations = 4'000'000);

// The peak of bytes alive on one rank, in program order. Rows that no `allocate` names are alive
// throughout.
[[nodiscard]] std::int64_t peak_bytes(const RankProgram& program);

}  // namespace shiplap::plan
