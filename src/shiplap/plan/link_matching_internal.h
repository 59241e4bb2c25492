// Which operations of different ranks are one: equal numbers meet, counted in listed order among
// the sends and receives of one pair, channel and tag, and among what is called on one group. So
// who meets whom is known before any time passes.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/link.h"

namespace shiplap::plan {

// Ranks must come in order, each with its events written and its places in LinkedProgram::links and
// LinkedProgram::call_of made ready.
class Matching {
 public:
  explicit Matching(LinkedProgram& linked) : linked_(linked) {}
  void join(const RankProgram& program);
  // To be called when all ranks have joined: what waits for an end in vain has none.
  void close();

 private:
  struct Key {
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int64_t tag = 0;
    std::int32_t channel = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  // Sends without a receive yet, or receives without a send, the oldest first, chained by
  // LinkedProgram::links. There are never both, and an empty queue is dropped: counting from there
  // is the same.
  struct Queue {
    Place first;
    Place last;
  };

  void message(const Key& key, Place place);
  void meet(const flat::Operation& op, const RankProgram& program, Place place);
  std::int32_t channel(const std::string& name);
  std::int32_t group(const flat::Group& group);

  LinkedProgram& linked_;
  std::unordered_map<Key, Queue, KeyHash> waiting_;
  std::unordered_map<std::string, std::int32_t> channels_;
  std::unordered_multimap<std::uint64_t, std::int32_t> groups_;
  // Of the rank that joins, by its own groups: the group of the linked, and how often it was
  // called.
  std::vector<std::int32_t> known_;
  std::vector<std::int32_t> calls_;
};

}  // namespace shiplap::plan
