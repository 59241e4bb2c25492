#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "shiplap/base/cancellation.h"
#include "shiplap/check/operation_checker_internal.h"

namespace shiplap::check {
namespace {

using plan::Access;

std::vector<std::int64_t> sorted_rows(const plan::RankProgram& program,
                                      const plan::flat::Region& region) {
  std::vector<std::int64_t> rows;
  for (std::int64_t k = 0; k < region.count; ++k) {
    rows.push_back(region.listed < 0 ? region.begin + k : program.listed_rows[region.listed + k]);
  }
  std::ranges::sort(rows);
  return rows;
}

bool has_twice(const std::vector<std::int64_t>& sorted) {
  return std::ranges::adjacent_find(sorted) != sorted.end();
}

// Whether two regions have a row in common.
bool share(const plan::RankProgram& program, const plan::flat::Region& x,
           const plan::flat::Region& y) {
  if (x.buffer != y.buffer || x.count == 0 || y.count == 0) return false;
  if (x.listed < 0 && y.listed < 0) {
    return x.begin < y.begin + y.count && y.begin < x.begin + x.count;
  }
  std::vector<std::int64_t> both;
  std::ranges::set_intersection(sorted_rows(program, x), sorted_rows(program, y),
                                std::back_inserter(both));
  return !both.empty();
}

// Whether a list of cuts has a piece for each rank.
bool cuts_pieces(const std::vector<std::int64_t>& cuts, std::int64_t ranks) {
  return std::ssize(cuts) == ranks + 1 && cuts.front() == 0 && std::ranges::is_sorted(cuts);
}

}  // namespace

OperationChecker::OperationChecker(const plan::Plan& plan, Statements& statements)
    : plan_(plan), contracts_(plan, statements) {}

void OperationChecker::check_program(const plan::RankProgram& program,
                                     std::span<const SlopeId> slopes,
                                     std::vector<Violation>& violations) {
  program_ = &program;
  violations_ = &violations;
  check_facts();
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    throw_if_cancelled();
    op_ = static_cast<std::int32_t>(k);
    const plan::flat::Operation& op = program.operations[k];
    check_sizes(op);
    const auto* compute = std::get_if<plan::Compute>(&op.source->action);
    if (compute == nullptr || !check_written_once(op) || !plan_.declares_values) continue;
    if (contracts_.is_assumed(op)) ++assumed_[compute->kernel];
    if (compute->kernel == plan::kOpaqueKernel) continue;
    ++computations_;
    if (auto violation = contracts_.check(program, slopes, op)) {
      report(std::move(violation->code), std::move(violation->what), std::move(violation->why),
             std::move(violation->help));
    }
  }
}

Violation OperationChecker::make_violation(std::string code, std::string what, std::string why,
                                           std::string help) const {
  return {.symptom = Symptom::invalid_operation,
          .place = {program_->rank.value, op_},
          .code = std::move(code),
          .what = std::move(what),
          .why = std::move(why),
          .help = std::move(help)};
}

bool OperationChecker::report(std::string code, std::string what, std::string why,
                              std::string help) {
  violations_->push_back(
      make_violation(std::move(code), std::move(what), std::move(why), std::move(help)));
  return false;
}

bool OperationChecker::check_written_once(const plan::flat::Operation& op) {
  const auto accesses = program_->accesses_of(op);
  for (std::size_t a = 0; a < accesses.size(); ++a) {
    if (plan_.declares_values && !check_distinct(accesses[a].value)) return false;
    if (accesses[a].kind == Access::Kind::reads) continue;
    for (std::size_t b = a + 1; b < accesses.size(); ++b) {
      const bool both_add =
          accesses[a].kind == Access::Kind::adds && accesses[b].kind == Access::Kind::adds;
      if (accesses[b].kind == Access::Kind::reads || both_add) continue;
      if (!share(*program_, accesses[a].region, accesses[b].region)) continue;
      const auto value = [&](std::size_t k) {
        return name_of(plan_.tensors[accesses[k].value.tensor], accesses[k].value);
      };
      return report(
          "D731", "one computation writes some rows twice",
          plan_.declares_values ? fmt::format("`{}` and `{}` share them", value(a), value(b)) : "",
          "write them once");
    }
  }
  return true;
}

bool OperationChecker::check_distinct(const plan::flat::Value& value) {
  const plan::Tensor& tensor = plan_.tensors[value.tensor];
  const std::span<const plan::flat::Run> runs = program_->runs_of(value);
  const auto set = [&](std::size_t k) {
    return IndexSet::range(runs[k].begin, runs[k].count, runs[k].stride);
  };
  IndexSet before;  // of a dimension with several runs
  for (std::size_t k = 1; k < runs.size(); ++k) {
    if (!tensor.in_sum(runs[k].dimension) || runs[k].dimension != runs[k - 1].dimension) continue;
    const bool second = k == 1 || runs[k].dimension != runs[k - 2].dimension;
    before = second ? set(k - 1) : before.united(set(k - 1));
    if (!before.overlaps(set(k))) continue;
    return report("D742",
                  fmt::format("`{}` names {} {} twice in one sum", name_of(tensor, value),
                              tensor.dimension(runs[k].dimension).name,
                              to_string(before.intersected(set(k)))),
                  "a sum has every contribution once", "name it once");
  }
  return true;
}

// Rows are given once.
void OperationChecker::check_facts() {
  op_ = -1;
  std::vector<const plan::flat::Region*> given;
  for (const plan::flat::Fact& fact : program_->given) {
    if (fact.region.count > 0) given.push_back(&fact.region);
    check_distinct(fact.value);
    if (!fact.value.is_new) continue;
    const std::string name = name_of(plan_.tensors[fact.value.tensor], fact.value);
    given_new_.try_emplace(
        fact.value.tensor.value,
        make_violation("D748",
                       fmt::format("rank {} is given `{}` at the start of the step",
                                   program_->rank.value, name),
                       "only this step computes it", "give the old version, or send the new one"));
  }
  for (const plan::flat::Fact& fact : program_->goal) check_distinct(fact.value);
  std::ranges::sort(given, {}, [](const plan::flat::Region* region) {
    return std::pair(region->buffer.value, region->begin);
  });
  for (std::size_t k = 1; k < given.size(); ++k) {
    const plan::flat::Region& x = *given[k - 1];
    if (x.buffer != given[k]->buffer || x.begin + x.count <= given[k]->begin) continue;
    report("D731", fmt::format("rank {} is given some rows twice", program_->rank.value),
           "rows hold one value", "give them once");
    return;
  }
}

// A step does not start with the new version that it computes.
void OperationChecker::finish(std::vector<Violation>& violations) const {
  for (const auto& [tensor, violation] : given_new_) {
    if (contracts_.updated_tensors().contains(tensor)) violations.push_back(violation);
  }
}

std::int64_t OperationChecker::expected_rows(const plan::flat::Operation& op,
                                             const plan::Collective& collective) const {
  using Kind = CollectiveKind;
  const plan::RankSet& ranks = program_->groups[op.group].ranks;
  const std::int64_t size = ranks.size();
  const std::int64_t from = op.from.count;
  const bool in_place = op.from.buffer == op.to.buffer && op.from.begin == op.to.begin &&
                        op.from.count == op.to.count;
  if (!has_pieces(collective.kind)) return from;
  if (!collective.split.exists()) {
    const bool even = from % size == 0;
    if (collective.kind == Kind::all_gather) return in_place && even ? from : from * size;
    if (!even) return -1;
    return collective.kind == Kind::all_to_all || in_place ? from : from / size;
  }
  const std::vector<std::int64_t>& cuts = plan_.lists[collective.split].values;
  if (!cuts_pieces(cuts, size)) return -1;
  const auto me = static_cast<std::size_t>(ranks.find(program_->rank));
  const std::int64_t mine = cuts[me + 1] - cuts[me];
  if (collective.kind == Kind::all_gather) {
    return from == mine || (in_place && from == cuts.back()) ? cuts.back() : -1;
  }
  if (from != cuts.back()) return -1;
  if (collective.kind == Kind::all_to_all) return mine * size;
  return in_place ? from : mine;
}

void OperationChecker::report_shape(std::string code, std::string what, std::string why,
                                    std::string help) {
  violations_->push_back({.symptom = Symptom::shape_mismatch,
                          .place = {program_->rank.value, op_},
                          .code = std::move(code),
                          .what = std::move(what),
                          .why = std::move(why),
                          .help = std::move(help)});
}

// Regions of one operation must be equal, or disjoint, or one is the rank's piece of the other.
bool OperationChecker::regions_allowed(const plan::flat::Operation& op) {
  const plan::flat::Region& x = op.from;
  const plan::flat::Region& y = op.to;
  if (!share(*program_, x, y)) return true;
  const auto* collective = std::get_if<plan::Collective>(&op.source->action);
  if (collective == nullptr) return false;
  if (x.begin == y.begin && x.count == y.count) return true;
  const bool gathers = collective->kind == CollectiveKind::all_gather;
  if (!gathers && collective->kind != CollectiveKind::reduce_scatter) return false;
  const plan::flat::Region& piece = gathers ? x : y;
  const plan::flat::Region& whole = gathers ? y : x;
  const std::int64_t me = program_->groups[op.group].ranks.find(program_->rank);
  std::int64_t begin = me * piece.count;
  if (collective->split.exists()) {
    begin = plan_.lists[collective->split].values[me];
  }
  return piece.begin == whole.begin + begin;
}

// Whether the split list of a collective covers all rows.
bool OperationChecker::splits_rows(const plan::flat::Operation& op,
                                   const plan::Collective& collective) const {
  const std::vector<std::int64_t>& cuts = plan_.lists[collective.split].values;
  const std::int64_t ranks = program_->groups[op.group].ranks.size();
  const bool gathers = collective.kind == CollectiveKind::all_gather;
  return cuts_pieces(cuts, ranks) && cuts.back() == (gathers ? op.to.count : op.from.count);
}

void OperationChecker::report_split(const plan::flat::Operation& op,
                                    const plan::Collective& collective) {
  const plan::List& list = plan_.lists[collective.split];
  const std::int64_t ranks = program_->groups[op.group].ranks.size();
  const bool gathers = collective.kind == CollectiveKind::all_gather;
  std::string values;
  constexpr std::size_t kMaxShown = 8;
  for (std::size_t k = 0; k < std::min(kMaxShown, list.values.size()); ++k) {
    values += fmt::format("{}{}", k == 0 ? "" : " ", list.values[k]);
  }
  if (list.values.size() > kMaxShown) values += " ..";
  report_shape(
      "D704",
      fmt::format("`split {}` does not cut {} rows into a piece for each of {} ranks", list.name,
                  gathers ? op.to.count : op.from.count, ranks),
      fmt::format("`{}` is {}", list.name, values),
      fmt::format("give it {} entries that start with 0, do not decrease and end with the number "
                  "of rows",
                  ranks + 1));
}

// Checks that the regions of one operation agree in size and type.
void OperationChecker::check_sizes(const plan::flat::Operation& op) {
  std::int64_t expected = op.from.count;
  const auto* collective = std::get_if<plan::Collective>(&op.source->action);
  const bool exchange = std::holds_alternative<plan::Exchange>(op.source->action);
  if (collective != nullptr) {
    if (collective->kind == CollectiveKind::barrier) return;
    expected = expected_rows(op, *collective);
  } else if (!exchange && !std::holds_alternative<plan::Copy>(op.source->action)) {
    return;
  }
  const std::int64_t wide = program_->buffers[op.from.buffer].row_bytes;
  const std::int64_t other = program_->buffers[op.to.buffer].row_bytes;
  if (expected < 0 && collective->split.exists() && !splits_rows(op, *collective)) {
    return report_split(op, *collective);
  }
  if ((op.to.count != expected && !exchange) || wide != other) {
    return report_shape("D704",
                        fmt::format("{} rows of {} bytes go to {} rows of {} bytes", op.from.count,
                                    wide, op.to.count, other),
                        "size mismatch between the two regions of one operation",
                        expected < 0 ? "split it into whole pieces, one for each rank of the group"
                                     : fmt::format("make it {} rows of {} bytes", expected, wide));
  }
  const auto& buffers = plan_.programs[program_->program].buffers;
  const DType from = buffers[op.from.buffer].type;
  const DType to = buffers[op.to.buffer].type;
  if (from != to) {
    return report_shape("D705",
                        fmt::format("{} goes to {}", shiplap::name(from), shiplap::name(to)),
                        "communication and copies do not convert types",
                        "use buffers of one type, and `compute cast`");
  }
  const bool replaces = op.to.listed >= 0 && !std::get<plan::Copy>(op.source->action).add;
  if (replaces && has_twice(sorted_rows(*program_, op.to))) {
    report("D731", "a row is written twice by one copy", "the list names it more than once",
           "name every row once, or `add`");
  }
  if (!regions_allowed(op)) {
    report("D731", "the input and output regions of an operation overlap",
           "they must be equal, or disjoint, or one is the rank's piece of the other",
           "use separate rows for the result");
  }
}

}  // namespace shiplap::check
