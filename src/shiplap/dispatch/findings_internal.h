// Collects diagnostics: the first few of each code in full, the rest as a count.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap::dispatch {

class Findings {
 public:
  explicit Findings(int max_per_code = 4) : max_per_code_(max_per_code) {}

  void add(Diagnostic diagnostic) {
    if (++counts_[diagnostic.code] > max_per_code_) return;
    found_.push_back(std::move(diagnostic));
  }
  // Adds the diagnostics of another check, without a limit.
  void add_all(std::vector<Diagnostic> more) {
    for (Diagnostic& one : more) found_.push_back(std::move(one));
  }
  [[nodiscard]] bool empty() const { return found_.empty(); }

  [[nodiscard]] std::vector<Diagnostic> take(std::string_view about) {
    for (const auto& [code, count] : counts_) {
      if (count <= max_per_code_) continue;
      found_.push_back({.code = code,
                        .severity = Severity::note,
                        .where = {.operation = std::string(about)},
                        .what = fmt::format("and {} more of this code", count - max_per_code_)});
    }
    counts_.clear();
    return std::move(found_);
  }

 private:
  int max_per_code_;
  std::map<std::string, int> counts_;  // by code
  std::vector<Diagnostic> found_;
};

// "q_forward dst_offset, sequence 3"
[[nodiscard]] inline std::string row_location(std::string_view table, std::string_view field,
                                              std::uint64_t sequence) {
  return fmt::format("{} {}, sequence {}", table, field, sequence);
}

}  // namespace shiplap::dispatch
