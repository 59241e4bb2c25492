// What is wrong with a dispatch, as it is found: the first few of each kind in full, the rest as a
// number.
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
  explicit Findings(int most_of_a_kind = 4) : most_(most_of_a_kind) {}

  void add(Diagnostic diagnostic) {
    if (++counts_[diagnostic.code] > most_) return;
    found_.push_back(std::move(diagnostic));
  }
  // Those of another check, as they are.
  void add_all(std::vector<Diagnostic> more) {
    for (Diagnostic& one : more) found_.push_back(std::move(one));
  }
  [[nodiscard]] bool empty() const { return found_.empty(); }

  [[nodiscard]] std::vector<Diagnostic> take(std::string_view about) {
    for (const auto& [code, count] : counts_) {
      if (count <= most_) continue;
      found_.push_back({.code = code,
                        .severity = Severity::note,
                        .where = {.operation = std::string(about)},
                        .what = fmt::format("and {} more of this kind", count - most_)});
    }
    counts_.clear();
    return std::move(found_);
  }

 private:
  int most_;
  std::map<std::string, int> counts_;  // by code
  std::vector<Diagnostic> found_;
};

// "q_forward dst_offset, sequence 3"
[[nodiscard]] inline std::string place_in(std::string_view table, std::string_view field,
                                          std::uint64_t sequence) {
  return fmt::format("{} {}, sequence {}", table, field, sequence);
}

}  // namespace shiplap::dispatch
