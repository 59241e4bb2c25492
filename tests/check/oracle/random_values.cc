// A random plan about values: a small training step, or any computation, sound by construction.
// About half of them are wrong, in one of three ways: by design (Fault), by one or two changes, or
// both.
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
std::vector<Template> templates(Fault lie) {
  switch (lie) {
    case Fault::none:
      return {build_training, build_training,  build_training,  build_attention, build_products,
              build_boxes,    build_arbitrary, build_arbitrary, build_arbitrary};
    case Fault::claims_less:
    case Fault::claims_more:
      return {build_training, build_attention, build_products, build_arbitrary};
    case Fault::operand_shape:
      return {build_training, build_products, build_arbitrary};
    case Fault::reads_twice:
    case Fault::reads_nothing:
      return {build_training, build_attention, build_arbitrary};
    case Fault::overlapping_sums:
      return {build_training, build_attention, build_boxes, build_arbitrary};
    case Fault::scale_never:
      return {build_training, build_products, build_arbitrary};
    case Fault::two_scales:
      return {build_training, build_boxes};
    case Fault::scale_twice:
    case Fault::scaled_operand:
    case Fault::new_weights_early:
    case Fault::wrong_layer:
    case Fault::loss_in_the_middle:
    case Fault::same_row_twice:
    case Fault::stale_update:
    case Fault::begins_new:
      return {build_training};
    case Fault::not_a_product:
      return {build_boxes};
    case Fault::partial_read:
      return {build_products};
    case Fault::other_instance:
    case Fault::old_as_new:
    case Fault::takes_sum_apart:
    case Fault::unread_dimension:
    case Fault::slice_summed:
    case Fault::freed_early:
    case Fault::allocated_twice:
    case Fault::not_freed:
      return {build_arbitrary};
  }
  return {};
}

ValuePlan built(Random& random, Fault lie) {
  const bool alone = lie == Fault::new_weights_early;
  const std::int64_t ranks = alone ? 1 : random.between(1, random.chance(0.3) ? 5 : 3);
  ValueBuilder builder(static_cast<int>(ranks), random, lie);
  random.pick(templates(lie))(builder);
  return std::move(builder.plan);
}

}  // namespace

std::string random_sound_values(std::uint64_t seed) {
  Random random(seed);
  return to_text(built(random, Fault::none));
}

std::string random_values(std::uint64_t seed) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Random random = Random(seed).split(attempt);
    const double how = random.unit();
    Fault lie = Fault::none;
    if (how < 0.45) {
      lie = static_cast<Fault>(random.between(1, static_cast<std::int64_t>(Fault::last) + 1));
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
