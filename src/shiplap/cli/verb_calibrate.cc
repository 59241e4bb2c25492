// shiplap calibrate: measures the ranks of a job as a machine for --hardware.
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>

#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/hardware/fit_system.h"
#include "shiplap/hardware/system.h"
#include "shiplap/report/hardware.h"
#include "shiplap/run/calibrate_system.h"
#include "shiplap/run/job_consistency.h"

namespace shiplap::cli {
namespace {

struct Options {
  bool here = false;
  std::optional<std::int64_t> ranks;
  std::optional<std::string> backend;
  std::optional<std::int64_t> hidden;
  std::optional<std::int64_t> seq_length;
  std::optional<std::string> output;
};

void declare(Flags& flags, Options& options) {
  flags.toggle({.name = "--here", .help = "measure the ranks of this job, on their hosts"},
               options.here);
  flags.count({.name = "--ranks", .help = "number of ranks (2)", .example = "2"}, options.ranks);
  declare_backend(flags, options.backend);
  flags.count({.name = "--hidden",
               .help = "size of the layers that are measured: that of the layers you run (512)",
               .example = "512"},
              options.hidden);
  flags.count(
      {.name = "--seq-length", .help = "tokens per sample, likewise (128)", .example = "128"},
      options.seq_length);
  flags.file({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write the hardware file (here.json); - is standard output",
              .example = "here.json"},
             options.output);
}

void check(const Options& options) {
  if (!options.here) {
    throw_flag_error("--here", "missing: only this machine can be calibrated",
                     "shiplap calibrate --here -o here.json");
  }
  if (options.ranks.value_or(2) < 2) {
    throw_flag_error("--ranks", "a network connects two ranks", "use 2 or more");
  }
  const auto limit = [](const std::optional<std::int64_t>& count, const char* flag) {
    constexpr std::int64_t kMaxSize = 1 << 16;
    if (!count || (*count >= 1 && *count <= kMaxSize)) return;
    throw_flag_error(flag, fmt::format("expected 1 to {}, found {}", kMaxSize, *count));
  };
  limit(options.hidden, "--hidden");
  limit(options.seq_length, "--seq-length");
  constexpr std::int64_t kMaxRanks = 256;
  if (const std::int64_t ranks = options.ranks.value_or(2); ranks > kMaxRanks) {
    throw_flag_error("--ranks", fmt::format("{} ranks are too many to measure", ranks),
                     fmt::format("use up to {}", kMaxRanks));
  }
}

std::optional<hardware::SystemSamples> measure(const Options& options, const std::string& backend) {
  std::optional<hardware::SystemSamples> result;
  const auto ranks = static_cast<int>(options.ranks.value_or(2));
  comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
    run::check_job_consistency(
        world, {{"the command", shell_command(to_arguments("calibrate", declare, options))}});
    if (world.size() < 2 || (options.ranks && world.size() != ranks)) {
      throw_flag_error("--ranks", fmt::format("this job has {} ranks", world.size()),
                       "start a job of as many, 2 or more");
    }
    run::SystemCalibrationOptions how{.transport = backend};
    how.hidden = options.hidden.value_or(how.hidden);
    how.block = options.seq_length.value_or(how.block);
    hardware::SystemSamples samples = run::measure_system(world, how);
    if (world.rank() == 0) result = std::move(samples);
  });
  return result;
}

ExitCode calibrate(const Options& options, Context& context) {
  check(options);
  const OutputFile output{"--output", options.output.value_or("here.json")};
  check_outputs(std::span(&output, 1), false);
  const std::string backend = backend_of(options.backend);
  if (backend == "mpi" && !is_rank()) {
    exec_mpirun(options.ranks.value_or(2), to_arguments("calibrate", declare, options),
                context.out.colour);
  }
  std::optional<hardware::SystemSamples> samples;
  try {
    samples = measure(options, backend);
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
  if (!samples) return ExitCode::yes;  // rank 0 prints the result
  const Json file = hardware::fit_system(*samples);
  const std::string text = to_text(file) + "\n";
  write_output(output, text, context);
  answer_context(std::span(&output, 1), context).out.stream << report::hardware_text(
      hardware::parse_system(text, *output.file), file, context.text_style());
  if (!output.is_standard_output()) {
    suggest_next(fmt::format("shiplap simulate step.plan --hardware {}", shell_word(*output.file)),
                 context);
  }
  return ExitCode::yes;
}

}  // namespace

Verb calibrate_verb() {
  return make_verb<Options>(
      {.name = "calibrate",
       .summary = "measure this machine, for the predictions of simulate",
       .examples = {{"shiplap calibrate --here -o here.json", "two ranks, as threads"},
                    {"shiplap run --strategy fsdp --ranks 2 --hidden 512 --seq-length 128 "
                     "--plan step.plan",
                     "what to predict: a step in f32"},
                    {"shiplap simulate step.plan --hardware here.json",
                     "how long a step takes here"}},
       .notes = "The kernels are those of `shiplap run`. docs/hardware.md describes the file. Exit "
                "code 1: the measurement failed."},
      {.declare = declare, .run = calibrate});
}

}  // namespace shiplap::cli
