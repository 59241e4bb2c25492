// The plan of a training step of a model under a layout: every collective with its group, every
// gradient with its sum and its scale.
//
// The samples of a batch are dimension `sample` (one for each microbatch of each data parallel
// rank), the tokens of a sequence dimension `tok` (one for each block that a rank has between
// layers). A sum names the samples and tokens of which it is the sum, so a gradient that was
// reduced over the wrong ranks, or scaled by the wrong factor, is not the value that `update`
// reads.
#pragma once

#include <string>

#include "shiplap/layout/layout.h"
#include "shiplap/plan/plan.h"
#include "shiplap/workload/model.h"

namespace shiplap::step {

// One program for each kind of rank, with loops over layers and actions of the pipeline. Throws
// InputError D645: the layout is legal, but this planner does not know it.
// REQUIRES: layout::check_layout found no error.
[[nodiscard]] std::string step_text(const workload::Model& model, const layout::Layout& layout);

[[nodiscard]] plan::Plan step_plan(const workload::Model& model, const layout::Layout& layout);

}  // namespace shiplap::step
