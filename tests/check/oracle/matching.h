// Which operations meet, whether they agree, and which rows each of them touches.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "machine.h"
#include "shiplap/plan/expand.h"

namespace shiplap::oracle {

// Every rank, expanded. An operation is a node: those of rank 0 first, then those of rank 1, ..
struct Job {
  std::vector<plan::RankProgram> ranks;
  std::vector<std::size_t> first;  // node of each rank

  explicit Job(const plan::Plan& plan);
  [[nodiscard]] std::size_t nodes() const { return first.back(); }
  [[nodiscard]] std::size_t rank_of(std::size_t node) const;
  [[nodiscard]] const plan::RankProgram& program(std::size_t node) const {
    return ranks[rank_of(node)];
  }
  [[nodiscard]] const plan::flat::Operation& operation(std::size_t node) const {
    const std::size_t rank = rank_of(node);
    return ranks[rank].operations[node - first[rank]];
  }
};

// The n-th call on a group: by position in the group, none where a member does not make it.
struct Meeting {
  std::vector<std::optional<std::size_t>> nodes;
};

struct Matching {
  std::map<std::size_t, std::size_t> other_end;  // of sends and receives, both ways
  std::vector<Meeting> meetings;
  std::map<std::size_t, std::size_t> meeting_of;
  bool agrees = true;
};

[[nodiscard]] Matching match(const Job& job);

// What n counts: sends to one rank, receives from one, calls on one group. "" for all else.
[[nodiscard]] std::string key_of(const plan::RankProgram& program, const plan::flat::Operation& op);

enum class Sends : std::uint8_t { eager, rendezvous };
// All ranks together; or one rank alone, whose communication completes at any time.
[[nodiscard]] std::vector<Node> nodes_of(const Job& job, const Matching& matching, Sends sends);
[[nodiscard]] Machine machine_of(const plan::RankProgram& program);

struct Touch {
  std::int32_t buffer = 0;
  std::int64_t row = 0;
  bool writes = false;
  friend auto operator<=>(const Touch&, const Touch&) = default;
};
[[nodiscard]] std::vector<Touch> touches(const plan::RankProgram& program,
                                         const plan::flat::Operation& op);

[[nodiscard]] std::vector<std::int64_t> rows_of(const plan::RankProgram& program,
                                                const plan::flat::Region& region);

// Whether `from` is undefined afterwards, except for the result: a reduce_scatter in place, and a
// reduce in place on all ranks but the root.
[[nodiscard]] bool clobbers_input(const plan::RankProgram& program,
                                  const plan::flat::Operation& op);

// First row of each member's piece of the whole region, and its end; empty if it cannot be cut so.
[[nodiscard]] std::vector<std::int64_t> cuts_of(const plan::RankProgram& program,
                                                const plan::flat::Operation& op);

// A message of an exchange: rows of the sender's region to rows of the receiver's.
struct Message {
  std::size_t from = 0;  // ranks
  std::size_t to = 0;
  std::int64_t first = 0;
  std::int64_t into = 0;
  std::int64_t count = 0;
};
// In the order of sources, then rows of the table. Nothing if the two sides of the table disagree
// or a message leaves its group.
[[nodiscard]] std::optional<std::vector<Message>> messages_of(const Job& job, std::size_t node);

}  // namespace shiplap::oracle
