// What a person wants to know of a plan before reading it: who runs what, what it moves over which
// axes, how much memory it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// A number that may differ from rank to rank.
struct Spread {
  std::int64_t least = 0;
  std::int64_t most = 0;
  Rank where_most;  // the first of them
};

struct ProgramSummary {
  ProgramId program;
  std::int64_t ranks = 0;
  Rank first;              // the first rank that runs it; none if nobody does
  std::int64_t kinds = 0;  // how many different kinds of rank were expanded for it
  Spread operations;
  Spread peak_bytes;  // of all buffers, by listed order of `allocate` and `free`
};

// All operations of one kind over the same axes.
struct TrafficSummary {
  std::string axes;             // "dp", "dp tp"; "listed ranks" where axes do not say it
  std::string kind;             // "all_gather", "send", "exchange", ..
  std::int64_t operations = 0;  // over all ranks
  Bytes payload;                // what the operations name, over all ranks
  // What leaves the ranks. Of a send, its bytes; of an exchange, what goes to others; of a
  // collective of n ranks on a result of S bytes what a ring sends: all_reduce 2(n-1)S in all, the
  // others (n-1)S.
  Bytes sent;
  Spread sent_per_rank;
};

struct Summary {
  std::int64_t ranks = 0;
  std::int64_t spares = 0;
  std::vector<ProgramSummary> programs;  // as in the plan
  std::vector<TrafficSummary> traffic;   // by bytes sent, the most first
  // Ranks that must count alike are expanded once. Were there too many kinds of them, some are left
  // out, and the totals cover only `ranks_counted`.
  std::int64_t ranks_counted = 0;
  [[nodiscard]] bool complete() const { return ranks_counted == ranks - spares; }
};

// Expands at most about `operations` operations in all. Throws as expand() does.
[[nodiscard]] Summary summarize(const Plan& plan, std::int64_t operations = 4'000'000);

// The most bytes alive at once on one rank, by listed order; rows that no `allocate` names live
// throughout.
[[nodiscard]] std::int64_t peak_bytes(const RankProgram& program);

}  // namespace shiplap::plan
