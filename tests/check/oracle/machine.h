// Starts and completions as a machine: what may happen next, and all that may ever happen.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace shiplap::oracle {

inline constexpr char kWaiting = 'w';
inline constexpr char kStarted = 's';
inline constexpr char kComplete = 'c';

// One letter for each operation.
using State = std::string;

struct Node {
  std::vector<std::size_t> complete_before_start;
  std::vector<std::size_t> started_before_start;
  std::vector<std::size_t> started_before_complete;  // the other ends
  std::vector<std::size_t> members;  // of a batch: start with it, complete before it
  bool is_member = false;
  bool never_completes = false;  // there is no other end
};

struct Event {
  std::size_t node = 0;
  bool starts = false;
  friend bool operator==(const Event&, const Event&) = default;
};

class Machine {
 public:
  explicit Machine(std::vector<Node> nodes) : nodes_(std::move(nodes)) {}

  [[nodiscard]] State begin() const { return State(nodes_.size(), kWaiting); }
  [[nodiscard]] std::vector<Event> possible(const State& state) const;
  void happen(State& state, Event event) const;
  // Whose start starts it: itself, or its batch.
  [[nodiscard]] std::size_t starter(std::size_t node) const;

  // Calls `visit` with every state that some order reaches. False: there are more than `most`.
  bool explore(std::size_t most, const std::function<void(const State&)>& visit) const;

  // Runs in one order as far as it goes. `held_back` never happens.
  [[nodiscard]] State run(const std::function<bool(Event)>& held_back,
                          const std::function<void(Event)>& happened) const;

 private:
  [[nodiscard]] bool can_start(const State& state, std::size_t node) const;
  [[nodiscard]] bool can_complete(const State& state, std::size_t node) const;

  std::vector<Node> nodes_;
};

}  // namespace shiplap::oracle
