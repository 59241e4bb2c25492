// shiplap dispatch: make a dispatch, prove it, look at it, run it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/json.h"
#include "shiplap/dispatch/lower.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/dispatch.h"
#include "shiplap/run/dispatch_trial.h"
#include "shiplap/run/same_job.h"

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
  std::optional<std::int64_t> ranks_per_node;
  std::optional<std::int64_t> heads;
  std::optional<std::int64_t> kv_heads;
  std::optional<std::int64_t> head_dim;
  std::optional<std::string> run;
  std::optional<std::string> backend;
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> pairs;
  std::optional<std::string> out;
  std::optional<std::string> plan;
  std::optional<std::string> report;
  bool json = false;

  // Bytes of bf16 per token.
  [[nodiscard]] std::int64_t q_row_bytes() const {
    return 2 * heads.value_or(8) * head_dim.value_or(64);
  }
  [[nodiscard]] std::int64_t kv_row_bytes() const {
    return std::int64_t{4} * kv_heads.value_or(2) * head_dim.value_or(64);
  }
};

void declare_input(Flags& flags, Options& options) {
  flags.arguments({.name = "validate|inspect FILE",
                   .help = "check, or look at, a dispatch in a file; without: make one",
                   .example = "validate",
                   .values = Values::files,
                   .required = false,
                   .repeated = true},
                  options.words);
  flags.count({.name = "--ranks", .help = "ranks (8)", .example = "8"}, options.ranks);
  flags.file({.name = "--lengths",
              .help = "lengths of documents, packed over the ranks; without: random ones",
              .example = "lengths.txt"},
             options.lengths);
  flags.count({.name = "--tokens",
               .help = "of random documents: tokens on each rank (4096)",
               .example = "4096"},
              options.tokens);
  flags.count(
      {.name = "--seqs", .help = "of random documents: documents on each rank (4)", .example = "4"},
      options.seqs);
  flags.count({.name = "--cp",
               .help = "ranks that may share a document: it is cut into so many items (4)",
               .example = "4"},
              options.cp);
  flags.count({.name = "--seed", .help = "of what is random (0)", .example = "0"}, options.seed);
}

void declare_sizes(Flags& flags, Options& options) {
  flags.count({.name = "--ranks-per-node",
               .help = "consecutive ranks that share a node (8)",
               .example = "8"},
              options.ranks_per_node);
  flags.count({.name = "--heads", .help = "query heads (8)", .example = "8"}, options.heads);
  flags.count({.name = "--kv-heads", .help = "key heads (2)", .example = "2"}, options.kv_heads);
  flags.count({.name = "--head-dim", .help = "numbers per head (64)", .example = "64"},
              options.head_dim);
}

void declare_output(Flags& flags, Options& options) {
  flags.text({.name = "--run",
              .value = "WHERE",
              .help = "carry it out and time it: on threads, or on mpi under mpirun",
              .example = "threads",
              .choices = {"threads", "mpi"}},
             options.run);
  flags.text({.name = "--backend",
              .value = "mpi",
              .help = "start mpirun with --ranks processes and run there",
              .example = "mpi",
              .choices = {"mpi"}},
             options.backend);
  flags.count({.name = "--steps", .help = "timed steps (5)", .example = "5"}, options.steps);
  flags.count({.name = "--pairs",
               .help = "list at most N pairs of ranks; 0 lists all (10)",
               .example = "0"},
              options.pairs);
  flags.file({.name = "--out",
              .letter = "-o",
              .help = "write the tables as JSON",
              .example = "dispatch.json"},
             options.out);
  flags.file({.name = "--plan", .help = "write it as a plan", .example = "dispatch.plan"},
             options.plan);
  flags.file(
      {.name = "--report", .help = "write a picture: one HTML file", .example = "dispatch.html"},
      options.report);
  flags.toggle({.name = "--json", .help = "everything, for programs"}, options.json);
}

void declare(Flags& flags, Options& options) {
  declare_input(flags, options);
  declare_sizes(flags, options);
  declare_output(flags, options);
}

// Each number that must be at least one, and fit.
void check_numbers(const Options& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  const auto check = [&](const char* flag, const std::optional<std::int64_t>& value) {
    if (!value || (*value >= 1 && *value <= kMost)) return;
    refuse_flag(flag, fmt::format("expected 1 to {}, found {}", kMost, *value));
  };
  check("--ranks", options.ranks);
  check("--seqs", options.seqs);
  check("--cp", options.cp);
  check("--ranks-per-node", options.ranks_per_node);
  check("--heads", options.heads);
  check("--kv-heads", options.kv_heads);
  check("--head-dim", options.head_dim);
  check("--steps", options.steps);
  if (options.tokens && !std::in_range<std::uint32_t>(*options.tokens)) {
    refuse_flag("--tokens", fmt::format("{} tokens on a rank do not fit 32 bits", *options.tokens));
  }
  constexpr std::int64_t kMostRowBytes = std::int64_t{1} << 30;
  if (std::max(options.q_row_bytes(), options.kv_row_bytes()) > kMostRowBytes) {
    refuse_flag("--heads", "a token of more than 1 GiB", "fewer heads, or smaller ones");
  }
  if (options.lengths && (options.tokens || options.seqs)) {
    refuse_flag("--lengths", "`--tokens` and `--seqs` are for random documents",
                "give the lengths, or let them be random");
  }
}

std::vector<std::uint32_t> read_lengths(const std::string& file, Context& context) {
  const SourceText source = read_text(file, context.in);
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
          .what = fmt::format("expected the length of a document, found `{}`",
                              source.text.substr(at, std::min<std::size_t>(stop - at, 20))),
          .help = "lengths are whole numbers up to 4294967295, with blanks between them"});
    }
    lengths.push_back(length);
    at += static_cast<std::size_t>(next - begin);
  }
  if (lengths.empty()) refuse_flag("--lengths", fmt::format("`{}` has no lengths", source.file));
  return lengths;
}

struct Made {
  dispatch::Routing routing;
  dispatch::QkvDispatch dispatch;
  std::int64_t documents = 0;
};

Made make(const Options& options, const std::vector<std::uint32_t>& lengths, int ranks) {
  Made made;
  const auto seed = static_cast<std::uint64_t>(options.seed.value_or(0));
  const int cp = static_cast<int>(options.cp.value_or(4));
  if (lengths.empty()) {
    made.routing = dispatch::random_routing(
        {.world_size = ranks,
         .total_seq_len = static_cast<std::uint32_t>(options.tokens.value_or(4096)),
         .num_seqs = static_cast<int>(options.seqs.value_or(4)),
         .max_cp_degree = cp,
         .seed = seed});
    made.documents = ranks * options.seqs.value_or(4);
  } else {
    const std::vector<int> degrees(lengths.size(), cp);
    made.routing = {.home = dispatch::pack_documents(lengths, ranks),
                    .attention = dispatch::assign_randomly(
                        dispatch::cut_documents(lengths, degrees), ranks, seed)};
    made.documents = std::ssize(lengths);
  }
  made.dispatch = dispatch::compute_qkv_dispatch(made.routing);
  if (std::vector<Diagnostic> found = validate(made.dispatch); !found.empty()) {
    throw InternalError("a dispatch that we made is unsound: " + render(found));
  }
  return made;
}

// What is written beside the answer.
void write_files(const Options& options, const Made& made) {
  if (options.out) {
    write_text(*options.out, to_text(to_json(made.dispatch), Layout::compact) + "\n", "--out");
  }
  if (options.plan) {
    const plan::Plan plan = dispatch::lower(
        made.routing, made.dispatch,
        {.q_row_bytes = options.q_row_bytes(), .kv_row_bytes = options.kv_row_bytes()});
    write_text(*options.plan, plan::to_text(plan), "--plan");
  }
}

ExitCode tell(const Options& options, const Made& made, const dispatch::Trial* trial,
              Context& context) {
  write_files(options, made);
  const report::DispatchView view{
      .dispatch = made.dispatch,
      .routing = &made.routing,
      .documents = made.documents,
      .sizes = {.q_row_bytes = options.q_row_bytes(),
                .kv_row_bytes = options.kv_row_bytes(),
                .ranks_per_node = static_cast<int>(options.ranks_per_node.value_or(8))},
      .trial = trial,
      .backend = options.run.value_or("")};
  if (options.report) {
    const std::string command = shell_command(words_of("dispatch", declare, options));
    write_text(*options.report, to_html(report::dispatch_page(view, command)), "--report");
  }
  context.out.stream << (options.json ? to_text(report::dispatch_json(view)) + "\n"
                                      : report::dispatch_text(view, context.look(),
                                                              options.pairs.value_or(10)));
  return trial == nullptr || trial->is_right() ? ExitCode::yes : ExitCode::no;
}

ExitCode run_it(const Options& options, const std::vector<std::uint32_t>& lengths,
                Context& context) {
  const bool on_mpi = options.run == "mpi";
  if (on_mpi) require_launched("--run", "shiplap dispatch .. --run mpi");
  Made made;
  if (!on_mpi) made = make(options, lengths, static_cast<int>(options.ranks.value_or(8)));
  std::optional<dispatch::Trial> result;
  bool speaks = true;
  try {
    comm::run_ranks(
        {.threads = static_cast<int>(options.ranks.value_or(8))}, [&](comm::Communicator& world) {
          run::require_same_job(
              world, {{"the command", shell_command(words_of("dispatch", declare, options))}});
          if (on_mpi) {
            if (options.ranks.value_or(world.size()) != world.size()) {
              refuse_flag("--ranks", fmt::format("mpirun started {} ranks", world.size()));
            }
            made = make(options, lengths, world.size());
            speaks = world.rank() == 0;
          }
          dispatch::Trial own =
              run::try_dispatch(world, made.dispatch,
                                {.q_row_bytes = options.q_row_bytes(),
                                 .kv_row_bytes = options.kv_row_bytes(),
                                 .steps = static_cast<int>(options.steps.value_or(5))});
          if (world.rank() == 0) result = std::move(own);
        });
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
  if (!speaks || !result) return ExitCode::yes;
  return tell(options, made, &*result, context);
}

// This command on every rank.
[[noreturn]] void start_mpirun(Options options, const Context& context) {
  options.run = "mpi";
  options.backend.reset();
  become_mpirun(options.ranks.value_or(8), words_of("dispatch", declare, options),
                context.out.colour);
}

// ---- files

// A file with all four tables and the layout is a whole dispatch.
std::optional<dispatch::QkvDispatch> whole(const dispatch::DispatchFile& file) {
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

// A file that was read, and what is wrong with it.
struct Judged {
  std::string name;
  dispatch::DispatchFile file;
  std::vector<Diagnostic> found;
};

Judged judge(const std::string& name, Context& context) {
  const SourceText source = read_text(name, context.in);
  Judged judged{.name = source.file, .file = dispatch::read_dispatch(source.text, source.file)};
  context.err.stream << render(judged.file.warnings, context.err.colour);
  judged.found = validate(judged.file);
  for (Diagnostic& one : judged.found) one.where.file = source.file;
  return judged;
}

ExitCode tell_verdict(const Judged& judged, const Options& options, Context& context) {
  const bool sound = judged.found.empty();
  if (options.json) {
    Json list = Json::array();
    for (const Diagnostic& one : judged.found) list.push(to_json(one));
    Json json = Json::object(
        {{"schema", "shiplap.dispatch.validate/1"}, {"file", judged.name}, {"sound", sound}});
    context.out.stream << to_text(json.set("diagnostics", std::move(list))) << '\n';
  } else {
    context.out.stream << render(judged.found, context.out.colour)
                       << fmt::format("{}: {}\n", sound ? "sound" : "unsound",
                                      contents(judged.file));
  }
  return sound ? ExitCode::yes : ExitCode::no;
}

ExitCode inspect_file(const Judged& judged, const Options& options, Context& context) {
  if (!judged.found.empty()) return tell_verdict(judged, options, context);
  const std::optional<dispatch::QkvDispatch> all = whole(judged.file);
  if (!all) return tell_verdict(judged, options, context);
  return tell(options, {.dispatch = *all}, nullptr, context);
}

ExitCode run_verb(const Options& options, Context& context) {
  check_numbers(options);
  if (!options.words.empty()) {
    const std::string& what = options.words[0];
    if (what != "validate" && what != "inspect") {
      refuse_flag("", fmt::format("`shiplap dispatch` does not know `{}`", what),
                  "validate FILE, inspect FILE, or only flags to make a dispatch");
    }
    if (options.words.size() != 2) refuse_flag("", fmt::format("`{}` takes one file", what));
    if (options.run || options.backend || options.lengths || options.ranks || options.tokens ||
        options.seqs || options.cp || options.seed || options.out) {
      refuse_flag("", fmt::format("`{}` takes a dispatch from its file", what),
                  "leave out the flags that make or run one");
    }
    if (what == "validate") {
      return tell_verdict(judge(options.words[1], context), options, context);
    }
    if (options.report || options.plan) {
      refuse_flag(options.report ? "--report" : "--plan", "a file does not say what is a document",
                  "make the dispatch here instead");
    }
    return inspect_file(judge(options.words[1], context), options, context);
  }
  if (options.backend && options.run) {
    refuse_flag("--backend", "`--run` and `--backend` both say where to run", "give one of them");
  }
  if (options.backend && options.lengths == "-") {
    refuse_flag("--lengths", "standard input reaches only one rank", "give a file");
  }
  if (options.backend) start_mpirun(options, context);
  const std::vector<std::uint32_t> lengths =
      options.lengths ? read_lengths(*options.lengths, context) : std::vector<std::uint32_t>();
  if (options.run) return run_it(options, lengths, context);
  const Made made = make(options, lengths, static_cast<int>(options.ranks.value_or(8)));
  return tell(options, made, nullptr, context);
}

}  // namespace

Verb dispatch_verb() {
  return make_verb<Options>(
      {.name = "dispatch",
       .summary = "move Q and KV to where attention happens: make it, prove it, run it",
       .examples = {{"shiplap dispatch --ranks 8 --lengths lengths.txt --cp 4",
                     "who sends how much to whom"},
                    {"shiplap dispatch --ranks 8 --lengths lengths.txt --cp 4 --run threads",
                     "carry it out, check it, time it"},
                    {"shiplap dispatch --ranks 4 --backend mpi", "the same on processes"},
                    {"shiplap dispatch --ranks 8 --report out.html", "as a picture"},
                    {"shiplap dispatch validate metadata.json", "tables that came from elsewhere"}},
       .notes = "Destinations are random. Exit code 1: the tables are unsound, or the run failed."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
