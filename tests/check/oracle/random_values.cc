// A random plan about values: a small training step, or any computation, sound by construction.
// About half of them lie, in one of three ways: by design (Lie), by one or two changes, by both.
#include <optional>

#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "small_plans.h"
#include "value_builder.h"
#include "value_change.h"

namespace shiplap::oracle {
namespace {

using Template = void (*)(ValueBuilder&);

// Those that can tell it.
std::vector<Template> templates(Lie lie) {
  switch (lie) {
    case Lie::none:
      return {build_training, build_training,  build_training,  build_attention, build_products,
              build_boxes,    build_arbitrary, build_arbitrary, build_arbitrary};
    case Lie::claims_less:
    case Lie::claims_more:
      return {build_training, build_attention, build_products, build_arbitrary};
    case Lie::operand_shape:
      return {build_training, build_products, build_arbitrary};
    case Lie::reads_twice:
    case Lie::reads_nothing:
      return {build_training, build_attention, build_arbitrary};
    case Lie::overlapping_sums:
      return {build_training, build_attention, build_boxes, build_arbitrary};
    case Lie::scale_never:
      return {build_training, build_products, build_arbitrary};
    case Lie::two_scales:
      return {build_training, build_boxes};
    case Lie::scale_twice:
    case Lie::scaled_operand:
    case Lie::new_weights_early:
    case Lie::wrong_layer:
    case Lie::loss_in_the_middle:
    case Lie::same_row_twice:
    case Lie::stale_update:
    case Lie::begins_new:
      return {build_training};
    case Lie::not_a_product:
      return {build_boxes};
    case Lie::partial_read:
      return {build_products};
    case Lie::other_instance:
    case Lie::old_as_new:
    case Lie::takes_sum_apart:
    case Lie::unread_dimension:
    case Lie::slice_summed:
    case Lie::freed_early:
    case Lie::allocated_twice:
    case Lie::not_freed:
      return {build_arbitrary};
  }
  return {};
}

ValuePlan built(Random& random, Lie lie) {
  const bool alone = lie == Lie::new_weights_early;
  const std::int64_t ranks = alone ? 1 : random.between(1, random.chance(0.3) ? 5 : 3);
  ValueBuilder builder(static_cast<int>(ranks), random, lie);
  random.pick(templates(lie))(builder);
  return std::move(builder.plan);
}

}  // namespace

std::string random_sound_values(std::uint64_t seed) {
  Random random(seed);
  return to_text(built(random, Lie::none));
}

std::string random_values(std::uint64_t seed) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Random random = Random(seed).split(attempt);
    const double how = random.unit();
    Lie lie = Lie::none;
    if (how < 0.45) {
      lie = static_cast<Lie>(random.between(1, static_cast<std::int64_t>(Lie::last) + 1));
    }
    ValuePlan plan = built(random, lie);
    const int changes = how > 0.4 && how < 0.75 ? (random.chance(0.3) ? 2 : 1) : 0;
    for (int k = 0; k < changes; ++k) change_value(plan, random);
    std::string text = to_text(plan);
    if (has_meaning(text)) return text;
    if (attempt > 50) throw InternalError("no plan of this seed has a meaning");
  }
}

}  // namespace shiplap::oracle
