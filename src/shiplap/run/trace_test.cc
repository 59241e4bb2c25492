// Traces of real runs: everything but the times.
#include <algorithm>

#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using trace::Event;
using trace::EventKind;

// Two stages, two samples; the second gets its input in an asynchronous message.
const std::string kText = R"(shiplap-plan 1
mesh pp=2
tensor A[3] Activation sample 4
tensor D[3] ActivationGrad sample 4
tensor W[2] Weight
tensor G[2] WeightGrad sum sample 4
program all on all
  buffer w rows 1 row_bytes 8 f32
  buffer g rows 1 row_bytes 8 f32
  buffer x rows 2 row_bytes 16 f32
  buffer h rows 1 row_bytes 64 f32 host
  buffer d rows 2 row_bytes 16 f32
  streams net
  keep w = W[pp]
  allocate x[1 +1]
  when pp=0
    compute read_batch
      writes x[0 +1] = A[0] sample 1 +2 by 2
    compute forward
      reads x[0 +1] = A[0] sample 1 +2 by 2
      reads w = W[0]
      writes x[1 +1] = A[1] sample 1 +2 by 2
    send x[1 +1] to pp+1
    free x[1 +1]
    receive d from pp+1
  end
  when pp=1
    r: receive x[0 +1] from pp-1 async
    compute loss after r
      reads x[0 +1] = A[1] sample 1 +2 by 2
      writes d[0 +2] = D[1] sample 1 +2 by 2
    send d to pp-1
  end
  z: compute zero
    writes g = G[pp] sum none
  @net all_reduce g over pp/net after z
)";

KernelTable empty_kernels() {
  KernelTable kernels;
  for (const std::string name : {"read_batch", "forward", "loss", "zero"}) {
    kernels.bind(name, [](const KernelCall&) {});
  }
  return kernels;
}

trace::Trace traced(const std::string& text) {
  const plan::Plan plan = plan::parse_text(text, "test");
  const KernelTable kernels = empty_kernels();
  trace::Trace result;
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels, {.traces = true});
    const StepResult step = executor.step();
    trace::Trace all = gather_trace(world, plan, step);
    if (world.rank() == 0) result = std::move(all);
  });
  return result;
}

const Event& event(const trace::RankTrace& trace, EventKind kind) {
  const auto found = std::ranges::find(trace.events, kind, &Event::kind);
  EXPECT_NE(found, trace.events.end());
  return *found;
}

const Event& event(const trace::Trace& trace, std::size_t rank, EventKind kind) {
  return event(trace.ranks.at(rank), kind);
}

TEST(RunTrace, NamesLayersAndSamples) {
  const trace::Trace trace = traced(kText);
  const IndexSet samples = IndexSet::range(1, 2, 2);
  EXPECT_EQ(event(trace, 0, EventKind::forward).layer, 0);
  EXPECT_EQ(event(trace, 0, EventKind::forward).samples, samples);
  EXPECT_EQ(event(trace, 1, EventKind::loss).layer, -1);
  EXPECT_EQ(event(trace, 1, EventKind::loss).samples, samples);
  EXPECT_EQ(event(trace, 0, EventKind::compute).samples, samples);  // read_batch
  EXPECT_EQ(event(trace, 1, EventKind::all_reduce).layer, 1);
  EXPECT_TRUE(event(trace, 1, EventKind::all_reduce).samples.empty());
}

TEST(RunTrace, AReceiveIsWhatItsSendIs) {
  const trace::Trace trace = traced(kText);
  const Event& sent = event(trace, 0, EventKind::send);
  const Event& received = event(trace, 1, EventKind::recv);
  EXPECT_EQ(sent.match, 0);
  EXPECT_EQ(received.match, sent.match);
  EXPECT_EQ(received.layer, 1);
  EXPECT_EQ(received.samples, sent.samples);
  EXPECT_EQ(received.bytes, Bytes{16});
  EXPECT_EQ(sent.peer, 1);
  EXPECT_EQ(received.peer, 0);
  // The gradient of what layer 0 made counts as layer 0.
  EXPECT_EQ(event(trace, 1, EventKind::send).layer, 0);
  EXPECT_EQ(event(trace, 1, EventKind::send).match, std::int64_t{1} << 24);
  EXPECT_EQ(event(trace, 0, EventKind::recv).match, std::int64_t{1} << 24);
  EXPECT_EQ(event(trace, 0, EventKind::recv).layer, 0);
}

TEST(RunTrace, NamesTheAxesOfCommunication) {
  const trace::Trace trace = traced(kText);
  EXPECT_EQ(trace.axes, std::vector<std::string>{"pp"});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(event(trace, rank, EventKind::send).axis, 0);
    EXPECT_EQ(event(trace, rank, EventKind::recv).axis, 0);
    EXPECT_EQ(event(trace, rank, EventKind::all_reduce).axis, 0);
  }
  EXPECT_EQ(event(trace, 0, EventKind::forward).axis, -1);
}

TEST(RunTrace, CountsMemoryOfTheDeviceInListedOrder) {
  const trace::Trace trace = traced(kText);
  // w, g, a row of x and d; then the other row of x, until it is freed.
  EXPECT_EQ(event(trace, 0, EventKind::forward).memory, Bytes{8 + 8 + 32 + 32});
  EXPECT_EQ(event(trace, 0, EventKind::recv).memory, Bytes{8 + 8 + 16 + 32});
  ASSERT_EQ(trace.ranks[0].memory.size(), 2U);
  EXPECT_EQ(trace.ranks[0].memory[0].bytes, Bytes{80});
  EXPECT_EQ(trace.ranks[0].memory[1].bytes, Bytes{64});
}

TEST(RunTrace, TimesFollowTheOrderOfThePlan) {
  const trace::Trace trace = traced(kText);
  EXPECT_EQ(trace.streams, (std::vector<std::string>{"main", "net"}));
  EXPECT_EQ(event(trace, 0, EventKind::all_reduce).stream, 1);
  for (const trace::RankTrace& rank : trace.ranks) {
    for (std::size_t k = 0; k < rank.events.size(); ++k) {
      EXPECT_GE(rank.events[k].time.value, 0);
      EXPECT_GE(rank.events[k].duration.value, 0);
      if (k > 0) {
        EXPECT_GT(rank.events[k].operation, rank.events[k - 1].operation);
      }
    }
  }
  EXPECT_GE(event(trace, 1, EventKind::loss).time, event(trace, 1, EventKind::recv).end());
}

TEST(RunTrace, ReceivingEndsAfterSendingBegins) {
  const trace::Trace trace = traced(kText);
  EXPECT_GE(event(trace, 1, EventKind::recv).end(), event(trace, 0, EventKind::send).time);
  EXPECT_GE(event(trace, 0, EventKind::recv).end(), event(trace, 1, EventKind::send).time);
  EXPECT_EQ(trace.clock_uncertainty, Seconds{0});
}

TEST(RunTrace, IsEmptyUnlessAskedFor) {
  const plan::Plan plan = plan::parse_text("shiplap-plan 1\nmesh dp=1\nprogram all on all", "test");
  on_ranks(plan, [&](comm::Communicator& world) {
    const KernelTable kernels;
    EXPECT_EQ(execute(plan, Rank(std::int32_t{0}), world, kernels).trace, trace::RankTrace{});
  });
}

}  // namespace
}  // namespace shiplap::run
