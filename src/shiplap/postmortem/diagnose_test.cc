// Small jobs, written down call by call: who is suspected, and of what.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "shiplap/plan/text.h"
#include "shiplap/postmortem/postmortem.h"

namespace shiplap::postmortem {
namespace {

using dump::Call;
using dump::CallKind;
using dump::CallState;
using dump::GroupId;
using dump::SignatureId;

// A job of ranks that make calls on groups. Numbers are counted.
class Job {
 public:
  explicit Job(std::int32_t world) : world_(world), calls_(static_cast<std::size_t>(world)) {}

  GroupId group(const std::string& name, const std::vector<std::int32_t>& ranks) {
    job_.groups.push_back({.name = name, .description = name, .ranks = ranks});
    return GroupId(job_.groups.size() - 1);
  }
  void call(std::int32_t rank, GroupId group, const std::string& operation, std::int64_t elements,
            CallState state = CallState::completed) {
    Call& made = add(rank, group, state);
    made.signature = signature(operation, elements);
    made.sequence = sequences_[{rank, group, false}]++;
  }
  void message(std::int32_t rank, GroupId group, CallKind kind, std::int32_t peer,
               CallState state = CallState::completed) {
    Call& made = add(rank, group, state);
    made.kind = kind;
    made.is_p2p = true;
    made.peer = peer;
    made.signature = signature(kind == CallKind::send ? "send" : "recv", 8);
    made.sequence = sequences_[{rank, group, true}]++;
  }
  // The last call took so long on the device.
  void duration(std::int32_t rank, std::int64_t ns) { calls_[at(rank)].back().duration_ns = ns; }
  void stack(std::int32_t rank, const std::string& file, std::int32_t line) {
    job_.frames.push_back({"load", file, line});
    job_.stacks.push_back({dump::FrameId(job_.frames.size() - 1)});
    stacks_[rank] = dump::StackId(job_.stacks.size() - 1);
  }

  // Earlier calls are not in the dumps any more.
  void evict(std::int64_t calls) { evicted_ = calls; }

  Postmortem diagnose(const std::vector<std::int32_t>& absent = {}, bool hung = true) {
    return diagnose_with({.hung = hung ? "known" : ""}, absent);
  }
  Postmortem diagnose_with(const Options& options, const std::vector<std::int32_t>& absent = {}) {
    dump::JobDump job = job_;
    job.world = world_;
    for (std::int32_t rank = 0; rank < world_; ++rank) {
      if (std::ranges::find(absent, rank) != absent.end()) continue;
      dump::RankDump dump{.rank = rank, .library = "nccl", .calls = calls_[at(rank)]};
      for (std::size_t k = 0; k < job.groups.size(); ++k) {
        const auto& ranks = job.groups[GroupId(k)].ranks;
        if (std::ranges::find(ranks, rank) != ranks.end()) dump.groups.push_back(GroupId(k));
      }
      if (stacks_.contains(rank)) dump.stack = stacks_[rank];
      dump.calls.erase(dump.calls.begin(), dump.calls.begin() + evicted_);
      dump.evicted = evicted_ > 0;
      job.ranks.push_back(std::move(dump));
    }
    return postmortem::diagnose(job, options);
  }

 private:
  Call& add(std::int32_t rank, GroupId group, CallState state) {
    std::vector<Call>& calls = calls_[at(rank)];
    time_ += 1000;
    calls.push_back({.record = std::ssize(calls),
                     .created_ns = time_,
                     .completed_ns = state == CallState::completed ? time_ + 1 : 0,
                     .timeout_ms = 600'000,
                     .group = group,
                     .state = state});
    return calls.back();
  }
  SignatureId signature(const std::string& operation, std::int64_t elements) {
    const dump::Signature wanted{.operation = operation,
                                 .input_sizes = {{elements}},
                                 .output_sizes = {{elements}},
                                 .input_types = {"Float"},
                                 .output_types = {"Float"}};
    const auto found = std::ranges::find(job_.signatures, wanted);
    const SignatureId id(static_cast<std::size_t>(found - job_.signatures.begin()));
    if (found == job_.signatures.end()) job_.signatures.push_back(wanted);
    return id;
  }

  std::int32_t world_;
  dump::JobDump job_;
  std::vector<std::vector<Call>> calls_;
  std::map<std::tuple<std::int32_t, GroupId, bool>, std::int64_t> sequences_;
  std::map<std::int32_t, dump::StackId> stacks_;
  std::int64_t time_ = 0;
  std::int64_t evicted_ = 0;
};

using Ranks = std::vector<std::int32_t>;
constexpr CallState kStarted = CallState::started;
constexpr CallState kScheduled = CallState::scheduled;

TEST(Diagnose, ARankThatDoesNotComeIsSuspected) {
  Job job(4);
  const GroupId world = job.group("world", {0, 1, 2, 3});
  for (const std::int32_t rank : {0, 1, 2, 3}) job.call(rank, world, "all_reduce", 4);
  for (const std::int32_t rank : {0, 1, 3}) job.call(rank, world, "all_reduce", 8, kStarted);
  job.stack(2, "data.py", 41);
  const Postmortem found = job.diagnose();
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].ranks, Ranks{2});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::cpu_stuck);
  EXPECT_EQ(found.suspects[0].victims, 3);
  EXPECT_EQ(found.suspects[0].at.frame.line, 41);
  EXPECT_EQ(found.status, HangStatus::hung);
  EXPECT_EQ(found.positions[0].waits_for, Ranks{2});
  EXPECT_EQ(found.positions[2].state, Position::State::free);
}

// The same dump taken from a healthy job, in which rank 2 is a moment late.
TEST(Diagnose, LatenessAloneIsNoProof) {
  Job job(4);
  const GroupId world = job.group("world", {0, 1, 2, 3});
  for (const std::int32_t rank : {0, 1, 3}) job.call(rank, world, "all_reduce", 8, kStarted);
  const Postmortem found = job.diagnose({}, false);
  EXPECT_EQ(found.status, HangStatus::undecided);
  EXPECT_FALSE(found.found_culprit());
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{2});
}

TEST(Diagnose, NothingPendingIsNoHang) {
  Job job(2);
  const GroupId world = job.group("world", {0, 1});
  for (const std::int32_t rank : {0, 1}) job.call(rank, world, "all_reduce", 4);
  const Postmortem found = job.diagnose();
  EXPECT_EQ(found.status, HangStatus::finished);
  EXPECT_TRUE(found.suspects.empty());
}

// Rank 3 is late in its tp group, so rank 2 is late in its dp group: rank 2 is a victim.
TEST(Diagnose, TheCauseIsAtTheEndOfTheChain) {
  Job job(4);
  const GroupId tp1 = job.group("tp", {2, 3});
  const GroupId dp0 = job.group("dp", {0, 2});
  job.call(2, tp1, "all_reduce", 4, kStarted);
  job.call(0, dp0, "all_reduce", 8, kStarted);
  const Postmortem found = job.diagnose();
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{3});
  EXPECT_EQ(found.suspects.size(), 1U);
  EXPECT_EQ(found.suspects[0].victims, 2);
}

TEST(Diagnose, AMissingDumpIsTheSuspectIfNobodyElseIsMissing) {
  Job job(4);
  const GroupId world = job.group("world", {0, 1, 2, 3});
  for (const std::int32_t rank : {0, 2, 3}) job.call(rank, world, "all_reduce", 8, kStarted);
  const Postmortem found = job.diagnose({1});
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{1});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::absent);
  EXPECT_EQ(found.absent, Ranks{1});
}

TEST(Diagnose, ARankThatIsKnownToBeMissingComesBeforeAMissingDump) {
  Job job(4);
  const GroupId world = job.group("world", {0, 1, 2, 3});
  job.call(2, world, "all_reduce", 4);
  for (const std::int32_t rank : {0, 3}) job.call(rank, world, "all_reduce", 4);
  for (const std::int32_t rank : {0, 3}) job.call(rank, world, "all_reduce", 8, kStarted);
  const Postmortem found = job.diagnose({1});
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{2});
}

TEST(Diagnose, TheMinorityOfAGroupDiverged) {
  Job job(4);
  const GroupId world = job.group("world", {0, 1, 2, 3});
  for (const std::int32_t rank : {0, 1, 2, 3}) {
    job.call(rank, world, rank == 1 ? "broadcast" : "all_reduce", 8, kStarted);
  }
  const Postmortem found = job.diagnose({}, false);
  EXPECT_EQ(found.status, HangStatus::hung);
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{1});
  EXPECT_EQ(found.suspects[0].divergence, Divergence::operation);
}

// One against one; but the other replica does as rank 0.
TEST(Diagnose, RanksWithTheSameProgramDecideAGroupOfTwo) {
  Job job(4);
  const GroupId a = job.group("tp", {0, 1});
  const GroupId b = job.group("tp", {2, 3});
  for (const std::int32_t rank : {0, 1, 2, 3}) {
    const GroupId tp = rank < 2 ? a : b;
    job.call(rank, tp, "all_reduce", 4);
    job.call(rank, tp, "all_gather", 4);
    job.call(rank, tp, "all_reduce", rank == 1 ? 16 : 8,
             rank < 2 ? kStarted : CallState::completed);
  }
  const Postmortem found = job.diagnose({}, false);
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{1});
  EXPECT_EQ(found.suspects[0].divergence, Divergence::size);
}

TEST(Diagnose, ASkippedCallIsNamedEvenIfTheHangComesLater) {
  Job job(4);
  const GroupId world = job.group("world", {0, 1, 2, 3});
  for (const std::int32_t rank : {0, 1, 2, 3}) {
    job.call(rank, world, "all_gather", 4);
    if (rank != 2) job.call(rank, world, "all_reduce", 4, CallState::completed);
    job.call(rank, world, "all_reduce", 4, rank == 2 ? CallState::completed : kStarted);
  }
  job.call(2, world, "reduce_scatter", 4, kStarted);
  const Postmortem found = job.diagnose({}, false);
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{2});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::divergence);
}

TEST(Diagnose, OppositeOrdersOnTwoGroupsAreACycle) {
  Job job(6);
  const GroupId world = job.group("world", {0, 1, 2, 3, 4, 5});
  const GroupId half = job.group("half", {0, 1, 2});
  const GroupId other = job.group("half", {3, 4, 5});
  for (const std::int32_t rank : {0, 1, 2, 3, 4, 5}) {
    const GroupId mine = rank < 3 ? half : other;
    const bool swapped = rank == 1;
    if (!swapped) job.call(rank, mine, "all_reduce", 4, rank < 3 ? kStarted : CallState::completed);
    if (rank > 2 || swapped) job.call(rank, world, "all_reduce", 8, kStarted);
  }
  const Postmortem found = job.diagnose({}, false);
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{1});
}

TEST(Diagnose, SendsThatWaitForOneAnotherAreACycle) {
  Job job(3);
  const GroupId pp = job.group("pp", {0, 1, 2});
  for (const std::int32_t rank : {0, 1, 2}) {
    job.message(rank, pp, CallKind::send, (rank + 1) % 3);
    job.message(rank, pp, CallKind::receive, (rank + 2) % 3);
  }
  for (const std::int32_t rank : {0, 1, 2}) {
    job.message(rank, pp, CallKind::send, (rank + 1) % 3, kStarted);
  }
  const Postmortem found = job.diagnose();
  EXPECT_EQ(found.suspects.at(0).fault, FaultClass::message_cycle);
  EXPECT_EQ(found.suspects[0].ranks, (Ranks{0, 1, 2}));
}

TEST(Diagnose, ACallThatAllHaveEnteredIsStuckOnADevice) {
  Job job(3);
  const GroupId world = job.group("world", {0, 1, 2});
  for (const std::int32_t rank : {0, 1, 2}) {
    job.call(rank, world, "all_reduce", 8, rank == 1 ? kScheduled : kStarted);
  }
  const Postmortem found = job.diagnose();
  EXPECT_EQ(found.suspects.at(0).fault, FaultClass::device_stuck);
  EXPECT_EQ(found.suspects[0].ranks, Ranks{1});
}

TEST(Diagnose, TheOrderOfGroupsDoesNotMatter) {
  for (const bool first : {true, false}) {
    Job job(4);
    GroupId tp;
    if (first) tp = job.group("tp", {2, 3});
    const GroupId world = job.group("world", {0, 1, 2, 3});
    if (!first) tp = job.group("tp", {2, 3});
    job.call(2, tp, "all_reduce", 4, kStarted);
    for (const std::int32_t rank : {0, 1}) job.call(rank, world, "all_reduce", 8, kStarted);
    EXPECT_EQ(job.diagnose().suspects.at(0).ranks, Ranks{3});
  }
}

TEST(Diagnose, NoRanksAreNoError) {
  EXPECT_EQ(diagnose({}, {}).status, HangStatus::finished);
  EXPECT_EQ(diagnose({}, {.world = 3}).absent.size(), 3U);
}

// Rank 3 computes longer, so rank 2 of its pair is late for its other pair, too.
TEST(Diagnose, ARankThatOthersWaitForIsSlow) {
  for (const bool measured : {true, false}) {
    Job job(4);
    const GroupId low = job.group("tp0", {0, 1});
    const GroupId high = job.group("tp1", {2, 3});
    const GroupId even = job.group("dp0", {0, 2});
    const GroupId odd = job.group("dp1", {1, 3});
    const auto call = [&](std::int32_t rank, GroupId group, std::int64_t ns) {
      job.call(rank, group, "all_reduce", 4);
      if (measured) job.duration(rank, ns);
    };
    for (int step = 0; step < 20; ++step) {
      for (const std::int32_t rank : {0, 1}) call(rank, low, 10);
      call(2, high, 3000);
      call(3, high, 10);
      for (const auto& [group, early, late] : {std::tuple(even, 0, 2), std::tuple(odd, 1, 3)}) {
        call(early, group, 3000);
        call(late, group, 10);
      }
    }
    const Postmortem found = job.diagnose({}, false);
    if (!measured) {
      EXPECT_EQ(found.status, HangStatus::finished);
      continue;
    }
    EXPECT_EQ(found.status, HangStatus::slow);
    ASSERT_EQ(found.suspects.size(), 1);
    EXPECT_EQ(found.suspects[0].ranks, Ranks{3});
    EXPECT_EQ(found.suspects[0].fault, FaultClass::slow);
    EXPECT_FALSE(found.found_culprit());
  }
}

// A step: three reductions of 16 bytes and one of 4, of two ranks.
const plan::Plan& two_steps() {
  static const plan::Plan kPlan = plan::parse_text(R"(shiplap-plan 1
mesh world=2
values undeclared
source s0 "train.py" in "layers"
source s1 "train.py" in "log"
program p0 on all
  buffer layer rows 4 row_bytes 4 f32
  buffer loss rows 1 row_bytes 4 f32
  repeat step 2
    repeat l 3
      all_reduce layer over world at s0:10
    end
    all_reduce loss over world at s1:20
  end
)",
                                                   "two_steps.plan");
  return kPlan;
}

void make_steps(Job& job, GroupId world, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (const std::int32_t rank : {0, 1}) {
      for (int layer = 0; layer < 3; ++layer) job.call(rank, world, "all_reduce", 4);
      job.call(rank, world, "all_reduce", 1);
    }
  }
}

// Rank 1 skips a layer. Nobody else runs this program, so only the plan knows who is wrong.
TEST(Plan, NamesTheSkippedOperation) {
  Job job(2);
  const GroupId world = job.group("world", {0, 1});
  make_steps(job, world, 5);
  for (int layer = 0; layer < 2; ++layer) {
    for (const std::int32_t rank : {0, 1}) job.call(rank, world, "all_reduce", 4);
  }
  job.call(0, world, "all_reduce", 4, kStarted);
  job.call(1, world, "all_reduce", 1, kStarted);
  for (const std::int64_t evicted : {0, 3, 6, 10}) {
    job.evict(evicted);
    const Postmortem found = job.diagnose_with({.plan = &two_steps()});
    ASSERT_FALSE(found.suspects.empty()) << evicted;
    EXPECT_EQ(found.suspects[0].ranks, Ranks{1}) << evicted;
    EXPECT_GE(found.suspects[0].confidence, 0.9);
    ASSERT_EQ(found.planned.size(), 1);
    const PlannedPosition& position = found.planned[0];
    EXPECT_EQ(position.rank, 1);
    EXPECT_EQ(position.relation, PlannedPosition::Relation::skips);
    EXPECT_EQ(position.next.operation % 4, 2);
    EXPECT_EQ(position.next.frame.line, 10);
    EXPECT_EQ(position.next.what, "all_reduce of 16 bytes over {0 and 1}");
    EXPECT_EQ(position.call.sequence, 22);
  }
}

// The loss is reduced twice where the plan has it once.
TEST(Plan, NamesTheExtraCall) {
  Job job(2);
  const GroupId world = job.group("world", {0, 1});
  make_steps(job, world, 3);
  job.call(1, world, "all_reduce", 1, kStarted);
  for (const std::int32_t rank : {0, 0, 0, 1, 1, 1}) {
    job.call(rank, world, "all_reduce", 4, kScheduled);
  }
  job.call(0, world, "all_reduce", 1, kScheduled);
  job.call(1, world, "all_reduce", 1, kScheduled);
  const Postmortem found = job.diagnose_with({.plan = &two_steps()});
  ASSERT_EQ(found.planned.size(), 2);
  EXPECT_EQ(found.suspects.at(0).ranks, Ranks{1});
  EXPECT_EQ(found.planned[0].relation, PlannedPosition::Relation::follows);
  EXPECT_EQ(found.planned[1].relation, PlannedPosition::Relation::adds);
}

TEST(Plan, SaysWhereARankShouldBe) {
  Job job(2);
  const GroupId world = job.group("world", {0, 1});
  make_steps(job, world, 4);
  for (const std::int32_t rank : {0, 1}) job.call(rank, world, "all_reduce", 4);
  job.call(0, world, "all_reduce", 4, kStarted);
  job.evict(5);
  const Postmortem found = job.diagnose_with({.plan = &two_steps()});
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].ranks, Ranks{1});
  EXPECT_EQ(found.suspects[0].fault, FaultClass::cpu_stuck);
  EXPECT_EQ(found.suspects[0].by_plan,
            "rank 1 should be in operation 5, all_reduce of 16 bytes over {0 and 1} at "
            "train.py:10, and left operation 4");
}

// An evaluation that was not recorded is no fault.
TEST(Plan, PhasesThatItDoesNotHaveAreNoFaults) {
  Job job(2);
  const GroupId world = job.group("world", {0, 1});
  make_steps(job, world, 3);
  for (int batch = 0; batch < 20; ++batch) {
    for (const std::int32_t rank : {0, 1}) job.call(rank, world, "broadcast", 77);
  }
  make_steps(job, world, 3);
  job.call(0, world, "all_reduce", 4, kStarted);
  const Postmortem found = job.diagnose_with({.plan = &two_steps()});
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].fault, FaultClass::cpu_stuck);
  EXPECT_TRUE(found.suspects[0].by_plan.starts_with("rank 1 should be in"))
      << found.suspects[0].by_plan;
}

TEST(Plan, OfAnotherJobIsNoted) {
  Job job(2);
  const GroupId world = job.group("world", {0, 1});
  for (int k = 0; k < 10; ++k) {
    for (const std::int32_t rank : {0, 1}) job.call(rank, world, "broadcast", 100);
  }
  job.call(0, world, "broadcast", 4, kStarted);
  const Postmortem found = job.diagnose_with({.plan = &two_steps()});
  ASSERT_FALSE(found.suspects.empty());
  EXPECT_EQ(found.suspects[0].by_plan, "");
  ASSERT_EQ(found.notes.size(), 1);
}

}  // namespace
}  // namespace shiplap::postmortem
