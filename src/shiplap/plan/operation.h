// Statements of a program: operations on regions of buffers, and the loops and conditions around
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shiplap/base/collective.h"
#include "shiplap/base/diagnostic.h"
#include "shiplap/base/dtype.h"
#include "shiplap/base/id.h"
#include "shiplap/plan/expr.h"
#include "shiplap/plan/value.h"

namespace shiplap::plan {

using BufferId = Id<struct BufferTag>;
using StreamId = Id<struct StreamTag>;  // 0 is `main`
using TableId = Id<struct TableTag>;

// The line of the text that a statement was read from, 0 if none, and its part of that line, if it
// is not the whole line. Ignored by comparisons.
struct Origin {
  std::int32_t line = 0;
  std::int32_t column = 0;  // from 1
  std::int32_t length = 1;
  friend bool operator==(Origin, Origin) { return true; }
};

using SourceId = Id<struct SourceTag>;

// A function of the program that a plan was made from: `source step "train.py" in "train_step"`.
struct Source {
  std::string name;
  std::string file;
  std::string function;  // may be empty
  friend bool operator==(const Source&, const Source&) = default;
};

// A line of it: `at step:41`.
struct SourceLine {
  SourceId source;  // none: unknown
  std::int32_t line = 0;
  friend bool operator==(SourceLine, SourceLine) = default;
};

enum class Memory : std::uint8_t { device, host };

struct Buffer {
  std::string name;
  Expr rows;
  Expr row_bytes;
  DType type = DType::bf16;
  Memory memory = Memory::device;
  Origin origin;
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

struct Region {
  enum class Kind : std::uint8_t {
    whole,   // x
    rows,    // x[begin +count]
    cut,     // x[begin of list]: entry `begin` of the list to the next one
    listed,  // x[from list[begin +count]]: the rows in the list; only in `copy`
  };
  BufferId buffer;
  ListId list;
  Kind kind = Kind::whole;
  Expr begin;
  Expr count;
  friend bool operator==(const Region&, const Region&) = default;
};

// A neighbour along an axis or alias (`pp+1`, `tp-1 wrap`), or a rank (`rank 1-pp`).
struct Peer {
  AxisId axis;  // none: `where` is a rank
  bool wrap = false;
  Expr where;  // the shift, or the rank
  friend bool operator==(const Peer&, const Peer&) = default;
};

// `dp`, `(dp, tp)`, `pp{0, 3}`, `ranks{0, 5}`; `/name`.
struct Group {
  std::vector<AxisId> axes;     // none: `positions` are ranks
  std::vector<Expr> positions;  // empty: all
  std::string channel;          // "" is `main`
  friend bool operator==(const Group&, const Group&) = default;
};

// A name of an operation: `b[m,k]`.
struct Reference {
  std::string name;
  std::vector<Expr> indices;
  friend bool operator==(const Reference&, const Reference&) = default;
};

struct Access {
  enum class Kind : std::uint8_t { reads, writes, adds };
  Kind kind = Kind::reads;
  Origin origin;
  Region region;
  Value value;  // without a tensor if the plan declares no values
  friend bool operator==(const Access&, const Access&) = default;
};

struct Compute {
  std::string kernel;
  std::vector<Access> accesses;
  friend bool operator==(const Compute&, const Compute&) = default;
};

struct Copy {
  Region from;
  Region to;
  bool add = false;
  friend bool operator==(const Copy&, const Copy&) = default;
};

struct Send {
  Region from;
  Peer peer;
  Expr tag;
  std::string channel;  // "" is `main`
  friend bool operator==(const Send&, const Send&) = default;
};

struct Receive {
  Region to;
  Peer peer;
  Expr tag;
  std::string channel;
  bool add = false;
  friend bool operator==(const Receive&, const Receive&) = default;
};

struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  ReduceOp op = ReduceOp::sum;
  ListId split;  // ragged pieces, in group order
  Region from;   // a barrier has neither
  Region to;
  Group over;
  Ratio scale;
  Expr root;  // a position in the group
  friend bool operator==(const Collective&, const Collective&) = default;
};

struct Exchange {
  Region from;
  Region to;
  TableId table;
  bool reversed = false;
  bool add = false;
  Group over;
  friend bool operator==(const Exchange&, const Exchange&) = default;
};

struct Allocate {
  Region rows;
  friend bool operator==(const Allocate&, const Allocate&) = default;
};

struct Free {
  Region rows;
  friend bool operator==(const Free&, const Free&) = default;
};

struct Statement;

// Sends, receives and collectives that start together and complete together.
struct Batch {
  std::vector<Statement> body;
  friend bool operator==(const Batch&, const Batch&);
};

using Action =
    std::variant<Compute, Copy, Send, Receive, Collective, Exchange, Allocate, Free, Batch>;

// The cost of a computation: `work gemm 4e9 flop 1e6 bytes bf16`, or `work 0.001 seconds times
// 2*m`.
struct Work {
  std::string kernel_class;  // empty: fixed seconds
  Expr flop;
  Expr bytes;
  std::optional<DType> type;
  double seconds = 0;
  Expr times = 1;
  friend bool operator==(const Work&, const Work&) = default;
};

struct Operation {
  Reference name;  // may be empty
  StreamId stream{0};
  bool async = false;
  bool joined = false;
  Origin origin;
  Action action;
  std::vector<Reference> after;
  std::optional<Work> work;
  SourceLine at;
  std::string label;
  friend bool operator==(const Operation&, const Operation&) = default;
};

// The contents of a region at the start of a step (`given`), at its end (`goal`), or both (`keep`:
// the old version, then the new one).
struct Fact {
  enum class Kind : std::uint8_t { given, goal, keep };
  Kind kind = Kind::given;
  Origin origin;
  Region region;
  Value value;
  friend bool operator==(const Fact&, const Fact&) = default;
};

struct Repeat {
  std::string variable;
  Origin origin;
  Expr count;
  std::vector<Statement> body;
  friend bool operator==(const Repeat&, const Repeat&);
};

struct When {
  Origin origin;
  Condition condition;
  std::vector<Statement> body;
  friend bool operator==(const When&, const When&);
};

// Its scope is the rest of its block.
struct Let {
  std::string variable;
  Origin origin;
  Expr value;
  friend bool operator==(const Let&, const Let&) = default;
};

struct Statement {
  std::variant<Operation, Fact, Repeat, When, Let> node;
  friend bool operator==(const Statement&, const Statement&) = default;
};

inline bool operator==(const Batch& a, const Batch& b) { return a.body == b.body; }
inline bool operator==(const Repeat& a, const Repeat& b) {
  return a.variable == b.variable && a.count == b.count && a.body == b.body;
}
inline bool operator==(const When& a, const When& b) {
  return a.condition == b.condition && a.body == b.body;
}

// The keyword of an action in the text: "compute", "send", "all_gather", ..
[[nodiscard]] std::string_view keyword(const Action& action);

// D111: the operation is async or joined and cannot be.
[[nodiscard]] std::optional<Diagnostic> flag_mistake(const Operation& operation);

// Whether it is a send, receive, collective or exchange, and so allowed in a batch.
[[nodiscard]] bool communicates(const Action& action);

}  // namespace shiplap::plan
