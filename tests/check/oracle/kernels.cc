#include "kernels.h"

#include <algorithm>

namespace shiplap::oracle {
namespace {

using plan::flat::Access;
using plan::flat::Value;

std::map<Coordinates, Coefficients> cells_in(const std::vector<Row>& rows) {
  std::map<Coordinates, Coefficients> cells;
  for (const Row& row : rows) {
    for (const Slot& slot : row.slots) cells.emplace(slot.part, slot.sum);
  }
  return cells;
}

void take(std::vector<ReadTensor>& reads, const plan::Tensor& tensor, const Found& found) {
  const Value& value = *found.value;
  auto group = std::ranges::find_if(reads, [&](const ReadTensor& read) {
    return read.tensor == &tensor && read.instance == value.instance && read.is_new == value.is_new;
  });
  if (group == reads.end()) {
    reads.push_back({.tensor = &tensor, .instance = value.instance, .is_new = value.is_new});
    group = reads.end() - 1;
  }
  group->values.push_back(&value);
  group->cells_of_region.push_back(cells_in(found.rows));
  for (const auto& [part, sum] : group->cells_of_region.back()) group->cells.emplace(part, sum);
}

void check_complete(const Execution& run, const ReadTensor& read, Rules& rules) {
  for (const auto& [part, sum] : read.cells) {
    const auto all = all_contributions(*run.program->plan, *read.tensor, part);
    rules.require("contraction: reads complete sums", sum.size() == all.size());
  }
}

}  // namespace

void execute(const plan::RankProgram& program, const plan::flat::Operation& op,
             const std::vector<Found>& reads, Rules& rules) {
  Execution run{.program = &program, .kernel = std::get<plan::Compute>(op.source->action).kernel};
  if (run.kernel == "other") return;  // what it states is taken
  for (const Found& found : reads) take(run.reads, run.tensor(*found.value), found);
  for (const Access& access : program.accesses_of(op)) {
    if (access.kind != plan::Access::Kind::reads) run.writes.push_back(&access);
  }
  if (run.kernel == "zero") {
    for (const Access* write : run.writes) {
      const auto cells = stated_cells(run, *write);
      rules.require("zero: states zero", std::ranges::all_of(cells, [](const auto& cell) {
                      return cell.second.empty();
                    }));
    }
    return;
  }
  const bool linear = run.kernel == "add" || run.kernel == "cast" || run.kernel == "scale";
  if (!linear) {
    check_signature(run, rules);
    for (const ReadTensor& read : run.reads) check_complete(run, read, rules);
  }
  for (const ReadTensor& read : run.reads) {
    if (!linear || is_nothing(read) || run.writes.empty()) continue;
    const auto takes = [&](const Access* write) { return is_for(run, read, *write); };
    rules.require("linear: the same instance", std::ranges::any_of(run.writes, takes));
  }
  for (const Access* write : run.writes) {
    linear ? execute_linear(run, *write, rules) : execute_contraction(run, *write, rules);
  }
}

int find_dimension(const plan::Tensor& tensor, const std::string& name) {
  for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
    if (tensor.dimension(plan::DimensionId(k)).name == name) return static_cast<int>(k);
  }
  return -1;
}

std::map<Coordinates, Coefficients> stated_cells(const Execution& run, const Access& write) {
  return cells_in(stated(*run.program, write.value, write.region.count));
}

std::int64_t repeats(const Execution& run, const Value& value, const Coordinates& part,
                     const std::vector<bool>& counted) {
  std::int64_t times = 1;
  for (std::size_t k = 0; k < part.size(); ++k) {
    if (!counted[k]) continue;
    const Coordinates all = coordinates(*run.program, value, plan::DimensionId(k));
    times *= std::ranges::count(all, part[k]);
  }
  return times;
}

}  // namespace shiplap::oracle
