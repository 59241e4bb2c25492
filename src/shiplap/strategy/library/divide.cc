#include <fmt/format.h>

#include "shiplap/base/error.h"
#include "shiplap/strategy/library/divide_internal.h"

namespace shiplap::strategy {

std::string format_count(std::int64_t number, const Noun& of) {
  if (number == 1) return fmt::format("one {}", of.singular);
  return fmt::format("{} {}", number, of.plural);
}

std::string format_stages(std::int64_t stages, std::int64_t chunks) {
  const std::string all = format_count(stages, {.singular = "stage", .plural = "stages"});
  return chunks == 1 ? all : fmt::format("{} of {} chunks", all, chunks);
}

std::string nearest_multiples(std::int64_t number, std::int64_t step) {
  const std::int64_t below = number / step * step;
  if (below <= 0) return fmt::format("{}", step);
  return fmt::format("{} or {}", below, below + step);
}

int divide(const Division& division) {
  ensure(division.parts >= 1, "things are divided into parts");
  if (division.number >= 1 && division.number % division.parts == 0) {
    return static_cast<int>(division.number / division.parts);
  }
  throw InputError(Diagnostic{
      .code = "D622",
      .what = fmt::format("{} {} cannot be divided among {}", division.number, division.things,
                          division.by),
      .why = fmt::format("all parts must be equal, so the number must be a multiple of {}",
                         division.parts),
      .help = fmt::format("take {} {}", nearest_multiples(division.number, division.parts),
                          division.things)});
}

}  // namespace shiplap::strategy
