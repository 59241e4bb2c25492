// shiplap overlap: a product whose communication is hidden, as a plan, predicted and measured.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/overlap_chosen.h"
#include "shiplap/cli/overlap_flags.h"
#include "shiplap/cli/overlap_report.h"
#include "shiplap/cli/overlap_show.h"
#include "shiplap/cli/table.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/calibration.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/calibrate.h"
#include "shiplap/run/overlap_trial.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"

namespace shiplap::cli {
namespace {

// All of them begin alike.
std::string known_as(std::string_view function) {
  constexpr std::string_view kAlike = "CommOverlap";
  return std::string(function.starts_with(kAlike) ? function.substr(kAlike.size()) : function);
}

void list_text(Context& context) {
  Table table({{.title = "type", .worth = 5},
               {.title = "method", .worth = 5},
               {.title = "atomic", .worth = 5},
               {.title = "what happens", .worth = 3},
               {.title = "CommOverlap..", .worth = 2}});
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    table.add({std::string(name(legal.choice.type)), std::string(name(legal.choice.method)),
               legal.choice.atomic ? "yes" : "", std::string(legal.what),
               known_as(legal.function)});
  }
  context.out.stream << table.text(context.width(), context.out.colour);
}

Json list_json() {
  Json choices = Json::array();
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    choices.push(Json::object({{"type", std::string(name(legal.choice.type))},
                               {"method", std::string(name(legal.choice.method))},
                               {"atomic", legal.choice.atomic},
                               {"what", std::string(legal.what)},
                               {"function", std::string(legal.function)}}));
  }
  return Json::object({{"schema", "shiplap.overlap.list/1"}, {"choices", choices}});
}

// ---- how long it takes

// Numbers of chunks that are worth a look, if the rows are enough and the plan stays small.
std::vector<int> chunks_to_compare(const OverlapOptions& options, const overlap::Problem& problem) {
  if (options.chunks) return {problem.chunks};
  std::vector<int> all{1};
  for (const int chunks : {2, 4, 8, 16}) {
    const std::int64_t pieces = std::int64_t{problem.ranks} * chunks;
    if (pieces <= problem.rows && pieces * problem.ranks <= 100'000) all.push_back(chunks);
  }
  return all;
}

// Every method on a machine.
ExitCode compare(const hardware::System& system, const OverlapOptions& options,
                 const overlap::Choice& choice, const overlap::Problem& problem, Context& context) {
  if (options.output) {
    refuse_flag("--output", "all methods are compared: which of their plans?",
                "say which by --method");
  }
  const OverlapComparison about{
      .problem = problem,
      .system = system.name,
      .candidates = compare_overlaps(choice, problem, system, chunks_to_compare(options, problem))};
  if (options.json) {
    context.out.stream << to_text(comparison_to_json(about)) << '\n';
    return ExitCode::yes;
  }
  context.out.stream << show_comparison(about, context);
  OverlapOptions next = options;
  next.method = name(about.candidates.front().choice.method);
  if (about.candidates.front().chunks > 1) next.chunks = about.candidates.front().chunks;
  next.report = "overlap.html";
  suggest_next(command_of(next), context);
  return ExitCode::yes;
}

void check_threads(int ranks, bool on_threads) {
  constexpr int kMostThreads = 256;
  if (!on_threads || ranks <= kMostThreads) return;
  refuse_flag("--tp", fmt::format("{} ranks are too many threads", ranks),
              fmt::format("up to {}, or --backend mpi", kMostThreads));
}

void check_size(const overlap::Choice& choice, const overlap::Problem& problem, bool on_threads) {
  check_threads(problem.ranks, on_threads);
  const double here =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const double needed = run::overlap_trial_bytes(choice, problem);
  if (on_threads && needed > 0.8 * here) {
    refuse_flag("--run",
                fmt::format("this needs about {}, and there are {}",
                            to_string(Bytes{static_cast<std::int64_t>(needed)}),
                            to_string(Bytes{static_cast<std::int64_t>(here)})),
                "give a smaller --m, --n or --k, or predict it by --hardware alone");
  }
}

// What is chosen looks after its messages itself; collectives beside a product need a thread.
bool is_polled(const OverlapOptions& options, const overlap::Choice& choice) {
  return options.chooses() ? choice.method != overlap::Method::pipeline : options.polled;
}

// Whether the ranks are processes of an MPI job: `launched`, or still to be.
struct Where {
  bool launched = false;
  bool on_mpi = false;
};
Where where_of(const OverlapOptions& options) {
  const bool launched = comm::launched_by().has_value();
  if (launched && options.backend == "threads") {
    refuse_flag("--backend", "this process is a rank of an MPI job", "say --backend mpi");
  }
  return {.launched = launched, .on_mpi = launched || options.backend == "mpi"};
}

void demand_ranks(const comm::Communicator& world, int ranks) {
  if (world.size() == ranks) return;
  refuse_flag("--tp", fmt::format("mpirun started {} ranks, --tp says {}", world.size(), ranks),
              fmt::format("mpirun -n {}", ranks));
}

// On rank 0 of the ranks, wherever they are.
std::optional<run::OverlapTrialResult> measure(const OverlapOptions& options,
                                               const overlap::Choice& choice,
                                               const overlap::Problem& problem) {
  std::optional<run::OverlapTrialResult> result;
  comm::run_ranks({.threads = problem.ranks}, [&](comm::Communicator& world) {
    run::require_same_job(world, {{"the command", command_of(options)}});
    demand_ranks(world, problem.ranks);
    run::OverlapTrialResult own = run::try_overlap(
        world, choice, problem,
        {.rounds = small_number("--rounds", options.rounds, 9),
         .traces = options.report || options.trace,
         .progress = is_polled(options, choice) ? run::Progress::polled : run::Progress::threads});
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

// What was measured, or else what was predicted.
void write_trace(const std::string& file, const OverlapView& view) {
  const trace::Trace& trace = view.measured ? view.measured->trial.trace : view.listed().trace;
  const std::string title = overlap_name(view.choice, view.problem);
  write_text(
      file,
      file.ends_with(".json") ? trace::to_json(trace) : trace::to_perfetto(trace, {.title = title}),
      "--trace");
}

ExitCode tell(const OverlapOptions& options, const OverlapView& view, Context& context) {
  if (options.output) {
    write_text(*options.output, overlap::plan_text(view.choice, view.problem), "--output");
  }
  if (options.report) {
    write_text(*options.report, to_html(overlap_page(view, command_of(options))), "--report");
  }
  if (options.trace) write_trace(*options.trace, view);
  if (options.json) {
    Json json = overlap_to_json(view);
    if (view.chosen) json.set("chosen", chosen_to_json(*view.chosen));
    context.out.stream << to_text(json) << '\n';
  } else {
    if (view.chosen) context.out.stream << show_chosen(*view.chosen, context) << '\n';
    context.out.stream << show_overlap(view, context);
  }
  return !view.measured || view.measured->is_right() ? ExitCode::yes : ExitCode::no;
}

// Carries it out. Nothing on ranks that do not speak.
std::optional<OverlapMeasurement> measurement(const OverlapOptions& options,
                                              const overlap::Choice& choice,
                                              const overlap::Problem& problem, Context& context) {
  const Where where = where_of(options);
  check_size(choice, problem, !where.on_mpi);
  if (where.on_mpi && !where.launched) {
    become_mpirun(problem.ranks, words_of(options), context.out.colour);
  }
  std::optional<run::OverlapTrialResult> result = measure(options, choice, problem);
  if (!result) return std::nullopt;
  return OverlapMeasurement{.trial = *std::move(result),
                            .backend = where.on_mpi ? "mpi" : "threads",
                            .polled = is_polled(options, choice),
                            .rounds = small_number("--rounds", options.rounds, 9),
                            .cores = static_cast<int>(std::thread::hardware_concurrency())};
}

// Predicts and measures what the view is about.
ExitCode times(const OverlapOptions& options, OverlapView view, Context& context) {
  const overlap::Choice& choice = view.choice;
  const overlap::Problem& problem = view.problem;
  if (choice.type == overlap::Type::none) {
    refuse_flag("--op", "a product alone hides nothing", "give --op ag, rs or ar");
  }
  static_cast<void>(overlap::make_plan(choice, problem));  // what is wrong is said once, here
  demand_replayable(choice, problem);
  std::optional<hardware::System> system;
  if (options.hardware) system = hardware::find_system(*options.hardware);
  if (options.run) {
    try {
      view.measured = measurement(options, choice, problem, context);
    } catch (const comm::Failure& failure) {
      context.err.stream << render(failure.diagnostic(), context.err.colour);
      return ExitCode::no;
    }
    if (!view.measured) return ExitCode::yes;  // another rank speaks
    const OverlapTimes times = view.measured->times();
    view.calibrated = predict_overlap(
        choice, problem,
        calibrated(choice, problem,
                   {.product = times.product, .communication = times.communication}));
  }
  if (system) view.predicted = predict_overlap(choice, problem, *system);
  return tell(options, view, context);
}

// ---- what is chosen, and by what

overlap::Chosen chosen_for(const OverlapOptions& options, overlap::Type type,
                           const overlap::Problem& problem, Context& context) {
  if (options.hardware) {
    const hardware::System system = hardware::find_system(*options.hardware);
    return overlap::choose(type, problem, overlap::machine_of(system, type, problem));
  }
  const SourceText source = read_text(options.calibration.value_or("-"), context);
  const overlap::Calibration calibration =
      overlap::calibration_from(parse_json(source.text, source.file), source.file);
  return overlap::choose(type, problem, overlap::machine_of(calibration, type, problem));
}

ExitCode choose(const OverlapOptions& options, overlap::Type type, const overlap::Problem& problem,
                Context& context) {
  const overlap::Chosen chosen = chosen_for(options, type, problem, context);
  if (options.run || options.report || options.trace) {
    return times(options, {.choice = chosen.choice, .problem = chosen.problem, .chosen = chosen},
                 context);
  }
  if (options.output) {
    write_text(*options.output, overlap::plan_text(chosen.choice, chosen.problem), "--output");
  }
  if (options.json) {
    context.out.stream << to_text(chosen_to_json(chosen)) << '\n';
  } else {
    context.out.stream << show_chosen(chosen, context);
  }
  return ExitCode::yes;
}

ExitCode calibrate(const std::string& file, const OverlapOptions& options, Context& context) {
  const Where where = where_of(options);
  const int ranks = small_number("--tp", options.ranks, 4);
  check_threads(ranks, !where.on_mpi);
  if (where.on_mpi && !where.launched) {
    become_mpirun(ranks, words_of(options), context.out.colour);
  }
  check_writable(file, "--calibrate");
  std::optional<overlap::Calibration> result;
  try {
    comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
      run::require_same_job(world, {{"the command", command_of(options)}});
      if (options.ranks) demand_ranks(world, ranks);
      const std::string machine =
          fmt::format("{} ranks, {}", world.size(), where.on_mpi ? "mpi" : "threads");
      overlap::Calibration own = run::calibrate(world, {.machine = machine});
      if (world.rank() == 0) result = std::move(own);
    });
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
  if (!result) return ExitCode::yes;  // another rank speaks
  write_text(file, to_text(to_json(*result)) + "\n", "--calibrate");
  context.out.stream << show_calibration(*result);
  return ExitCode::yes;
}

ExitCode run_verb(const OverlapOptions& options, Context& context) {
  check_overlap(options);
  check_writable(options.report, "--report");
  check_writable(options.trace, "--trace");
  check_writable(options.output, "--output");
  if (options.calibrate) return calibrate(*options.calibrate, options, context);
  if (options.list) {
    if (options.json) {
      context.out.stream << to_text(list_json()) << '\n';
    } else {
      list_text(context);
    }
    return ExitCode::yes;
  }
  if (!options.op) {
    refuse_flag("--op", "it is not known what is to be hidden",
                "give --op ag, rs or ar; `shiplap overlap --list` shows what there is");
  }
  const overlap::Choice choice = choice_of(options);
  const overlap::Problem problem = problem_of(options);
  if (options.chooses()) return choose(options, choice.type, problem, context);
  if (options.wants_times()) {
    const bool compares = !options.method && choice.type != overlap::Type::none && !options.run &&
                          !options.report && !options.trace;
    if (compares && options.hardware) {
      return compare(hardware::find_system(*options.hardware), options, choice, problem, context);
    }
    return times(options, {.choice = choice, .problem = problem}, context);
  }
  const std::string text = overlap::plan_text(choice, problem);
  const bool to_file = options.output && *options.output != "-";
  if (to_file) {
    write_text(*options.output, text, "--output");
    context.err.stream << fmt::format("wrote {}\n", shell_word(*options.output));
  } else {
    context.out.stream << text;
  }
  return ExitCode::yes;
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
