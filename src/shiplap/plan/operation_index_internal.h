// A hash table of the operations of one rank, by name and indices. Open addressing, linear probing.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::plan {

class Resolver;

class OperationIndex {
 public:
  explicit OperationIndex(RankProgram& program) : program_(program), slots_(64, -1) {}

  // Adds the last operation of the program. Throws InputError D204 if its name is not unique.
  // REQUIRES: it has a name.
  void add();

  // Returns the dependencies of `operation`. References to unknown names are recorded as absent.
  flat::Slice dependencies(const Operation& operation, Resolver& resolve);

  // Throws InputError D205 if an absent reference names a later operation.
  // REQUIRES: all operations have been added.
  void check_order() const;

 private:
  using NameId = std::int32_t;  // a name, without its indices

  [[nodiscard]] NameId name_id(std::string_view name);
  [[nodiscard]] std::uint64_t hash(NameId name, flat::Slice indices) const;
  // Returns the slot of this name, or the free slot where it belongs.
  [[nodiscard]] std::size_t slot(NameId name, flat::Slice indices) const;
  [[nodiscard]] bool same_indices(flat::Slice a, flat::Slice b) const;
  void grow();

  RankProgram& program_;
  std::unordered_map<std::string_view, NameId> name_ids_;
  std::vector<std::int32_t> slots_;   // operations; the size is a power of two, at most half full
  std::vector<NameId> name_of_;       // by operation
  std::vector<NameId> absent_names_;  // parallel to RankProgram::absent
  std::size_t entries_ = 0;
};

}  // namespace shiplap::plan
