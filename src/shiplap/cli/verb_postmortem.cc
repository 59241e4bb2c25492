// shiplap postmortem: which rank made the job hang.
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "shiplap/cli/files.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/verb.h"
#include "shiplap/dump/read.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/report/postmortem.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::vector<std::string> paths;
  std::optional<std::int64_t> world;
  std::optional<std::string> plan;
  std::optional<std::string> report;
  bool hung = false;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.arguments(
      {.name = "DUMPS",
       .help = "flight recorder dumps (pickle or JSON), stacks (py-spy) and the output of "
               "ncclras, or folders of them",
       .example = "dumps/",
       .values = Values::files},
      options.paths);
  flags.count({.name = "--world",
               .value = "N",
               .help = "ranks of the job, if the dumps of the last ones are missing",
               .example = "64"},
              options.world);
  flags.file({.name = "--plan",
              .value = "PLAN",
              .help = "what the job should do, as recorded by `shiplap record`",
              .example = "train.plan"},
             options.plan);
  flags.toggle({.name = "--hung", .help = "the job hung for sure; do not look for a proof"},
               options.hung);
  flags.file({.name = "--report",
              .value = "HTML",
              .help = "also write a page with the positions of all ranks",
              .example = "hang.html"},
             options.report);
  flags.toggle({.name = "--json", .help = "print JSON, schema shiplap.postmortem/1"}, options.json);
}

ExitCode run_verb(const Options& options, Context& context) {
  const std::vector<OutputFile> outputs = {{"--report", options.report}};
  check_outputs(outputs, options.json);
  Context answer = answer_context(outputs, context);
  const dump::JobDump job = dump::read_job(options.paths, context.progress);
  std::optional<LoadedPlan> loaded;
  if (options.plan) loaded = load_plan(*options.plan, context);
  const postmortem::Postmortem found =
      postmortem::diagnose(job, {.hung = options.hung ? "assumed (--hung)" : "",
                                 .world = static_cast<std::int32_t>(options.world.value_or(0)),
                                 .plan = loaded ? &loaded->plan : nullptr});
  if (options.report) {
    std::string command = "shiplap postmortem";
    for (const std::string& path : options.paths) command += " " + shell_word(path);
    write_output({"--report", options.report},
                 report::to_html(report::postmortem_page(found, command)), context);
  }
  answer.out.stream << (options.json ? to_text(report::postmortem_json(found)) + "\n"
                                     : report::postmortem_text(found, answer.text_style()));
  return found.found_culprit() ? ExitCode::no : ExitCode::yes;
}

}  // namespace

Verb postmortem_verb() {
  return make_verb<Options>(
      {.name = "postmortem",
       .summary = "why did the job hang? Which rank, which call, which line, from its dumps",
       .examples = {{"shiplap postmortem dumps/", "all dumps of a folder"},
                    {"shiplap postmortem nccl_trace_rank_*", "dumps by name"},
                    {"shiplap postmortem ras_1.txt ras_2.txt", "two outputs of NCCL's ncclras"},
                    {"shiplap postmortem dumps/ --report hang.html", "HTML report"}},
       .notes = "Exit code 1: a culprit is found. 0: nothing proves that the job hung."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
