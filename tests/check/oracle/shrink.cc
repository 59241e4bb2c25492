#include "shrink.h"

#include <sstream>
#include <vector>

namespace shiplap::oracle {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return lines;
}

std::string joined(const Lines& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

Lines without(const Lines& lines, std::size_t begin, std::size_t count) {
  Lines rest = lines;
  const auto first = rest.begin() + static_cast<std::ptrdiff_t>(begin);
  rest.erase(first, first + static_cast<std::ptrdiff_t>(std::min(count, rest.size() - begin)));
  return rest;
}

// Without the last rank.
Lines smaller_mesh(const Lines& lines) {
  Lines rest = lines;
  const std::string before = rest[1].substr(0, rest[1].find('=') + 1);
  const int ranks = std::stoi(rest[1].substr(before.size()));
  if (ranks < 2) return lines;
  rest[1] = before + std::to_string(ranks - 1);
  while (!rest.empty() && !rest.back().starts_with("program")) rest.pop_back();
  if (!rest.empty()) rest.pop_back();
  return rest;
}

}  // namespace

std::string shrunk(const std::string& text, const std::function<bool(const std::string&)>& keeps) {
  Lines lines = lines_of(text);
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto take = [&](const Lines& some) {
      if (some.size() >= lines.size() || !keeps(joined(some))) return false;
      lines = some;
      smaller = true;
      return true;
    };
    while (take(smaller_mesh(lines))) {
    }
    for (std::size_t count = lines.size() / 2; count > 0; count /= 2) {
      for (std::size_t k = 2; k < lines.size();) {
        if (!take(without(lines, k, count))) k += count > 4 ? count / 2 : 1;
      }
    }
  }
  return joined(lines);
}

}  // namespace shiplap::oracle
