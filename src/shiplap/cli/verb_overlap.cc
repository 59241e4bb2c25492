// shiplap overlap: a product whose communication is hidden, as a plan, predicted and measured.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/overlap_report.h"
#include "shiplap/cli/overlap_show.h"
#include "shiplap/cli/table.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/overlap_trial.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::optional<std::string> op;
  std::optional<std::string> method;
  std::optional<std::int64_t> rows;
  std::optional<std::int64_t> columns;
  std::optional<std::int64_t> depth;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> chunks;
  std::optional<std::string> type;
  std::optional<std::string> hardware;
  std::optional<std::string> backend;
  std::optional<std::int64_t> rounds;
  std::optional<std::string> report;
  std::optional<std::string> output;
  bool atomic = false;
  bool tapered = false;
  bool polled = false;
  bool run = false;
  bool list = false;
  bool json = false;

  // Whether it is to be said how long it takes, and not only what is done.
  [[nodiscard]] bool wants_times() const { return hardware.has_value() || run; }
};

void declare_product(Flags& flags, Options& options) {
  flags.text({.name = "--op",
              .value = "OP",
              .help = "what is hidden: ag (rows of X are gathered first), rs (Y is summed and "
                      "scattered), ar (Y is summed everywhere), none",
              .example = "ag",
              .values = Values::listed,
              .choices = {"ag", "rs", "ar", "none"}},
             options.op);
  flags.text(
      {.name = "--method",
       .value = "METHOD",
       .help = "none, bulk, pipeline or ring_exchange; if not given, ring_exchange, and with "
               "--hardware alone all are compared",
       .example = "pipeline",
       .values = Values::listed,
       .choices = {"none", "bulk", "pipeline", "ring_exchange"}},
      options.method);
  flags.toggle({.name = "--atomic", .help = "one launch, whose tiles raise counters"},
               options.atomic);
  flags.count({.name = "--m", .value = "N", .help = "rows of X, on all ranks", .example = "1024"},
              options.rows);
  flags.count(
      {.name = "--n", .value = "N", .help = "columns of W, on all ranks", .example = "4096"},
      options.columns);
  flags.count({.name = "--k",
               .value = "N",
               .help = "columns of X, rows of W, on all ranks",
               .example = "2048"},
              options.depth);
  flags.count({.name = "--tp", .value = "N", .help = "ranks; 4 if not given", .example = "8"},
              options.ranks);
  flags.count({.name = "--chunks",
               .value = "N",
               .help = "into which the rows of each rank are cut; 1 if not given",
               .example = "4"},
              options.chunks);
  flags.toggle({.name = "--tapered",
                .help = "smaller chunks where nothing hides them: last with ag, else first"},
               options.tapered);
  flags.text({.name = "--type",
              .value = "TYPE",
              .help = "of X, W and Y: bf16, f16 or f32; bf16 if not given",
              .example = "f32",
              .values = Values::listed,
              .choices = {"bf16", "f16", "f32"}},
             options.type);
}

void declare_times(Flags& flags, Options& options) {
  flags.text({.name = "--hardware",
              .value = "NAME",
              .help = fmt::format("predict how long it takes there: a file, or one of {}",
                                  fmt::join(hardware::known_systems(), ", ")),
              .example = "h100_80g_nvl8"},
             options.hardware);
  flags.toggle({.name = "--run", .help = "carry it out and measure, beside its parts"},
               options.run);
  flags.text({.name = "--backend",
              .value = "WHERE",
              .help = "with --run: threads of this process, or processes of an MPI job, which is "
                      "started if mpirun did not start this (threads)",
              .example = "mpi",
              .values = Values::listed,
              .choices = {"threads", "mpi"}},
             options.backend);
  flags.toggle({.name = "--polled",
                .help = "with --run: no thread for progress; who multiplies looks after messages"},
               options.polled);
  flags.count({.name = "--rounds",
               .value = "N",
               .help = "with --run: how often all is measured in turn (9)",
               .example = "9"},
              options.rounds);
  flags.text({.name = "--report",
              .value = "FILE",
              .help = "with --hardware or --run: write a picture: one HTML file",
              .example = "overlap.html",
              .values = Values::files},
             options.report);
}

void declare(Flags& flags, Options& options) {
  declare_product(flags, options);
  declare_times(flags, options);
  flags.toggle({.name = "--list", .help = "what can be combined, and what does it"}, options.list);
  flags.toggle(
      {.name = "--json", .help = "with --list, --hardware or --run: everything, for programs"},
      options.json);
  flags.text({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write the plan to this file",
              .example = "gemm.plan",
              .values = Values::files},
             options.output);
}

overlap::Type type_of(const std::string& op) {
  if (op == "ag") return overlap::Type::all_gather;
  if (op == "rs") return overlap::Type::reduce_scatter;
  if (op == "ar") return overlap::Type::all_reduce;
  return overlap::Type::none;
}

overlap::Choice choice_of(const std::string& op, const Options& options) {
  overlap::Choice choice{.type = type_of(op), .atomic = options.atomic};
  const std::string method =
      options.method.value_or(choice.type == overlap::Type::none ? "none" : "ring_exchange");
  for (const overlap::Method each : {overlap::Method::none, overlap::Method::bulk,
                                     overlap::Method::pipeline, overlap::Method::ring_exchange}) {
    if (name(each) == method) choice.method = each;
  }
  return choice;
}

int small(const char* flag, std::optional<std::int64_t> given, int usual) {
  if (!given) return usual;
  if (*given > std::numeric_limits<int>::max()) refuse_flag(flag, "this is too much");
  return static_cast<int>(*given);
}

std::int64_t needed(const char* flag, std::optional<std::int64_t> given) {
  if (!given) refuse_flag(flag, fmt::format("`{}` is missing", flag), "give --m, --n and --k");
  return *given;
}

overlap::Problem problem_of(const Options& options) {
  overlap::Problem problem{.rows = needed("--m", options.rows),
                           .columns = needed("--n", options.columns),
                           .depth = needed("--k", options.depth),
                           .ranks = small("--tp", options.ranks, 4),
                           .chunks = small("--chunks", options.chunks, 1)};
  if (options.type == "f32") problem.type = plan::ElementType::f32;
  if (options.type == "f16") problem.type = plan::ElementType::f16;
  if (options.tapered) problem.cut = overlap::Cut::tapered;
  return problem;
}

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

// The flags that were given, to be given again.
std::vector<std::string> words_of(const Options& options) {
  std::vector<std::string> words{"overlap"};
  const auto add = [&](const char* flag, const auto& value) {
    if (!value) return;
    words.emplace_back(flag);
    words.push_back(fmt::format("{}", *value));
  };
  add("--op", options.op);
  add("--method", options.method);
  if (options.atomic) words.emplace_back("--atomic");
  add("--m", options.rows);
  add("--n", options.columns);
  add("--k", options.depth);
  add("--tp", options.ranks);
  add("--chunks", options.chunks);
  if (options.tapered) words.emplace_back("--tapered");
  add("--type", options.type);
  add("--hardware", options.hardware);
  if (options.run) words.emplace_back("--run");
  add("--backend", options.backend);
  if (options.polled) words.emplace_back("--polled");
  add("--rounds", options.rounds);
  add("--report", options.report);
  add("--output", options.output);
  if (options.json) words.emplace_back("--json");
  return words;
}

std::string command_of(const Options& options) {
  std::string command = "shiplap";
  for (const std::string& word : words_of(options)) command += " " + shell_word(word);
  return command;
}

// Numbers of chunks that are worth a look, if the rows are enough and the plan stays small.
std::vector<int> chunks_to_compare(const Options& options, const overlap::Problem& problem) {
  if (options.chunks) return {problem.chunks};
  std::vector<int> all{1};
  for (const int chunks : {2, 4, 8, 16}) {
    const std::int64_t pieces = std::int64_t{problem.ranks} * chunks;
    if (pieces <= problem.rows && pieces * problem.ranks <= 100'000) all.push_back(chunks);
  }
  return all;
}

// Every method on a machine.
ExitCode compare(const hardware::System& system, const Options& options,
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
  Options next = options;
  next.method = name(about.candidates.front().choice.method);
  if (about.candidates.front().chunks > 1) next.chunks = about.candidates.front().chunks;
  next.report = "overlap.html";
  suggest_next(command_of(next), context);
  return ExitCode::yes;
}

void check_size(const overlap::Choice& choice, const overlap::Problem& problem, bool on_threads) {
  constexpr int kMostThreads = 256;
  if (on_threads && problem.ranks > kMostThreads) {
    refuse_flag("--tp", fmt::format("{} ranks are too many threads", problem.ranks),
                fmt::format("up to {}, or --backend mpi", kMostThreads));
  }
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

// On rank 0 of the ranks, wherever they are.
std::optional<run::OverlapTrialResult> measure(const Options& options,
                                               const overlap::Choice& choice,
                                               const overlap::Problem& problem) {
  std::optional<run::OverlapTrialResult> result;
  comm::run_ranks({.threads = problem.ranks}, [&](comm::Communicator& world) {
    if (world.size() != problem.ranks) {
      refuse_flag("--tp",
                  fmt::format("mpirun started {} ranks, --tp says {}", world.size(), problem.ranks),
                  fmt::format("mpirun -n {}", problem.ranks));
    }
    run::OverlapTrialResult own = run::try_overlap(
        world, choice, problem,
        {.rounds = small("--rounds", options.rounds, 9),
         .traces = options.report.has_value(),
         .progress = options.polled ? run::Progress::polled : run::Progress::threads});
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

ExitCode tell(const Options& options, const OverlapView& view, Context& context) {
  if (options.output) {
    write_text(*options.output, overlap::plan_text(view.choice, view.problem), "--output");
  }
  if (options.report) {
    write_text(*options.report, to_html(overlap_page(view, command_of(options))), "--report");
  }
  if (options.json) {
    context.out.stream << to_text(overlap_to_json(view)) << '\n';
  } else {
    context.out.stream << show_overlap(view, context);
  }
  return !view.measured || view.measured->is_right() ? ExitCode::yes : ExitCode::no;
}

ExitCode times(const Options& options, const overlap::Choice& choice,
               const overlap::Problem& problem, Context& context) {
  if (choice.type == overlap::Type::none) {
    refuse_flag("--op", "a product alone hides nothing", "give --op ag, rs or ar");
  }
  OverlapView view{.choice = choice, .problem = problem};
  static_cast<void>(overlap::make_plan(choice, problem));  // what is wrong is said once, here
  demand_replayable(choice, problem);
  std::optional<hardware::System> system;
  if (options.hardware) system = hardware::find_system(*options.hardware);
  if (options.run) {
    const bool launched = comm::launched_by().has_value();
    if (launched && options.backend == "threads") {
      refuse_flag("--backend", "this process is a rank of an MPI job", "say --backend mpi");
    }
    const bool on_mpi = launched || options.backend == "mpi";
    check_size(choice, problem, !on_mpi);
    if (on_mpi && !launched) become_mpirun(problem.ranks, words_of(options), context.out.colour);
    std::optional<run::OverlapTrialResult> result;
    try {
      result = measure(options, choice, problem);
    } catch (const comm::Failure& failure) {
      context.err.stream << render(failure.diagnostic(), context.err.colour);
      return ExitCode::no;
    }
    if (!result) return ExitCode::yes;  // another rank speaks
    view.measured = {.trial = *std::move(result),
                     .backend = on_mpi ? "mpi" : "threads",
                     .polled = options.polled,
                     .rounds = small("--rounds", options.rounds, 9),
                     .cores = static_cast<int>(std::thread::hardware_concurrency())};
    const OverlapTimes times = view.measured->times();
    view.calibrated = predict_overlap(
        choice, problem,
        calibrated(choice, problem,
                   {.product = times.product, .communication = times.communication}));
  }
  if (system) view.predicted = predict_overlap(choice, problem, *system);
  return tell(options, view, context);
}

// Flags that make no sense together.
void check(const Options& options) {
  if (options.json && !options.list && !options.wants_times()) {
    refuse_flag("--json", "a plan is no JSON here",
                "with --list, --hardware or --run; `shiplap export` converts plans");
  }
  if (options.report && !options.wants_times()) {
    refuse_flag("--report", "a picture shows times", "predict them by --hardware NAME, or --run");
  }
  if (!options.run && (options.backend || options.rounds || options.polled)) {
    const char* const flag =
        options.backend ? "--backend" : (options.polled ? "--polled" : "--rounds");
    refuse_flag(flag, "nothing is carried out", "add --run");
  }
  if (options.rounds == 0) refuse_flag("--rounds", "expected 1 or more");
}

ExitCode run_verb(const Options& options, Context& context) {
  check(options);
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
  const overlap::Choice choice = choice_of(*options.op, options);
  const overlap::Problem problem = problem_of(options);
  if (options.wants_times()) {
    const bool compares =
        !options.method && choice.type != overlap::Type::none && !options.run && !options.report;
    if (compares && options.hardware) {
      return compare(hardware::find_system(*options.hardware), options, choice, problem, context);
    }
    return times(options, choice, problem, context);
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
  return make_verb<Options>(
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
             "measured here, as a picture"}},
       .notes = "Exit code 1: it was run, and failed or gave a wrong result."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
