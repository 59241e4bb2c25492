// No false alarm: on sound plans as they are written, unrolled, and rewritten. SHIPLAP_SOUND_PLANS
// says on how many; 0 is all of them.
#include "benign.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "families.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::mutations {
namespace {

std::size_t limit(std::size_t plans) {
  const char* text = std::getenv("SHIPLAP_SOUND_PLANS");
  const std::size_t wanted = text == nullptr ? 150 : static_cast<std::size_t>(std::atoll(text));
  return wanted == 0 ? plans : std::min(plans, wanted);
}

// Errors and exceptions; empty if it is called sound.
std::string objections(const plan::Plan& plan) {
  try {
    std::string text;
    for (const check::Finding& finding : check::check(plan, {}).findings) {
      if (finding.diagnostic.severity == Severity::error) text += render(finding.diagnostic);
    }
    return text;
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(Benign, SoundPlansAreSound) {
  const std::vector<Sound> all = sound_plans();
  for (std::size_t k = 0; k < limit(all.size()); ++k) {
    EXPECT_EQ(objections(all[k].plan), "") << all[k].name;
    EXPECT_EQ(objections(plan::unrolled(all[k].plan)), "") << all[k].name << ", unrolled";
  }
}

TEST(Benign, RewrittenPlansAreSound) {
  const std::vector<Sound> all = sound_plans();
  std::map<std::string, int> applied;
  for (std::size_t k = 0; k < limit(all.size()); ++k) {
    const plan::Plan unrolled = plan::unrolled(all[k].plan);
    std::size_t statements = 0;
    for (const plan::Program& program : unrolled.programs) statements += program.body.size();
    if (statements > 1000) continue;
    for (const Rewrite& rewrite : all_rewrites()) {
      const auto plan = rewrite.apply(unrolled, k);
      if (!plan) continue;
      ++applied[rewrite.name];
      EXPECT_NE(*plan, unrolled) << rewrite.name << ", " << all[k].name;
      EXPECT_EQ(objections(*plan), "") << rewrite.name << ", " << all[k].name;
    }
  }
  for (const Rewrite& rewrite : all_rewrites()) {
    std::cout << applied[rewrite.name] << "  " << rewrite.name << "\n";
    EXPECT_GE(applied[rewrite.name], 3) << rewrite.name;
  }
}

}  // namespace
}  // namespace shiplap::mutations
