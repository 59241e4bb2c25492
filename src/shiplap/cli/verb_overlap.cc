// shiplap overlap: a product whose communication is hidden, as a plan.
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "shiplap/base/json.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/table.h"
#include "shiplap/cli/verb.h"
#include "shiplap/overlap/overlap.h"

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
  std::optional<std::string> output;
  bool atomic = false;
  bool list = false;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.text({.name = "--op",
              .value = "OP",
              .help = "what is hidden: ag (rows of X are gathered first), rs (Y is summed and "
                      "scattered), ar (Y is summed everywhere), none",
              .example = "ag",
              .values = Values::listed,
              .choices = {"ag", "rs", "ar", "none"}},
             options.op);
  flags.text({.name = "--method",
              .value = "METHOD",
              .help = "none, bulk, pipeline or ring_exchange; ring_exchange if not given",
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
  flags.text({.name = "--type",
              .value = "TYPE",
              .help = "of X, W and Y: bf16, f16 or f32; bf16 if not given",
              .example = "f32",
              .values = Values::listed,
              .choices = {"bf16", "f16", "f32"}},
             options.type);
  flags.toggle({.name = "--list", .help = "what can be combined, and what does it"}, options.list);
  flags.toggle({.name = "--json", .help = "with --list: for programs"}, options.json);
  flags.text({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write the plan to this file instead of standard output",
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

ExitCode run_verb(const Options& options, Context& context) {
  if (options.json && !options.list) refuse_flag("--json", "`--json` is for `--list`");
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
  const std::string text = overlap::plan_text(choice_of(*options.op, options), problem_of(options));
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
       .summary = "a matrix product cut so that its communication is hidden, as a plan",
       .examples =
           {{"shiplap overlap --list", "what can be combined"},
            {"shiplap overlap --op ag --m 1024 --n 4096 --k 2048 --tp 4 --chunks 4",
             "rows go round a ring while others are multiplied"},
            {"shiplap overlap --op rs --m 1000 --n 512 --k 777 -o rs.plan", "nothing need divide"},
            {"shiplap overlap --op ar --m 64 --n 64 --k 64 --method pipeline | shiplap check -",
             "and is it sound?"}}},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
