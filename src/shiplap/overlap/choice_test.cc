// Compares the estimates of choose() with replayed plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "shiplap/overlap/choose.h"
#include "shiplap/overlap/study.h"

namespace shiplap::overlap {
namespace {

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const auto& [rows, columns, k] : {std::tuple(512, 4096, 4096), std::tuple(8192, 28672, 8192),
                                         std::tuple(4096, 8192, 28672), std::tuple(64, 512, 512)}) {
    for (const int ranks : {2, 4}) {
      all.push_back({.m = rows, .n = columns, .k = k, .ranks = ranks});
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
  return choice.type != Type::none && choice.method != Method::bulk;
}

TEST(OverlapChoice, EstimatesWhatReplayedPlansTake) {
  using Case = std::pair<const char*, double>;
  for (const auto& [name, launch] :
       {Case("h100_80g_nvl8", 0), Case("a100_80g", 0), Case("h100_80g_nvl8", 5e-6)}) {
    hardware::System system = hardware::find_system(name);
    system.launch = {launch};
    for (const Problem& problem : problems()) {
      for (const SupportedChoice& supported : supported_choices()) {
        if (!is_one_of_many(supported.choice)) continue;
        EXPECT_LT(worst_estimate(system, problem, supported.choice), 1e-6)
            << name << ", launch " << launch << ", " << to_string(supported.choice) << ", "
            << problem.m << " rows on " << problem.ranks;
      }
    }
  }
}

// Quantized sums, and sizes that are not divisible: ranks have different shares.
TEST(OverlapChoice, EstimatesOtherPlansClosely) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const SupportedChoice& supported : supported_choices()) {
    if (!is_one_of_many(supported.choice)) continue;
    EXPECT_LT(
        worst_estimate(system, {.m = 4001, .n = 5003, .k = 6007, .ranks = 4}, supported.choice),
        0.02)
        << to_string(supported.choice);
    if (supported.choice.type == Type::all_gather) continue;
    const QuantFormat format{.scaling = Scaling::blocks};
    EXPECT_LT(
        worst_estimate(
            system,
            {.m = 4096, .n = 8192, .k = 8192, .ranks = 4, .x = format, .w = format, .sums = format},
            supported.choice),
        0.1)
        << to_string(supported.choice);
  }
}

// Of all ways, by replayed plans, the one that is chosen is as good as the best; but serial
// execution is kept if the best gains less than 5 %.
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
        const double limit = chosen.choice.method == Method::none ? 1 / 0.95 : 1.04;
        EXPECT_LE(taken.value, limit * best.value) << name << ": " << chosen.why;
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::overlap
