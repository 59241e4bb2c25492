// The rows of a pipeline schedule of torch, read and checked: which stage is where, and what a rank
// does in which order. import_schedule.h describes the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <vector>

namespace shiplap::strategy::torch_schedule {

enum class Act : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
  wait_send_forward,
  wait_send_backward,
  unshard,
  reshard,
  reduce_gradient,
  wait_reduce_gradient,
};

[[nodiscard]] constexpr bool computes(Act act) { return act <= Act::backward_weight; }
[[nodiscard]] constexpr bool is_message(Act act) {
  return act >= Act::send_forward && act <= Act::receive_backward;
}
[[nodiscard]] constexpr bool is_send(Act act) {
  return act == Act::send_forward || act == Act::send_backward;
}
[[nodiscard]] constexpr bool waits_for_send(Act act) {
  return act == Act::wait_send_forward || act == Act::wait_send_backward;
}
// Of a whole stage, not of a microbatch.
[[nodiscard]] constexpr bool is_of_stage(Act act) { return act >= Act::unshard; }

// As in the file: "F", "SEND_F".
[[nodiscard]] std::string_view to_string(Act act);

// Some of a row's text, and where it is.
struct Cell {
  std::string_view text;
  std::size_t column = 0;  // from 0
};

struct Action {
  Act act = Act::forward;
  int stage = 0;
  int microbatch = 0;              // -1 if it is of a stage
  bool overlaps_previous = false;  // in one OVERLAP_F_B with the action before it
  std::int64_t tag = 0;            // of a message
  Cell cell = {};                  // empty if the action is not in the file
};

// The stage at the other end of a message.
[[nodiscard]] constexpr int peer_stage(Act act, int stage) {
  const bool next = act == Act::send_forward || act == Act::receive_backward;
  return stage + (next ? 1 : -1);
}

// What one rank does.
struct Row {
  int line = 0;  // from 1
  std::string_view text;
  std::vector<Action> actions;
};

struct Pipeline {
  std::vector<Row> rows;  // by rank
  int stages = 0;
  int microbatches = 0;
  bool messages = false;         // the file has its own
  bool stage_actions = false;    // the file has actions of whole stages
  bool trains = false;           // there is a backward
  std::map<int, int> rank_of;    // by stage
  std::set<int> sharded_stages;  // whose weights are unsharded and resharded

  // Whether `other` is a stage, and on another rank.
  [[nodiscard]] bool sends_between(int stage, int other) const {
    return other >= 0 && other < stages && rank_of.at(stage) != rank_of.at(other);
  }
};

// Views into `csv`. Throws InputError D626 with all that cannot be read.
[[nodiscard]] Pipeline read_schedule(std::string_view csv, std::string_view file);

}  // namespace shiplap::strategy::torch_schedule
