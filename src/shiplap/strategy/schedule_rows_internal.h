// Parses and checks a pipeline schedule of torch: the placement of stages and the order of actions
// on each rank. import_schedule.h describes the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <vector>

namespace shiplap::strategy::torch_schedule {

enum class ComputationType : std::uint8_t {
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

[[nodiscard]] constexpr bool computes(ComputationType type) {
  return type <= ComputationType::backward_weight;
}
// Makes an activation or its gradient.
[[nodiscard]] constexpr bool makes_result(ComputationType type) {
  return type <= ComputationType::backward_input;
}
[[nodiscard]] constexpr bool is_message(ComputationType type) {
  return type >= ComputationType::send_forward && type <= ComputationType::receive_backward;
}
[[nodiscard]] constexpr bool is_send(ComputationType type) {
  return type == ComputationType::send_forward || type == ComputationType::send_backward;
}
[[nodiscard]] constexpr bool waits_for_send(ComputationType type) {
  return type == ComputationType::wait_send_forward || type == ComputationType::wait_send_backward;
}
// Of a whole stage, not of a microbatch.
[[nodiscard]] constexpr bool is_of_stage(ComputationType type) {
  return type >= ComputationType::unshard;
}

// As in the file: "F", "SEND_F". As torch's _ComputationType.
[[nodiscard]] std::string_view to_string(ComputationType type);

// A part of a row's text, with its position.
struct Cell {
  std::string_view text;
  std::size_t column = 0;  // from 0
};

struct Action {
  ComputationType type = ComputationType::forward;
  int stage = 0;
  int microbatch = 0;                  // -1 if it is of a stage
  bool overlaps_previous = false;      // in one OVERLAP_F_B with the action before it
  bool batched_with_previous = false;  // in one BATCH with the message before it
  std::int64_t tag = 0;                // of a message
  Cell cell = {};                      // empty if the action is not in the file
};

// The stage at the other end of a message.
[[nodiscard]] constexpr int peer_stage(ComputationType type, int stage) {
  const bool next =
      type == ComputationType::send_forward || type == ComputationType::receive_backward;
  return stage + (next ? 1 : -1);
}

// The actions of one rank.
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
  bool send_waits = false;       // the file has WAIT_SEND actions
  bool stage_actions = false;    // the file has actions of whole stages
  bool trains = false;           // there is a backward
  std::map<int, int> rank_of;    // by stage
  std::set<int> sharded_stages;  // whose weights are unsharded and resharded

  // Whether `other` is a stage, and on another rank.
  [[nodiscard]] bool sends_between(int stage, int other) const {
    return other >= 0 && other < stages && rank_of.at(stage) != rank_of.at(other);
  }
};

// The result has views into `csv`. Throws InputError with all parse errors (D626), or else with all
// actions that are missing, repeated or in the wrong order (D628, D629).
[[nodiscard]] Pipeline read_schedule(std::string_view csv, std::string_view file);

}  // namespace shiplap::strategy::torch_schedule
