// Folded and unfolded replays agree: the unfolded one is the witness.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/sim/folding_testing_internal.h"
#include "shiplap/sim/random_machine_testing_internal.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

plan::Plan parsed(const std::string& text) {
  return plan::parse_text("shiplap-plan 1\n" + text, "test.plan");
}

// Plans on a mesh of three axes, of random sizes and in random order, whose ranks are mostly alike.
class AlikePlan {
 public:
  explicit AlikePlan(std::uint64_t seed) : random_(seed) {}

  std::string text() {
    std::vector<std::string> axes{"pp", "dp", "tp"};
    random_.shuffle(axes);
    std::string out = "mesh";
    for (const std::string& axis : axes) {
      const std::int64_t size = random_.between(1, 6);
      out += " " + axis + "=" + std::to_string(size);
      if (axis == "pp") last_stage_ = std::to_string(size - 1);
    }
    out +=
        "\nalias both = dp tp\ntensor A[8] Activation sample 1000\ntensor G WeightGrad sum dp 6\n";
    out += "program all on all\n  buffer x rows 12 row_bytes 10 u8\n  streams s, t\n";
    out += "  given x[0 +1] = A[1] sample dp +1\n";
    for (std::int64_t k = random_.between(1, 10); k > 0; --k) out += statement();
    return out;
  }

 private:
  std::string number(std::int64_t begin, std::int64_t end) {
    return std::to_string(random_.between(begin, end));
  }
  std::string stream() {
    const std::vector<std::string> streams{"", "", "@s ", "@t "};
    return random_.pick(streams);
  }
  std::string group() {
    const std::vector<std::string> groups{"dp",   "tp",       "dp",    "tp",      "pp",
                                          "both", "(pp, dp)", "dp{0}", "dp/other"};
    return " over " + random_.pick(groups);
  }
  std::string rows() { return "x[" + number(0, 3) + " +" + number(1, 9) + "]"; }

  std::string statement() {
    switch (random_.between(0, 11)) {
      case 0:
      case 1:
        return "  " + stream() + "compute forward work " + number(1, 9) + " seconds times " +
               number(1, 3) + "\n    reads x[0 +1] = A[1] sample dp +1\n";
      case 2:
        return "  compute k work gemm 100*" + (random_.chance(0.3) ? std::string("dp") : "2") +
               "+1 flop 10 bytes\n    writes x[0 +1] = A[" + number(0, 8) + "] sample dp +1\n";
      case 3:
        return "  " + stream() + "all_reduce " + rows() + group() +
               (random_.chance(0.3) ? " async\n" : "\n");
      case 4:
        return "  " + stream() + "broadcast " + rows() + group() +
               (random_.chance(0.2) ? " root 1\n" : "\n");
      case 5:
        return "  @s all_reduce " + rows() + group() + "\n  @t barrier" + group() + "\n";
      case 6:
        return "  allocate x[4 +2]\n  copy x[0 +2] to x[4 +2]\n  free x[4 +2]\n";
      case 7:
        return pipeline();
      case 8:
        return "  batch\n    send x[0 +3] to tp+1 wrap\n    receive x[3 +3] from tp-1 wrap\n  "
               "end\n";
      case 9:
        return "  when " + (random_.chance() ? std::string("dp") : "pp") +
               "=0\n  compute loss work " + number(1, 5) +
               " seconds\n    reads x[0 +1] = A[1] sample dp +1\n  end\n";
      default:
        return "  repeat i" + std::to_string(loops_++) + " " + number(1, 4) + "\n  all_reduce " +
               rows() + group() + "\n  " + stream() + "compute backward work 2 seconds\n  end\n";
    }
  }

  std::string pipeline() {
    const std::string size = random_.chance() ? "2" : "9";
    const std::string tag = number(0, 2);
    return "  when pp>0\n    receive x[0 +" + size + "] from pp-1 tag " + tag +
           "\n  end\n  compute forward work " + number(1, 5) +
           " seconds\n    reads x[0 +1] = A[1] sample dp +1\n  when pp<" + last_stage_ +
           "\n    send x[0 +" + size + "] to pp+1 tag " + tag + "\n  end\n";
  }

  Random random_;
  std::string last_stage_;
  int loops_ = 0;
};

hardware::System system_of(Random& random) {
  hardware::System system = slow_system();
  if (random.chance()) system = hardware::find_system("h100_80g_nvl8");
  system.networks[0].size = random.between(1, 9);
  auto& leaf = system.networks[1].leaf;
  if (random.chance() && leaf) leaf->nodes = random.between(1, 5);
  return system;
}

TEST(Folding, ChangesNoTimeOfRandomPlans) {
  constexpr std::uint64_t kPlans = 3000;
  std::size_t folded = 0;
  std::size_t valid = 0;
  for (std::uint64_t seed = 1; seed <= kPlans; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::string text = AlikePlan(seed).text();
    const plan::Plan plan = parsed(text);
    const ReplayOptions options{.system = system_of(random),
                                .eager_limit = {random.chance() ? 0 : 40}};
    try {
      const std::size_t spared = compare_folded(plan, options);
      ++valid;
      if (spared > 0) ++folded;
    } catch (const InputError&) {  // a root or a position that some group does not have
      EXPECT_THROW((void)replay(plan, options), InputError);
    }
    if (HasFailure()) FAIL() << text;
  }
  EXPECT_GT(valid, kPlans / 2);
  EXPECT_GT(folded, kPlans / 4) << "of " << valid;
}

// Sharing rounds: times differ by a part of the end. Returns how many ranks were not replayed.
std::size_t compare_shared(const plan::Plan& plan, ReplayOptions options) {
  options.fold = false;
  const Replay all = replay(plan, options);
  options.fold = true;
  const Replay folded = replay(plan, options);
  const double rounding = 1e-9 * all.end.value;
  EXPECT_NEAR(all.end.value, folded.end.value, rounding);
  std::size_t spared = 0;
  for (std::size_t rank = 0; rank < all.trace.ranks.size(); ++rank) {
    const auto& events = all.trace.ranks[rank].events;
    const auto& others = folded.trace.of(rank).events;
    EXPECT_EQ(events.size(), others.size());
    for (std::size_t k = 0; k < std::min(events.size(), others.size()); ++k) {
      EXPECT_NEAR(events[k].time.value, others[k].time.value, rounding);
      EXPECT_NEAR(events[k].duration.value, others[k].duration.value, rounding);
    }
    if (!folded.trace.is_representative(rank)) ++spared;
  }
  return spared;
}

// On machines with nodes, adapters and leaves, whose links operations share.
TEST(Folding, ChangesNoTimeOfRandomPlansThatShareLinks) {
  constexpr std::uint64_t kPlans = 500;
  int folded = 0;
  int slower = 0;  // because of sharing, of those that were folded
  for (std::uint64_t seed = 1; seed <= kPlans && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::string text = AlikePlan(seed).text();
    SCOPED_TRACE(text);
    const plan::Plan plan = parsed(text);
    ReplayOptions options{.system = RandomMachine(random).system(), .shares_links = true};
    for (hardware::Network& network : options.system.networks) {
      network.bandwidth.bytes_per_second *= 1e-9;  // transfers of 10 bytes take seconds
    }
    try {
      if (compare_shared(plan, options) == 0) continue;
      ++folded;
      const double shared = replay(plan, options).end.value;
      options.shares_links = false;
      if (shared > 1.01 * replay(plan, options).end.value) ++slower;
    } catch (const InputError&) {  // a root or a position that some group does not have
      EXPECT_THROW((void)replay(plan, options), InputError);
    }
  }
  EXPECT_GT(folded, 100);
  EXPECT_GT(slower, 10);
  RecordProperty("folded", folded);
  RecordProperty("slower", slower);
}

// The ring of a machine without `collectives` leaves each domain at its last rank: one of two rails
// carries the bytes of both groups.
TEST(Folding, KeepsTheLoadOfTheRailThatARingCrosses) {
  hardware::System system = slow_system();
  system.networks[0].size = 4;
  system.node = {.devices = 2, .adapters = 2};
  system.networks[1].leaf = {.nodes = 2, .oversubscription = 2};
  (void)compare_shared(
      parsed("mesh pp=2 tp=2 dp=2\nprogram all on all\n  buffer x rows 4 row_bytes "
             "10 u8\n  all_reduce x over (pp, dp)\n"),
      {.system = system, .shares_links = true});
}

std::size_t spared(const std::string& text, const hardware::System& system) {
  return compare_folded(parsed(text), {.system = system});
}

TEST(Folding, ReplaysOneRankOfEachStage) {
  const std::string text =
      "mesh pp=2 dp=4 tp=2\nprogram all on all\n  buffer x rows 4 row_bytes 10 u8\n"
      "  when pp=1\n    receive x from pp-1\n  end\n  all_reduce x over dp\n"
      "  when pp=0\n    send x to pp+1\n  end\n  all_reduce x over tp\n";
  EXPECT_EQ(spared(text, slow_system()), 14U);
}

// Groups of three ranks on nodes of four: ranks 0 to 2 share a node, ranks 3 to 5 do not.
TEST(Folding, ReplaysEachRankIfGroupsLieDifferently) {
  const std::string text =
      "mesh dp=4 tp=3\nprogram all on all\n  buffer x rows 4 row_bytes 10 u8\n"
      "  all_reduce x over tp\n";
  EXPECT_EQ(spared(text, slow_system()),
            11U);  // each has two ranks on one node, and one on another
  hardware::System system = slow_system();
  system.networks[0].size = 4;
  EXPECT_EQ(spared(text, system), 8U);
}

// The neighbours on pp are on one node if dp=0, and on two if dp=1.
TEST(Folding, ReplaysEachRankIfMessagesDoSo) {
  const std::string text =
      "mesh dp=2 pp=3\nprogram all on all\n  buffer x rows 4 row_bytes 10 u8\n"
      "  when pp=1\n    receive x from pp-1\n  end\n  when pp=0\n    send x to pp+1\n  end\n";
  EXPECT_EQ(spared(text, slow_system()), 0U);
  hardware::System system = slow_system();
  system.networks[0].size = 3;
  EXPECT_EQ(spared(text, system), 3U);
}

TEST(Folding, ReportsADeadlockAsIfUnfolded) {
  const std::string text =
      "mesh pp=2 dp=3\nprogram all on all\n  buffer x rows 4 row_bytes 10 u8\n"
      "  when pp=0\n    all_reduce x over dp\n    receive x from pp+1\n  end\n"
      "  when pp=1\n    receive x from pp-1\n  end\n";
  const plan::Plan plan = parsed(text);
  const auto messages = [&](const ReplayOptions& options) {
    std::string all;
    for (const Diagnostic& problem : replay(plan, options).problems) all += render(problem);
    return all;
  };
  ReplayOptions options{.system = slow_system()};
  const std::string unfolded = messages(options);
  options.fold = true;
  EXPECT_EQ(messages(options), unfolded);
  options.operations = 6;  // of 9: only representatives are within the limit
  EXPECT_NE(messages(options).find("deadlock: 6 of 6 ranks hang"), std::string::npos);
}

TEST(Folding, CountsRepresentativesTowardsTheLimit) {
  const plan::Plan plan = parsed(
      "mesh dp=100000\nprogram all on all\n  buffer x rows 4 row_bytes 10 u8\n"
      "  all_reduce x over dp\n");
  const ReplayOptions options{.system = slow_system(), .operations = 10, .fold = true};
  const Replay folded = replay(plan, options);
  EXPECT_EQ(folded.trace.ranks.size(), 100'000U);
  EXPECT_EQ(folded.trace.of(99'999).events.size(), 1U);
  EXPECT_EQ(trace::summarize(folded.trace).events, 100'000);
}

}  // namespace
}  // namespace shiplap::sim
