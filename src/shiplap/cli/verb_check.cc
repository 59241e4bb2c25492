// shiplap check: verifies a plan or a strategy.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "shiplap/base/catalogue.h"
#include "shiplap/check/check.h"
#include "shiplap/check/fix.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/progress.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/plan/execution.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/check.h"
#include "shiplap/report/text.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  StrategyFlags strategy;
  ScheduleFlags schedule;
  std::optional<std::string> rules;
  std::optional<std::string> sends;
  std::optional<std::int64_t> eager;
  std::optional<std::string> allow;
  std::optional<std::string> format;
  std::optional<std::string> output;
  bool fix = false;
  bool no_symmetry = false;
  bool verbose = false;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  declare_subject(flags, options.file, options.strategy, options.schedule);
  flags.text({.name = "--rules",
              .value = "WHOSE",
              .help = "rules of the communication library: nccl, mpi, gloo, or any (any)",
              .example = "nccl",
              .choices = check::rules_names()},
             options.rules);
  flags.text({.name = "--sends",
              .value = "HOW",
              .help = "when a send completes: eager (immediately), rendezvous (when its receive "
                      "has started), or both to check both (both)",
              .example = "rendezvous",
              .choices = {"eager", "rendezvous", "both"}},
             options.sends);
  flags.count(
      {.name = "--eager-limit",
       .value = "BYTES",
       .help = "sends of up to this size are eager, larger ones rendezvous; replaces --sends",
       .example = "65536",
       .old_name = "--eager"},
      options.eager);
  flags.text({.name = "--allow",
              .value = "CODES",
              .help = "report these errors as warnings, which do not change the exit code",
              .example = "D701,D726"},
             options.allow);
  flags.toggle({.name = "--fix",
                .help = "write a fixed plan to FILE.fixed.plan or OUT, if reordering two "
                        "operations or an async send makes it sound"},
               options.fix);
  flags.toggle({.name = "--no-symmetry", .help = "check every rank, even if ranks are symmetric"},
               options.no_symmetry);
  flags.toggle({.name = "--verbose",
                .letter = "-v",
                .help = "also print what was proved, how much of it, and what was assumed"},
               options.verbose);
  flags.text({.name = "--format",
              .value = "FORMAT",
              .help = "text, json, sarif (code scanning) or github (workflow commands)",
              .example = "sarif",
              .choices = {"text", "json", "sarif", "github"}},
             options.format);
  flags.toggle({.name = "--json", .help = "the same as --format json"}, options.json);
  flags.file({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write to this file instead of standard output; with --fix, the fixed plan",
              .example = "check.sarif"},
             options.output);
}

std::string format_of(const Options& options) {
  if (options.json && options.format && *options.format != "json") {
    throw_flag_error(
        "--json", fmt::format("`--json` and `--format {}` contradict each other", *options.format),
        "give one of them");
  }
  return options.json ? "json" : options.format.value_or("text");
}

SubjectFlags subject_flags(const Options& options) {
  return {.file = options.file,
          .strategy = &options.strategy,
          .schedule = &options.schedule,
          .verb = "check",
          .for_example = "1f1b"};
}

void check_flags(const Options& options) {
  check_subject(subject_flags(options));
  if (options.sends && options.eager) {
    throw_flag_error("--eager-limit", "`--eager-limit` and `--sends` contradict each other",
                     "give one of them");
  }
}

std::vector<std::string> allowed_codes(const Options& options) {
  std::vector<std::string> codes = parse_list(options.allow.value_or(""));
  for (const std::string& code : codes) {
    if (find_in_catalogue(code) != nullptr) continue;
    throw_flag_error("--allow", fmt::format("there is no code `{}`", code),
                     "`shiplap explain` lists them");
  }
  return codes;
}

// Makes warnings of errors with these codes.
void allow(const std::vector<std::string>& codes, report::CheckedPlan& checked) {
  for (const std::string& code : codes) {
    bool found = false;
    for (check::Finding& finding : checked.report.findings) {
      Diagnostic& diagnostic = finding.diagnostic;
      if (diagnostic.code != code || diagnostic.severity != Severity::error) continue;
      diagnostic.severity = Severity::warning;
      found = true;
    }
    if (found) checked.allowed.push_back(code);
  }
}

check::Options check_options(const Options& options, const Context& context) {
  check::Options result{.symmetry = !options.no_symmetry, .progress = context.progress};
  if (options.rules) result.rules = check::parse_rules(*options.rules).value_or(result.rules);
  if (options.sends == "eager") result.sends = check::Sends::eager;
  if (options.sends == "rendezvous") result.sends = check::Sends::rendezvous;
  if (options.eager) result.eager_limit = Bytes{*options.eager};
  return result;
}

std::string formatted(const report::CheckedPlan& checked, const std::string& format,
                      const report::TextStyle& style, report::Detail detail) {
  if (format == "json") return to_text(report::check_json(checked)) + "\n";
  if (format == "sarif") return to_text(report::check_sarif(checked)) + "\n";
  if (format == "github") return report::check_github(checked);
  return report::check_text(checked, style, detail);
}

// The output file of --fix. Never overwrites a file that the user did not name.
std::string fixed_file(const Options& options) {
  if (options.output && *options.output != "-") return *options.output;
  if (options.output || options.file.empty() || options.file == "-") {
    throw_flag_error("--fix", "no output file for the fixed plan", "name a file: -o fixed.plan");
  }
  const std::string_view plain(options.file);
  const std::string_view end = ".plan";
  const std::string stem(plain.ends_with(end) ? plain.substr(0, plain.size() - end.size()) : plain);
  std::string file = stem + ".fixed.plan";
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    throw_flag_error("--fix", fmt::format("`{}` already exists", file),
                     fmt::format("to overwrite it: -o {}", shell_word(file)));
  }
  return file;
}

// MPI allows more than NCCL: there, an async send does not block the messages after it.
std::string mpi_fix(const plan::Plan& plan, check::Options options) {
  if (std::exchange(options.rules, check::Rules::mpi) == check::Rules::mpi) return "";
  std::optional<check::Fix> fix;
  try {
    fix = check::fix(plan, check::check(plan, options), options);
  } catch (const Interrupted&) {  // the answer is printed already
    return "";
  }
  return fix ? fmt::format("on MPI this would be enough: {} (--rules mpi --fix)\n", fix->what) : "";
}

void write_fixed(const std::string& file, const plan::Plan& plan,
                 const report::CheckedPlan& checked, Context& context) {
  if (checked.report.sound()) {
    context.err.stream << "nothing to fix: the plan is sound\n";
    return;
  }
  const std::optional<check::Fix> fix = check::fix(plan, checked.report, checked.options);
  if (!fix) {
    context.err.stream
        << "not fixed: neither reordering two operations nor an async send makes this "
           "plan sound\n"
        << mpi_fix(plan, checked.options);
    return;
  }
  write_text(file, plan::to_text(fix->plan), "--fix");
  context.err.stream << fmt::format("fixed: {}; wrote {}\n", fix->what, shell_word(file));
}

ExitCode run_verb(const Options& options, Context& context) {
  const std::string format = format_of(options);
  check_flags(options);
  const std::vector<std::string> allowed = allowed_codes(options);
  const std::string fixed = options.fix ? fixed_file(options) : "";
  const SubjectFlags input = subject_flags(options);
  const std::vector<OutputFile> outputs = {options.fix ? OutputFile{"--fix", fixed}
                                                       : OutputFile{"--output", options.output}};
  check_outputs(outputs, false, options.fix ? "" : input.input_file());  // in place, if asked for
  const Subject subject = subject_of(input, context, {}, {.progress = context.progress});
  const bool is_file = subject.source && options.file != "-" && options.schedule.schedule != "-";
  report::CheckedPlan checked{.name = subject.title,
                              .file = is_file ? subject.source->file : "",
                              .options = check_options(options, context),
                              .report = {},
                              .allowed = {}};
  try {
    checked.report =
        subject.with_source_locations([&] { return check::check(subject.plan, checked.options); });
  } catch (const Interrupted& interrupted) {
    if (interrupted.work() == plan::kExecutionTask) {
      context.err.stream << "so far: every collective and message is matched\n";
    }
    throw;
  }
  allow(allowed, checked);
  if (subject.source) report::add_source_locations(checked.report, *subject.source);

  const bool to_file = !options.fix && options.output && *options.output != "-";
  const report::TextStyle style{.colour = to_file ? Colour::off : context.out.colour,
                                .width = context.width()};
  const report::Detail detail = options.verbose ? report::Detail::verbose : report::Detail::brief;
  const std::string text = formatted(checked, format, style, detail);
  write_output({"--output", to_file ? *options.output : "-"}, text, context);
  if (options.fix) write_fixed(fixed, subject.plan, checked, context);
  return checked.report.sound() ? ExitCode::yes : ExitCode::no;
}

}  // namespace

Verb check_verb() {
  return make_verb<Options>(
      {.name = "check",
       .summary = "verify a plan: no deadlock, no data race, complete gradients, on every rank",
       .examples = {{"shiplap check step.plan", "verify a plan; prints the errors"},
                    {"shiplap check --strategy 1f1b --ranks 8", "verify a strategy"},
                    {"shiplap check step.plan --sends rendezvous",
                     "assume that no message is buffered"},
                    {"shiplap check --schedule schedule.csv", "a PyTorch pipeline schedule"},
                    {"shiplap check step.plan --fix",
                     "also write step.fixed.plan, which does not hang"},
                    {"shiplap check step.plan --format sarif -o check.sarif", "for code scanning"}},
       .notes = "Exit code 1: the plan is not sound, even if --fix wrote a fixed one. Warnings "
                "alone: 0."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
