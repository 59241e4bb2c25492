#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/plan/operation_index_internal.h"
#include "shiplap/plan/resolve_internal.h"

namespace shiplap::plan {

OperationIndex::NameId OperationIndex::name_id(std::string_view name) {
  return name_ids_.emplace(name, static_cast<NameId>(name_ids_.size())).first->second;
}

std::uint64_t OperationIndex::hash(NameId name, flat::Slice indices) const {
  std::uint64_t h = static_cast<std::uint64_t>(name) + 1;
  for (std::int32_t k = 0; k < indices.count; ++k) {
    h ^= static_cast<std::uint64_t>(program_.numbers[indices.first + k]);
    h *= 0x9E3779B97F4A7C15U;  // Fibonacci hashing: 2^64 / golden ratio
    h ^= h >> 29;
  }
  return h * 0x9E3779B97F4A7C15U >> 16;
}

bool OperationIndex::same_indices(flat::Slice a, flat::Slice b) const {
  const auto begin = program_.numbers.begin();
  return std::equal(begin + a.first, begin + a.first + a.count, begin + b.first,
                    begin + b.first + b.count);
}

std::size_t OperationIndex::slot(NameId name, flat::Slice indices) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash(name, indices) & mask;
  while (slots_[at] >= 0) {
    const auto operation = static_cast<std::size_t>(slots_[at]);
    if (name_of_[operation] == name && same_indices(program_.operations[operation].name, indices)) {
      break;
    }
    at = (at + 1) & mask;
  }
  return at;
}

void OperationIndex::grow() {
  const std::vector<std::int32_t> old =
      std::exchange(slots_, std::vector<std::int32_t>(slots_.size() * 4, -1));
  for (const std::int32_t operation : old) {
    if (operation < 0) continue;
    const auto k = static_cast<std::size_t>(operation);
    slots_[slot(name_of_[k], program_.operations[k].name)] = operation;
  }
}

void OperationIndex::add() {
  if (++entries_ * 2 > slots_.size()) grow();
  const std::size_t self = program_.operations.size() - 1;
  const flat::Operation& operation = program_.operations[self];
  const NameId own = name_id(operation.source->name.name);
  name_of_.resize(self + 1, -1);
  const std::size_t at = slot(own, operation.name);
  if (slots_[at] >= 0) {
    const auto& first = program_.operations[slots_[at]];
    throw InputError(
        Diagnostic{.code = "D204",
                   .what = fmt::format("`{}` reuses the name of an earlier operation",
                                       program_.describe(operation)),
                   .why = fmt::format("operation {} of this rank is `{}`, line {}", slots_[at],
                                      program_.describe(first), first.source->origin.line),
                   .help = "give the name an index that differs each time"});
  }
  name_of_[self] = own;
  slots_[at] = static_cast<std::int32_t>(self);
}

flat::Slice OperationIndex::dependencies(const Operation& operation, Resolver& resolve) {
  flat::Slice slice{.first = static_cast<std::int32_t>(program_.dependencies.size())};
  for (const Reference& reference : operation.after) {
    const std::size_t mark = program_.numbers.size();
    const flat::Slice indices = resolve.numbers(reference.indices);
    const NameId named = name_id(reference.name);
    if (const std::int32_t found = slots_[slot(named, indices)]; found >= 0) {
      program_.dependencies.push_back(found);
      ++slice.count;
      program_.numbers.resize(mark);
    } else {
      const auto self = static_cast<std::int32_t>(program_.operations.size());
      program_.absent.push_back({.operation = self, .reference = &reference, .indices = indices});
      absent_names_.push_back(named);
    }
  }
  return slice;
}

void OperationIndex::check_order() const {
  for (std::size_t k = 0; k < program_.absent.size(); ++k) {
    const flat::AbsentReference& absent = program_.absent[k];
    const std::int32_t found = slots_[slot(absent_names_[k], absent.indices)];
    if (found < 0) continue;
    const auto& waiting = program_.operations[absent.operation];
    const auto& later = program_.operations[found];
    throw InputError(Diagnostic{
        .code = "D205",
        .where = {.line = waiting.source->origin.line,
                  .rank = program_.rank.value,
                  .operation = program_.describe(waiting)},
        .what = fmt::format("`after` names `{}`, which comes later", program_.describe(later)),
        .why = "an operation waits only for operations listed before it, so no rank can deadlock "
               "alone",
        .help = "move it after the operation that it waits for"});
  }
}

}  // namespace shiplap::plan
