// Which rank wrote which file?
//
// A file whose content determines its rank needs no name. For the others one number of the names
// (after "rank"; the last; the one before it, ..) must give each file a rank that its content
// allows, and different ones. Two files of one rank are those of two backends.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/dump/job_reader_internal.h"

namespace shiplap::dump {
namespace {

// The numbers in the file name (without its folder), the last first.
std::vector<std::int32_t> numbers_in(std::string_view name) {
  name = name.substr(name.rfind('/') + 1);  // npos + 1 is 0
  std::vector<std::int32_t> numbers;
  while (!name.empty()) {
    const std::size_t last = name.find_last_of("0123456789");
    if (last == name.npos) break;
    const std::size_t before = name.substr(0, last).find_last_not_of("0123456789");
    const std::size_t first = before == name.npos ? 0 : before + 1;
    std::int32_t number = -1;
    std::from_chars(name.data() + first, name.data() + last + 1, number);
    if (number >= 0) numbers.push_back(number);
    name = name.substr(0, first);
  }
  return numbers;
}

// The number after "rank", or -1: "rank_3" beats every other number.
std::int32_t number_after_rank(std::string_view name) {
  name = name.substr(name.rfind('/') + 1);
  const std::size_t found = name.rfind("rank");
  if (found == name.npos) return -1;
  std::string_view rest = name.substr(found + 4);
  rest.remove_prefix(std::min(rest.find_first_not_of("_-.="), rest.size()));
  std::int32_t number = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return number;
}

bool allows(const FileDump& file, std::int32_t rank) {
  return rank >= 0 && (file.candidates.empty() ||
                       std::ranges::find(file.candidates, rank) != file.candidates.end());
}

// By elimination: a file that can only be of one rank which nobody else has.
void assign_by_elimination(std::vector<FileDump*>& open, std::set<std::int32_t>& taken) {
  bool progress = true;
  while (progress && !open.empty()) {
    progress = false;
    for (auto it = open.begin(); it != open.end(); ++it) {
      std::vector<std::int32_t> left;
      for (const std::int32_t rank : (*it)->candidates) {
        if (!taken.contains(rank)) left.push_back(rank);
      }
      if (left.size() != 1) continue;
      (*it)->dump.rank = left.front();
      taken.insert(left.front());
      open.erase(it);
      progress = true;
      break;
    }
  }
}

}  // namespace

std::int32_t rank_in_name(std::string_view name) {
  const std::int32_t rank = number_after_rank(name);
  if (rank >= 0) return rank;
  const std::vector<std::int32_t> numbers = numbers_in(name);
  return numbers.empty() ? -1 : numbers.front();
}

void assign_ranks(std::vector<FileDump>& files) {
  std::set<std::int32_t> taken;
  std::vector<FileDump*> open;
  for (FileDump& file : files) {
    if (file.candidates.size() == 1) {
      file.dump.rank = file.candidates.front();
      taken.insert(file.dump.rank);
    } else {
      open.push_back(&file);
    }
  }
  const auto try_numbers = [&](const auto& number) {
    // With the backend and the type of the file: a job may be dumped as pickle and as JSON.
    std::set<std::tuple<std::int32_t, std::string_view, bool>> used;
    for (const FileDump* file : open) {
      const std::int32_t rank = number(*file);
      const bool is_json = file->file.name.ends_with(".json");
      const bool is_new = used.emplace(rank, file->dump.library, is_json).second;
      if (!allows(*file, rank) || !is_new) return false;
    }
    for (FileDump* file : open) file->dump.rank = number(*file);
    return true;
  };
  if (open.empty()) return;
  if (try_numbers([&](const FileDump& file) { return number_after_rank(file.file.name); })) return;
  for (std::size_t k = 0; k < 4; ++k) {
    const bool fits = try_numbers([&](const FileDump& file) {
      const std::vector<std::int32_t> numbers = numbers_in(file.file.name);
      return k < numbers.size() ? numbers[k] : -1;
    });
    if (fits) return;
  }
  assign_by_elimination(open, taken);
  if (open.empty()) return;
  throw InputError({.code = "D014",
                    .where = {.file = open.front()->file.name},
                    .what = "which rank wrote this dump? Neither its content nor its name tells",
                    .why = "a dump of a process with one group does not say its rank",
                    .help = "end the names with the rank: nccl_trace_rank_3"});
}

}  // namespace shiplap::dump
