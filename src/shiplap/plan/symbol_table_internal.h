// The symbol table of the parser: the names in scope, and their ids.
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

// Returns the id of `name`, or -1.
[[nodiscard]] std::int32_t lookup(const NameMap& map, std::string_view name);
// All names in alphabetical order, for suggestions.
[[nodiscard]] std::vector<std::string> names_in(const NameMap& map);

class SymbolTable {
 public:
  // Axes, lists and locals share one namespace: that of expressions.
  NameMap axes;  // and aliases, with ids after those of the axes
  NameMap lists;
  NameMap locals;
  NameMap sources;
  NameMap tensors;
  NameMap tables;
  NameMap programs;
  NameMap buffers;  // of the current program
  NameMap streams;  // of the current program
  NameMap ended;    // locals that are out of scope, and the line where their scope ended
  NameMap broken;   // names with an invalid declaration; their uses are not reported

  [[nodiscard]] std::vector<std::string> in_expressions() const;
  // What `name` denotes in expressions ("an axis", "a list", ..), or "" if it is free.
  [[nodiscard]] std::string_view taken_as(std::string_view name) const;

  // The scope of a local is its block.
  LocalId bind(const std::string& name);
  [[nodiscard]] std::size_t bound() const { return bound_.size(); }
  // `line` is the end of the block.
  void unbind_to(std::size_t count, std::int32_t line = 0);
  void begin_program();

 private:
  std::vector<std::string> bound_;
};

// Words that cannot be names of axes, aliases, lists, loops, `let`, tensors, dimensions, buffers or
// tables. Operations, streams, programs, channels and kernels may have any name.
[[nodiscard]] bool is_reserved(std::string_view word);

// `flop` and `bytes`, which follow an expression in `work`.
[[nodiscard]] bool is_unit_of_work(std::string_view word);

}  // namespace shiplap::plan
