// No false alarm: on sound plans as they are written, unrolled, and rewritten. SHIPLAP_SOUND_PLANS
// says on how many; 0 is all of them.
#include "benign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <span>

#include "families.h"
#include "score.h"

namespace shiplap::mutations {
namespace {

std::size_t limit(std::size_t plans) {
  const char* text = std::getenv("SHIPLAP_SOUND_PLANS");
  const std::size_t wanted =
      text == nullptr ? 150 : static_cast<std::size_t>(std::strtoll(text, nullptr, 10));
  return wanted == 0 ? plans : std::min(plans, wanted);
}

TEST(Benign, SoundPlansAreSound) {
  const std::vector<Sound> all = sound_plans();
  const Alarms alarms = alarms_as_written(std::span(all).first(limit(all.size())));
  EXPECT_THAT(alarms.false_alarms, testing::IsEmpty());
}

TEST(Benign, RewrittenPlansAreSound) {
  const std::vector<Sound> all = sound_plans();
  Alarms alarms = alarms_as_rewritten(std::span(all).first(limit(all.size())));
  EXPECT_THAT(alarms.false_alarms, testing::IsEmpty());
  for (const Rewrite& rewrite : all_rewrites()) {
    std::cout << alarms.rewrites[rewrite.name] << "  " << rewrite.name << "\n";
    EXPECT_GE(alarms.rewrites[rewrite.name], 3) << rewrite.name;
  }
}

}  // namespace
}  // namespace shiplap::mutations
