#include "shiplap/cli/overlap_flags.h"

#include <fmt/format.h>

#include <limits>

#include "shiplap/cli/files.h"
#include "shiplap/hardware/system.h"

namespace shiplap::cli {
namespace {

void declare_product(Flags& flags, OverlapOptions& options) {
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
               "--hardware alone all are compared. auto: what should be the fastest, by --hardware "
               "or --calibration",
       .example = "pipeline",
       .values = Values::listed,
       .choices = {"none", "bulk", "pipeline", "ring_exchange", "auto"}},
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

void declare_forms(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--scaling",
              .value = "SCALING",
              .help = "X, W and parts of sums as FP8: tensor (W has one scale, each row of the "
                      "others has its own), mxfp8 (one for every 32 numbers), or none",
              .example = "mxfp8",
              .values = Values::listed,
              .choices = {"none", "tensor", "mxfp8"}},
             options.scaling);
  flags.text({.name = "--fp8",
              .value = "FORMAT",
              .help = "with --scaling: e4m3 or e5m2; e4m3 if not given",
              .example = "e5m2",
              .values = Values::listed,
              .choices = {"e4m3", "e5m2"}},
             options.fp8);
  flags.toggle({.name = "--plain-sums",
                .help = "with --scaling: parts of sums travel as --type says, not as FP8"},
               options.plain_sums);
  flags.count({.name = "--groups",
               .value = "N",
               .help = "so many W, and each row of X belongs to one: experts",
               .example = "8"},
              options.groups);
}

void declare_times(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--hardware",
              .value = "NAME",
              .help = fmt::format("predict how long it takes there: a file, or one of {}",
                                  fmt::join(hardware::known_systems(), ", ")),
              .example = "h100_80g_nvl8"},
             options.hardware);
  flags.text({.name = "--calibrate",
              .value = "FILE",
              .help = "measure for a few seconds what overlaps depend on, and write it there",
              .example = "here.json",
              .values = Values::files},
             options.calibrate);
  flags.text({.name = "--calibration",
              .value = "FILE",
              .help = "with --method auto: choose by what --calibrate has measured",
              .example = "here.json",
              .values = Values::files},
             options.calibration);
  flags.toggle({.name = "--run", .help = "carry it out and measure, beside its parts"},
               options.run);
  flags.text({.name = "--backend",
              .value = "WHERE",
              .help = "with --run or --calibrate: threads of this process, or processes of an MPI "
                      "job, which is "
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
  flags.text({.name = "--trace",
              .value = "FILE",
              .help = "with --hardware or --run: write a trace for ui.perfetto.dev, or as JSON if "
                      "the file is called .json",
              .example = "overlap.pftrace",
              .values = Values::files},
             options.trace);
}

overlap::Type type_of(const std::string& op) {
  if (op == "ag") return overlap::Type::all_gather;
  if (op == "rs") return overlap::Type::reduce_scatter;
  if (op == "ar") return overlap::Type::all_reduce;
  return overlap::Type::none;
}

std::int64_t needed(const char* flag, std::optional<std::int64_t> given) {
  if (!given) refuse_flag(flag, fmt::format("`{}` is missing", flag), "give --m, --n and --k");
  return *given;
}

void set_forms(const OverlapOptions& options, overlap::Problem& problem) {
  problem.groups = small_number("--groups", options.groups, 0);
  if (!options.scaling || options.scaling == "none") return;
  const overlap::Form form{
      .scaling = options.scaling == "tensor" ? overlap::Scaling::row : overlap::Scaling::blocks,
      .type = options.fp8 == "e5m2" ? DType::fp8_e5m2 : DType::fp8_e4m3};
  problem.x = problem.w = form;
  const bool sums = options.op == "rs" || options.op == "ar";
  if (sums && !options.plain_sums) problem.sums = form;
}

// To calibrate is to measure the machine; no product is looked at.
void check_calibrate(const OverlapOptions& options) {
  OverlapOptions same;
  same.calibrate = options.calibrate;
  same.ranks = options.ranks;
  same.backend = options.backend;
  if (words_of(options) == words_of(same)) return;
  refuse_flag("--calibrate", "this measures the machine, not a product",
              "give --tp and --backend beside it, and nothing else");
}

void check_choosing(const OverlapOptions& options) {
  if (!options.chooses()) {
    refuse_flag("--calibration", "there is nothing to choose", "add --method auto");
  }
  if (options.hardware && options.calibration) {
    refuse_flag("--calibration", "two machines to choose by", "give it, or --hardware");
  }
  if (!options.hardware && !options.calibration) {
    refuse_flag("--method", "there is nothing to choose by",
                "add --hardware NAME, or --calibration FILE, which --calibrate FILE writes");
  }
  const char* const chosen = options.chunks    ? "--chunks"
                             : options.tapered ? "--tapered"
                             : options.atomic  ? "--atomic"
                             : options.polled  ? "--polled"
                                               : nullptr;
  if (chosen != nullptr) refuse_flag(chosen, "`--method auto` chooses this", "leave it out");
  if (options.op == "none") {
    refuse_flag("--op", "a product alone hides nothing", "give --op ag, rs or ar");
  }
}

void check_forms(const OverlapOptions& options) {
  const bool is_scaled = options.scaling && options.scaling != "none";
  if (!is_scaled && (options.fp8 || options.plain_sums)) {
    refuse_flag(options.fp8 ? "--fp8" : "--plain-sums", "nothing has a scale",
                "add --scaling tensor or mxfp8");
  }
  if (options.plain_sums && (options.op == "ag" || options.op == "none")) {
    refuse_flag("--plain-sums", "nothing is summed", "with --op rs or ar");
  }
  if (options.groups == 0) refuse_flag("--groups", "expected 1 or more");
}

}  // namespace

void declare_overlap(Flags& flags, OverlapOptions& options) {
  declare_product(flags, options);
  declare_forms(flags, options);
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

void check_overlap(const OverlapOptions& options) {
  if (options.calibrate) return check_calibrate(options);
  if (options.chooses() || options.calibration) check_choosing(options);
  check_forms(options);
  const bool tells = options.list || options.chooses() || options.wants_times();
  if (options.json && !tells) {
    refuse_flag("--json", "a plan is no JSON here",
                "with --list, --hardware or --run; `shiplap export` converts plans");
  }
  if (options.report && !options.wants_times()) {
    refuse_flag("--report", "a picture shows times", "predict them by --hardware NAME, or --run");
  }
  if (options.trace && !options.wants_times()) {
    refuse_flag("--trace", "a trace shows times", "predict them by --hardware NAME, or --run");
  }
  if (!options.run && (options.backend || options.rounds || options.polled)) {
    const char* const flag =
        options.backend ? "--backend" : (options.polled ? "--polled" : "--rounds");
    refuse_flag(flag, "nothing is carried out", "add --run");
  }
  if (options.rounds == 0) refuse_flag("--rounds", "expected 1 or more");
}

int small_number(const char* flag, std::optional<std::int64_t> given, int usual) {
  if (!given) return usual;
  if (*given == 0) refuse_flag(flag, "expected 1 or more");
  if (*given > std::numeric_limits<int>::max()) refuse_flag(flag, "this is too much");
  return static_cast<int>(*given);
}

overlap::Choice choice_of(const OverlapOptions& options) {
  overlap::Choice choice{.type = type_of(options.op.value_or("none")), .atomic = options.atomic};
  const std::string method =
      options.method.value_or(choice.type == overlap::Type::none ? "none" : "ring_exchange");
  for (const overlap::Method each : {overlap::Method::none, overlap::Method::bulk,
                                     overlap::Method::pipeline, overlap::Method::ring_exchange}) {
    if (name(each) == method) choice.method = each;
  }
  return choice;
}

overlap::Problem problem_of(const OverlapOptions& options) {
  overlap::Problem problem{.rows = needed("--m", options.rows),
                           .columns = needed("--n", options.columns),
                           .depth = needed("--k", options.depth),
                           .ranks = small_number("--tp", options.ranks, 4),
                           .chunks = small_number("--chunks", options.chunks, 1)};
  if (options.type == "f32") problem.type = DType::f32;
  if (options.type == "f16") problem.type = DType::f16;
  if (options.tapered) problem.cut = overlap::Cut::tapered;
  set_forms(options, problem);
  return problem;
}

// The flags that were given, to be given again.
std::vector<std::string> words_of(const OverlapOptions& options) {
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
  add("--scaling", options.scaling);
  add("--fp8", options.fp8);
  if (options.plain_sums) words.emplace_back("--plain-sums");
  add("--groups", options.groups);
  add("--hardware", options.hardware);
  add("--calibrate", options.calibrate);
  add("--calibration", options.calibration);
  if (options.run) words.emplace_back("--run");
  add("--backend", options.backend);
  if (options.polled) words.emplace_back("--polled");
  add("--rounds", options.rounds);
  add("--report", options.report);
  add("--trace", options.trace);
  add("--output", options.output);
  if (options.json) words.emplace_back("--json");
  return words;
}

std::string command_of(const OverlapOptions& options) {
  std::string command = "shiplap";
  for (const std::string& word : words_of(options)) command += " " + shell_word(word);
  return command;
}

}  // namespace shiplap::cli
