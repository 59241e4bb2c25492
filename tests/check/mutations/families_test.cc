#include "families.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <set>

#include "../../flat_text.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::mutations {
namespace {

TEST(Families, AreMoreThanAThousandPlansWithNamesOfTheirOwn) {
  std::set<std::string> names;
  std::map<std::string, int> families;
  for (const Sound& sound : sound_plans()) {
    EXPECT_TRUE(names.insert(sound.family + sound.name).second) << sound.name;
    ++families[sound.family];
  }
  EXPECT_GE(names.size(), 1000U);
  for (const auto& [family, count] : families) std::cout << family << " " << count << "\n";
}

// What is left out of an expansion when it is unrolled: references that refer to nothing.
std::string without_absent(const std::string& text) {
  const auto at = text.find("\nabsent");
  return text.substr(0, at);
}

TEST(Families, UnrolledPlansExpandToTheSame) {
  const std::vector<Sound> all = sound_plans();
  for (std::size_t k = 0; k < all.size(); k += 7) {
    const plan::Plan flat = plan::unrolled(all[k].plan);
    for (std::int32_t rank = 0; rank < all[k].plan.mesh.ranks(); ++rank) {
      ASSERT_EQ(without_absent(plan::expansion_text(all[k].plan, Rank(rank))),
                without_absent(plan::expansion_text(flat, Rank(rank))))
          << all[k].name << ", rank " << rank;
    }
    ASSERT_EQ(plan::parse_text(plan::to_text(flat), "flat.plan"), flat) << all[k].name;
  }
}

}  // namespace
}  // namespace shiplap::mutations
