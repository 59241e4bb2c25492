// The program of one rank, flat and in plain numbers: the only way an interpreter sees a plan.
//
// Loops, conditions, `let` and expressions are evaluated; groups and peers are ranks; sets are
// runs. Members of variable length (accesses, dependencies, runs) are in arrays of the RankProgram,
// and an operation has slices of them, so that expanding a rank takes few allocations.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

namespace flat {

struct Slice {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

struct Buffer {
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
};

struct Region {
  BufferId buffer;  // none: the operation has no such region
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int32_t listed = -1;  // if not -1: `count` rows, at RankProgram::listed_rows[listed ..]
};

// Coordinates begin, begin+stride, .. of one dimension of the value's tensor.
struct Run {
  DimensionId dimension;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t stride = 1;
};

// Every dimension has runs: those of the part as written, then the unnamed ones, whole; then those
// of the sum, unless it is zero.
struct Value {
  TensorId tensor;
  bool is_new = false;
  bool zero = false;  // `sum none`
  std::int64_t instance = 0;
  Slice runs;
  Ratio scale;
};

struct Access {
  plan::Access::Kind kind = plan::Access::Kind::reads;
  Region region;
  Value value;
};

struct Fact {
  Region region;
  Value value;
  Origin origin;
};

using GroupId = Id<struct FlatGroupTag>;

// A group of ranks and its channel. Groups are equal if ranks, order and channel are.
struct Group {
  RankSet ranks;
  std::string channel;  // "" is `main`
  friend bool operator==(const Group&, const Group&) = default;
};

struct Work {
  double flop = 0;
  double bytes = 0;
  double seconds = 0;
};

struct Operation {
  const plan::Operation* source = nullptr;  // kernel, kind, label, ..: the same for all ranks
  StreamId stream;                          // none for a member of a batch
  std::int32_t batch = -1;                  // the batch of which it is a member
  // A `joined` computation after another one of the same kernel on its stream: both are one call.
  bool continues_call = false;
  Slice name;      // indices of its name, in RankProgram::numbers
  Slice loops;     // of an unnamed one: values of the loops around it
  Slice after;     // in RankProgram::dependencies
  Slice accesses;  // in RankProgram::accesses
  Region from;     // the region read, except by `compute`; rows of `free`, `allocate`
  Region to;       // the region written
  Rank peer;
  std::int64_t tag = 0;
  std::int64_t root = 0;
  GroupId group;
  Work work;
};

// An `after` whose index does not occur on this rank: legal, but not a dependency.
struct AbsentReference {
  std::int32_t operation = 0;
  const Reference* reference = nullptr;
  Slice indices;  // in RankProgram::numbers
};

}  // namespace flat

// REQUIRES: the plan outlives it.
struct RankProgram {
  const Plan* plan = nullptr;
  Rank rank;
  ProgramId program;                         // none: a spare
  IdVector<BufferId, flat::Buffer> buffers;  // as in the program
  std::vector<flat::Fact> given;
  std::vector<flat::Fact> goal;
  std::vector<flat::Operation> operations;

  IdVector<flat::GroupId, flat::Group> groups;
  std::vector<flat::Access> accesses;
  std::vector<flat::Run> runs;
  std::vector<std::int32_t> dependencies;  // operations
  std::vector<std::int64_t> numbers;
  std::vector<std::int64_t> listed_rows;
  std::vector<flat::AbsentReference> absent;
  std::int64_t iterations = 0;  // see ExpandLimits

  [[nodiscard]] std::span<const flat::Access> accesses_of(const flat::Operation& op) const {
    return std::span(accesses).subspan(op.accesses.first, op.accesses.count);
  }
  [[nodiscard]] std::span<const std::int32_t> after(const flat::Operation& op) const {
    return std::span(dependencies).subspan(op.after.first, op.after.count);
  }
  [[nodiscard]] std::span<const flat::Run> runs_of(const flat::Value& value) const {
    return std::span(runs).subspan(value.runs.first, value.runs.count);
  }
  [[nodiscard]] std::int64_t bytes_of(const flat::Region& region) const {
    return region.buffer.exists() ? region.count * buffers[region.buffer].row_bytes : 0;
  }
  // Clears all arrays and keeps their capacity.
  void clear();
  // "b[1,0]: compute backward", for diagnostics. Without a name, but in a loop: "send [i=1]".
  [[nodiscard]] std::string describe(const flat::Operation& op) const;
  // Its line (see where_of), rank and description.
  [[nodiscard]] Where where(const flat::Operation& op) const;
};

// Bounds the time and memory of an expansion. Iterations count whether or not the loop contains an
// operation, and each `repeat`, `when` and `let` in a loop counts as one more iteration.
struct ExpandLimits {
  std::int64_t operations = 10'000'000;
  std::int64_t iterations = 100'000'000;
  std::int64_t entries = 100'000'000;  // runs, listed rows, accesses, facts, indices
};

// The limit of iterations of all ranks together, for callers that expand every rank (D632).
inline constexpr std::int64_t kMaxIterations = 200'000'000;

// Takes time in proportion to the operations and loop iterations of this rank. Throws InputError
// D2xx, with rank, line and operation, if the plan is invalid on this rank.
[[nodiscard]] RankProgram expand(const Plan& plan, Rank rank, const ExpandLimits& limits = {});
// The same if the program of the rank is known already (see assign_programs). `reuse` is cleared,
// and the capacity of its arrays is reused.
[[nodiscard]] RankProgram expand(const Plan& plan, Rank rank, ProgramId program,
                                 const ExpandLimits& limits = {}, RankProgram reuse = {});

}  // namespace shiplap::plan
