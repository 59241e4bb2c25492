// Where the values of one rank lie: buffers, and rows in them, from the life of each value.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shiplap/strategy/record.h"
#include "shiplap/workload/shape.h"

namespace shiplap::strategy {

// A buffer per kind of value, in this order.
enum class Place : std::uint8_t {
  weights,
  opt_states,
  grad_weights,
  activations,
  grad_activations
};
inline constexpr std::size_t kPlaces = 5;

[[nodiscard]] Place place_of(const AnyValue& value);

struct Rows {
  Place place = Place::weights;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t end() const { return begin + count; }
};

// Into how many rows a whole weight, and a sample, is cut: as many as there are shards.
struct Grain {
  std::int64_t weight = 1;
  std::int64_t sample = 1;
};
[[nodiscard]] Grain common_grain(const Grain& so_far, const Recording& recording);

struct Places {
  std::vector<Rows> rows;                     // by value
  std::vector<Rows> homes;                    // by value: those of all that share its place
  std::vector<bool> kept;                     // by value: loaded, so there from the start
  std::array<std::int64_t, kPlaces> total{};  // rows of each buffer
};
// First fit, in the order of the record: equal records get equal places.
[[nodiscard]] Places find_places(const Recording& recording, const Grain& grain);

}  // namespace shiplap::strategy
