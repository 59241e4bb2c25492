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

enum class Act : std::uint8_t {
  compute,
  copy,
  send,
  receive,
  collective,
  exchange,
  allocate,
  free,
  batch,
};

struct Op {
  const plan::Operation* source = nullptr;
  Zone from;
  Zone to;
  std::int32_t claims = 0;  // of a computation, in Script::claims
  std::int32_t claim_count = 0;
  std::int32_t after = 0;  // in Script::after
  std::int32_t after_count = 0;
  std::int32_t gate = -1;   // before it in its stream; of a member, its batch
  std::int32_t next = -1;   // behind it in its stream
  std::int32_t group = -1;  // of a collective or exchange; of a batch: its number on this rank
  std::int32_t n = -1;      // which call on the group; which message
  std::int32_t root = 0;    // of a collective; of a message, the peer
  std::int16_t stream = 0;
  Act act = Act::compute;
  bool member = false;
  bool async = false;
  bool add = false;
  bool spoils = false;  // in place: what is left in the rest of `from` is not promised
  bool keeps = false;   // a collective that leaves `to` as it is on this rank
};

struct Script {
  std::int32_t rank = -1;
  plan::ProgramId program;
  std::span<Op> ops;  // this and what follows lies in an arena
  std::span<const Claim> claims;
  std::span<const Piece> pieces;
  std::span<const std::int32_t> after;
  std::span<const std::int32_t> listed;
  std::vector<Claim> given;
  std::vector<Claim> goal;
  std::vector<std::int32_t> rows;       // by buffer
  std::vector<std::int64_t> row_bytes;  // by buffer
  std::vector<std::int32_t> first;      // by stream: its first operation, or -1
  std::int32_t batches = 0;
  std::int32_t absent = 0;

  [[nodiscard]] const Op& operator[](std::int32_t k) const { return ops[k]; }
  [[nodiscard]] std::span<const Claim> claims_of(const Op& op) const {
    return claims.subspan(op.claims, op.claim_count);
  }
  [[nodiscard]] std::span<const std::int32_t> after_of(const Op& op) const {
    return after.subspan(op.after, op.after_count);
  }
  [[nodiscard]] std::span<const Piece> pieces_of(const Claim& claim) const {
    return pieces.subspan(claim.pieces, claim.count);
  }
  // Behind the last member of the batch `k`.
  [[nodiscard]] std::int32_t batch_end(std::int32_t k) const {
    std::int32_t end = k + 1;
    while (end < std::ssize(ops) && (*this)[end].member && (*this)[end].gate == k) ++end;
    return end;
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

  // `slopes` as for Statement. Groups and matching are still to be filled in. Throws InputError
  // D632 where numbers are too large to keep.
  [[nodiscard]] Script make(const plan::RankProgram& program, std::span<const SlopeId> slopes);

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
