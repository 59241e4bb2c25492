// The flags that say which strategy to run, how large, on what: shared by `simulate` and `run`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/cli/flags.h"
#include "shiplap/strategy/library.h"

namespace shiplap::cli {

struct StrategyFlags {
  std::optional<std::string> strategy;
  std::optional<std::int64_t> ranks;
  std::optional<std::string> mesh;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> batches;
  std::optional<std::int64_t> microbatches;
  std::optional<std::int64_t> chunks;
  std::optional<std::int64_t> hidden;
  std::optional<std::int64_t> block;
};

// What numbers are if no flag says so: people simulate large layers and run small ones.
struct StrategyDefaults {
  std::int64_t ranks = 4;
  std::int64_t layers = 4;
  workload::ModelShape shape;
};

void declare_strategy(Flags& flags, StrategyFlags& options, const StrategyDefaults& defaults);

// What a verb was asked to work on: a plan in a file or a strategy, and not both.
struct SubjectFlags {
  std::string_view file;
  const StrategyFlags& strategy;
  bool keeps_plan = false;       // --plan was given
  std::string_view verb;         // "simulate", for messages
  std::string_view for_example;  // a strategy
};
// Throws InputError D003.
void check_subject(const SubjectFlags& subject);
// Whether a flag was given that says how large a strategy is.
[[nodiscard]] bool any_size(const StrategyFlags& options);

// The size that flags ask for. Throws InputError D003.
[[nodiscard]] strategy::Size size_of(const StrategyFlags& options,
                                     const StrategyDefaults& defaults);

// A strategy that is ready to train.
struct PreparedStrategy {
  const strategy::Entry* entry = nullptr;
  std::unique_ptr<strategy::Trainer> trainer;
};
// Throws InputError D003, D621, D622, D624.
[[nodiscard]] PreparedStrategy prepare(const StrategyFlags& options,
                                       const StrategyDefaults& defaults,
                                       const strategy::World& world);

// "8 layers of 4096 x 4096 in float16, 32 samples of 1024 tokens".
[[nodiscard]] std::string describe_training(const strategy::Trainer& trainer);

}  // namespace shiplap::cli
