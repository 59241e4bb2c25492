#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy::torch_schedule {
namespace {

struct Word {
  std::string_view text;
  Act act = Act::forward;
};
constexpr std::array kWords =
    std::to_array<Word>({{"F", Act::forward},
                         {"B", Act::backward},
                         {"I", Act::backward_input},
                         {"W", Act::backward_weight},
                         {"SEND_F", Act::send_forward},
                         {"RECV_F", Act::receive_forward},
                         {"SEND_B", Act::send_backward},
                         {"RECV_B", Act::receive_backward},
                         {"WAIT_SEND_F", Act::wait_send_forward},
                         {"WAIT_SEND_B", Act::wait_send_backward},
                         {"UNSHARD", Act::unshard},
                         {"RESHARD", Act::reshard},
                         {"REDUCE_GRAD", Act::reduce_gradient},
                         {"WAIT_REDUCE_GRAD", Act::wait_reduce_gradient}});

constexpr std::string_view kLegal =
    "write stage, action, microbatch: 0F0, 0B0, 0I0, 0W0, 0SEND_F0, 1RECV_F0, 1SEND_B0, 0RECV_B0, "
    "0WAIT_SEND_F0, 1WAIT_SEND_B0; 0UNSHARD, 0RESHARD, 0REDUCE_GRAD, 0WAIT_REDUCE_GRAD; "
    "(0F1;1B0)OVERLAP_F_B";
constexpr std::size_t kMaxDigits = 6;
constexpr std::size_t kMaxErrors = 20;

Cell part_of(const Cell& cell, std::size_t begin, std::size_t end) {
  return {.text = cell.text.substr(begin, end - begin), .column = cell.column + begin};
}

Cell trimmed(const Cell& cell) {
  constexpr std::string_view kBlank = " \t\r\"";
  const std::size_t begin = cell.text.find_first_not_of(kBlank);
  if (begin == cell.text.npos) return {.text = "", .column = cell.column};
  return part_of(cell, begin, cell.text.find_last_not_of(kBlank) + 1);
}

std::vector<Cell> split(const Cell& cell, char separator) {
  std::vector<Cell> result;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(cell.text.find(separator, begin), cell.text.size());
    result.push_back(trimmed(part_of(cell, begin, end)));
    if (end == cell.text.size()) return result;
    begin = end + 1;
  }
}

// Gathers what is wrong, up to a limit.
class Errors {
 public:
  explicit Errors(std::string_view file) : file_(file) {}

  void add(const Row& row, const Cell& cell, std::string what, std::string_view help) {
    if (diagnostics_.size() == kMaxErrors) return;
    diagnostics_.push_back(
        {.code = "D626",
         .where = {.file = std::string(file_),
                   .line = row.line,
                   .column = row.line > 0 ? static_cast<int>(cell.column) + 1 : 0,
                   .length = std::max(static_cast<int>(cell.text.size()), 1),
                   .excerpt = std::string(row.text)},
         .what = std::move(what),
         .help = std::string(help)});
  }
  void add(std::string what, std::string_view help) {
    add(Row{.line = 0}, {}, std::move(what), help);
  }

  void throw_if_any() const {
    if (!diagnostics_.empty()) throw InputError(diagnostics_);
  }

 private:
  std::string_view file_;
  std::vector<Diagnostic> diagnostics_;
};

// ---- from text to actions

void read_action(Row& row, const Cell& cell, Errors& errors) {
  const std::string_view text = cell.text;
  const auto digits = [&](std::size_t from) {
    return std::min(text.find_first_not_of("0123456789", from), text.size());
  };
  const std::size_t word_begin = digits(0);
  const std::size_t word_end = std::min(text.find_first_of("0123456789", word_begin), text.size());
  const std::string_view name = text.substr(word_begin, word_end - word_begin);
  const auto* const word = std::ranges::find(kWords, name, &Word::text);
  const bool too_long = word_begin > kMaxDigits || text.size() - word_end > kMaxDigits;
  if (word == kWords.end() || digits(word_end) != text.size() || too_long) {
    const bool old = name == "BW";
    errors.add(row, cell, fmt::format("`{}` is no action", text),
               old ? "older files say BW for B, and B for I: write them anew" : kLegal);
    return;
  }
  const bool of_stage = is_of_stage(word->act);
  if (word_begin == 0 || (word_end == text.size()) != of_stage) {
    errors.add(row, cell,
               fmt::format("`{}` {}", text,
                           word_begin == 0 ? "lacks its stage"
                           : of_stage      ? "is of a stage, not of a microbatch"
                                           : "lacks its microbatch"),
               kLegal);
    return;
  }
  row.actions.push_back(
      {.act = word->act,
       .stage = std::stoi(std::string(text.substr(0, word_begin))),
       .microbatch = of_stage ? -1 : std::stoi(std::string(text.substr(word_end))),
       .cell = cell});
}

void read_cell(Row& row, const Cell& cell, Errors& errors) {
  if (cell.text.empty()) return;
  constexpr std::string_view kOverlap = ")OVERLAP_F_B";
  if (!cell.text.starts_with('(') || !cell.text.ends_with(kOverlap)) {
    return read_action(row, cell, errors);
  }
  const std::size_t first = row.actions.size();
  const Cell inside = part_of(cell, 1, cell.text.size() - kOverlap.size());
  for (const Cell& each : split(inside, ';')) read_action(row, each, errors);
  for (std::size_t i = first + 1; i < row.actions.size(); ++i) {
    row.actions[i].overlaps_previous = true;
  }
}

std::vector<Row> read_rows(std::string_view csv, Errors& errors) {
  std::vector<Row> rows;
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    rows.push_back(
        {.line = static_cast<int>(rows.size()) + 1, .text = csv.substr(0, end), .actions = {}});
    csv.remove_prefix(std::min(end + 1, csv.size()));
  }
  while (!rows.empty() && trimmed({.text = rows.back().text}).text.empty()) rows.pop_back();
  for (Row& row : rows) {
    if (std::ranges::count(row.text, '"') % 2 != 0) {
      const std::size_t last = row.text.rfind('"');
      errors.add(row, {.text = row.text.substr(last, 1), .column = last},
                 "this quote has no other one", "quotes stand around a whole cell");
    }
    for (const Cell& cell : split({.text = row.text}, ',')) read_cell(row, cell, errors);
  }
  if (rows.empty()) errors.add("the schedule is empty", "");
  errors.throw_if_any();
  return rows;
}

// ---- what the rows have in common

void find_stages(Pipeline& pipeline, Errors& errors) {
  for (const Row& row : pipeline.rows) {
    const int rank = row.line - 1;
    for (const Action& action : row.actions) {
      pipeline.stages = std::max(pipeline.stages, action.stage + 1);
      pipeline.microbatches = std::max(pipeline.microbatches, action.microbatch + 1);
      pipeline.messages = pipeline.messages || is_message(action.act);
      pipeline.stage_actions = pipeline.stage_actions || is_of_stage(action.act);
      const bool shards = action.act == Act::unshard || action.act == Act::reshard;
      if (shards) pipeline.sharded_stages.insert(action.stage);
      if (!computes(action.act)) continue;
      pipeline.trains = pipeline.trains || action.act != Act::forward;
      const auto [home, first] = pipeline.rank_of.emplace(action.stage, rank);
      if (first || home->second == rank) continue;
      errors.add(row, action.cell,
                 fmt::format("stage {} is computed on rank {} and on rank {}", action.stage,
                             home->second, rank),
                 "a stage is on one rank");
    }
  }
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    if (pipeline.rank_of.contains(stage)) continue;
    errors.add(fmt::format("no rank computes stage {}", stage),
               fmt::format("the stages are 0 to {}, and each is on a rank", pipeline.stages - 1));
    break;
  }
  if (pipeline.rank_of.empty()) errors.add("the schedule computes nothing", kLegal);
}

// torch puts stages on ranks in one of two ways, "loop" (round the ranks) or "v" (back and forth),
// when they are made. A row of other stages than its rank has cannot run there. Rows without
// actions do not count.
void check_stage_ranks(const Pipeline& pipeline, Errors& errors) {
  std::vector<int> ranks;
  for (const Row& row : pipeline.rows) {
    if (!row.actions.empty()) ranks.push_back(row.line - 1);
  }
  const auto count = static_cast<int>(ranks.size());
  const auto loop = [&](int stage) { return ranks[stage % count]; };
  const auto v = [&](int stage) {
    const int at = stage % count;
    return ranks[stage / count % 2 == 0 ? at : count - 1 - at];
  };
  const auto fits = [&](const auto& rank_of) {
    return std::ranges::all_of(
        pipeline.rank_of, [&](const auto& entry) { return rank_of(entry.first) == entry.second; });
  };
  if (fits(loop) || fits(v)) return;
  for (const Row& row : pipeline.rows) {
    for (const Action& action : row.actions) {
      if (!computes(action.act) || loop(action.stage) == row.line - 1) continue;
      return errors.add(row, action.cell,
                        fmt::format("stage {} is on rank {}, where torch has it on rank {}",
                                    action.stage, row.line - 1, loop(action.stage)),
                        "stages go round the ranks, or back and forth: bring the rows into the "
                        "order of the ranks");
    }
  }
}

void check_message(const Row& row, const Action& action, const Pipeline& pipeline, Errors& errors) {
  const int other = peer_stage(action.act, action.stage);
  if (other < 0 || other >= pipeline.stages) {
    errors.add(
        row, action.cell,
        fmt::format("stage {} has nobody at the other end of `{}`", action.stage, action.cell.text),
        fmt::format("the stages are 0 to {}", pipeline.stages - 1));
  } else if (!pipeline.sends_between(action.stage, other)) {
    errors.add(row, action.cell,
               fmt::format("stages {} and {} are on the same rank", action.stage, other),
               "leave it out: they need no message");
  }
}

// Whether the rank computes the stage that it does something else for.
bool check_home(const Row& row, const Action& action, const Pipeline& pipeline, Errors& errors) {
  const int rank = row.line - 1;
  const int home = pipeline.rank_of.at(action.stage);
  if (home == rank) return true;
  errors.add(row, action.cell,
             fmt::format("stage {} is on rank {}, not on {}", action.stage, home, rank),
             "a rank sends, receives, gathers and reduces for its own stages");
  return false;
}

// The action that another one of the same row, stage and microbatch must follow, if there is one.
std::optional<Act> precondition(Act act) {
  switch (act) {
    case Act::backward_weight:
      return Act::backward_input;
    case Act::wait_send_forward:
      return Act::send_forward;
    case Act::wait_send_backward:
      return Act::send_backward;
    case Act::wait_reduce_gradient:
      return Act::reduce_gradient;
    default:
      return std::nullopt;
  }
}

// Every action has its precondition before it, and shares it with no other. torch asks for that
// when it reads the file.
void check_preconditions(const Row& row, Errors& errors) {
  std::map<std::tuple<Act, int, int>, int> open;
  for (const Action& action : row.actions) {
    ++open[{action.act, action.stage, action.microbatch}];
    const std::optional<Act> needed = precondition(action.act);
    if (!needed) continue;
    if (open[{*needed, action.stage, action.microbatch}]-- > 0) continue;
    const std::string_view name = to_string(*needed);
    errors.add(row, action.cell, fmt::format("`{}` has no {} before it", action.cell.text, name),
               fmt::format("put it after the {} of the same stage{}", name,
                           is_of_stage(action.act) ? "" : " and microbatch"));
  }
}

}  // namespace

std::string_view to_string(Act act) { return std::ranges::find(kWords, act, &Word::act)->text; }

Pipeline read_schedule(std::string_view csv, std::string_view file) {
  Errors errors(file);
  Pipeline pipeline;
  pipeline.rows = read_rows(csv, errors);
  find_stages(pipeline, errors);
  errors.throw_if_any();
  check_stage_ranks(pipeline, errors);
  for (const Row& row : pipeline.rows) {
    for (const Action& action : row.actions) {
      const bool home = computes(action.act) || check_home(row, action, pipeline, errors);
      if (home && is_message(action.act)) check_message(row, action, pipeline, errors);
    }
    check_preconditions(row, errors);
  }
  errors.throw_if_any();
  return pipeline;
}

}  // namespace shiplap::strategy::torch_schedule
