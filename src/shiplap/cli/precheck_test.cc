#include "shiplap/cli/precheck.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

namespace shiplap::cli {
namespace {

struct Checked {
  bool sound = false;
  std::string out;
  std::string err;
};

Checked checked(const std::string& text) {
  const SourceText source{.file = "plans/a.plan", .text = text};
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Context context{.in = in, .out = {.stream = out}, .err = {.stream = err}};
  const bool sound = precheck(plan::parse_plan(text, source.file), context, &source);
  return {.sound = sound, .out = out.str(), .err = err.str()};
}

TEST(CheckedFirst, ASoundPlanIsOneLineOnStandardError) {
  const Checked result = checked(
      "shiplap-plan 1\nmesh dp=2\ntensor G WeightGrad sum sample 2\nprogram all on all\n"
      "  buffer g rows 4 row_bytes 512 f32\n  goal g = G\n"
      "  b: compute other\n    writes g = G sum sample dp +1\n"
      "  all_reduce g over dp after b\n");
  EXPECT_TRUE(result.sound);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "checked: sound (2 ranks, eager and rendezvous sends)\n");
}

}  // namespace
}  // namespace shiplap::cli
