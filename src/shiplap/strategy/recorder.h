// Records the steps of ranks. Ranks with equal steps share one tape, so that a large SPMD world
// stores its program once; each rank stores only the numbers in which it may differ: layers,
// samples and shards of values, peers and tags of messages.
//
// A tape is shared as long as ranks agree. Every step is compared with the one on the tape; a rank
// that differs continues on a copy, or on the copy of a rank that diverged at the same step in the
// same way (found by hash, then compared).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shiplap/strategy/record.h"

namespace shiplap::strategy {

// A value without the numbers in which ranks may differ.
struct ValueShape {
  std::uint8_t type = 0;                // in AnyValue
  std::array<std::uint32_t, 2> runs{};  // of its samples, and of its shards or contributions
  std::int32_t layers = 0;
  std::int32_t step = 0;
  std::int32_t of_samples = 0;
  std::int32_t of_shards = 0;
  friend bool operator==(const ValueShape&, const ValueShape&) = default;
};

struct Tape {
  std::vector<Step> steps;
  std::vector<ValueShape> values;
};

// All tapes of a world.
class Tapes {
 public:
  Tapes() { all_.push_back(std::make_unique<Tape>()); }
  [[nodiscard]] Tape& first() { return *all_.front(); }
  // The prefix of a tape that a rank has recorded.
  struct Position {
    Tape* tape = nullptr;
    std::int32_t steps = 0;
    std::int32_t values = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };
  // Returns the tape that continues `from` with `item` as the next element of `list`.
  template <class Item>
  Tape& branch(const Position& from, const Item& item, std::vector<Item> Tape::* list);

 private:
  struct Branch {
    Position from;
    Tape* to = nullptr;
  };
  std::vector<std::unique_ptr<Tape>> all_;
  std::unordered_multimap<std::uint64_t, Branch> branches_;
};

class Recorder {
 public:
  explicit Recorder(Tapes& tapes) : tapes_(&tapes), at_{.tape = &tapes.first()} {}

  // Returns the index of the step.
  std::int32_t add(Step step);
  void add(const AnyValue& value);

  // Ranks at the same position have equal steps, except for numbers() and messages().
  [[nodiscard]] const Tapes::Position& position() const { return at_; }
  [[nodiscard]] std::span<const std::int32_t> numbers() const { return numbers_; }
  [[nodiscard]] std::span<const std::int32_t> messages() const { return messages_; }
  [[nodiscard]] Recording recording() const;

 private:
  template <class Item>
  void append(const Item& item, std::vector<Item> Tape::* list, std::int32_t& at);

  Tapes* tapes_;
  Tapes::Position at_;
  std::vector<std::int32_t> numbers_;   // of values
  std::vector<std::int32_t> messages_;  // peer and tag of each
};

}  // namespace shiplap::strategy
