// shiplap overlap: plans, predicts and measures a GEMM that overlaps its communication.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/overlap_flags.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/report/overlap.h"
#include "shiplap/run/calibrate.h"
#include "shiplap/run/job_consistency.h"
#include "shiplap/run/overlap_study.h"

namespace shiplap::cli {
namespace {

// Starts an MPI job if --backend mpi is given and this process is not one of its ranks.
void launch(const OverlapOptions& options, int ranks, const Context& context) {
  const bool launched = comm::launched_by().has_value();
  if (launched && options.backend == "threads") {
    throw_flag_error("--backend", "this process is a rank of an MPI job", "use --backend mpi");
  }
  if (launched || options.backend != "mpi") return;
  exec_mpirun(ranks, to_arguments(options), context.out.colour);
}

std::optional<overlap::Calibration> measured_machine(const OverlapOptions& options,
                                                     Context& context) {
  const int ranks = overlap::int_flag("--tp", options.query.ranks, 4);
  launch(options, ranks, context);
  const bool on_threads = !comm::launched_by();
  if (on_threads) run::check_threads(ranks);
  check_writable(options.calibrate, "--calibrate");
  std::optional<overlap::Calibration> result;
  comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
    run::check_job_consistency(world, {{"the command", shell_command(to_arguments(options))}});
    if (options.query.ranks) run::check_ranks(world, ranks);
    const std::string machine =
        fmt::format("{} ranks, {}", world.size(), on_threads ? "threads" : "mpi");
    overlap::Calibration local = run::calibrate(world, {.machine = machine});
    if (world.rank() == 0) result = std::move(local);
  });
  return result;
}

ExitCode calibrate(const std::string& file, const OverlapOptions& options, Context& context) {
  const std::optional<overlap::Calibration> result = measured_machine(options, context);
  if (!result) return ExitCode::yes;  // rank 0 prints the result
  const OutputFile output{"--calibrate", file};
  write_output(output, to_text(to_json(*result)) + "\n", context);
  answer_context(std::span(&output, 1), context).out.stream << report::calibration_text(*result);
  return ExitCode::yes;
}

ExitCode write_plan(const OverlapOptions& options, Context& context) {
  const overlap::Choice choice = choice_of(options.query);
  const std::string text = overlap::plan_text(choice, problem_of(options.query));
  write_output({"--output", options.output.value_or("-")}, text, context);
  return ExitCode::yes;
}

// Suggests the command that reports on the fastest candidate.
void suggest_fastest(OverlapOptions options, const overlap::Compared& best, Context& context) {
  options.query.method = name(best.choice.method);
  if (best.chunks > 1) options.query.chunks = best.chunks;
  options.report = "overlap.html";
  suggest_next(shell_command(to_arguments(options)), context);
}

ExitCode answer(const OverlapOptions& options, Context& context) {
  const overlap::Query query = query_of(options, context.in);
  // Reports errors once, before the ranks start.
  if (query.run) launch(options, overlap::begin_study(query).problem.ranks, context);
  const std::optional<overlap::Study> study =
      run::study_overlap(query, shell_command(to_arguments(options)));
  if (!study) return ExitCode::yes;  // rank 0 prints the result
  write_files(options, *study, context);
  const Context answer = answer_context(outputs_of(options), context);
  answer.out.stream << (options.json ? to_text(report::overlap_json(*study)) + "\n"
                                     : report::overlap_text(*study, answer.text_style()));
  if (study->comparison && !options.json) {
    suggest_fastest(options, study->comparison->candidates.front(), context);
  }
  return !study->measured || study->measured->is_right() ? ExitCode::yes : ExitCode::no;
}

ExitCode run_verb(const OverlapOptions& options, Context& context) {
  check_overlap(options);
  if (options.list) {
    context.out.stream << (options.json ? to_text(report::overlap_list_json()) + "\n"
                                        : report::overlap_list_text(context.text_style()));
    return ExitCode::yes;
  }
  const bool wants_answer = options.query.chooses() || options.query.wants_times();
  try {
    if (options.calibrate) return calibrate(*options.calibrate, options, context);
    return wants_answer ? answer(options, context) : write_plan(options, context);
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
}

}  // namespace

Verb overlap_verb() {
  return make_verb<OverlapOptions>(
      {.name = "overlap",
       .summary = "overlap a GEMM with its communication: plan, predict, measure",
       .examples =
           {{"shiplap overlap --list", "list the supported combinations"},
            {"shiplap overlap --op ag --m 1024 --n 4096 --k 2048 --tp 4 --chunks 4",
             "ring exchange: transfer one chunk while computing another"},
            {"shiplap overlap --op rs --m 1000 --n 512 --k 777 -o rs.plan",
             "sizes need not be divisible"},
            {"shiplap overlap --op ar --m 64 --n 64 --k 64 --method pipeline | shiplap check -",
             "verify the plan"},
            {"shiplap overlap --op ag --m 8192 --n 28672 --k 8192 --tp 4 --hardware h100_80g_nvl8",
             "compare all methods on this hardware"},
            {"shiplap overlap --op ag --m 512 --n 2048 --k 512 --tp 2 --run --report out.html",
             "measure on this machine; HTML report"},
            {"shiplap overlap --calibrate here.json --tp 2", "calibrate this machine, once"},
            {"shiplap overlap --op rs --m 1024 --n 2048 --k 4096 --tp 2 --method auto "
             "--calibration here.json",
             "choose the fastest method for this machine"}},
       .notes = "Exit code 1: the run failed, or its result is wrong."},
      {.declare = declare_overlap, .run = run_verb});
}

}  // namespace shiplap::cli
