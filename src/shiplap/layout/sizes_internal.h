// The sizes of a model that a layout divides, and the legal values near an illegal one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/workload/model.h"

namespace shiplap::layout {

struct ModelSizes {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t width = 0;         // of dense MLPs, or else of shared experts
  std::int64_t experts = 0;       // of a MoE layer; 0: there is none
  std::int64_t top_k = 0;         // of them, for a token
  std::int64_t expert_width = 0;  // of one of them
};
[[nodiscard]] ModelSizes sizes_of(const workload::Model& model);

// In ascending order.
[[nodiscard]] std::vector<std::int64_t> divisors(std::int64_t n);

// "1, 2 or 4": of the choices, those with the smallest ratio to `value`.
[[nodiscard]] std::string nearest_choices(std::vector<std::int64_t> choices, std::int64_t value);

// The multiples of `unit` around `value`: "8 or 16".
[[nodiscard]] std::string nearest_multiples(std::int64_t unit, std::int64_t value);

}  // namespace shiplap::layout
