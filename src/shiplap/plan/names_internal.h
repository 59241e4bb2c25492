// Which names are in sight while a plan is read, and what they stand for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

struct TransparentHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using NameMap = std::unordered_map<std::string, std::int32_t, TransparentHash, std::equal_to<>>;

// The id of `name`, or -1.
[[nodiscard]] std::int32_t lookup(const NameMap& map, std::string_view name);
// In alphabetical order, for suggestions.
[[nodiscard]] std::vector<std::string> names_in(const NameMap& map);

class Names {
 public:
  // All that may stand in an expression shares one set of names.
  NameMap axes;  // and aliases, numbered on
  NameMap lists;
  NameMap locals;
  NameMap tensors;
  NameMap tables;
  NameMap programs;
  NameMap buffers;  // of the program being read
  NameMap streams;  // likewise
  NameMap ended;    // locals that are out of sight again, and since which line
  NameMap broken;   // declared by lines that make no sense: their uses are not reported on top

  [[nodiscard]] std::vector<std::string> in_expressions() const;
  // What `name` is already ("an axis", "a list", ..), or "" if it is free to stand in expressions.
  [[nodiscard]] std::string_view taken_as(std::string_view name) const;

  // Locals come and go with their blocks.
  LocalId bind(const std::string& name);
  [[nodiscard]] std::size_t bound() const { return bound_.size(); }
  // `line` is where their block ends.
  void unbind_to(std::size_t count, std::int32_t line = 0);
  void begin_program();

 private:
  std::vector<std::string> bound_;
};

// Words with a meaning where a name of an axis, alias, list, loop, `let`, tensor, dimension, buffer
// or table could stand. Operations, streams, programs, channels and kernels may have any name.
[[nodiscard]] bool is_reserved(std::string_view word);

}  // namespace shiplap::plan
