// Divides layers among stages and samples among microbatches, in equal parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shiplap::strategy {

struct Division {
  std::int64_t number = 1;
  std::string things;  // "layers"
  std::int64_t parts = 1;
  std::string by;  // "4 stages of 2 chunks"
};

// Returns the number of things per part. Throws InputError D622, with the nearest numbers that
// divide, if it is not whole.
int divide(const Division& division);

// "one rank", "4 ranks".
struct Noun {
  std::string_view singular;
  std::string_view plural;
};
[[nodiscard]] std::string format_count(std::int64_t number, const Noun& of);
// "4 stages", "4 stages of 2 chunks".
[[nodiscard]] std::string format_stages(std::int64_t stages, std::int64_t chunks);

// The multiples of `step` next to `number`, from one `step` up: "8 or 12".
[[nodiscard]] std::string nearest_multiples(std::int64_t number, std::int64_t step);

}  // namespace shiplap::strategy
