// What a rank has called in a step that failed, in the format of PyTorch's flight recorder (JSON),
// so that `shiplap postmortem` can say which rank made the others wait.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "shiplap/plan/expand.h"
#include "shiplap/run/operation_runner_internal.h"

namespace shiplap::run {

struct RecordedStep {
  const plan::RankProgram& program;
  const CompletionTracker& tracker;
  std::span<const Timing> timings;  // by operation
  std::int64_t number = 0;          // of steps before it
  Seconds timeout;                  // of communication
  std::string plan_file;            // for operations without a source line
};

[[nodiscard]] std::string flight_record(const RecordedStep& step);

}  // namespace shiplap::run
