// How check does on the corpus: planted bugs that it must find, sound plans to which it must not
// object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "families.h"
#include "mutations.h"
#include "shiplap/plan/plan.h"

namespace shiplap::mutations {

struct Score {
  std::int64_t applied = 0;
  std::int64_t caught = 0;
  std::int64_t right = 0;  // code and place are as expected
  std::vector<std::size_t> findings;
  std::map<std::string, int> wrong;  // answers, in short
};

// Bugs are planted in small plans: what is found in them is found in large ones.
[[nodiscard]] bool is_small(const plan::Plan& unrolled);

class Scoring {
 public:
  explicit Scoring(std::span<const Sound> sound) : sound_(sound) {}
  // Plants one bug in each of the first so many plans that have a place for it. An example of each
  // wrong answer is kept in /tmp/mutations.
  [[nodiscard]] Score score(const Mutation& mutation, std::int64_t plans);

 private:
  std::span<const Sound> sound_;
  std::vector<plan::Plan> unrolled_;  // as far as they were needed
};

// 0 if there are none.
[[nodiscard]] std::size_t median(std::vector<std::size_t> numbers);

struct Alarms {
  std::int64_t plans = 0;
  std::map<std::string, std::int64_t> rewrites;  // how often each was applied
  std::vector<std::string> false_alarms;         // the plan, and what check said
};
// As they are written, and unrolled.
[[nodiscard]] Alarms alarms_as_written(std::span<const Sound> sound);
[[nodiscard]] Alarms alarms_as_rewritten(std::span<const Sound> sound);

}  // namespace shiplap::mutations
