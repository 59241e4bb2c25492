// The program of one rank in compact form. At 8,192 ranks there are millions of operations, so size
// and locality matter: operations, assertions and pieces lie in an arena.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/check/arena_internal.h"
#include "shiplap/check/check.h"
#include "shiplap/check/content_internal.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/link.h"

namespace shiplap::check {

// Rows of a buffer: begin .. begin + count, or Script::listed[listed .. listed + count] if listed.
struct RowRange {
  std::int32_t buffer = -1;
  std::int32_t listed = -1;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  [[nodiscard]] bool exists() const { return buffer >= 0; }
  [[nodiscard]] std::int32_t end() const { return begin + count; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// A statement of a computation or a fact: what some rows hold.
struct Assertion {
  RowRange row_range;
  plan::Access::Kind kind = plan::Access::Kind::reads;
  std::int32_t pieces = 0;  // in Script::pieces
  std::int32_t count = 0;
};

using plan::ActionKind;

struct ScriptOp {
  const plan::Operation* source = nullptr;
  RowRange from;
  RowRange to;
  std::int32_t assertions = 0;  // of a computation, in Script::assertions
  std::int32_t assertion_count = 0;
  plan::Match match;      // of a collective, exchange or message
  std::int32_t root = 0;  // of a collective; of a message, the peer
  ActionKind action = ActionKind::compute;
  bool add = false;
  bool clobbers_input = false;  // in place: the rest of `from` is undefined afterwards
  bool leaves_output = false;   // a collective that does not write `to` on this rank
};

struct Script {
  std::int32_t rank = -1;
  const plan::RankTemplate* steps = nullptr;  // dependencies, by operation as `ops`
  plan::ProgramId program;
  std::span<ScriptOp> ops;  // this and the next three lie in an arena
  std::span<const Assertion> assertions;
  std::span<const Piece> pieces;
  std::span<const std::int32_t> listed;
  std::vector<Assertion> given;
  std::vector<Assertion> goal;
  std::vector<std::int32_t> rows;       // by buffer
  std::vector<std::int64_t> row_bytes;  // by buffer
  std::int32_t absent = 0;

  [[nodiscard]] const ScriptOp& operator[](std::int32_t k) const { return ops[k]; }
  [[nodiscard]] std::span<const Assertion> assertions_of(const ScriptOp& op) const {
    return assertions.subspan(op.assertions, op.assertion_count);
  }
  [[nodiscard]] std::span<const Piece> pieces_of(const Assertion& assertion) const {
    return pieces.subspan(assertion.pieces, assertion.count);
  }
  // REQUIRES: the range is listed.
  [[nodiscard]] std::span<const std::int32_t> rows_of(const RowRange& row_range) const {
    return listed.subspan(row_range.listed, row_range.count);
  }
  [[nodiscard]] std::int64_t bytes(const RowRange& row_range) const {
    return row_range.exists() ? row_range.count * row_bytes[row_range.buffer] : 0;
  }
};

class Statements;

// Builds the scripts of all ranks, one after another.
class ScriptBuilder {
 public:
  ScriptBuilder(Statements& statements, Arena& arena, Rules rules)
      : statements_(statements), arena_(arena), rules_(rules) {}

  // `slopes` as for Statement. REQUIRES: `linked` has the rank. Throws InputError D632 if row
  // numbers need more than 31 bits.
  [[nodiscard]] Script make(const plan::RankProgram& program, std::span<const SlopeId> slopes,
                            const plan::LinkedProgram& linked);

 private:
  class RankBuilder;

  Statements& statements_;
  Arena& arena_;
  Rules rules_;
  std::vector<ScriptOp> ops_;
  std::vector<Assertion> assertions_;
  Pieces pieces_;
  std::vector<std::int32_t> listed_;
};

}  // namespace shiplap::check
