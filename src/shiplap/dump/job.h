// What the ranks of a job had called when they wrote their dumps.
//
// A recorder keeps the last calls of one process (2,000 by default) and writes them to a file when
// the job times out. A JobDump has the calls of all ranks; names, groups, argument shapes and call
// stacks that occur often are stored once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/id.h"

namespace shiplap::dump {

using GroupId = Id<struct GroupTag>;
using SignatureId = Id<struct SignatureTag>;
using StackId = Id<struct StackTag>;
using FrameId = Id<struct FrameTag>;

struct Frame {
  std::string function;
  std::string file;
  std::int32_t line = 0;
  friend auto operator<=>(const Frame&, const Frame&) = default;
};

// A process group.
struct Group {
  std::string name;                 // "0"
  std::string description;          // "default_pg", "mesh_tp"; may be empty
  std::vector<std::int32_t> ranks;  // by rank in the group; empty if no dump has them
  friend bool operator==(const Group&, const Group&) = default;
};

using Sizes = std::vector<std::vector<std::int64_t>>;  // by tensor

// What a call passes: calls that match have the same signature, except for the sizes of some.
struct Signature {
  std::string operation;  // "all_reduce"; of messages "send", "recv"
  Sizes input_sizes;
  Sizes output_sizes;
  std::vector<std::string> input_types;  // "BFloat16"
  std::vector<std::string> output_types;
  friend bool operator==(const Signature&, const Signature&) = default;
};

enum class CallKind : std::uint8_t { collective, send, receive, batch };  // batch: its end
enum class CallState : std::uint8_t { scheduled, started, completed };

struct Call {
  std::int64_t record = 0;     // its number among the calls of the rank
  std::int64_t sequence = -1;  // its number in the group; messages are counted on their own
  std::int64_t collectives =
      -1;  // of a message: how many collectives the rank has made on the group
  std::int64_t created_ns = 0;
  std::int64_t started_ns = 0;    // when it was seen to have started; 0: never
  std::int64_t completed_ns = 0;  // 0: never
  std::int64_t duration_ns = 0;   // on the device; 0: not measured
  std::int64_t timeout_ms = 0;
  GroupId group;
  SignatureId signature;
  StackId stack;           // without one: not recorded
  std::int32_t peer = -1;  // of a message: the other rank, if known
  CallKind kind = CallKind::collective;
  CallState state = CallState::scheduled;
  bool is_p2p = false;   // a message, or the end of a batch of messages
  bool retired = false;  // the recorder does not expect it to change any more
};

struct RankDump {
  std::int32_t rank = -1;
  std::vector<std::string> files;  // more than one if several backends recorded
  std::string version;             // of the format
  std::string library;             // "nccl"; "" if it made no calls
  std::vector<Call> calls;         // in order of program
  std::vector<GroupId> groups;     // that it is a member of
  StackId stack;                   // where it was when the stacks were taken (py-spy)
  bool truncated = false;          // a file ended early
  bool evicted = false;            // earlier calls are not in the dump any more
  std::int64_t written_ns = 0;     // the time of the file; 0: unknown
};

// A process, as NCCL's RAS names it.
struct RasProcess {
  std::string node;       // its address
  std::int64_t pid = -1;  // -1: not known
  std::string gpu;        // "3", "3 (NVML 5)"; of a process with several "0,1"
  friend auto operator<=>(const RasProcess&, const RasProcess&) = default;
};

// A rank of a communicator.
struct RasMember {
  std::int32_t rank = -1;  // in the communicator
  RasProcess process;
  friend auto operator<=>(const RasMember&, const RasMember&) = default;
};

// Ranks of a communicator of which RAS says the same.
struct RasState {
  enum class Kind : std::uint8_t { missing, status, operations, error };
  Kind kind = Kind::missing;
  std::string what;                // "RUNNING", "AllReduce" ("": of any kind), "System error"
  std::int64_t operations = 0;     // how many they have launched
  std::int64_t count = 0;          // ranks
  std::vector<RasMember> members;  // fewer than `count` if RAS does not list them
  friend bool operator==(const RasState&, const RasState&) = default;
};

struct RasCommunicator {
  std::string name;                // "#0-1"; "" in JSON
  std::string hash;                // "27a079b828ff1a75"
  std::int64_t size = 0;           // ranks; 0: not known
  std::int64_t launched = -1;      // operations of all ranks; -1: not known
  std::vector<RasState> states;    // where ranks differ, by kind
  std::vector<RasMember> members;  // all that are named
};

// Equal communicators: a row of the summary.
struct RasGroup {
  std::int64_t communicators = 0;
  std::int64_t size = 0;
  std::string status;  // "RUNNING"
  std::string errors;  // "OK", "INCOMPLETE,MISMATCH"
};

// What NCCL's RAS said at one moment: the output of `ncclras`.
struct RasReport {
  std::string file;
  std::string version;          // of NCCL; may be empty
  std::string time;             // of JSON
  std::int64_t gpus = 0;        // of the job; 0: not known
  std::int64_t written_ns = 0;  // the time of the file; 0: unknown
  std::vector<RasGroup> groups;
  std::vector<RasCommunicator> communicators;  // of a text: those with something to say
  std::vector<RasProcess> dead;                // fewer than `dead_count` if they are not listed
  std::vector<RasProcess> silent;              // they did not answer
  std::int64_t dead_count = 0;
  std::int64_t silent_count = 0;
  bool truncated = false;  // the text ended early
};

struct JobDump {
  std::vector<RankDump> ranks;  // ascending
  IdVector<GroupId, Group> groups;
  IdVector<SignatureId, Signature> signatures;
  IdVector<StackId, std::vector<FrameId>> stacks;  // innermost frame first
  IdVector<FrameId, Frame> frames;
  std::int32_t world = 0;          // ranks from 0 that any dump mentions
  std::vector<RasReport> ras;      // by time
  std::vector<std::string> notes;  // files that were left out, guesses

  // Returns the dump of a rank, or null.
  [[nodiscard]] const RankDump* find(std::int32_t rank) const;
};

}  // namespace shiplap::dump
