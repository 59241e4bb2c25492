// Finds operations of one rank by name and indices, while they are being listed.
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

  // Enters the last operation of the program, which has a name. Throws InputError D204 if another
  // has the same one.
  void add();

  // What `operation` waits for; a reference that matches nothing so far is noted as absent.
  flat::Slice dependencies(const Operation& operation, Resolver& resolve);

  // At the end: throws InputError D205 if an absent reference names an operation that came later.
  void check_order() const;

 private:
  using Family = std::int32_t;  // a name, without its indices

  [[nodiscard]] Family family(std::string_view name);
  [[nodiscard]] std::uint64_t hash(Family family, flat::Slice indices) const;
  // The slot that holds this name, or the free one where it belongs.
  [[nodiscard]] std::size_t slot(Family family, flat::Slice indices) const;
  [[nodiscard]] bool same_indices(flat::Slice a, flat::Slice b) const;
  void grow();

  RankProgram& program_;
  std::unordered_map<std::string_view, Family> families_;
  std::vector<std::int32_t> slots_;      // operations; a power of two of them, at most half full
  std::vector<Family> family_of_;        // by operation
  std::vector<Family> absent_families_;  // as RankProgram::absent
  std::size_t entries_ = 0;
};

}  // namespace shiplap::plan
