// Sound plans of every kind that we know, in many sizes: what `check` must not object to, and what
// mutations start from.
#pragma once

#include <string>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::mutations {

struct Sound {
  std::string family;  // "ring_attention"
  std::string name;    // "ring_attention n=4 t=1"
  plan::Plan plan;
};

// More than a thousand, always the same, families taking turns: the first few hundred have some of
// each.
[[nodiscard]] std::vector<Sound> sound_plans();

}  // namespace shiplap::mutations
