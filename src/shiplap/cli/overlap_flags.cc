#include "shiplap/cli/overlap_flags.h"

#include <fmt/format.h>

#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/calibration.h"
#include "shiplap/report/overlap.h"

namespace shiplap::cli {
namespace {

void declare_gemm(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--op",
              .value = "OP",
              .help = "collective to overlap: ag (all-gather of X before the GEMM), rs "
                      "(reduce-scatter of Y), ar (all-reduce of Y), none",
              .example = "ag",
              .choices = {"ag", "rs", "ar", "none"}},
             options.query.op);
  flags.text(
      {.name = "--method",
       .value = "METHOD",
       .help =
           "none, bulk, pipeline or ring_exchange (ring_exchange; with --hardware alone, all are "
           "compared). auto: the fastest according to --hardware or --calibration",
       .example = "pipeline",
       .choices = {"none", "bulk", "pipeline", "ring_exchange", "auto"}},
      options.query.method);
  flags.toggle(
      {.name = "--atomic",
       .help = "one GEMM call for all chunks; a message waits for the counter of its chunk"},
      options.query.atomic);
  flags.count({.name = "--m", .help = "rows of X, over all ranks", .example = "1024"},
              options.query.m);
  flags.count({.name = "--n", .help = "columns of W, over all ranks", .example = "4096"},
              options.query.n);
  flags.count(
      {.name = "--k", .help = "columns of X and rows of W, over all ranks", .example = "2048"},
      options.query.k);
  flags.count({.name = "--tp", .help = "tensor-parallel ranks (4)", .example = "8"},
              options.query.ranks);
  flags.count({.name = "--chunks",
               .help = "chunks into which each rank's rows are split (1)",
               .example = "4"},
              options.query.chunks);
  flags.toggle(
      {.name = "--tapered",
       .help = "smaller chunks where nothing overlaps them: last with ag, otherwise first"},
      options.query.tapered);
  flags.text({.name = "--type",
              .value = "TYPE",
              .help = "dtype of X, W and Y: bf16, f16 or f32 (bf16)",
              .example = "f32",
              .choices = {"bf16", "f16", "f32"}},
             options.query.type);
}

void declare_formats(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--scaling",
              .value = "SCALING",
              .help = "quantize X, W and partial sums to FP8: tensor (one scale for W, one per row "
                      "of the others), mxfp8 (one per 32 values), or none",
              .example = "mxfp8",
              .choices = {"none", "tensor", "mxfp8"}},
             options.query.scaling);
  flags.text({.name = "--fp8",
              .value = "FORMAT",
              .help = "with --scaling: e4m3 or e5m2 (e4m3)",
              .example = "e5m2",
              .choices = {"e4m3", "e5m2"}},
             options.query.fp8);
  flags.toggle({.name = "--high-precision-sums",
                .help = "with --scaling: send partial sums as --type, not as FP8",
                .old_name = "--plain-sums"},
               options.query.high_precision_sums);
  flags.count({.name = "--groups",
               .help = "grouped GEMM: number of experts, each with its own W",
               .example = "8"},
              options.query.groups);
}

void declare_times(Flags& flags, OverlapOptions& options) {
  flags.text({.name = "--hardware",
              .value = "NAME",
              .help = fmt::format("predict the time on this hardware: a file, or one of {}",
                                  fmt::join(hardware::known_systems(), ", ")),
              .example = "h100_80g_nvl8",
              .values = Values::files,
              .suggestions = hardware::known_systems()},
             options.query.hardware);
  flags.file({.name = "--calibrate",
              .help = "measure this machine for a few seconds and write the calibration",
              .example = "here.json"},
             options.calibrate);
  flags.file({.name = "--calibration",
              .help = "with --method auto: choose by this calibration",
              .example = "here.json"},
             options.query.calibration);
  flags.toggle(
      {.name = "--run", .help = "execute and measure it, and the GEMM and communication alone"},
      options.query.run);
  flags.text({.name = "--backend",
              .value = "WHERE",
              .help = "with --run or --calibrate: threads, or mpi, which starts mpirun unless this "
                      "process is a rank already (threads)",
              .example = "mpi",
              .choices = {"threads", "mpi"}},
             options.backend);
  flags.toggle({.name = "--polled",
                .help = "with --run: no progress thread; the computing thread polls messages"},
               options.query.polled);
  flags.count({.name = "--rounds", .help = "with --run: measurement rounds (9)", .example = "9"},
              options.query.rounds);
  flags.file({.name = "--report",
              .help = "with --hardware or --run: write an HTML report",
              .example = "overlap.html"},
             options.report);
  flags.file({.name = "--trace",
              .help = "with --hardware or --run: write a trace for ui.perfetto.dev, or JSON if the "
                      "name ends in .json",
              .example = "overlap.pftrace"},
             options.trace);
}

// --calibrate measures the machine and takes no GEMM.
void check_calibrate(const OverlapOptions& options) {
  OverlapOptions same;
  same.calibrate = options.calibrate;
  same.query.ranks = options.query.ranks;
  same.backend = options.backend;
  if (to_arguments(options) == to_arguments(same)) return;
  throw_flag_error("--calibrate", "`--calibrate` measures the machine, not a GEMM",
                   "combine it with --tp and --backend only");
}

// The measured trace if there is one, otherwise the predicted one.
std::string trace_text(const std::string& file, const overlap::Study& study) {
  const trace::Trace& trace = study.measured ? study.measured->trace : study.listed().trace;
  return format_trace(file, trace, report::overlap_name(study.choice, study.problem));
}

}  // namespace

void declare_overlap(Flags& flags, OverlapOptions& options) {
  declare_gemm(flags, options);
  declare_formats(flags, options);
  declare_times(flags, options);
  flags.toggle({.name = "--list", .help = "list the supported combinations"}, options.list);
  flags.toggle({.name = "--json", .help = "with --list, --hardware or --run: print JSON"},
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
  const bool prints_report = options.list || query.chooses() || query.wants_times();
  if (options.json && !prints_report) {
    throw_flag_error("--json", "a plan is not printed as JSON here",
                     "use --list, --hardware or --run; `shiplap export` converts plans");
  }
  if (options.report && !query.wants_times()) {
    throw_flag_error("--report", "a report needs times",
                     "predict them with --hardware NAME, or measure with --run");
  }
  if (options.trace && !query.wants_times()) {
    throw_flag_error("--trace", "a trace needs times",
                     "predict them with --hardware NAME, or measure with --run");
  }
  if (!query.run && (options.backend || query.rounds || query.polled)) {
    const char* const flag = options.backend ? "--backend" : query.polled ? "--polled" : "--rounds";
    throw_flag_error(flag, "nothing is executed", "add --run");
  }
  check_outputs(outputs_of(options), options.json);
}

std::vector<std::string> to_arguments(const OverlapOptions& options) {
  return to_arguments("overlap", declare_overlap, options);
}

overlap::Query query_of(const OverlapOptions& options, std::istream& in) {
  overlap::Query query = options.query;
  query.traces = options.report || options.trace;
  if (query.compares() && options.output) {
    throw_flag_error("--output", "all methods are compared, so there is no single plan",
                     "choose one with --method");
  }
  if (query.calibration) {
    const SourceText source = read_text(*query.calibration, in, ".json");
    query.calibrated = overlap::calibration_from(parse_json(source.text, source.file), source.file);
  }
  return query;
}

std::vector<OutputFile> outputs_of(const OverlapOptions& options) {
  return {{"--output", options.output}, {"--report", options.report}, {"--trace", options.trace}};
}

void write_files(const OverlapOptions& options, const overlap::Study& study, Context& context) {
  if (options.output) {
    write_output({"--output", options.output}, overlap::plan_text(study.choice, study.problem),
                 context);
  }
  if (options.report) {
    const std::string command = shell_command(to_arguments(options));
    write_output({"--report", options.report}, to_html(report::overlap_page(study, command)),
                 context);
  }
  if (options.trace) {
    write_output({"--trace", options.trace}, trace_text(*options.trace, study), context);
  }
}

}  // namespace shiplap::cli
