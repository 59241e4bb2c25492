#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/strategy/schedule_errors_internal.h"
#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy::torch_schedule {
namespace {

struct TypeName {
  std::string_view text;
  ComputationType type = ComputationType::forward;
};
constexpr std::array kTypeNames =
    std::to_array<TypeName>({{"F", ComputationType::forward},
                             {"B", ComputationType::backward},
                             {"I", ComputationType::backward_input},
                             {"W", ComputationType::backward_weight},
                             {"SEND_F", ComputationType::send_forward},
                             {"RECV_F", ComputationType::receive_forward},
                             {"SEND_B", ComputationType::send_backward},
                             {"RECV_B", ComputationType::receive_backward},
                             {"WAIT_SEND_F", ComputationType::wait_send_forward},
                             {"WAIT_SEND_B", ComputationType::wait_send_backward},
                             {"UNSHARD", ComputationType::unshard},
                             {"RESHARD", ComputationType::reshard},
                             {"REDUCE_GRAD", ComputationType::reduce_gradient},
                             {"WAIT_REDUCE_GRAD", ComputationType::wait_reduce_gradient}});

constexpr std::string_view kSyntaxHelp =
    "write stage, action, microbatch: 0F0, 0B0, 0I0, 0W0, 0SEND_F0, 1RECV_F0, 1SEND_B0, 0RECV_B0, "
    "0WAIT_SEND_F0, 1WAIT_SEND_B0; 0UNSHARD, 0RESHARD, 0REDUCE_GRAD, 0WAIT_REDUCE_GRAD; "
    "(0F1;1B0)OVERLAP_F_B, (0SEND_F1;0RECV_B0)BATCH";
constexpr std::size_t kMaxDigits = 6;

Cell subcell(const Cell& cell, std::size_t begin, std::size_t end) {
  return {.text = cell.text.substr(begin, end - begin), .column = cell.column + begin};
}

Cell trimmed(const Cell& cell) {
  constexpr std::string_view kBlank = " \t\r\"";
  const std::size_t begin = cell.text.find_first_not_of(kBlank);
  if (begin == cell.text.npos) return {.text = "", .column = cell.column};
  return subcell(cell, begin, cell.text.find_last_not_of(kBlank) + 1);
}

std::vector<Cell> split(const Cell& cell, char separator) {
  std::vector<Cell> result;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(cell.text.find(separator, begin), cell.text.size());
    result.push_back(trimmed(subcell(cell, begin, end)));
    if (end == cell.text.size()) return result;
    begin = end + 1;
  }
}

// ---- from text to actions

void read_action(Row& row, const Cell& cell, ScheduleErrors& errors) {
  const std::string_view text = cell.text;
  const auto digits = [&](std::size_t from) {
    return std::min(text.find_first_not_of("0123456789", from), text.size());
  };
  const std::size_t word_begin = digits(0);
  const std::size_t word_end = std::min(text.find_first_of("0123456789", word_begin), text.size());
  const std::string_view name = text.substr(word_begin, word_end - word_begin);
  const auto* const word = std::ranges::find(kTypeNames, name, &TypeName::text);
  const bool too_long = word_begin > kMaxDigits || text.size() - word_end > kMaxDigits;
  if (word == kTypeNames.end() || digits(word_end) != text.size() || too_long) {
    const bool old = name == "BW";
    errors.add(row, cell,
               {.what = fmt::format("`{}` is not an action", text),
                .help = old ? "older files use BW for B, and B for I: export them again"
                            : std::string(kSyntaxHelp)});
    return;
  }
  const bool of_stage = is_of_stage(word->type);
  if (word_begin == 0 || (word_end == text.size()) != of_stage) {
    errors.add(row, cell,
               {.what = fmt::format("`{}` {}", text,
                                    word_begin == 0 ? "is missing its stage"
                                    : of_stage      ? "is of a stage, not of a microbatch"
                                                    : "is missing its microbatch"),
                .help = std::string(kSyntaxHelp)});
    return;
  }
  row.actions.push_back(
      {.type = word->type,
       .stage = std::stoi(std::string(text.substr(0, word_begin))),
       .microbatch = of_stage ? -1 : std::stoi(std::string(text.substr(word_end))),
       .cell = cell});
}

void read_cell(Row& row, const Cell& cell, ScheduleErrors& errors) {
  if (cell.text.empty()) return;
  constexpr std::string_view kOverlap = ")OVERLAP_F_B";
  constexpr std::string_view kBatch = ")BATCH";
  const bool batch = cell.text.ends_with(kBatch);
  if (!cell.text.starts_with('(') || (!batch && !cell.text.ends_with(kOverlap))) {
    return read_action(row, cell, errors);
  }
  const std::size_t first = row.actions.size();
  const std::size_t suffix = (batch ? kBatch : kOverlap).size();
  const Cell inside = subcell(cell, 1, cell.text.size() - suffix);
  for (const Cell& each : split(inside, ';')) read_action(row, each, errors);
  for (std::size_t i = first; i < row.actions.size(); ++i) {
    Action& action = row.actions[i];
    if (batch && !is_message(action.type)) {
      errors.add(row, action.cell,
                 {.what = fmt::format("`{}` in a BATCH is not a message", action.cell.text),
                  .help = "a BATCH contains SEND_F, RECV_F, SEND_B and RECV_B"});
    }
    if (i > first) (batch ? action.batched_with_previous : action.overlaps_previous) = true;
  }
}

std::vector<Row> read_rows(std::string_view csv, ScheduleErrors& errors) {
  std::vector<Row> rows;
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    rows.push_back(
        {.line = static_cast<int>(rows.size()) + 1, .text = csv.substr(0, end), .actions = {}});
    csv.remove_prefix(std::min(end + 1, csv.size()));
  }
  while (!rows.empty() && trimmed({.text = rows.back().text}).text.empty()) rows.pop_back();
  for (Row& row : rows) {
    throw_if_cancelled();
    if (std::ranges::count(row.text, '"') % 2 != 0) {
      const std::size_t last = row.text.rfind('"');
      errors.add(row, {.text = row.text.substr(last, 1), .column = last},
                 {.what = "unmatched quote", .help = "quote whole cells"});
    }
    for (const Cell& cell : split({.text = row.text}, ',')) read_cell(row, cell, errors);
  }
  if (rows.empty()) errors.add({.what = "the schedule is empty"});
  errors.throw_if_any();
  return rows;
}

// ---- checks across rows

// The computations of a stage on one rank.
struct StageRank {
  int rank = 0;
  int count = 0;
  const Action* first = nullptr;
};
using StageRanks = std::map<int, std::vector<StageRank>>;  // by stage

void find_stages(Pipeline& pipeline, StageRanks& ranks) {
  for (const Row& row : pipeline.rows) {
    const int rank = row.line - 1;
    for (const Action& action : row.actions) {
      pipeline.stages = std::max(pipeline.stages, action.stage + 1);
      pipeline.microbatches = std::max(pipeline.microbatches, action.microbatch + 1);
      pipeline.messages = pipeline.messages || is_message(action.type);
      pipeline.send_waits = pipeline.send_waits || waits_for_send(action.type);
      pipeline.stage_actions = pipeline.stage_actions || is_of_stage(action.type);
      const bool shards =
          action.type == ComputationType::unshard || action.type == ComputationType::reshard;
      if (shards) pipeline.sharded_stages.insert(action.stage);
      if (!computes(action.type)) continue;
      pipeline.trains = pipeline.trains || action.type != ComputationType::forward;
      std::vector<StageRank>& homes = ranks[action.stage];
      if (homes.empty() || homes.back().rank != rank) {
        homes.push_back({.rank = rank, .count = 0, .first = &action});
      }
      ++homes.back().count;
    }
  }
}

std::string times(int count) {
  return count == 1 ? "once" : count == 2 ? "twice" : fmt::format("{} times", count);
}

// A stage is on the rank with most of its computations; of equal ones, on the first.
void report_second_homes(const Pipeline& pipeline, int stage, const std::vector<StageRank>& ranks,
                         ScheduleErrors& errors) {
  const StageRank& home = *std::ranges::max_element(ranks, {}, &StageRank::count);
  for (const StageRank& other : ranks) {
    if (other.rank == home.rank) continue;
    errors.add(pipeline.rows[other.rank], other.first->cell,
               {.what = fmt::format("stage {} is computed on rank {} and on rank {}", stage,
                                    other.rank, home.rank),
                .why = fmt::format("rank {} computes it {}, rank {} {}", other.rank,
                                   times(other.count), home.rank, times(home.count)),
                .help = fmt::format("a stage is on one rank: move `{}` to line {}, or correct its "
                                    "stage",
                                    other.first->cell.text, pipeline.rows[home.rank].line)});
  }
}

void place_stages(Pipeline& pipeline, ScheduleErrors& errors) {
  StageRanks ranks;
  find_stages(pipeline, ranks);
  for (const auto& [stage, homes] : ranks) {
    pipeline.rank_of[stage] = homes.front().rank;
    if (homes.size() > 1) report_second_homes(pipeline, stage, homes, errors);
  }
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    if (pipeline.rank_of.contains(stage)) continue;
    errors.add({.what = fmt::format("no rank computes stage {}", stage),
                .help = fmt::format("the stages are 0 to {}, and each is on a rank",
                                    pipeline.stages - 1)});
    break;
  }
  if (pipeline.rank_of.empty()) {
    errors.add({.what = "the schedule has no computation", .help = std::string(kSyntaxHelp)});
  }
}

// torch places stages on ranks in one of two styles, "loop" (round-robin) or "v" (back and forth).
// A row with stages of another rank cannot run. Rows without actions do not count.
void check_stage_ranks(const Pipeline& pipeline, ScheduleErrors& errors) {
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
      if (!computes(action.type) || loop(action.stage) == row.line - 1) continue;
      return errors.add(
          row, action.cell,
          {.what = fmt::format("stage {} is on rank {}, where torch has it on rank {}",
                               action.stage, row.line - 1, loop(action.stage)),
           .help = "torch places stages round-robin or in a V: sort the rows by rank"});
    }
  }
}

void check_message(const Row& row, const Action& action, const Pipeline& pipeline,
                   ScheduleErrors& errors) {
  const int other = peer_stage(action.type, action.stage);
  if (other < 0 || other >= pipeline.stages) {
    errors.add(
        row, action.cell,
        {.what = fmt::format("stage {} has no peer for `{}`", action.stage, action.cell.text),
         .help = fmt::format("the stages are 0 to {}", pipeline.stages - 1)});
  } else if (!pipeline.sends_between(action.stage, other)) {
    errors.add(row, action.cell,
               {.what = fmt::format("stages {} and {} are on the same rank", action.stage, other),
                .help = "remove it: they need no message"});
  }
}

// Checks that a rank communicates only for stages that it computes.
bool check_home(const Row& row, const Action& action, const Pipeline& pipeline,
                ScheduleErrors& errors) {
  const int rank = row.line - 1;
  const int home = pipeline.rank_of.at(action.stage);
  if (home == rank) return true;
  errors.add(row, action.cell,
             {.what = fmt::format("stage {} is on rank {}, not on {}", action.stage, home, rank),
              .help = "a rank sends, receives, gathers and reduces for its own stages"});
  return false;
}

// The action that must precede `type` in the same row, for the same stage and microbatch, if any.
std::optional<ComputationType> precondition(ComputationType type) {
  switch (type) {
    case ComputationType::backward_weight:
      return ComputationType::backward_input;
    case ComputationType::wait_send_forward:
      return ComputationType::send_forward;
    case ComputationType::wait_send_backward:
      return ComputationType::send_backward;
    case ComputationType::wait_reduce_gradient:
      return ComputationType::reduce_gradient;
    default:
      return std::nullopt;
  }
}

// Every action has a precondition of its own before it. torch checks this when it reads the file.
void check_preconditions(const Row& row, ScheduleErrors& errors) {
  std::map<std::tuple<ComputationType, int, int>, int> open;
  for (const Action& action : row.actions) {
    ++open[{action.type, action.stage, action.microbatch}];
    const std::optional<ComputationType> needed = precondition(action.type);
    if (!needed) continue;
    if (open[{*needed, action.stage, action.microbatch}]-- > 0) continue;
    const std::string_view name = to_string(*needed);
    errors.add(row, action.cell,
               {.what = fmt::format("`{}` has no {} before it", action.cell.text, name),
                .help = fmt::format("put it after the {} of the same stage{}", name,
                                    is_of_stage(action.type) ? "" : " and microbatch")});
  }
}

}  // namespace

std::string_view to_string(ComputationType type) {
  return std::ranges::find(kTypeNames, type, &TypeName::type)->text;
}

Pipeline read_schedule(std::string_view csv, std::string_view file) {
  ScheduleErrors errors(file);
  Pipeline pipeline;
  pipeline.rows = read_rows(csv, errors);
  place_stages(pipeline, errors);
  errors.throw_if_any();
  check_stage_ranks(pipeline, errors);
  for (const Row& row : pipeline.rows) {
    for (const Action& action : row.actions) {
      const bool home = computes(action.type) || check_home(row, action, pipeline, errors);
      if (home && is_message(action.type)) check_message(row, action, pipeline, errors);
    }
    check_preconditions(row, errors);
  }
  errors.throw_if_any();
  check_actions(pipeline, errors);
  errors.throw_if_any();
  return pipeline;
}

}  // namespace shiplap::strategy::torch_schedule
