// The flags that select a strategy and its size: shared by `check`, `simulate` and `run`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/cli/flags.h"
#include "shiplap/cli/schedule_flags.h"
#include "shiplap/strategy/library.h"

namespace shiplap::cli {

struct StrategyFlags {
  std::optional<std::string> strategy;
  std::optional<std::int64_t> ranks;
  std::optional<std::string> mesh;
  std::optional<std::string> model;
  std::optional<std::string> from;  // the framework whose words describe the layout
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> global_batch;
  std::optional<std::int64_t> microbatches;
  std::optional<std::int64_t> chunks;
  std::optional<std::int64_t> zero_stage;
  std::optional<std::int64_t> hidden;
  std::optional<std::int64_t> seq_length;
};

// Default sizes: `simulate` uses large layers, `run` small ones.
struct StrategyDefaults {
  std::int64_t ranks = 4;
  std::int64_t layers = 4;
  workload::ModelShape shape;
  bool takes_models = true;  // else only square layers
};

void declare_from(Flags& flags, std::optional<std::string>& from);
// --model, --from and --ranks alone, for a verb that takes no strategy.
void declare_step(Flags& flags, StrategyFlags& options);
void declare_strategy(Flags& flags, StrategyFlags& options, const StrategyDefaults& defaults);

// The input of a verb: a plan file, a strategy, a schedule, or a model and its layout.
struct SubjectFlags {
  std::string file;
  const StrategyFlags* strategy = nullptr;  // null: the verb takes none
  const ScheduleFlags* schedule = nullptr;  // likewise
  bool keeps_plan = false;                  // --plan was given
  std::string_view verb;                    // "simulate", for messages
  std::string_view for_example;             // a strategy, for messages; empty: it takes none

  [[nodiscard]] bool is_strategy() const { return strategy != nullptr && strategy->strategy; }
  // A training step: `file` has its layout.
  [[nodiscard]] bool is_step() const { return strategy != nullptr && strategy->from; }
  [[nodiscard]] bool is_schedule() const { return schedule != nullptr && schedule->schedule; }
  // "" for a strategy.
  [[nodiscard]] const std::string& input_file() const {
    return schedule != nullptr && schedule->schedule ? *schedule->schedule : file;
  }
};
// Throws InputError D003.
void check_subject(const SubjectFlags& subject);
// Returns the size that the flags set. Throws InputError D003.
[[nodiscard]] strategy::TrainingSize size_of(const StrategyFlags& options,
                                             const StrategyDefaults& defaults);

// The same, with defaults that fit the strategy: one rank if it has no axis, layers that divide
// among its stages. Throws InputError D003, D622.
[[nodiscard]] strategy::TrainingSize size_for(const strategy::StrategyInfo& entry,
                                              const StrategyFlags& options,
                                              const StrategyDefaults& defaults);

// A strategy and the trainer that runs it.
struct PreparedStrategy {
  const strategy::StrategyInfo* entry = nullptr;
  std::unique_ptr<strategy::Trainer> trainer;
};
// Throws InputError D003, D621, D622, D624.
[[nodiscard]] PreparedStrategy prepare(const StrategyFlags& options,
                                       const StrategyDefaults& defaults,
                                       const strategy::World& world);

// "8 layers of 4096 x 4096 in float16, 32 samples of 1024 tokens", "32 layers with 8.03 B
// parameters in ..".
[[nodiscard]] std::string describe_training(const strategy::Trainer& trainer);

}  // namespace shiplap::cli
