// The verdict on a plan does not depend on symmetry.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "mutations/families.h"
#include "random_plan.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap::check {
namespace {

// "sound" or the first code; invalid plans are rejected before symmetry matters.
std::string verdict(const plan::Plan& plan, bool symmetry, std::int64_t* programs = nullptr) {
  try {
    const Report report = check(plan, {.symmetry = symmetry, .operations = 20'000});
    if (programs != nullptr) *programs = report.ranks - report.programs;
    return report.sound() ? "sound" : report.findings.front().diagnostic.code;
  } catch (const InputError& error) {
    return error.diagnostics().front().code;
  }
}

class SymmetryOfPlans : public testing::Test {
 protected:
  void compare(const plan::Plan& plan, const std::string& name) {
    std::int64_t spared = 0;
    const std::string with = verdict(plan, true, &spared);
    // An unsound plan is checked again without symmetry, so only a sound one can differ.
    EXPECT_EQ(with, verdict(plan, false)) << name << "\n" << plan::to_text(plan);
    ++plans_;
    if (with == "sound") ++sound_;
    if (spared > 0 && with == "sound") ++shortened_;
  }

  int plans_ = 0;
  int sound_ = 0;
  int shortened_ = 0;
};

TEST_F(SymmetryOfPlans, ChangesNoVerdictOnSoundPlansAndOnChangedOnes) {
  const char* limit = std::getenv("SHIPLAP_SOUND_PLANS");
  const int most = limit == nullptr ? 150 : static_cast<int>(std::strtol(limit, nullptr, 10));
  const std::vector<mutations::Sound> all = mutations::sound_plans();
  const std::size_t step = std::max<std::size_t>(1, all.size() / static_cast<std::size_t>(most));
  for (std::size_t k = 0; k < all.size(); k += step) {
    const mutations::Sound& sound = all[k];
    compare(sound.plan, sound.name);
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      plan::Plan changed = sound.plan;
      if (plan::change_something(changed, 1000 * k + seed)) {
        compare(changed, sound.name + ", change " + std::to_string(1000 * k + seed));
      }
    }
  }
  std::cout << plans_ << " plans, " << sound_ << " sound, " << shortened_
            << " of them by fewer ranks\n";
  EXPECT_GT(shortened_, most / 4);
  EXPECT_GT(plans_ - sound_, most);
}

}  // namespace
}  // namespace shiplap::check
