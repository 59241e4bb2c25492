// shiplap overlap: a product whose communication is hidden, as a plan, predicted and measured.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/overlap_flags.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/report/overlap.h"
#include "shiplap/run/calibrate.h"
#include "shiplap/run/overlap_study.h"
#include "shiplap/run/same_job.h"

namespace shiplap::cli {
namespace {

// Starts the processes of an MPI job if they are asked for and this is none of them.
void launch(const OverlapOptions& options, int ranks, const Context& context) {
  const bool launched = comm::launched_by().has_value();
  if (launched && options.backend == "threads") {
    refuse_flag("--backend", "this process is a rank of an MPI job", "say --backend mpi");
  }
  if (launched || options.backend != "mpi") return;
  become_mpirun(ranks, words_of(options), context.out.colour);
}

std::optional<overlap::Calibration> measured_machine(const OverlapOptions& options,
                                                     Context& context) {
  const int ranks = overlap::small_number("--tp", options.query.ranks, 4);
  launch(options, ranks, context);
  const bool on_threads = !comm::launched_by();
  if (on_threads) run::check_threads(ranks);
  check_writable(options.calibrate, "--calibrate");
  std::optional<overlap::Calibration> result;
  comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
    run::require_same_job(world, {{"the command", shell_command(words_of(options))}});
    if (options.query.ranks) run::check_ranks(world, ranks);
    const std::string machine =
        fmt::format("{} ranks, {}", world.size(), on_threads ? "threads" : "mpi");
    overlap::Calibration own = run::calibrate(world, {.machine = machine});
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

ExitCode calibrate(const std::string& file, const OverlapOptions& options, Context& context) {
  const std::optional<overlap::Calibration> result = measured_machine(options, context);
  if (!result) return ExitCode::yes;  // another rank speaks
  write_text(file, to_text(to_json(*result)) + "\n", "--calibrate");
  context.out.stream << report::calibration_text(*result);
  return ExitCode::yes;
}

ExitCode write_plan(const OverlapOptions& options, Context& context) {
  const overlap::Choice choice = choice_of(options.query);
  const std::string text = overlap::plan_text(choice, problem_of(options.query));
  if (options.output && *options.output != "-") {
    write_text(*options.output, text, "--output");
    context.err.stream << fmt::format("wrote {}\n", shell_word(*options.output));
  } else {
    context.out.stream << text;
  }
  return ExitCode::yes;
}

// How to look closer at the fastest.
void suggest_best(OverlapOptions options, const overlap::Compared& best, Context& context) {
  options.query.method = name(best.choice.method);
  if (best.chunks > 1) options.query.chunks = best.chunks;
  options.report = "overlap.html";
  suggest_next(shell_command(words_of(options)), context);
}

ExitCode answer(const OverlapOptions& options, Context& context) {
  const overlap::Query query = query_of(options, context.in);
  // What is wrong with it is said once, before there are ranks.
  if (query.run) launch(options, overlap::begin_study(query).problem.ranks, context);
  const std::optional<overlap::Study> study =
      run::study_overlap(query, shell_command(words_of(options)));
  if (!study) return ExitCode::yes;  // another rank speaks
  write_files(options, *study);
  context.out.stream << (options.json ? to_text(report::overlap_json(*study)) + "\n"
                                      : report::overlap_text(*study, context.look()));
  if (study->comparison && !options.json) {
    suggest_best(options, study->comparison->candidates.front(), context);
  }
  return !study->measured || study->measured->is_right() ? ExitCode::yes : ExitCode::no;
}

ExitCode run_verb(const OverlapOptions& options, Context& context) {
  check_overlap(options);
  if (options.list) {
    context.out.stream << (options.json ? to_text(report::overlap_list_json()) + "\n"
                                        : report::overlap_list_text(context.look()));
    return ExitCode::yes;
  }
  const bool asks = options.query.chooses() || options.query.wants_times();
  try {
    if (options.calibrate) return calibrate(*options.calibrate, options, context);
    return asks ? answer(options, context) : write_plan(options, context);
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
}

}  // namespace

Verb overlap_verb() {
  return make_verb<OverlapOptions>(
      {.name = "overlap",
       .summary =
           "a matrix product cut so that its communication is hidden: plan, predict, measure",
       .examples =
           {{"shiplap overlap --list", "what can be combined"},
            {"shiplap overlap --op ag --m 1024 --n 4096 --k 2048 --tp 4 --chunks 4",
             "rows go round a ring while others are multiplied"},
            {"shiplap overlap --op rs --m 1000 --n 512 --k 777 -o rs.plan", "nothing need divide"},
            {"shiplap overlap --op ar --m 64 --n 64 --k 64 --method pipeline | shiplap check -",
             "and is it sound?"},
            {"shiplap overlap --op ag --m 8192 --n 28672 --k 8192 --tp 4 --hardware h100_80g_nvl8",
             "which method is the fastest there?"},
            {"shiplap overlap --op ag --m 512 --n 2048 --k 512 --tp 2 --run --report out.html",
             "measured here, as a picture"},
            {"shiplap overlap --calibrate here.json --tp 2", "measure this machine, once"},
            {"shiplap overlap --op rs --m 1024 --n 2048 --k 4096 --tp 2 --method auto "
             "--calibration here.json",
             "and what is the best way here?"}},
       .notes = "Exit code 1: it was run, and failed or gave a wrong result."},
      {.declare = declare_overlap, .run = run_verb});
}

}  // namespace shiplap::cli
