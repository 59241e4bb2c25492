#include "shiplap/strategy/import_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

namespace shiplap::strategy {
namespace {

enum class Act : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
  unshard,  // weights, over other axes than this plan has
  reshard,
  reduce_gradient,
  wait_for_gradient,
};

struct Word {
  std::string_view text;
  Act act = Act::forward;
};
constexpr std::array kWords = std::to_array<Word>({{"F", Act::forward},
                                                   {"B", Act::backward},
                                                   {"I", Act::backward_input},
                                                   {"W", Act::backward_weight},
                                                   {"SEND_F", Act::send_forward},
                                                   {"RECV_F", Act::receive_forward},
                                                   {"SEND_B", Act::send_backward},
                                                   {"RECV_B", Act::receive_backward},
                                                   {"UNSHARD", Act::unshard},
                                                   {"RESHARD", Act::reshard},
                                                   {"REDUCE_GRAD", Act::reduce_gradient},
                                                   {"WAIT_REDUCE_GRAD", Act::wait_for_gradient}});

bool computes(Act act) { return act <= Act::backward_weight; }
bool is_message(Act act) { return act >= Act::send_forward && act <= Act::receive_backward; }
// Of a whole stage, not of a microbatch.
bool is_of_stage(Act act) { return act >= Act::unshard; }

std::string_view word_of(Act act) { return std::ranges::find(kWords, act, &Word::act)->text; }

// Some of a row's text, and where it is.
struct Cell {
  std::string_view text;
  std::size_t column = 0;  // from 0
};

struct Action {
  Act act = Act::forward;
  int stage = 0;
  int microbatch = 0;
  Cell cell;
};

// What one rank does.
struct Row {
  int line = 0;  // from 1
  std::string_view text;
  std::vector<Action> actions;
};

Cell part_of(const Cell& cell, std::size_t begin, std::size_t end) {
  return {.text = cell.text.substr(begin, end - begin), .column = cell.column + begin};
}

Cell trimmed(const Cell& cell) {
  constexpr std::string_view kBlank = " \t\r\"";
  const std::size_t begin = cell.text.find_first_not_of(kBlank);
  if (begin == cell.text.npos) return {.text = "", .column = cell.column};
  return part_of(cell, begin, cell.text.find_last_not_of(kBlank) + 1);
}

std::vector<Cell> pieces(const Cell& cell, char separator) {
  std::vector<Cell> result;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(cell.text.find(separator, begin), cell.text.size());
    result.push_back(trimmed(part_of(cell, begin, end)));
    if (end == cell.text.size()) return result;
    begin = end + 1;
  }
}

// ---- reading

constexpr std::string_view kLegal =
    "write stage, action, microbatch: 0F0, 0B0, 0I0, 0W0, 0SEND_F0, 1RECV_F0, 1SEND_B0, 0RECV_B0; "
    "0UNSHARD, 0RESHARD, 0REDUCE_GRAD, 0WAIT_REDUCE_GRAD; (0F1;1B0)OVERLAP_F_B";
constexpr std::size_t kMostDigits = 6;
constexpr std::size_t kMostProblems = 20;

class Reader {
 public:
  Reader(std::string_view csv, std::string_view file) : file_(file) {
    while (!csv.empty()) {
      const std::size_t end = std::min(csv.find('\n'), csv.size());
      rows_.push_back(
          {.line = static_cast<int>(rows_.size()) + 1, .text = csv.substr(0, end), .actions = {}});
      csv.remove_prefix(std::min(end + 1, csv.size()));
    }
    while (!rows_.empty() && trimmed({.text = rows_.back().text}).text.empty()) rows_.pop_back();
    for (Row& row : rows_) {
      for (const Cell& cell : pieces({.text = row.text}, ',')) read(row, cell);
    }
    if (rows_.empty()) complain(Row{.line = 0}, {}, "the schedule is empty", "");
    throw_if_wrong();
  }

  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }

  void complain(const Row& row, const Cell& cell, std::string what, std::string_view help) {
    if (problems_.size() == kMostProblems) return;
    problems_.push_back({.code = "D626",
                         .where = {.file = std::string(file_),
                                   .line = row.line,
                                   .column = row.line > 0 ? static_cast<int>(cell.column) + 1 : 0,
                                   .length = std::max(static_cast<int>(cell.text.size()), 1),
                                   .excerpt = std::string(row.text)},
                         .what = std::move(what),
                         .help = std::string(help)});
  }

  void throw_if_wrong() const {
    if (!problems_.empty()) throw InputError(problems_);
  }

 private:
  void read(Row& row, const Cell& cell) {
    if (cell.text.empty()) return;
    constexpr std::string_view kOverlap = ")OVERLAP_F_B";
    if (cell.text.starts_with('(') && cell.text.ends_with(kOverlap)) {
      const Cell inside = part_of(cell, 1, cell.text.size() - kOverlap.size());
      for (const Cell& each : pieces(inside, ';')) read_one(row, each);
    } else {
      read_one(row, cell);
    }
  }

  void read_one(Row& row, const Cell& cell) {
    const std::string_view text = cell.text;
    const auto digits = [&](std::size_t from) {
      return std::min(text.find_first_not_of("0123456789", from), text.size());
    };
    const std::size_t word_begin = digits(0);
    const std::size_t word_end =
        std::min(text.find_first_of("0123456789", word_begin), text.size());
    const std::string_view name = text.substr(word_begin, word_end - word_begin);
    const auto* const word = std::ranges::find(kWords, name, &Word::text);
    const bool too_long = word_begin > kMostDigits || text.size() - word_end > kMostDigits;
    if (word == kWords.end() || digits(word_end) != text.size() || too_long) {
      const bool old = name == "BW";
      complain(row, cell, fmt::format("`{}` is no action", text),
               old ? "older files say BW for B, and B for I: write them anew" : kLegal);
      return;
    }
    const bool of_stage = is_of_stage(word->act);
    if (word_begin == 0 || (word_end == text.size()) != of_stage) {
      complain(row, cell,
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

  std::string_view file_;
  std::vector<Row> rows_;
  std::vector<Diagnostic> problems_;
};

// ---- what the rows have in common

struct Pipeline {
  int stages = 0;
  int microbatches = 0;
  bool messages = false;       // the file has its own
  bool trains = false;         // there is a backward
  std::map<int, int> rank_of;  // by stage
  std::set<int> sharded;       // stages whose weights are gathered and dropped

  [[nodiscard]] bool same_rank(int stage, int other) const {
    const auto a = rank_of.find(stage);
    const auto b = rank_of.find(other);
    return a != rank_of.end() && b != rank_of.end() && a->second == b->second;
  }
};

// The stage at the other end of a message.
int other_end(const Action& action) {
  const bool next = action.act == Act::send_forward || action.act == Act::receive_backward;
  return action.stage + (next ? 1 : -1);
}

void find_places(Reader& reader, Pipeline& pipeline) {
  for (std::size_t rank = 0; rank < reader.rows().size(); ++rank) {
    const Row& row = reader.rows()[rank];
    for (const Action& action : row.actions) {
      pipeline.stages = std::max(pipeline.stages, action.stage + 1);
      pipeline.microbatches = std::max(pipeline.microbatches, action.microbatch + 1);
      pipeline.messages = pipeline.messages || is_message(action.act);
      const bool shards = action.act == Act::unshard || action.act == Act::reshard;
      if (shards) pipeline.sharded.insert(action.stage);
      if (!computes(action.act)) continue;
      pipeline.trains = pipeline.trains || action.act != Act::forward;
      const auto [place, first] = pipeline.rank_of.emplace(action.stage, static_cast<int>(rank));
      if (first || place->second == static_cast<int>(rank)) continue;
      reader.complain(row, action.cell,
                      fmt::format("stage {} is computed on rank {} and on rank {}", action.stage,
                                  place->second, rank),
                      "a stage is on one rank");
    }
  }
}

// Whether the rank computes the stage that it does something else for.
bool check_home(Reader& reader, const Row& row, const Action& action, const Pipeline& pipeline) {
  const int rank = row.line - 1;
  const auto home = pipeline.rank_of.find(action.stage);
  if (home == pipeline.rank_of.end() || home->second == rank) return true;
  reader.complain(
      row, action.cell,
      fmt::format("stage {} is on rank {}, not on {}", action.stage, home->second, rank),
      "a rank sends, receives, gathers and reduces for its own stages");
  return false;
}

void check_message(Reader& reader, const Row& row, const Action& action, const Pipeline& pipeline) {
  const int other = other_end(action);
  if (other < 0 || other >= pipeline.stages) {
    reader.complain(
        row, action.cell,
        fmt::format("stage {} has nobody at the other end of `{}`", action.stage, action.cell.text),
        fmt::format("the stages are 0 to {}", pipeline.stages - 1));
  } else if (pipeline.same_rank(action.stage, other)) {
    reader.complain(row, action.cell,
                    fmt::format("stages {} and {} are on the same rank", action.stage, other),
                    "leave it out: they need no message");
  }
}

// torch deals stages out round the ranks, or back and forth; it takes the ranks of the rows from
// that, not from the file.
void check_places(Reader& reader, const Pipeline& pipeline) {
  const auto ranks = static_cast<int>(reader.rows().size());
  const auto round = [&](int stage) { return stage % ranks; };
  const auto back_and_forth = [&](int stage) {
    const int at = stage % ranks;
    return stage / ranks % 2 == 0 ? at : ranks - 1 - at;
  };
  const auto fits = [&](const auto& place) {
    return std::ranges::all_of(
        pipeline.rank_of, [&](const auto& entry) { return place(entry.first) == entry.second; });
  };
  if (fits(round) || fits(back_and_forth)) return;
  for (std::size_t rank = 0; rank < reader.rows().size(); ++rank) {
    const Row& row = reader.rows()[rank];
    for (const Action& action : row.actions) {
      if (!computes(action.act) || round(action.stage) == static_cast<int>(rank)) continue;
      return reader.complain(
          row, action.cell,
          fmt::format("stage {} is on rank {}, where torch has it on rank {}", action.stage, rank,
                      round(action.stage)),
          "stages go round the ranks, or back and forth: bring the rows into the order of the "
          "ranks");
    }
  }
}

Pipeline pipeline_of(Reader& reader) {
  Pipeline pipeline;
  find_places(reader, pipeline);
  check_places(reader, pipeline);
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    if (pipeline.rank_of.contains(stage)) continue;
    reader.complain(
        Row{.line = 0}, {}, fmt::format("no rank computes stage {}", stage),
        fmt::format("the stages are 0 to {}, and each is on a rank", pipeline.stages - 1));
    break;
  }
  for (const Row& row : reader.rows()) {
    for (const Action& action : row.actions) {
      const bool home = computes(action.act) || check_home(reader, row, action, pipeline);
      if (home && is_message(action.act)) check_message(reader, row, action, pipeline);
    }
  }
  if (pipeline.rank_of.empty()) {
    reader.complain(Row{.line = 0}, {}, "the schedule computes nothing", kLegal);
  }
  reader.throw_if_wrong();
  return pipeline;
}

// ---- writing

constexpr int kActivationBytes = 1 << 20U;  // sizes are not in the file
constexpr int kWeightBytes = 1 << 22U;

// The program of one rank. Every stage and microbatch has rows of its own, so that no order of the
// file is wrong only because of memory.
class ScheduleWriter {
 public:
  ScheduleWriter(const Pipeline& pipeline, int rank) : pipeline_(pipeline), rank_(rank) {
    for (const auto& [stage, home] : pipeline.rank_of) {
      if (home == rank) slot_.emplace(stage, static_cast<int>(slot_.size()));
    }
  }

  [[nodiscard]] std::string program(const std::vector<Action>& actions) {
    if (slot_.empty()) return fmt::format("spare on pp={}\n", rank_);
    start();
    for (const Action& action : actions) take(action);
    finish();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> form, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), form, std::forward<Args>(args)...);
    text_ += '\n';
  }

  [[nodiscard]] std::string row(std::string_view buffer, int stage, int microbatch) const {
    return fmt::format("{}[{} +1]", buffer, slot_.at(stage) * pipeline_.microbatches + microbatch);
  }
  // Where a stage finds its input and the gradient of its output: with the neighbour, if that is
  // on the same rank.
  [[nodiscard]] std::string input(int stage, int microbatch) const {
    if (slot_.contains(stage - 1)) return row("y", stage - 1, microbatch);
    return row("x", stage, microbatch);
  }
  [[nodiscard]] std::string output_gradient(int stage, int microbatch) const {
    if (slot_.contains(stage + 1)) return row("dx", stage + 1, microbatch);
    return row("dy", stage, microbatch);
  }

  // "F[0,3]: ", the first time.
  std::string name(Act act, int stage, int microbatch) {
    if (!named_.emplace(act, stage, microbatch).second) return "";
    return fmt::format("{}[{},{}]: ", word_of(act), stage, microbatch);
  }

  void start() {
    const auto stages = static_cast<int>(slot_.size());
    const int rows = stages * pipeline_.microbatches;
    line("program rank_{0} on pp={0}", rank_);
    line("  buffer w rows {} row_bytes {} bf16", stages, kWeightBytes);
    line("  buffer g rows {} row_bytes {} f32", stages, 2 * kWeightBytes);
    for (const char* buffer : {"x", "y", "dy", "dx"}) {
      line("  buffer {} rows {} row_bytes {} bf16", buffer, rows, kActivationBytes);
    }
    if (std::ranges::any_of(slot_, [&](const auto& entry) { return is_sharded(entry.first); })) {
      line("  buffer u rows {} row_bytes {} bf16", stages, kWeightBytes);
    }
    for (const auto& [stage, slot] : slot_) {
      line("  {} w[{} +1] = W[{}]", pipeline_.trains ? "keep" : "given", slot, stage);
    }
    if (slot_.contains(0)) line("  given x[0 +{}] = A[0]", pipeline_.microbatches);
    if (!pipeline_.trains) {
      if (const auto last = slot_.find(pipeline_.stages - 1); last != slot_.end()) {
        line("  goal y[{} +{}] = A[{}]", last->second * pipeline_.microbatches,
             pipeline_.microbatches, pipeline_.stages);
      }
      return;
    }
    line("  compute zero");
    for (const auto& [stage, slot] : slot_)
      line("    writes g[{} +1] = G[{}] sum none", slot, stage);
  }

  void finish() {
    for (const int stage : unsharded_) line("  free u[{} +1]", slot_.at(stage));
    if (!pipeline_.trains) return;
    for (const auto& [stage, slot] : slot_) {
      line("  compute update");
      line("    reads g[{} +1] = G[{}]", slot, stage);
      line("    reads w[{} +1] = W[{}]", slot, stage);
      line("    writes w[{} +1] = new W[{}]", slot, stage);
    }
  }

  void take(const Action& action) {
    const int stage = action.stage;
    const int microbatch = action.microbatch;
    if (is_of_stage(action.act)) {
      of_stage(action.act, stage);
    } else if (is_message(action.act)) {
      message(action.act, stage, microbatch);
    } else if (action.act == Act::forward) {
      forward(stage, microbatch);
    } else {
      backward(action.act, stage, microbatch);
    }
  }

  [[nodiscard]] bool is_sharded(int stage) const { return pipeline_.sharded.contains(stage); }
  // The weights that a stage computes with.
  [[nodiscard]] std::string weights(int stage) const {
    return fmt::format("{}[{} +1]", is_sharded(stage) ? "u" : "w", slot_.at(stage));
  }

  // The mesh has no axis to gather and reduce over; that gathered weights are there when they are
  // used, and gradients are complete when they are reduced, is asked all the same.
  void of_stage(Act act, int stage) {
    const int slot = slot_.at(stage);
    switch (act) {
      case Act::unshard:
        line("  allocate u[{} +1]", slot);
        line("  compute unshard");
        line("    reads w[{} +1] = W[{}]", slot, stage);
        line("    writes u[{} +1] = W[{}]", slot, stage);
        unsharded_.insert(stage);
        return;
      case Act::reshard:
        line("  free u[{} +1]", slot);
        unsharded_.erase(stage);
        return;
      case Act::reduce_gradient:
        line("  compute reduce_gradient");
        line("    reads g[{} +1] = G[{}]", slot, stage);
        return;
      default:
        return;
    }
  }

  void message(Act act, int stage, int microbatch) {
    const bool sends = act == Act::send_forward || act == Act::send_backward;
    const bool forward = act == Act::send_forward || act == Act::receive_forward;
    const int other = other_end({.act = act, .stage = stage});
    const std::string region =
        row(forward ? (sends ? "y" : "x") : (sends ? "dx" : "dy"), stage, microbatch);
    // Messages of the file meet in their order, as NCCL's do; those that are put in have tags.
    const int boundary = std::min(stage, other);
    const int tag = pipeline_.messages
                        ? 0
                        : 2 * (boundary * pipeline_.microbatches + microbatch) + (forward ? 0 : 1);
    line("  {}{} {} {} rank {} tag {}{}", name(act, stage, microbatch), sends ? "send" : "receive",
         region, sends ? "to" : "from", pipeline_.rank_of.at(other), tag,
         sends && !pipeline_.messages ? " async" : "");
  }

  // Whether torch would put a message between two stages.
  [[nodiscard]] bool puts_message(int stage, int other) const {
    return !pipeline_.messages && other >= 0 && other < pipeline_.stages &&
           !pipeline_.same_rank(stage, other);
  }

  void forward(int stage, int microbatch) {
    if (puts_message(stage, stage - 1)) message(Act::receive_forward, stage, microbatch);
    line("  {}compute forward", name(Act::forward, stage, microbatch));
    line("    reads {} = A[{}] sample {} +1", input(stage, microbatch), stage, microbatch);
    line("    reads {} = W[{}]", weights(stage), stage);
    line("    writes {} = A[{}] sample {} +1", row("y", stage, microbatch), stage + 1, microbatch);
    if (stage == pipeline_.stages - 1 && pipeline_.trains) {
      line("  compute loss");
      line("    reads {} = A[{}] sample {} +1", row("y", stage, microbatch), stage + 1, microbatch);
      line("    writes {} = D[{}] sample {} +1", row("dy", stage, microbatch), stage + 1,
           microbatch);
    }
    if (puts_message(stage, stage + 1)) message(Act::send_forward, stage, microbatch);
  }

  void backward(Act act, int stage, int microbatch) {
    const bool for_input = act != Act::backward_weight;
    const bool for_weight = act != Act::backward_input;
    if (for_input && puts_message(stage, stage + 1)) {
      message(Act::receive_backward, stage, microbatch);
    }
    line("  {}compute backward{}", name(act, stage, microbatch),
         !for_weight ? "_input" : (!for_input ? "_weight" : ""));
    if (for_weight) {
      line("    reads {} = A[{}] sample {} +1", input(stage, microbatch), stage, microbatch);
    }
    line("    reads {} = D[{}] sample {} +1", output_gradient(stage, microbatch), stage + 1,
         microbatch);
    if (for_input) {
      line("    reads {} = W[{}]", weights(stage), stage);
      line("    writes {} = D[{}] sample {} +1", row("dx", stage, microbatch), stage, microbatch);
    }
    if (for_weight) {
      line("    adds g[{} +1] = G[{}] sum sample {} +1", slot_.at(stage), stage, microbatch);
    }
    if (for_input && puts_message(stage, stage - 1)) {
      message(Act::send_backward, stage, microbatch);
    }
  }

  const Pipeline& pipeline_;
  int rank_;
  std::map<int, int> slot_;  // by stage of this rank
  std::set<int> unsharded_;  // stages
  std::set<std::tuple<Act, int, int>> named_;
  std::string text_;
};

// So that findings point into the file.
void set_lines(plan::Program& program, std::int32_t line) {
  for (plan::Statement& statement : program.body) {
    if (auto* const fact = std::get_if<plan::Fact>(&statement.node)) fact->origin = {line};
    auto* const operation = std::get_if<plan::Operation>(&statement.node);
    if (operation == nullptr) continue;
    operation->origin = {line};
    auto* const compute = std::get_if<plan::Compute>(&operation->action);
    if (compute == nullptr) continue;
    for (plan::Access& access : compute->accesses) access.origin = {line};
  }
}

}  // namespace

plan::Plan plan_of_schedule(std::string_view csv, std::string_view file) {
  Reader reader(csv, file);
  const Pipeline pipeline = pipeline_of(reader);
  std::string text = fmt::format(
      "shiplap-plan 1\nmesh pp={}\ntensor W[{}] Weight shard 1\ntensor G[{}] WeightGrad shard 1 "
      "sum sample {}\n"
      "tensor A[{}] Activation sample {}\ntensor D[{}] ActivationGrad sample {}\n",
      reader.rows().size(), pipeline.stages, pipeline.stages, pipeline.microbatches,
      pipeline.stages + 1, pipeline.microbatches, pipeline.stages + 1, pipeline.microbatches);
  for (const Row& row : reader.rows()) {
    text += ScheduleWriter(pipeline, row.line - 1).program(row.actions);
  }
  plan::Plan plan = plan::parse_text(text, file);
  for (plan::Program& program : plan.programs) {
    set_lines(program, static_cast<std::int32_t>(program.on.terms[0].positions[0].first) + 1);
  }
  return plan;
}

}  // namespace shiplap::strategy
