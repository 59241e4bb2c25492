#include <algorithm>
#include <array>

#include "shiplap/plan/symbol_table_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {

std::int32_t lookup(const NameMap& map, std::string_view name) {
  const auto found = map.find(name);
  return found == map.end() ? -1 : found->second;
}

std::vector<std::string> names_in(const NameMap& map) {
  std::vector<std::string> names;
  names.reserve(map.size());
  for (const auto& [name, id] : map) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> SymbolTable::in_expressions() const {
  std::vector<std::string> names = {"rank"};
  for (const NameMap* map : {&axes, &lists, &locals}) {
    const std::vector<std::string> more = names_in(*map);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

std::string_view SymbolTable::taken_as(std::string_view name) const {
  if (axes.contains(name)) return "an axis";
  if (lists.contains(name)) return "a list";
  if (locals.contains(name)) return "a name of `repeat` or `let`";
  return "";
}

LocalId SymbolTable::bind(const std::string& name) {
  const LocalId id(bound_.size());
  locals.emplace(name, id.value);
  bound_.push_back(name);
  return id;
}

void SymbolTable::unbind_to(std::size_t count, std::int32_t line) {
  while (bound_.size() > count) {
    if (line > 0) ended.insert_or_assign(bound_.back(), line);
    locals.erase(bound_.back());
    bound_.pop_back();
  }
}

void SymbolTable::begin_program() {
  unbind_to(0);
  ended.clear();
  buffers.clear();
  streams.clear();
  streams.emplace("main", 0);
}

bool is_name(std::string_view word) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !word.empty() && !(word.front() >= '0' && word.front() <= '9') &&
         std::ranges::all_of(word, fits) && !is_reserved(word);
}

bool is_unit_of_work(std::string_view word) { return word == "flop" || word == "bytes"; }

bool is_reserved(std::string_view word) {
  constexpr std::array<std::string_view, 30> kReserved = {
      "add",   "after",    "all",  "and",   "async", "by",  "channel", "div",      "from", "joined",
      "label", "mask",     "mod",  "new",   "none",  "of",  "on",      "operator", "over", "rank",
      "ranks", "reversed", "root", "scale", "split", "sum", "tag",     "to",       "work", "wrap"};
  return std::ranges::find(kReserved, word) != kReserved.end();
}

}  // namespace shiplap::plan
