#include "once.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "numbers.h"

namespace shiplap::oracle {
namespace {

using plan::RankProgram;
using plan::flat::Operation;
using plan::flat::Region;

std::vector<std::int64_t> rows_of(const RankProgram& program, const Region& region) {
  std::vector<std::int64_t> rows;
  for (std::int64_t k = 0; k < region.count; ++k) {
    rows.push_back(region.listed < 0 ? region.begin + k : program.listed_rows[region.listed + k]);
  }
  return rows;
}

bool computation_writes_once(const RankProgram& program, const Operation& op) {
  std::map<std::pair<std::int32_t, std::int64_t>, bool> replaced;  // or only added to
  for (const plan::flat::Access& access : program.accesses_of(op)) {
    if (access.kind == plan::Access::Kind::reads) continue;
    const bool replaces = access.kind == plan::Access::Kind::writes;
    for (const std::int64_t row : rows_of(program, access.region)) {
      const auto [found, is_new] =
          replaced.try_emplace({access.region.buffer.value, row}, replaces);
      if (!is_new && (replaces || found->second)) return false;
    }
  }
  return true;
}

// Where the rank's own piece of the larger region begins.
std::int64_t local_piece(const RankProgram& program, const Operation& op,
                         const plan::Collective& collective, std::int64_t rows) {
  const std::int64_t me = program.groups[op.group].ranks.find(program.rank);
  if (!collective.split.exists()) return me * rows;
  return program.plan->lists[collective.split].values[me];
}

bool regions_are_apart(const RankProgram& program, const Operation& op) {
  if (!op.from.buffer.exists() || op.from.buffer != op.to.buffer) return true;
  const auto from = rows_of(program, op.from);
  const auto to = rows_of(program, op.to);
  const auto shared = [&](std::int64_t row) { return std::ranges::find(to, row) != to.end(); };
  if (std::ranges::none_of(from, shared)) return true;
  const auto* collective = std::get_if<plan::Collective>(&op.source->action);
  if (collective == nullptr) return false;
  if (from == to) return true;
  const bool gathers = collective->kind == CollectiveKind::all_gather;
  const bool scatters = collective->kind == CollectiveKind::reduce_scatter;
  if (!gathers && !scatters) return false;
  const auto& piece = gathers ? from : to;
  const auto& whole = gathers ? to : from;
  return piece.front() == whole.front() + local_piece(program, op, *collective, std::ssize(piece));
}

bool copies_once(const RankProgram& program, const Operation& op) {
  const auto* copy = std::get_if<plan::Copy>(&op.source->action);
  if (copy == nullptr || copy->add) return true;
  const auto rows = rows_of(program, op.to);
  return std::set(rows.begin(), rows.end()).size() == rows.size();
}

}  // namespace

bool writes_once(const RankProgram& program) {
  std::set<std::pair<std::int32_t, std::int64_t>> given;
  for (const plan::flat::Fact& fact : program.given) {
    for (const std::int64_t row : rows_of(program, fact.region)) {
      if (!given.insert({fact.region.buffer.value, row}).second) return false;
    }
  }
  return std::ranges::all_of(program.operations, [&](const Operation& op) {
    return computation_writes_once(program, op) && regions_are_apart(program, op) &&
           copies_once(program, op);
  });
}

bool begins_before_update(const std::vector<RankProgram>& ranks) {
  std::set<std::int32_t> made;
  for (const RankProgram& program : ranks) {
    for (const Operation& op : program.operations) {
      const auto* compute = std::get_if<plan::Compute>(&op.source->action);
      if (compute == nullptr) continue;
      const std::string& kernel = compute->kernel;
      if (kernel == "add" || kernel == "cast" || kernel == "scale") continue;
      for (const plan::flat::Access& access : program.accesses_of(op)) {
        const bool writes = access.kind != plan::Access::Kind::reads;
        if (writes && access.value.is_new) made.insert(access.value.tensor.value);
      }
    }
  }
  return std::ranges::none_of(ranks, [&](const RankProgram& program) {
    return std::ranges::any_of(program.given, [&](const plan::flat::Fact& fact) {
      return fact.value.is_new && made.contains(fact.value.tensor.value);
    });
  });
}

bool sums_are_sets(const RankProgram& program) {
  const auto is_set = [&](const plan::flat::Value& value) {
    const plan::Tensor& tensor = program.plan->tensors[value.tensor];
    for (std::size_t k = tensor.part.size(); k < tensor.dimensions(); ++k) {
      const auto all = coordinates(program, value, plan::DimensionId(k));
      if (std::set(all.begin(), all.end()).size() != all.size()) return false;
    }
    return true;
  };
  for (const plan::flat::Fact& fact : program.given) {
    if (!is_set(fact.value)) return false;
  }
  for (const plan::flat::Fact& fact : program.goal) {
    if (!is_set(fact.value)) return false;
  }
  return std::ranges::all_of(
      program.accesses, [&](const plan::flat::Access& access) { return is_set(access.value); });
}

}  // namespace shiplap::oracle
