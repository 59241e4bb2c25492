// What `check`, `simulate` and `run` work on: a plan in a file, or that of a strategy.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/files.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/flags.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/plan/plan.h"
#include "shiplap/trace/trace.h"

namespace shiplap::cli {

struct Subject {
  plan::Plan plan;
  std::optional<SourceText> source;  // of a plan that was read
  std::string name;                  // "1f1b", "step.plan"
  std::string title;                 // "1f1b on 8 ranks", "step.plan"
  std::string mesh;                  // of a strategy: "dp=2 pp=4"
  std::string detail;                // of a strategy: how large it is

  [[nodiscard]] const SourceText* text() const { return source ? &*source : nullptr; }
  // Does something with the plan, and says where in its text a problem lies.
  template <class Do>
  auto placing(const Do& act) const {
    return source ? placing_errors(*source, act) : act();
  }
};

// A strategy is run to get its plan. Throws InputError: D004, what is wrong with the plan, or with
// the size of the strategy.
[[nodiscard]] Subject subject_of(const std::string& file, Context& context);
[[nodiscard]] Subject subject_of(const StrategyFlags& flags, const StrategyDefaults& defaults = {},
                                 const strategy::World& world = {});

// Files that `simulate` and `run` write.
struct TraceFiles {
  std::optional<std::string> plan;
  std::optional<std::string> report;
  std::optional<std::string> trace;
};
// `of`: of what a trace is; `as`: what becomes of a plan.
struct TraceFilesHelp {
  std::string_view of;
  std::string_view as;
};
void declare_files(Flags& flags, TraceFiles& files, const TraceFilesHelp& help);
// What they say.
struct TraceFacts {
  const trace::Trace& trace;
  std::string title;
  std::vector<std::string> assumed;  // whole sentences
  std::vector<std::string> words;    // of the command
};
void write_files(const TraceFiles& files, const Subject& subject, const TraceFacts& facts);

}  // namespace shiplap::cli
