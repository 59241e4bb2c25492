// What one rank did, in the order in which it did it: what a plan is made from. A Recorder keeps
// it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/cost/price.h"
#include "shiplap/strategy/flight.h"
#include "shiplap/trace/event.h"

namespace shiplap::strategy {

using ValueNumber = std::int32_t;  // of one rank; -1: none

struct Step {
  enum class What : std::uint8_t {
    compute,  // also the reading of a batch
    communicate,
    wait,        // for the communication `of`
    cast,        // reads[0], or a shard of it, to writes[0]
    add,         // reads[0] is added to writes[0]
    keep_shard,  // of reads[0] only the shard writes[0] stays, where it is
    drop,        // reads[0]
    take,        // writes[0], the result of the communication `of`
    in_place,    // writes[0] lies where reads[0] lay
    log,         // a computation that was only logged; reads[0] says of what
  };
  What what = What::compute;
  trace::Kind kind = trace::Kind::compute;  // of compute and communicate
  bool async = false;
  std::int32_t stream = 0;  // in Model::streams()
  std::int32_t of = -1;     // of wait: a step
  std::int32_t group = -1;  // of a collective
  std::int32_t peer = -1;   // of a message
  std::int32_t tag = 0;
  std::int32_t channel = 0;  // of a message, in Dist
  std::array<ValueNumber, 3> reads{-1, -1, -1};
  std::array<ValueNumber, 2> writes{-1, -1};
  cost::ComputeWork work;
  friend bool operator==(const Step&, const Step&) = default;
};

struct RecordedValue {
  AnyValue value;
  // The value whose place it takes: the result of an all_reduce or an update, a sum, a shard that
  // stays where it was. -1: it has a place of its own.
  ValueNumber in_place_of = -1;
};

struct Recording {
  std::vector<Step> steps;
  std::vector<RecordedValue> values;
};

}  // namespace shiplap::strategy
