// What choose() estimates in closed form, held against plans that are replayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "shiplap/overlap/choose.h"
#include "shiplap/overlap/study.h"

namespace shiplap::overlap {
namespace {

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const auto& [rows, columns, depth] :
       {std::tuple(512, 4096, 4096), std::tuple(8192, 28672, 8192), std::tuple(4096, 8192, 28672),
        std::tuple(64, 512, 512)}) {
    for (const int ranks : {2, 4}) {
      all.push_back({.rows = rows, .columns = columns, .depth = depth, .ranks = ranks});
    }
  }
  return all;
}

// The largest |log| of an estimate over what its plan takes.
double worst_estimate(const hardware::System& system, const Problem& problem,
                      const Choice& choice) {
  double worst = 0;
  for (const int chunks : {1, 2, 4}) {
    for (const Cut cut : {Cut::even, Cut::tapered}) {
      Problem same = problem;
      same.chunks = chunks;
      same.cut = cut;
      const Seconds replayed = predict(choice, same, system).times.overlapped;
      const Seconds estimated = estimate(choice, same, machine_of(system, choice.type, same));
      worst = std::max(worst, std::abs(std::log(estimated / replayed)));
    }
  }
  return worst;
}

bool is_one_of_many(const Choice& choice) {
  return choice.type != Type::none && choice.method != Method::bulk && !choice.atomic;
}

TEST(OverlapChoice, EstimatesWhatReplayedPlansTake) {
  for (const char* const name : {"h100_80g_nvl8", "a100_80g"}) {
    const hardware::System system = hardware::find_system(name);
    for (const Problem& problem : problems()) {
      for (const Legal& legal : legal_choices()) {
        if (!is_one_of_many(legal.choice)) continue;
        EXPECT_LT(worst_estimate(system, problem, legal.choice), 1e-6)
            << name << ", " << to_string(legal.choice) << ", " << problem.rows << " rows on "
            << problem.ranks;
      }
    }
  }
}

// Sums as codes, and sizes that do not divide: not every rank has as much to do as the first.
TEST(OverlapChoice, EstimatesOtherPlansClosely) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const Legal& legal : legal_choices()) {
    if (!is_one_of_many(legal.choice)) continue;
    EXPECT_LT(worst_estimate(system, {.rows = 4001, .columns = 5003, .depth = 6007, .ranks = 4},
                             legal.choice),
              0.02)
        << to_string(legal.choice);
    if (legal.choice.type == Type::all_gather) continue;
    const Form form{.scaling = Scaling::blocks};
    EXPECT_LT(worst_estimate(system,
                             {.rows = 4096,
                              .columns = 8192,
                              .depth = 8192,
                              .ranks = 4,
                              .x = form,
                              .w = form,
                              .sums = form},
                             legal.choice),
              0.1)
        << to_string(legal.choice);
  }
}

// Of all ways, by replayed plans, the one that is chosen is as good as the best.
TEST(OverlapChoice, HasNoRegrets) {
  for (const char* const name : {"h100_80g_nvl8", "a100_80g"}) {
    const hardware::System system = hardware::find_system(name);
    for (const Problem& problem : problems()) {
      for (const Type type : {Type::all_gather, Type::reduce_scatter, Type::all_reduce}) {
        const Chosen chosen = choose(type, problem, machine_of(system, type, problem));
        const Seconds taken = predict(chosen.choice, chosen.problem, system).times.overlapped;
        const Seconds best = compare({.type = type}, problem, system, {1, 2, 4, 8})
                                 .candidates.front()
                                 .times.overlapped;
        EXPECT_LE(taken.value, 1.04 * best.value) << name << ": " << chosen.why;
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::overlap
