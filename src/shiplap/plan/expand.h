// One rank's operations, flat and in plain numbers: the only way an interpreter sees a plan.
//
// Loops, conditions, `let` and every expression are gone; groups and peers are ranks; sets are
// runs. What an operation has in any number (accesses, dependencies, runs) lies in arrays of the
// RankProgram, and the operation holds a slice of them, so that expanding a rank costs few
// allocations.
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

// Every dimension has its runs: those of the part as written, then those not written, whole; then
// those of the sum, unless it is zero.
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

// A group of ranks with its channel. Same ranks, order and channel: same group.
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
  const plan::Operation* source =
      nullptr;              // kernel, kind, label, ..: what does not depend on the rank
  StreamId stream;          // of a batch's member: none
  std::int32_t batch = -1;  // the operation whose member this is
  Slice name;               // indices of its name, in RankProgram::numbers
  Slice after;              // in RankProgram::dependencies
  Slice accesses;           // in RankProgram::accesses
  Region from;              // what is read, by all but `compute`; rows of `free`, `allocate`
  Region to;                // what is written
  Rank peer;
  std::int64_t tag = 0;
  std::int64_t root = 0;
  GroupId group;
  Work work;
};

// An `after` whose index does not occur on this rank: legal, and no dependency.
struct AbsentReference {
  std::int32_t operation = 0;
  const Reference* reference = nullptr;
  Slice indices;  // in RankProgram::numbers
};

}  // namespace flat

// Refers to the plan it was made from, which must outlive it.
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
  std::int64_t iterations = 0;  // of loops, and what counts as such: see ExpandLimits

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
  // Empties all arrays and keeps their memory.
  void clear();
  // "b[1,0]: compute backward"; for people.
  [[nodiscard]] std::string describe(const flat::Operation& op) const;
};

// Stops plans that would not end: loops are counted whether or not they hold an operation, and each
// `repeat`, `when` and `let` in a loop counts as one iteration more.
struct ExpandLimits {
  std::int64_t operations = 10'000'000;
  std::int64_t iterations = 100'000'000;
  std::int64_t entries =
      100'000'000;  // runs, listed rows, accesses, facts, indices: what they hold
};

// Those of all ranks together, for users that expand every rank: beyond that, D632.
inline constexpr std::int64_t kMaxIterations = 200'000'000;

// Takes time in proportion to the operations of this rank (and its loop iterations). Throws
// InputError D2xx, with rank, line and operation, where the plan has no meaning on this rank.
[[nodiscard]] RankProgram expand(const Plan& plan, Rank rank, const ExpandLimits& limits = {});
// The same when the rank's program is known already (see assign_programs). `memory` is used again,
// whatever it held: of many ranks, each needs about as much as the last.
[[nodiscard]] RankProgram expand(const Plan& plan, Rank rank, ProgramId program,
                                 const ExpandLimits& limits = {}, RankProgram memory = {});

}  // namespace shiplap::plan
