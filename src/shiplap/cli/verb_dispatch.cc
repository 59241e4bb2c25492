// shiplap dispatch: computes, validates, inspects and runs a dispatch.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/foreign_file.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/json.h"
#include "shiplap/dispatch/lower.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/dispatch.h"
#include "shiplap/run/dispatch_benchmark.h"
#include "shiplap/run/job_consistency.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::vector<std::string> words;  // `validate FILE`, `inspect FILE`, or nothing
  std::optional<std::int64_t> ranks;
  std::optional<std::string> lengths;
  std::optional<std::int64_t> tokens;
  std::optional<std::int64_t> seqs;
  std::optional<std::int64_t> cp;
  std::optional<std::int64_t> seed;
  std::optional<std::string> mask;
  bool share_keys = false;
  std::optional<std::int64_t> ranks_per_node;
  std::optional<std::int64_t> heads;
  std::optional<std::int64_t> kv_heads;
  std::optional<std::int64_t> head_dim;
  std::optional<std::string> run;
  std::optional<std::string> backend;
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> pairs;
  std::optional<std::string> output;
  std::optional<std::string> plan;
  std::optional<std::string> report;
  bool json = false;

  [[nodiscard]] bool has_width() const { return heads || kv_heads || head_dim; }
  // Bytes of bf16 per token.
  [[nodiscard]] dispatch::TokenBytes token_bytes() const {
    const std::int64_t dim = head_dim.value_or(64);
    return {.q = 2 * heads.value_or(8) * dim, .kv = 4 * kv_head_count() * dim};
  }
  [[nodiscard]] std::int64_t kv_head_count() const {
    return kv_heads.value_or(std::gcd(heads.value_or(8), std::int64_t{2}));
  }
};

void declare_input(Flags& flags, Options& options) {
  flags.arguments({.name = "validate|inspect FILE",
                   .help = "validate or inspect a dispatch in a file; default: compute a new one",
                   .example = "validate",
                   .values = Values::files,
                   .required = false,
                   .repeated = true,
                   .suggestions = {"validate", "inspect"}},
                  options.words);
  flags.count({.name = "--ranks", .help = "ranks (8)", .example = "8"}, options.ranks);
  flags.file({.name = "--lengths",
              .help = "document lengths, packed onto the ranks; default: random documents",
              .example = "lengths.txt"},
             options.lengths);
  flags.count(
      {.name = "--tokens", .help = "random documents: tokens per rank (4096)", .example = "4096"},
      options.tokens);
  flags.count(
      {.name = "--seqs", .help = "random documents: documents per rank (4)", .example = "4"},
      options.seqs);
  flags.count({.name = "--cp",
               .help = "context-parallel degree: items into which a document is split (4, or the "
                       "ranks if fewer)",
               .example = "4"},
              options.cp);
  flags.count({.name = "--seed", .help = "random seed (0)", .example = "0"}, options.seed);
  flags.text({.name = "--mask",
              .value = "MASK",
              .help = "keys that a query attends to: causal, window:N, prefix:N or full (causal)",
              .example = "window:4096"},
             options.mask);
  flags.toggle({.name = "--share-keys",
                .help = "items of one document on one rank share their keys, sent once"},
               options.share_keys);
}

void declare_sizes(Flags& flags, Options& options) {
  flags.count(
      {.name = "--ranks-per-node", .help = "consecutive ranks per node (8)", .example = "8"},
      options.ranks_per_node);
  flags.count({.name = "--heads", .help = "query heads (8)", .example = "8"}, options.heads);
  flags.count({.name = "--kv-heads",
               .help = "key/value heads; divides the query heads (2; 1 if --heads is odd)",
               .example = "2"},
              options.kv_heads);
  flags.count({.name = "--head-dim", .help = "head dimension (64)", .example = "64"},
              options.head_dim);
}

void declare_output(Flags& flags, Options& options) {
  flags.text({.name = "--run",
              .value = "WHERE",
              .help = "execute and time it, also `inspect FILE`: on threads, or mpi under mpirun",
              .example = "threads",
              .choices = {"threads", "mpi"}},
             options.run);
  flags.text({.name = "--backend",
              .value = "mpi",
              .help = "start mpirun with --ranks processes and execute there",
              .example = "mpi",
              .choices = {"mpi"}},
             options.backend);
  flags.count({.name = "--steps", .help = "timed steps (5)", .example = "5"}, options.steps);
  flags.count({.name = "--pairs",
               .help = "list at most N pairs of ranks; 0 lists all (10)",
               .example = "0"},
              options.pairs);
  flags.file({.name = "--output",
              .letter = "-o",
              .help = "write the tables as JSON; `-` is standard output",
              .example = "dispatch.json",
              .old_name = "--out"},
             options.output);
  flags.file({.name = "--plan", .help = "write the dispatch as a plan", .example = "dispatch.plan"},
             options.plan);
  flags.file({.name = "--report", .help = "write an HTML report", .example = "dispatch.html"},
             options.report);
  flags.toggle({.name = "--json", .help = "print everything as JSON"}, options.json);
}

void declare(Flags& flags, Options& options) {
  declare_input(flags, options);
  declare_sizes(flags, options);
  declare_output(flags, options);
}

// Checks that each number is at least 1 and fits.
void check_numbers(const Options& options) {
  constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;
  const auto check = [&](const char* flag, const std::optional<std::int64_t>& value) {
    if (!value || (*value >= 1 && *value <= kMaxCount)) return;
    throw_flag_error(flag, fmt::format("expected 1 to {}, found {}", kMaxCount, *value));
  };
  check("--ranks", options.ranks);
  check("--seqs", options.seqs);
  check("--cp", options.cp);
  check("--ranks-per-node", options.ranks_per_node);
  check("--heads", options.heads);
  check("--kv-heads", options.kv_heads);
  check("--head-dim", options.head_dim);
  check("--steps", options.steps);
  if (options.heads.value_or(8) % options.kv_head_count() != 0) {
    throw_flag_error("--kv-heads",
                     fmt::format("{} query heads cannot share {} key/value heads evenly",
                                 options.heads.value_or(8), options.kv_head_count()),
                     "take a number that divides that of the query heads");
  }
  if (options.tokens && !std::in_range<std::uint32_t>(*options.tokens)) {
    throw_flag_error("--tokens",
                     fmt::format("{} tokens per rank do not fit into 32 bits", *options.tokens));
  }
  constexpr std::int64_t kMaxRowBytes = std::int64_t{1} << 30;
  if (std::max(options.token_bytes().q, options.token_bytes().kv) > kMaxRowBytes) {
    throw_flag_error("--heads", "a token is larger than 1 GiB",
                     "use fewer heads or a smaller head dimension");
  }
  if (options.lengths && (options.tokens || options.seqs)) {
    throw_flag_error("--lengths", "`--tokens` and `--seqs` apply to random documents only",
                     "remove `--lengths`, or `--tokens` and `--seqs`");
  }
}

std::vector<std::uint32_t> read_lengths(const std::string& file, Context& context) {
  const SourceText source = read_text(file, context.in, "lengths.txt");
  std::vector<std::uint32_t> lengths;
  int line = 1;
  for (std::size_t at = 0; at < source.text.size();) {
    const char c = source.text[at];
    if (c == '\n') ++line;
    if (c == ' ' || c == '\n' || c == '\t' || c == ',' || c == '\r') {
      ++at;
      continue;
    }
    std::uint32_t length = 0;
    const char* const begin = source.text.data() + at;
    const char* const end = source.text.data() + source.text.size();
    const auto [next, error] = std::from_chars(begin, end, length);
    if (error != std::errc()) {
      const std::size_t stop = source.text.find_first_of(" \n\t,\r", at);
      throw InputError(Diagnostic{
          .code = "D003",
          .where = {.file = source.file, .line = line},
          .what = fmt::format("expected a document length, found `{}`",
                              source.text.substr(at, std::min<std::size_t>(stop - at, 20))),
          .help = "lengths are integers up to 4294967295, separated by whitespace or commas"});
    }
    lengths.push_back(length);
    at += static_cast<std::size_t>(next - begin);
  }
  if (lengths.empty())
    throw_flag_error("--lengths", fmt::format("`{}` contains no lengths", source.file));
  return lengths;
}

struct BuiltDispatch {
  dispatch::Routing routing;
  dispatch::QkvDispatch dispatch;
  dispatch::TokenBytes token_bytes;
  std::int64_t documents = 0;
  std::vector<std::string> assumed;  // whole sentences
};

// Throws InputError D003 if there are fewer ranks.
int cp_degree(const Options& options, int ranks) {
  const std::int64_t cp = options.cp.value_or(std::min(4, ranks));
  if (cp > ranks) {
    throw_flag_error("--cp",
                     fmt::format("a context-parallel degree of {} exceeds the {} ranks", cp, ranks),
                     fmt::format("take at most {}", ranks));
  }
  return static_cast<int>(cp);
}

// Throws InputError D003.
dispatch::Mask mask_of(const Options& options) {
  try {
    return dispatch::parse_mask(options.mask.value_or("causal"));
  } catch (const InputError& error) {
    const Diagnostic& one = error.diagnostics().front();
    throw_flag_error("--mask", one.what, one.help);
  }
}

BuiltDispatch build_dispatch(const Options& options, const std::vector<std::uint32_t>& lengths,
                             int ranks) {
  BuiltDispatch built;
  const auto seed = static_cast<std::uint64_t>(options.seed.value_or(0));
  const int cp = cp_degree(options, ranks);
  if (lengths.empty()) {
    built.routing = dispatch::random_routing(
        {.world_size = ranks,
         .total_seq_len = static_cast<std::uint32_t>(options.tokens.value_or(4096)),
         .num_seqs = static_cast<int>(options.seqs.value_or(4)),
         .max_cp_degree = cp,
         .seed = seed});
    built.documents = ranks * options.seqs.value_or(4);
  } else {
    const std::vector<int> degrees(lengths.size(), cp);
    built.routing = {.home = dispatch::pack_documents(lengths, ranks),
                     .attention = dispatch::assign_randomly(
                         dispatch::cut_documents(lengths, degrees), ranks, seed)};
    built.documents = std::ssize(lengths);
  }
  built.assumed = {fmt::format("The placement of items on ranks is random (--seed {}).", seed)};
  if (options.mask) built.assumed.push_back(fmt::format("The mask is {}.", *options.mask));
  if (options.share_keys) {
    built.assumed.emplace_back("Items of one document on one rank share their keys.");
  }
  built.token_bytes = options.token_bytes();
  const dispatch::DispatchOptions dispatch_options{.mask = mask_of(options),
                                                   .shares_keys = options.share_keys};
  built.dispatch = dispatch::compute_qkv_dispatch(built.routing, dispatch_options);
  if (std::vector<Diagnostic> found = validate(built.dispatch); !found.empty()) {
    throw InternalError("a computed dispatch is unsound: " + render(found));
  }
  return built;
}

std::vector<OutputFile> outputs_of(const Options& options) {
  return {{"--output", options.output}, {"--plan", options.plan}, {"--report", options.report}};
}

// Writes the files that were requested in addition to the answer.
void write_files(const Options& options, const BuiltDispatch& built,
                 const report::DispatchView& view, Context& context) {
  if (options.output) {
    write_output({"--output", options.output},
                 to_text(to_json(built.dispatch, built.token_bytes), Layout::compact) + "\n",
                 context);
  }
  if (options.plan) {
    const plan::Plan plan =
        dispatch::lower(built.routing, built.dispatch,
                        {.q_row_bytes = built.token_bytes.q, .kv_row_bytes = built.token_bytes.kv});
    write_output({"--plan", options.plan}, plan::to_text(plan), context);
  }
  if (options.report) {
    const std::string command = shell_command(to_arguments("dispatch", declare, options));
    write_output({"--report", options.report}, to_html(report::dispatch_page(view, command)),
                 context);
  }
}

ExitCode print_result(const Options& options, const BuiltDispatch& built,
                      const dispatch::BenchmarkResult* benchmark, Context& context) {
  const report::DispatchView view{
      .dispatch = built.dispatch,
      .routing = built.routing.home.world_size() > 0 ? &built.routing : nullptr,
      .documents = built.documents,
      .sizes = {.q_row_bytes = built.token_bytes.q,
                .kv_row_bytes = built.token_bytes.kv,
                .ranks_per_node = static_cast<int>(options.ranks_per_node.value_or(8))},
      .benchmark = benchmark,
      .backend = options.run.value_or(""),
      .assumed = built.assumed};
  write_files(options, built, view, context);
  const Context answer = answer_context(outputs_of(options), context);
  answer.out.stream << (options.json ? to_text(report::dispatch_json(view)) + "\n"
                                     : report::dispatch_text(view, answer.text_style(),
                                                             options.pairs.value_or(10)));
  return benchmark == nullptr || benchmark->is_right() ? ExitCode::yes : ExitCode::no;
}

// The dispatch for this many ranks.
using BuildForRanks = std::function<BuiltDispatch(int ranks)>;

ExitCode run_dispatch(const Options& options, int ranks, const BuildForRanks& build,
                      Context& context) {
  const bool on_mpi = options.run == "mpi";
  if (on_mpi) check_launched_by_mpi("--run", "shiplap dispatch .. --run mpi");
  BuiltDispatch built;
  if (!on_mpi) built = build(ranks);
  std::optional<dispatch::BenchmarkResult> result;
  bool prints = true;
  try {
    comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
      run::check_job_consistency(
          world, {{"the command", shell_command(to_arguments("dispatch", declare, options))}});
      if (on_mpi) {
        built = build(world.size());
        prints = world.rank() == 0;
      }
      dispatch::BenchmarkResult local =
          run::benchmark_dispatch(world, built.dispatch,
                                  {.q_row_bytes = built.token_bytes.q,
                                   .kv_row_bytes = built.token_bytes.kv,
                                   .steps = static_cast<int>(options.steps.value_or(5))});
      if (world.rank() == 0) result = std::move(local);
    });
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
  if (!prints || !result) return ExitCode::yes;
  return print_result(options, built, &*result, context);
}

// Runs this command on every rank.
[[noreturn]] void start_mpirun(Options options, int ranks, const Context& context) {
  options.run = "mpi";
  options.backend.reset();
  exec_mpirun(ranks, to_arguments("dispatch", declare, options), context.out.colour);
}

// ---- files

// Returns the dispatch if the file has all four tables and the layout.
std::optional<dispatch::QkvDispatch> whole_dispatch(const dispatch::DispatchFile& file) {
  if (file.tables.size() != 4 || !file.attention) return std::nullopt;
  const auto table = [&](std::size_t k) { return to_sparse(file.tables[k].table); };
  return dispatch::QkvDispatch{.q = {.forward = table(0), .reverse = table(1)},
                               .kv = {.forward = table(2), .reverse = table(3)},
                               .attention = *file.attention};
}

std::string contents(const dispatch::DispatchFile& file) {
  std::string text;
  for (const dispatch::NamedTable& named : file.tables) {
    text +=
        fmt::format("{}{} ({} ranks, up to {} rows{})", text.empty() ? "" : ", ", named.name,
                    named.table.world_size, named.table.max_seqs,
                    named.table.max_cp > 0 ? fmt::format(", {} copies", named.table.max_cp) : "");
  }
  return text + (file.attention ? ", attention" : "");
}

// A dispatch file and its errors.
struct ValidatedFile {
  std::string name;
  dispatch::DispatchFile file;
  std::vector<Diagnostic> found;
};

// Throws InputError: D004, D008, or the errors of the file.
ValidatedFile load_dispatch(const std::string& name, Context& context) {
  const SourceText source = read_text(name, context.in, ".json");
  return {
      .name = source.file,
      .file = read_or_recognize([&] { return dispatch::read_dispatch(source.text, source.file); },
                                [&] { return foreign_file_error(source, "a dispatch"); })};
}

ValidatedFile validate_file(const std::string& name, Context& context) {
  ValidatedFile validated = load_dispatch(name, context);
  context.err.stream << render(validated.file.warnings, context.err.colour);
  validated.found = validate(validated.file);
  for (Diagnostic& one : validated.found) one.where.file = validated.name;
  return validated;
}

ExitCode print_validation(const ValidatedFile& validated, const Options& options,
                          Context& context) {
  const bool sound = validated.found.empty();
  if (options.json) {
    Json json = Json::object(
        {{"schema", "shiplap.dispatch.validate/1"}, {"file", validated.name}, {"sound", sound}});
    context.out.stream << to_text(json.set("diagnostics", to_json(validated.found))) << '\n';
  } else {
    context.out.stream << render(validated.found, context.out.colour)
                       << fmt::format("{}: {}\n", sound ? "sound" : "unsound",
                                      contents(validated.file));
  }
  return sound ? ExitCode::yes : ExitCode::no;
}

ExitCode inspect_file(const ValidatedFile& validated, const Options& options, Context& context) {
  if (!validated.found.empty()) return print_validation(validated, options, context);
  const std::optional<dispatch::QkvDispatch> all = whole_dispatch(validated.file);
  if (!all && (options.run || options.backend)) {
    throw_flag_error(
        options.run ? "--run" : "--backend",
        fmt::format("`{}` is not a whole dispatch: {}", validated.name, contents(validated.file)),
        "the file needs all four tables and `attention`, as `--output` writes them");
  }
  if (!all) return print_validation(validated, options, context);
  BuiltDispatch built{.dispatch = *all, .token_bytes = options.token_bytes()};
  if (!options.has_width() && validated.file.token_bytes) {
    built.token_bytes = *validated.file.token_bytes;
  } else if (!options.has_width()) {
    built.assumed = {
        "The file has no `q_row_bytes` and `kv_row_bytes`: 8 query heads, 2 key/value heads and a "
        "head dimension of 64 are assumed (--heads, --kv-heads, --head-dim)."};
  } else {
    built.assumed = {fmt::format(
        "The size of a token is that of {} query heads, {} key/value heads and a head dimension of "
        "{}.",
        options.heads.value_or(8), options.kv_head_count(), options.head_dim.value_or(64))};
  }
  const int ranks = built.dispatch.world_size();
  if (options.backend) start_mpirun(options, ranks, context);
  if (!options.run) return print_result(options, built, nullptr, context);
  return run_dispatch(
      options, ranks,
      [&](int started) {
        if (started != ranks) {
          throw_flag_error("--run", fmt::format("`{}` is a dispatch of {} ranks; mpirun started {}",
                                                validated.name, ranks, started));
        }
        return built;
      },
      context);
}

// Checks where to run, and that every rank can read the input file.
void check_run(const Options& options, const std::string& input) {
  if (options.backend && options.run) {
    throw_flag_error("--backend", "`--run` and `--backend` both select where to run",
                     "give one of them");
  }
  if (input != "-" || (!options.backend && options.run != "mpi")) return;
  throw_flag_error(options.words.empty() ? "--lengths" : "",
                   "standard input is available on one rank only", "use a file");
}

ExitCode run_verb(const Options& options, Context& context) {
  check_numbers(options);
  check_outputs(outputs_of(options), options.json);
  if (!options.words.empty()) {
    const std::string& what = options.words[0];
    if (what != "validate" && what != "inspect") {
      throw_flag_error("", fmt::format("unknown action `{}`", what),
                       "use `validate FILE`, `inspect FILE`, or flags alone to compute a dispatch");
    }
    if (options.words.size() != 2) throw_flag_error("", fmt::format("`{}` takes one file", what));
    if (options.lengths || options.ranks || options.tokens || options.seqs || options.cp ||
        options.seed || options.mask || options.share_keys || options.output) {
      throw_flag_error("", fmt::format("`{}` reads the dispatch from a file", what),
                       "remove the flags that compute a dispatch");
    }
    if (what == "validate" && (options.run || options.backend)) {
      throw_flag_error("", "`validate` runs nothing", "use `inspect FILE --run threads`");
    }
    check_run(options, options.words[1]);
    if (options.report || options.plan) {
      throw_flag_error(options.report ? "--report" : "--plan",
                       "a dispatch file has no document boundaries",
                       "compute the dispatch here instead");
    }
    if (what == "validate") {
      return print_validation(validate_file(options.words[1], context), options, context);
    }
    return inspect_file(validate_file(options.words[1], context), options, context);
  }
  check_run(options, options.lengths.value_or(""));
  const int ranks = static_cast<int>(options.ranks.value_or(8));
  if (options.backend) {
    (void)cp_degree(options, ranks);
    start_mpirun(options, ranks, context);
  }
  const std::vector<std::uint32_t> lengths =
      options.lengths ? read_lengths(*options.lengths, context) : std::vector<std::uint32_t>();
  if (options.run) {
    return run_dispatch(
        options, ranks,
        [&](int started) {
          if (options.ranks.value_or(started) != started) {
            throw_flag_error("--ranks", fmt::format("mpirun started {} ranks", started));
          }
          return build_dispatch(options, lengths, started);
        },
        context);
  }
  const BuiltDispatch built = build_dispatch(options, lengths, ranks);
  return print_result(options, built, nullptr, context);
}

}  // namespace

Verb dispatch_verb() {
  return make_verb<Options>(
      {.name = "dispatch",
       .summary = "move Q and KV to the ranks that compute attention: plan, validate, run",
       .examples = {{"shiplap dispatch --ranks 8 --lengths lengths.txt --cp 4",
                     "bytes sent between ranks"},
                    {"shiplap dispatch --ranks 8 --lengths lengths.txt --cp 4 --run threads",
                     "execute, verify and time it"},
                    {"shiplap dispatch --ranks 4 --backend mpi", "the same on MPI processes"},
                    {"shiplap dispatch --ranks 8 --mask window:1024 --share-keys",
                     "sliding-window attention; a key is sent to a rank once"},
                    {"shiplap dispatch inspect metadata.json --run threads",
                     "execute the tables of a file"},
                    {"shiplap dispatch --ranks 8 --report out.html", "HTML report"},
                    {"shiplap dispatch validate metadata.json", "validate tables of another tool"}},
       .notes = "The ranks that compute attention are random. Exit code 1: the tables are unsound, "
                "or the "
                "run failed."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
