// shiplap show: what a plan says, and what one of its ranks does.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/verb.h"
#include "shiplap/plan/summary.h"
#include "shiplap/report/plan.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  std::optional<std::string> rank;
  std::optional<std::string> program;
  std::optional<std::int64_t> limit;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  declare_plan_file(flags, options.file);
  flags.text({.name = "--rank",
              .value = "N",
              .help = "what this rank does: 5, or by position pp=1,tp=0 (axes left out stand at 0)",
              .example = "0"},
             options.rank);
  flags.text({.name = "--program",
              .value = "NAME",
              .help = "what the first rank does that runs this program",
              .example = "stage"},
             options.program);
  flags.count(
      {.name = "--limit", .help = "at most N lines of each list; 0 shows all", .example = "0"},
      options.limit);
  flags.toggle({.name = "--json", .help = "everything, for programs"}, options.json);
}

[[noreturn]] void wrong_rank(std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D003",
                              .where = {.flag = "--rank"},
                              .what = std::move(what),
                              .help = std::move(help)});
}

plan::AxisId axis_named(const plan::Mesh& mesh, const std::string& name) {
  std::vector<std::string> names;
  for (std::size_t k = 0; k < mesh.axes.size() + mesh.aliases.size(); ++k) {
    names.push_back(mesh.name(plan::AxisId(k)));
    if (names.back() == name) return plan::AxisId(k);
  }
  wrong_rank(fmt::format("this mesh has no axis `{}`", name), suggest(name, names));
}

// "pp=1,tp=0".
Rank rank_at(const plan::Mesh& mesh, std::string_view text) {
  Rank rank(0);
  while (!text.empty()) {
    const std::string_view term = text.substr(0, text.find_first_of(", "));
    text.remove_prefix(std::min(term.size() + 1, text.size()));
    if (term.empty()) continue;
    const std::size_t equals = term.find('=');
    const plan::AxisId axis = axis_named(mesh, std::string(term.substr(0, equals)));
    const auto position =
        equals == term.npos ? std::nullopt : whole_number(std::string(term.substr(equals + 1)));
    if (!position || *position < 0 || *position >= mesh.size(axis)) {
      wrong_rank(fmt::format("`{}` is no position on the mesh", term),
                 fmt::format("`{}` has positions 0 to {}", mesh.name(axis), mesh.size(axis) - 1));
    }
    rank = mesh.moved(rank, axis, *position);
  }
  return rank;
}

Rank rank_of(const plan::Mesh& mesh, const std::string& text) {
  const std::string legal = fmt::format("the ranks are 0 to {}", mesh.ranks() - 1);
  if (text.find('=') != text.npos) return rank_at(mesh, text);
  const auto number = whole_number(text);
  if (!number) {
    wrong_rank(fmt::format("expected a rank, found `{}`", text),
               fmt::format("{}; positions are written `{}=0`", legal, mesh.axes[0].name));
  }
  if (*number < 0 || *number >= mesh.ranks()) {
    wrong_rank(fmt::format("there is no rank {}", *number), legal);
  }
  return Rank(static_cast<std::int32_t>(*number));
}

[[noreturn]] void wrong_program(std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D003",
                              .where = {.flag = "--program"},
                              .what = std::move(what),
                              .help = std::move(help)});
}

Rank first_of(const plan::Plan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const plan::Program& program : plan.programs) names.push_back(program.name);
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    wrong_program(fmt::format("this plan has no program `{}`", name), suggest(name, names));
  }
  const auto wanted = plan::ProgramId(static_cast<std::size_t>(found - names.begin()));
  const std::vector<plan::ProgramId> program_of = plan::assign_programs(plan).program_of;
  const auto rank = std::ranges::find(program_of, wanted);
  if (rank == program_of.end()) {
    wrong_program(fmt::format("no rank runs the program `{}`", name), "look at its `on`");
  }
  return Rank(static_cast<std::size_t>(rank - program_of.begin()));
}

std::optional<Rank> wanted_rank(const plan::Plan& plan, const Options& options) {
  if (options.rank && options.program) {
    wrong_program("`--rank` and `--program` both say which rank to show", "give one of them");
  }
  if (options.rank) return rank_of(plan.mesh, *options.rank);
  if (options.program) return first_of(plan, *options.program);
  return std::nullopt;
}

ExitCode show_one(const LoadedPlan& loaded, Rank rank, const Options& options, Context& context) {
  const plan::RankProgram expanded =
      placing_errors(loaded.source, [&] { return plan::expand(loaded.plan, rank); });
  if (options.json) {
    context.out.stream << to_text(report::rank_to_json(expanded, loaded.source.file)) << '\n';
    return ExitCode::yes;
  }
  context.out.stream << report::show_rank(
      expanded, {.title = loaded.source.short_name(), .limit = options.limit}, context.look());
  return ExitCode::yes;
}

ExitCode show(const Options& options, Context& context) {
  const LoadedPlan loaded = load_plan(options.file, context);
  if (const auto rank = wanted_rank(loaded.plan, options)) {
    return show_one(loaded, *rank, options, context);
  }
  const plan::Summary summary =
      placing_errors(loaded.source, [&] { return plan::summarize(loaded.plan); });
  if (options.json) {
    context.out.stream << to_text(report::plan_to_json(loaded.plan, summary, loaded.source.file))
                       << '\n';
    return ExitCode::yes;
  }
  context.out.stream << report::show_plan(
      loaded.plan, summary, {.title = loaded.source.short_name(), .limit = options.limit},
      context.look());
  if (options.file != "-") {
    suggest_next(fmt::format("shiplap show {} --rank 0", shell_word(options.file)), context);
  }
  return ExitCode::yes;
}

}  // namespace

Verb show_verb() {
  return make_verb<Options>(
      {.name = "show",
       .summary = "a plan at a glance, or all that one of its ranks does",
       .examples = {{"shiplap show step.plan",
                     "who runs what, what moves, how much memory it takes"},
                    {"shiplap show step.plan --rank 3", "what rank 3 does, operation by operation"},
                    {"shiplap show step.plan --rank pp=1,tp=0",
                     "the same, by position on the mesh"},
                    {"shiplap show step.plan --json", "for programs"}}},
      {.declare = declare, .run = show});
}

}  // namespace shiplap::cli
