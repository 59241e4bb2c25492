// Where ranks record what they do. Ranks that do the same share one tape, so that a world of many
// alike ranks holds its program once; each rank keeps only the numbers in which it may differ:
// layers, samples and shards of values, peers and tags of messages.
//
// A tape is shared as long as ranks agree: every step is compared with the one that is there, and
// whoever does something else goes on with a copy of its own, or with that of a rank that left at
// the same step in the same way (found by hash, then compared).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shiplap/strategy/record.h"

namespace shiplap::strategy {

// A value without the numbers in which ranks differ.
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
  // How far a rank has followed a tape.
  struct Position {
    Tape* tape = nullptr;
    std::int32_t steps = 0;
    std::int32_t values = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };
  // The tape that goes on from here with `item`, as the next of `list`.
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

  // Returns its number.
  std::int32_t add(Step step);
  void add(const AnyValue& value);

  // Ranks at the same position did the same, but for the numbers.
  [[nodiscard]] const Tapes::Position& position() const { return at_; }
  [[nodiscard]] std::span<const std::int32_t> numbers() const { return numbers_; }
  [[nodiscard]] std::span<const std::int32_t> messages() const { return messages_; }
  [[nodiscard]] Recording recording() const;

 private:
  template <class Item>
  void follow(const Item& item, std::vector<Item> Tape::* list, std::int32_t& at);

  Tapes* tapes_;
  Tapes::Position at_;
  std::vector<std::int32_t> numbers_;   // of values
  std::vector<std::int32_t> messages_;  // peer and tag of each
};

}  // namespace shiplap::strategy
