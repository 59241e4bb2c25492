// shiplap show: summarizes a plan, or lists the operations of one of its ranks.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>

#include "shiplap/base/suggest.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/plan/summary.h"
#include "shiplap/report/plan.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  StrategyFlags step;  // only a model and its layout
  ScheduleFlags schedule;
  std::optional<std::string> rank;
  std::optional<std::string> program;
  std::optional<std::int64_t> limit;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.argument(
      {.name = "FILE",
       .help = "a plan file, text or JSON, `-` is standard input; with --from, a layout; "
               "alternative: --schedule",
       .example = "step.plan",
       .values = Values::files,
       .required = false},
      options.file);
  declare_step(flags, options.step);
  declare_schedule(flags, options.schedule);
  flags.text({.name = "--rank",
              .value = "N",
              .help = "show this rank: 5, or its mesh position pp=1,tp=0 (omitted axes are 0)",
              .example = "0"},
             options.rank);
  flags.text({.name = "--program",
              .value = "NAME",
              .help = "show the first rank that runs this program",
              .example = "stage"},
             options.program);
  flags.count({.name = "--limit", .help = "at most N lines per list; 0 shows all", .example = "0"},
              options.limit);
  flags.toggle({.name = "--json", .help = "print everything as JSON"}, options.json);
}

plan::AxisId find_axis(const plan::Mesh& mesh, const std::string& name) {
  std::vector<std::string> names;
  for (std::size_t k = 0; k < mesh.axes.size() + mesh.aliases.size(); ++k) {
    names.push_back(mesh.name(plan::AxisId(k)));
    if (names.back() == name) return plan::AxisId(k);
  }
  throw_flag_error("--rank", fmt::format("this mesh has no axis `{}`", name), suggest(name, names));
}

// "pp=1,tp=0".
Rank parse_mesh_position(const plan::Mesh& mesh, std::string_view text) {
  Rank rank(0);
  while (!text.empty()) {
    const std::string_view term = text.substr(0, text.find_first_of(", "));
    text.remove_prefix(std::min(term.size() + 1, text.size()));
    if (term.empty()) continue;
    const std::size_t equals = term.find('=');
    const plan::AxisId axis = find_axis(mesh, std::string(term.substr(0, equals)));
    const auto position =
        equals == term.npos ? std::nullopt : parse_integer(std::string(term.substr(equals + 1)));
    if (!position || *position < 0 || *position >= mesh.size(axis)) {
      throw_flag_error(
          "--rank", fmt::format("`{}` is not a position on the mesh", term),
          fmt::format("`{}` has positions 0 to {}", mesh.name(axis), mesh.size(axis) - 1));
    }
    rank = mesh.moved(rank, axis, *position);
  }
  return rank;
}

Rank parse_rank(const plan::Mesh& mesh, const std::string& text) {
  const std::string valid = fmt::format("the ranks are 0 to {}", mesh.ranks() - 1);
  if (text.find('=') != text.npos) return parse_mesh_position(mesh, text);
  const auto number = parse_integer(text);
  if (!number) {
    throw_flag_error("--rank", fmt::format("expected a rank, found `{}`", text),
                     fmt::format("{}; positions are written `{}=0`", valid, mesh.axes[0].name));
  }
  if (*number < 0 || *number >= mesh.ranks()) {
    throw_flag_error("--rank", fmt::format("rank {} does not exist", *number), valid);
  }
  return Rank(static_cast<std::int32_t>(*number));
}

Rank first_rank_of(const plan::Plan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const plan::Program& program : plan.programs) names.push_back(program.name);
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw_flag_error("--program", fmt::format("this plan has no program `{}`", name),
                     suggest(name, names));
  }
  const auto wanted = plan::ProgramId(static_cast<std::size_t>(found - names.begin()));
  const std::vector<plan::ProgramId> program_of = plan::assign_programs(plan).program_of;
  const auto rank = std::ranges::find(program_of, wanted);
  if (rank == program_of.end()) {
    throw_flag_error("--program", fmt::format("no rank runs the program `{}`", name),
                     "check its `on`");
  }
  return Rank(static_cast<std::size_t>(rank - program_of.begin()));
}

std::optional<Rank> selected_rank(const plan::Plan& plan, const Options& options) {
  if (options.rank && options.program) {
    throw_flag_error("--program", "`--rank` and `--program` both select the rank to show",
                     "give one of them");
  }
  if (options.rank) return parse_rank(plan.mesh, *options.rank);
  if (options.program) return first_rank_of(plan, *options.program);
  return std::nullopt;
}

ExitCode show_one(const Subject& subject, Rank rank, const Options& options, Context& context) {
  const plan::RankProgram expanded =
      subject.with_source_locations([&] { return plan::expand(subject.plan, rank); });
  if (options.json) {
    context.out.stream << to_text(report::rank_to_json(expanded, subject.file())) << '\n';
    return ExitCode::yes;
  }
  context.out.stream << report::show_rank(
      expanded, {.title = subject.name, .detail = {}, .limit = options.limit},
      context.text_style());
  return ExitCode::yes;
}

void suggest_rank(Options options, Context& context) {
  if (options.file == "-" || options.schedule.schedule == "-") return;
  options.rank = "0";
  options.limit.reset();
  suggest_next(shell_command(to_arguments("show", declare, options)), context);
}

ExitCode show(const Options& options, Context& context) {
  const Subject subject = subject_of({.file = options.file,
                                      .strategy = &options.step,
                                      .schedule = &options.schedule,
                                      .verb = "show"},
                                     context);
  if (const auto rank = selected_rank(subject.plan, options)) {
    return show_one(subject, *rank, options, context);
  }
  const plan::Summary summary =
      subject.with_source_locations([&] { return plan::summarize(subject.plan); });
  if (options.json) {
    context.out.stream << to_text(report::plan_to_json(subject.plan, summary, subject.file()))
                       << '\n';
    return ExitCode::yes;
  }
  context.out.stream << report::show_plan(subject.plan, summary,
                                          {.title = subject.name,
                                           .detail = subject.source ? "" : subject.detail,
                                           .limit = options.limit},
                                          context.text_style());
  suggest_rank(options, context);
  return ExitCode::yes;
}

}  // namespace

Verb show_verb() {
  return make_verb<Options>(
      {.name = "show",
       .summary = "summarize a plan, or list the operations of one rank",
       .examples = {{"shiplap show step.plan", "programs, traffic and peak memory"},
                    {"shiplap show step.plan --rank 3", "the operations of rank 3"},
                    {"shiplap show step.plan --rank pp=1,tp=0", "the same, by mesh position"},
                    {"shiplap show --schedule schedule.csv --rank 0",
                     "the operations of a PyTorch pipeline schedule"},
                    {"shiplap show --model llama3-70b --from megatron train.sh",
                     "the training step of a model, as `plan` writes it"},
                    {"shiplap show step.plan --json", "as JSON"}}},
      {.declare = declare, .run = show});
}

}  // namespace shiplap::cli
