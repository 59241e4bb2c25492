// Every plan of overlap/ passes the check, and fails it if a dependency is removed.
#include <gtest/gtest.h>

#include <string>

#include "shiplap/check/check.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/text.h"

namespace shiplap::overlap {
namespace {

std::string first_finding(const check::Report& report) {
  return report.findings.empty() ? "" : render(report.findings.front().diagnostic);
}

// A ring of single messages is for copies that GPUs do themselves: on NCCL they would wait for each
// other, being in no batch.
check::Rules rules_for(const Choice& choice) {
  return choice.method == Method::ring_exchange ? check::Rules::mpi : check::Rules::any;
}

check::Report checked(const plan::Plan& plan, bool symmetry, check::Rules rules) {
  return check::check(plan, {.rules = rules, .symmetry = symmetry});
}

TEST(OverlapPlans, AreSound) {
  for (const SupportedChoice& supported : supported_choices()) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const int chunks : {1, 2, 3}) {
        for (const std::int64_t rows : {1, 2, 5, 8, 29}) {
          const Problem problem{.m = rows, .n = 11, .k = 9, .ranks = ranks, .chunks = chunks};
          const plan::Plan plan = make_plan(supported.choice, problem);
          for (const bool symmetry : {true, false}) {
            const check::Report report = checked(plan, symmetry, rules_for(supported.choice));
            ASSERT_TRUE(report.findings.empty())
                << first_finding(report) << plan_text(supported.choice, problem);
          }
        }
      }
    }
  }
}

TEST(OverlapPlans, AreSoundBesideABulkTransferOfAnotherShape) {
  for (const int ranks : {1, 2, 3, 5}) {
    const Choice bulk{Type::reduce_scatter, Method::bulk};
    const Problem problem{
        .m = 9, .n = 4, .k = 7, .ranks = ranks, .bulk_rows = 13, .bulk_columns = 3};
    const check::Report report = checked(make_plan(bulk, problem), true, check::Rules::any);
    EXPECT_TRUE(report.findings.empty()) << first_finding(report) << plan_text(bulk, problem);
  }
}

// Rows and partial sums as FP8 with their scales; one W or several.
TEST(OverlapPlans, AreSoundWhateverTravels) {
  int tried = 0;
  for (const SupportedChoice& supported : supported_choices()) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int chunks : {1, 3}) {
        for (const std::int64_t rows : {1, 8, 29}) {
          for (const Scaling scaling : {Scaling::row, Scaling::blocks}) {
            const QuantFormat form{.scaling = scaling};
            const bool sums = supported.choice.type == Type::reduce_scatter ||
                              supported.choice.type == Type::all_reduce;
            const Problem problem{.m = rows,
                                  .n = 37,
                                  .k = 9,
                                  .ranks = ranks,
                                  .chunks = chunks,
                                  .x = form,
                                  .w = form,
                                  .sums = sums ? form : QuantFormat{},
                                  .groups = scaling == Scaling::row ? 3 : 0};
            const plan::Plan plan = make_plan(supported.choice, problem);
            for (const bool symmetry : {true, false}) {
              const check::Report report = checked(plan, symmetry, rules_for(supported.choice));
              ASSERT_TRUE(report.findings.empty())
                  << first_finding(report) << plan_text(supported.choice, problem);
            }
            ++tried;
          }
        }
      }
    }
  }
  EXPECT_EQ(tried, 15 * 4 * 2 * 3 * 2);
}

// Removes all occurrences of some words.
std::string without(std::string text, const std::string& words, const std::string& kept) {
  for (auto at = text.find(words); at != std::string::npos; at = text.find(words)) {
    text.replace(at, words.size(), kept);
  }
  return text;
}

int unsound_without_an_after(const Problem& problem) {
  int tried = 0;
  for (const SupportedChoice& supported : supported_choices()) {
    const bool has_sums =
        supported.choice.type != Type::all_gather && supported.choice.type != Type::none;
    if (!has_sums && !is_high_precision(problem.sums)) continue;
    const std::string text = plan_text(supported.choice, problem);
    for (const char* const words :
         {" after r[s, u]", " after r[s+1, u]", " after t[d, u]", " after t[c]",
          " after t[0, 2]", " after t[1, 2]",   " after t[2, u]", " after g[0, u]",
          " after g[1, u]", " after e[u]",      " after s[d, u]", " after p",
          " after r\n",     " after r work",    " after r[u]",    " after o[u]",
          " after b[d, u]", " after e[0]",      " after e[1]",    " after q[0]",
          " after q[1]",    " after g work"}) {
      if (text.find(words) == std::string::npos) continue;
      ++tried;
      const std::string kept = std::string(words).ends_with(" work") ? " work" : "";
      EXPECT_FALSE(checked(plan::parse_text(without(text, words, kept), "test"), true,
                           rules_for(supported.choice))
                       .sound())
          << to_string(supported.choice) << " without" << words;
    }
  }
  return tried;
}

TEST(OverlapPlans, NeedEveryAfter) {
  Problem problem{.m = 8, .n = 8, .k = 8, .ranks = 3, .chunks = 2};
  EXPECT_EQ(unsound_without_an_after(problem), 30);
  problem.sums.scaling = Scaling::row;
  EXPECT_EQ(unsound_without_an_after(problem), 49);
}

}  // namespace
}  // namespace shiplap::overlap
