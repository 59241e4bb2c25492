// The program of one rank in few bytes: what the checker keeps of every operation.
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

// Rows of a buffer; if listed, those at Script::listed[listed ..].
struct Zone {
  std::int32_t buffer = -1;
  std::int32_t listed = -1;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  [[nodiscard]] bool exists() const { return buffer >= 0; }
  [[nodiscard]] std::int32_t end() const { return begin + count; }
  friend bool operator==(const Zone&, const Zone&) = default;
};

// What a computation states of rows, or a fact does.
struct Claim {
  Zone zone;
  plan::Access::Kind kind = plan::Access::Kind::reads;
  std::int32_t pieces = 0;  // in Script::pieces
  std::int32_t count = 0;
};

using plan::Act;

struct Op {
  const plan::Operation* source = nullptr;
  Zone from;
  Zone to;
  std::int32_t claims = 0;  // of a computation, in Script::claims
  std::int32_t claim_count = 0;
  plan::Match match;      // of a collective, exchange or message
  std::int32_t root = 0;  // of a collective; of a message, the peer
  Act act = Act::compute;
  bool add = false;
  bool spoils = false;  // in place: what is left in the rest of `from` is not promised
  bool keeps = false;   // a collective that leaves `to` as it is on this rank
};

struct Script {
  std::int32_t rank = -1;
  const plan::RankTemplate* steps = nullptr;  // what each waits for; by operation, as `ops`
  plan::ProgramId program;
  std::span<Op> ops;  // this and what follows lies in an arena
  std::span<const Claim> claims;
  std::span<const Piece> pieces;
  std::span<const std::int32_t> listed;
  std::vector<Claim> given;
  std::vector<Claim> goal;
  std::vector<std::int32_t> rows;       // by buffer
  std::vector<std::int64_t> row_bytes;  // by buffer
  std::int32_t absent = 0;

  [[nodiscard]] const Op& operator[](std::int32_t k) const { return ops[k]; }
  [[nodiscard]] std::span<const Claim> claims_of(const Op& op) const {
    return claims.subspan(op.claims, op.claim_count);
  }
  [[nodiscard]] std::span<const Piece> pieces_of(const Claim& claim) const {
    return pieces.subspan(claim.pieces, claim.count);
  }
  // The rows of a listed zone.
  [[nodiscard]] std::span<const std::int32_t> rows_of(const Zone& zone) const {
    return listed.subspan(zone.listed, zone.count);
  }
  [[nodiscard]] std::int64_t bytes(const Zone& zone) const {
    return zone.exists() ? zone.count * row_bytes[zone.buffer] : 0;
  }
};

class Statements;

// Makes the scripts of one rank after the other.
class Scripts {
 public:
  Scripts(Statements& statements, Arena& arena, Rules rules)
      : statements_(statements), arena_(arena), rules_(rules) {}

  // `slopes` as for Statement; `linked` has the rank. Throws InputError D632 where numbers are too
  // large to keep.
  [[nodiscard]] Script make(const plan::RankProgram& program, std::span<const SlopeId> slopes,
                            const plan::LinkedProgram& linked);

 private:
  class Builder;

  Statements& statements_;
  Arena& arena_;
  Rules rules_;
  std::vector<Op> ops_;
  std::vector<Claim> claims_;
  Pieces pieces_;
  std::vector<std::int32_t> listed_;
};

}  // namespace shiplap::check
