// The recorded steps of one rank, in program order: the input of to_plan. Recorder stores them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/cost/cost_model.h"
#include "shiplap/strategy/pending_op.h"
#include "shiplap/trace/event.h"

namespace shiplap::strategy {

using ValueNumber = std::int32_t;  // of one rank; -1: none

enum class StepType : std::uint8_t {
  compute,  // also reading a batch
  communicate,
  wait,        // for the communication `comm_step`
  cast,        // copies reads[0], or a shard of it, to writes[0]
  add,         // adds reads[0] to writes[0]
  keep_shard,  // shrinks reads[0] in place to its shard writes[0]
  drop,        // frees reads[0]
  take,        // writes[0] is the result of the communication `comm_step`
  in_place,    // writes[0] reuses the memory of reads[0]
  log,         // a computation that was only logged; reads[0] has its layer and samples
};

struct Step {
  StepType type = StepType::compute;
  trace::EventKind kind = trace::EventKind::compute;  // of compute and communicate
  bool async = false;
  std::int32_t stream = 0;      // in Model::streams()
  std::int32_t comm_step = -1;  // of wait and take: index of the communication
  std::int32_t group = -1;      // of a collective
  std::int32_t peer = -1;       // of a message
  std::int32_t tag = 0;
  std::int32_t channel = 0;  // of a message (Dist::channel)
  std::array<ValueNumber, 3> reads{-1, -1, -1};
  std::array<ValueNumber, 2> writes{-1, -1};
  cost::ComputeWork work;   // of layers of parts, the part that comes last
  std::int32_t parts = -1;  // the parts before it (Dist::parts)
  friend bool operator==(const Step&, const Step&) = default;
};

struct RecordedValue {
  AnyValue value;
  // The value whose memory it reuses (result of an all_reduce or an update, a sum, a shard that is
  // kept in place). -1: it has memory of its own.
  ValueNumber in_place_of = -1;
};

struct Recording {
  std::vector<Step> steps;
  std::vector<RecordedValue> values;
};

}  // namespace shiplap::strategy
