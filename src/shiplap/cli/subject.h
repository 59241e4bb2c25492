// The input of `check`, `show`, `simulate`, `export` and `run`: the plan of a file, of a strategy
// of a pipeline schedule, or of a model and its layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/dtype.h"
#include "shiplap/base/files.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/flags.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/layout/layout.h"
#include "shiplap/plan/plan.h"
#include "shiplap/report/page.h"
#include "shiplap/report/timed_plan.h"
#include "shiplap/workload/model.h"

namespace shiplap::cli {

struct Subject {
  plan::Plan plan;
  std::optional<SourceText> source;  // of a plan file or a schedule
  std::string name;                  // "1f1b", "step.plan"
  std::string title;                 // "1f1b on 8 ranks", "step.plan"
  std::string mesh;                  // of a strategy: "dp=2 pp=4"
  std::string detail;                // of a strategy: its size; of a schedule: its costs
  std::int64_t tokens = 0;           // of a step of a model
  double model_flop = 0;             // likewise
  DType type = DType::bf16;          // in which it multiplies

  [[nodiscard]] const SourceText* text() const { return source ? &*source : nullptr; }
  // For the reports of its times on this machine or backend.
  [[nodiscard]] report::TimedPlan timed(std::string where) const;
  // "" for a strategy.
  [[nodiscard]] std::string file() const { return source ? source->file : ""; }
  // Calls `act` and adds file, line and excerpt to the InputErrors that it throws.
  template <class Function>
  auto with_source_locations(const Function& act) const {
    return source ? shiplap::with_source_locations(*source, act) : act();
  }
};

// A model and how it is split. Prints warnings about both.
struct TrainedModel {
  workload::Model model;
  layout::Layout layout;
};
// `text`: flags, or the name of a file with them, or "-". Throws InputError D003, D603, D605, D606,
// D609.
[[nodiscard]] TrainedModel trained_model(const std::string& model, const std::string& framework,
                                         const std::string& text, std::optional<std::int64_t> ranks,
                                         Context& context);
// "tensor 8 with sequence parallelism, pipeline 4 x 2 (interleaved), data 16 (ZeRO-1); ..".
[[nodiscard]] std::string describe(const TrainedModel& trained);

// FILE, --strategy and its size, --schedule, --model and --from.
void declare_subject(Flags& flags, std::string& file, StrategyFlags& strategy,
                     ScheduleFlags& schedule);

// Reads a plan file or a schedule, or runs a strategy to record its plan. Throws InputError: those
// of check_subject(), D004, or the errors of the plan, of the schedule or of the size of the
// strategy.
[[nodiscard]] Subject subject_of(const SubjectFlags& flags, Context& context,
                                 const StrategyDefaults& defaults = {},
                                 const strategy::World& world = {});

// Files that `simulate` and `run` write.
struct TraceFiles {
  std::optional<std::string> plan;
  std::optional<std::string> report;
  std::optional<std::string> trace;
};
// Parts of the help texts: `what` is written as a plan, `as` which kind of plan; `of`: which trace.
struct TraceFilesHelp {
  std::string_view what = "strategy";
  std::string_view of;
  std::string_view as;
};
void declare_files(Flags& flags, TraceFiles& files, const TraceFilesHelp& help);
[[nodiscard]] std::vector<OutputFile> outputs_of(const TraceFiles& files);
// `page` makes the report, if one is wanted.
void write_files(const TraceFiles& files, const plan::Plan& plan, const report::TimedPlan& timed,
                 const std::function<report::Page()>& page, Context& context);

}  // namespace shiplap::cli
