// What is no longer sound is found by `validate` exactly where counting tokens finds it.
#include <gtest/gtest.h>

#include "brute_force.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

std::string seed_of(std::uint64_t seed) { return "seed " + std::to_string(seed); }

TEST(TwoOpinions, ChangedDispatchesAreUnsoundForBothOpinionsOrNeither) {
  int sound = 0;
  int unsound = 0;
  for (std::uint64_t seed = 0; seed < 25'000; ++seed) {
    Random random(seed);
    Open open = opened(compute_qkv_dispatch(any_routing(random, {.ranks = 3, .longest = 4})));
    const std::int64_t changes = random.between(1, 4);
    for (std::int64_t i = 0; i < changes; ++i) change_anything(open, random);
    const QkvDispatch dispatch = closed(open);
    const std::string why = flaw(dispatch);
    const auto found = validate(dispatch);
    ASSERT_EQ(found.empty(), why.empty())
        << seed_of(seed) << ": " << (why.empty() ? "sound" : why) << "\n"
        << render(found);
    ++(why.empty() ? sound : unsound);
  }
  EXPECT_GT(unsound, 15'000);
  EXPECT_GT(sound, 500);
}

// Keys that all tables agree about, but that are not those of the document.
TEST(TwoOpinions, DispatchesWithWrongKeysAreUnsoundForBothOpinionsOrNeither) {
  int unsound = 0;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    Random random(seed);
    HandMade made = made_from(any_routing(random, {.ranks = 3, .longest = 5}));
    if (made.items.empty()) continue;
    auto& keys = made.items[random.between(0, static_cast<std::int64_t>(made.items.size()))].keys;
    if (keys.empty()) continue;
    const auto pick = [&] { return random.between(0, static_cast<std::int64_t>(keys.size())); };
    switch (random.between(0, 3)) {
      case 0:
        keys.erase(keys.begin() + pick());
        break;
      case 1:
        std::swap(keys[pick()], keys[pick()]);
        break;
      default: {
        const auto& other = random.pick(made.items).keys;
        if (!other.empty()) keys[pick()] = random.pick(other);
      }
    }
    const QkvDispatch dispatch = carried_out(made);
    const std::string why = flaw(dispatch);
    const auto found = validate(dispatch);
    ASSERT_EQ(found.empty(), why.empty())
        << seed_of(seed) << ": " << (why.empty() ? "sound" : why) << "\n"
        << render(found);
    unsound += why.empty() ? 0 : 1;
  }
  EXPECT_GT(unsound, 3000);
}

}  // namespace
}  // namespace shiplap::dispatch
