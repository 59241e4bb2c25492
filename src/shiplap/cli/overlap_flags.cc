#include "shiplap/cli/overlap_flags.h"

#include <fmt/format.h>

#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/calibration.h"
#include "shiplap/report/overlap.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"

namespace shiplap::cli {
namespace {

void declare_product(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--op",
              .value = "OP",
              .help = "what is hidden: ag (rows of X are gathered first), rs (Y is summed and "
                      "scattered), ar (Y is summed everywhere), none",
              .example = "ag",
              .choices = {"ag", "rs", "ar", "none"}},
             options.query.op);
  flags.text(
      {.name = "--method",
       .value = "METHOD",
       .help = "none, bulk, pipeline or ring_exchange; if not given, ring_exchange, and with "
               "--hardware alone all are compared. auto: what should be the fastest, by --hardware "
               "or --calibration",
       .example = "pipeline",
       .choices = {"none", "bulk", "pipeline", "ring_exchange", "auto"}},
      options.query.method);
  flags.toggle({.name = "--atomic", .help = "one launch, whose tiles raise counters"},
               options.query.atomic);
  flags.count({.name = "--m", .help = "rows of X, on all ranks", .example = "1024"},
              options.query.rows);
  flags.count({.name = "--n", .help = "columns of W, on all ranks", .example = "4096"},
              options.query.columns);
  flags.count({.name = "--k", .help = "columns of X, rows of W, on all ranks", .example = "2048"},
              options.query.depth);
  flags.count({.name = "--tp", .help = "ranks; 4 if not given", .example = "8"},
              options.query.ranks);
  flags.count({.name = "--chunks",
               .help = "into which the rows of each rank are cut; 1 if not given",
               .example = "4"},
              options.query.chunks);
  flags.toggle({.name = "--tapered",
                .help = "smaller chunks where nothing hides them: last with ag, else first"},
               options.query.tapered);
  flags.text({.name = "--type",
              .value = "TYPE",
              .help = "of X, W and Y: bf16, f16 or f32; bf16 if not given",
              .example = "f32",
              .choices = {"bf16", "f16", "f32"}},
             options.query.type);
}

void declare_forms(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--scaling",
              .value = "SCALING",
              .help = "X, W and parts of sums as FP8: tensor (W has one scale, each row of the "
                      "others has its own), mxfp8 (one for every 32 numbers), or none",
              .example = "mxfp8",
              .choices = {"none", "tensor", "mxfp8"}},
             options.query.scaling);
  flags.text({.name = "--fp8",
              .value = "FORMAT",
              .help = "with --scaling: e4m3 or e5m2; e4m3 if not given",
              .example = "e5m2",
              .choices = {"e4m3", "e5m2"}},
             options.query.fp8);
  flags.toggle({.name = "--plain-sums",
                .help = "with --scaling: parts of sums travel as --type says, not as FP8"},
               options.query.plain_sums);
  flags.count({.name = "--groups",
               .help = "so many W, and each row of X belongs to one: experts",
               .example = "8"},
              options.query.groups);
}

void declare_times(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--hardware",
              .value = "NAME",
              .help = fmt::format("predict how long it takes there: a file, or one of {}",
                                  fmt::join(hardware::known_systems(), ", ")),
              .example = "h100_80g_nvl8"},
             options.query.hardware);
  flags.file({.name = "--calibrate",
              .help = "measure for a few seconds what overlaps depend on, and write it there",
              .example = "here.json"},
             options.calibrate);
  flags.file({.name = "--calibration",
              .help = "with --method auto: choose by what --calibrate has measured",
              .example = "here.json"},
             options.query.calibration);
  flags.toggle({.name = "--run", .help = "carry it out and measure, beside its parts"},
               options.query.run);
  flags.text({.name = "--backend",
              .value = "WHERE",
              .help = "with --run or --calibrate: threads of this process, or processes of an MPI "
                      "job, which is "
                      "started if mpirun did not start this (threads)",
              .example = "mpi",
              .choices = {"threads", "mpi"}},
             options.backend);
  flags.toggle({.name = "--polled",
                .help = "with --run: no thread for progress; who multiplies looks after messages"},
               options.query.polled);
  flags.count({.name = "--rounds",
               .help = "with --run: how often all is measured in turn (9)",
               .example = "9"},
              options.query.rounds);
  flags.file({.name = "--report",
              .help = "with --hardware or --run: write a picture: one HTML file",
              .example = "overlap.html"},
             options.report);
  flags.file({.name = "--trace",
              .help = "with --hardware or --run: write a trace for ui.perfetto.dev, or as JSON if "
                      "the file is called .json",
              .example = "overlap.pftrace"},
             options.trace);
}

// To calibrate is to measure the machine; no product is looked at.
void check_calibrate(const OverlapOptions& options) {
  OverlapOptions same;
  same.calibrate = options.calibrate;
  same.query.ranks = options.query.ranks;
  same.backend = options.backend;
  if (words_of(options) == words_of(same)) return;
  refuse_flag("--calibrate", "this measures the machine, not a product",
              "give --tp and --backend beside it, and nothing else");
}

// What was measured, or else what was predicted.
std::string trace_text(const std::string& file, const overlap::Study& study) {
  const trace::Trace& trace = study.measured ? study.measured->trace : study.listed().trace;
  if (file.ends_with(".json")) return trace::to_json(trace);
  return trace::to_perfetto(trace, {.title = report::overlap_name(study.choice, study.problem)});
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
  flags.file({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write the plan to this file",
              .example = "gemm.plan"},
             options.output);
}

void check_overlap(const OverlapOptions& options) {
  if (options.calibrate) return check_calibrate(options);
  const overlap::Query& query = options.query;
  check_query(query);
  const bool tells = options.list || query.chooses() || query.wants_times();
  if (options.json && !tells) {
    refuse_flag("--json", "a plan is no JSON here",
                "with --list, --hardware or --run; `shiplap export` converts plans");
  }
  if (options.report && !query.wants_times()) {
    refuse_flag("--report", "a picture shows times", "predict them by --hardware NAME, or --run");
  }
  if (options.trace && !query.wants_times()) {
    refuse_flag("--trace", "a trace shows times", "predict them by --hardware NAME, or --run");
  }
  if (!query.run && (options.backend || query.rounds || query.polled)) {
    const char* const flag = options.backend ? "--backend" : query.polled ? "--polled" : "--rounds";
    refuse_flag(flag, "nothing is carried out", "add --run");
  }
  check_writable(options.report, "--report");
  check_writable(options.trace, "--trace");
  check_writable(options.output, "--output");
}

std::vector<std::string> words_of(const OverlapOptions& options) {
  return words_of("overlap", declare_overlap, options);
}

overlap::Query query_of(const OverlapOptions& options, std::istream& in) {
  overlap::Query query = options.query;
  query.traces = options.report || options.trace;
  if (query.compares() && options.output) {
    refuse_flag("--output", "all methods are compared: which of their plans?",
                "say which by --method");
  }
  if (query.calibration) {
    const SourceText source = read_text(*query.calibration, in);
    query.calibrated = overlap::calibration_from(parse_json(source.text, source.file), source.file);
  }
  return query;
}

void write_files(const OverlapOptions& options, const overlap::Study& study) {
  if (options.output) {
    write_text(*options.output, overlap::plan_text(study.choice, study.problem), "--output");
  }
  if (options.report) {
    const std::string command = shell_command(words_of(options));
    write_text(*options.report, to_html(report::overlap_page(study, command)), "--report");
  }
  if (options.trace) write_text(*options.trace, trace_text(*options.trace, study), "--trace");
}

}  // namespace shiplap::cli
