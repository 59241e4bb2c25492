// The plan: for every rank, which operations it performs, in which order, on which data. A plain
// value: planners create it, interpreters read it through expand.h. docs/plan.md is the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/plan/operation.h"
#include "shiplap/plan/table.h"
#include "shiplap/plan/value.h"

namespace shiplap::plan {

using ProgramId = Id<struct ProgramTag>;

// first .. last, both included.
struct PositionRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

struct SelectorTerm {
  AxisId axis;  // none: ranks
  std::vector<PositionRange> positions;
  friend bool operator==(const SelectorTerm&, const SelectorTerm&) = default;
};

// `on pp=0 tp=1..3|6`: the ranks whose position matches every term. `on all` has no terms.
struct Selector {
  std::vector<SelectorTerm> terms;
  Origin origin;
  friend bool operator==(const Selector&, const Selector&) = default;
};

[[nodiscard]] bool selects(const Selector& selector, const Mesh& mesh, Rank rank);

struct Program {
  std::string name;
  Selector on;
  IdVector<BufferId, Buffer> buffers;
  std::vector<std::string> streams;  // besides `main`
  std::vector<Statement> body;
  friend bool operator==(const Program&, const Program&) = default;
};

struct Plan {
  Mesh mesh;
  // No: it has no tensors, facts or values of accesses, only what is moved (`values undeclared`).
  bool declares_values = true;
  IdVector<SourceId, Source> sources;
  IdVector<ListId, List> lists;
  IdVector<TensorId, Tensor> tensors;
  IdVector<TableId, ExchangeTable> tables;
  IdVector<ProgramId, Program> programs;
  std::vector<Selector> spares;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// The line of an operation: in the program that the plan was made from if that is known, otherwise
// in the text of the plan, without its file.
[[nodiscard]] Where where_of(const Plan& plan, const Operation& operation);

// The program of each rank; none for a spare. Takes time in proportion to the ranks.
struct Assignment {
  IdVector<Rank, ProgramId> program_of;
  std::vector<Diagnostic> problems;  // a rank with two programs or none (D108), without location
};
[[nodiscard]] Assignment assign_programs(const Plan& plan);

}  // namespace shiplap::plan
