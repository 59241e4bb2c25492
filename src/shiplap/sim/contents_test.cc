// The layer and samples of events: the contents of the rows that they touch.
#include <gtest/gtest.h>

#include "shiplap/sim/replay.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

constexpr const char* kTensors = R"(tensor A[5] Activation sample 16
tensor D[5] ActivationGrad sample 16
tensor W[4] Weight shard 4
tensor O[4] OptState shard 4
tensor G[4] WeightGrad shard 4 sum sample 16
tensor Q Query sample 16
)";

Replay replayed_on(const std::string& mesh, const std::string& programs) {
  return replayed("mesh " + mesh + "\n" + kTensors + programs);
}

void expect_shows(const trace::Event& event, int layer, const IndexSet& samples) {
  EXPECT_EQ(event.layer, layer) << trace::name(event.kind);
  EXPECT_EQ(to_string(event.samples), to_string(samples)) << trace::name(event.kind);
}

TEST(Contents, OfComputationsFollowTheirKernels) {
  const Replay r = replayed_on("dp=1", R"(program all on all
  buffer a rows 8 row_bytes 16 bf16
  buffer w rows 8 row_bytes 16 bf16
  compute load_weights
    reads w[0 +4] = W[3]
    writes w[0 +4] = W[3]
  compute read_batch
    writes a[0 +2] = A[0] sample 4 +2
  compute forward
    reads a[0 +2] = A[1] sample 4 +2
    reads w[0 +4] = W[1]
    writes a[2 +2] = A[2] sample 4 +2
  compute loss
    reads a[2 +2] = A[4] sample 1 +2 by 8
    writes a[4 +2] = D[4] sample 1 +2 by 8
  compute backward
    reads a[0 +2] = A[2] sample 4 +2
    reads a[4 +2] = D[3] sample 6 +2
    reads w[0 +4] = W[2]
    writes a[6 +2] = D[2] sample 4 +2
  compute backward_input
    reads a[0 +1] = A[2] sample 5 +1
    reads w[0 +4] = W[2]
    writes a[6 +1] = D[2] sample 5 +1
  compute backward_weight
    reads a[0 +1] = A[2] sample 5 +1
    adds w[4 +4] = G[1] sum sample 5 +1
  compute update
    reads w[4 +4] = G[3]
    reads w[0 +4] = W[3]
    writes w[0 +4] = new W[3]
  compute zero
    writes a[6 +1] = D[2] sample 5 +1
  compute other
    reads a[0 +1] = A[2] sample 5 +1
  compute zero
    writes a[0 +1] = Q sample 5 +1)");
  using trace::EventKind;
  const std::vector<EventKind> kinds = {EventKind::load_weights,    EventKind::compute,
                                        EventKind::forward,         EventKind::loss,
                                        EventKind::backward,        EventKind::backward_input,
                                        EventKind::backward_weight, EventKind::update,
                                        EventKind::compute,         EventKind::compute};
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    EXPECT_EQ(event_of(r, 0, static_cast<int>(k)).kind, kinds[k]);
  }
  expect_shows(event_of(r, 0, 0), 3, {});
  expect_shows(event_of(r, 0, 1), 0, IndexSet::range(4, 2));
  expect_shows(event_of(r, 0, 2), 1, IndexSet::range(4, 2));
  expect_shows(event_of(r, 0, 3), -1, IndexSet::range(1, 2, 8));
  expect_shows(event_of(r, 0, 4), 2, IndexSet::range(4, 4));
  expect_shows(event_of(r, 0, 5), 2, IndexSet(5));
  expect_shows(event_of(r, 0, 6), 1, IndexSet(5));
  expect_shows(event_of(r, 0, 7), 3, {});
  expect_shows(event_of(r, 0, 8), 2, {});
  expect_shows(event_of(r, 0, 9), -1, {});   // it writes nothing
  expect_shows(event_of(r, 0, 10), -1, {});  // its tensor has no index
}

TEST(Contents, OfMessagesAreWhatWasWrittenLast) {
  const Replay r = replayed_on("pp=2", R"(program first on pp=0
  buffer a rows 4 row_bytes 16 bf16
  given a[0 +2] = A[1] sample 2 +2
  send a[0 +2] to pp+1
  send a[1 +1] to pp+1
  compute zero
    writes a[1 +1] = D[3] sample 9 +1
  send a[0 +2] to pp+1
  send a[3 +1] to pp+1
program second on pp=1
  buffer a rows 4 row_bytes 16 bf16
  receive a[0 +2] from pp-1
  receive a[0 +1] from pp-1
  receive a[0 +2] from pp-1
  receive a[0 +1] from pp-1)");
  expect_shows(event_of(r, 0, 0), 1, IndexSet::range(2, 2));
  expect_shows(event_of(r, 0, 1), 1, IndexSet::range(2, 2));  // values are not cut into rows
  // Row 0 still holds A[1]; the gradient of A[3] was written last, and counts as layer 2.
  expect_shows(event_of(r, 0, 3), 2, IndexSet(std::vector<std::int32_t>{2, 3, 9}));
  expect_shows(event_of(r, 0, 4), -1, {});
  expect_shows(event_of(r, 1, 0), 1, IndexSet::range(2, 2));
  expect_shows(event_of(r, 1, 2), 2, IndexSet(std::vector<std::int32_t>{2, 3, 9}));
  expect_shows(event_of(r, 1, 3), -1, {});
}

TEST(Contents, TravelOnFromRankToRank) {
  const Replay r = replayed_on("pp=4", R"(program all on all
  buffer a rows 2 row_bytes 16 bf16
  buffer b rows 4 row_bytes 16 bf16
  compute zero
    writes b[3 +1] = W[0] shard 0 +1
  when pp=0
    compute read_batch
      writes a[0 +1] = A[2] sample 7 +1
  end
  when pp>0
    receive b[1 +1] from pp-1
    copy b[0 +2] to a
    copy a[1 +1] to a[0 +1]
  end
  when pp<3
    send a[0 +1] to pp+1
  end
  )");
  const std::vector<int> sends = {2, 4, 4};
  for (int rank = 0; rank < 3; ++rank) {
    expect_shows(event_of(r, rank, sends[rank]), 2, IndexSet(7));
  }
  for (int rank = 1; rank < 4; ++rank) {
    for (int k = 1; k < 4; ++k) expect_shows(event_of(r, rank, k), 2, IndexSet(7));
  }
}

TEST(Contents, GoThroughStreamsThatCrossInListedOrder) {
  // Listed first on both ranks is the receive; what is sent does not depend on it.
  const Replay r = replayed_on("pp=2", R"(program all on all
  buffer a rows 2 row_bytes 16 bf16
  streams net
  given a[0 +1] = A[pp] sample pp +1
  r: @net receive a[1 +1] from rank 1-pp
  send a[0 +1] to rank 1-pp
  x: @net receive a[0 +1] from rank 1-pp
  send a[1 +1] to rank 1-pp after r)");
  EXPECT_TRUE(r.problems.empty());
  for (int rank = 0; rank < 2; ++rank) {
    expect_shows(event_of(r, rank, 0), 1 - rank, IndexSet(1 - rank));
    expect_shows(event_of(r, rank, 1), rank, IndexSet(rank));
    expect_shows(event_of(r, rank, 2), rank, IndexSet(rank));  // its own comes back
    expect_shows(event_of(r, rank, 3), 1 - rank, IndexSet(1 - rank));
  }
}

TEST(Contents, MayDependOnTwoThingsOneOfWhichDependsOnTheOther) {
  const Replay r = replayed_on("pp=3", R"(program zero on pp=0
  buffer a rows 3 row_bytes 16 bf16
  receive a from pp+1
program one on pp=1
  buffer a rows 3 row_bytes 16 bf16
  receive a[1 +1] from pp+1
  send a[1 +1] to pp+1
  receive a[2 +1] from pp+1
  compute zero
    writes a[0 +1] = A[1] sample 1 +1
  send a to pp-1
program two on pp=2
  buffer a rows 3 row_bytes 16 bf16
  given a[0 +1] = A[3] sample 9 +1
  send a[0 +1] to pp-1
  receive a[1 +1] from pp-1
  send a[1 +1] to pp-1)");
  expect_shows(event_of(r, 1, 1), 3, IndexSet(9));
  expect_shows(event_of(r, 2, 2), 3, IndexSet(9));
  expect_shows(event_of(r, 0, 0), 1, IndexSet(std::vector<std::int32_t>{1, 9}));
}

TEST(Contents, ThatDependOnThemselvesAreUnknown) {
  // Each sends the rows that it is receiving: a race, which the replay does not check.
  const Replay r = replayed_on("pp=2", R"(program all on all
  buffer a rows 2 row_bytes 16 bf16
  batch
    receive a[0 +1] from rank 1-pp
    send a[0 +1] to rank 1-pp
  end)");
  expect_shows(event_of(r, 0, 1), -1, {});
  expect_shows(event_of(r, 1, 2), -1, {});
}

TEST(Contents, OfCollectivesAreWhatTheRankGives) {
  const Replay r = replayed_on("dp=2", R"(program all on all
  buffer w rows 4 row_bytes 16 bf16
  buffer s rows 2 row_bytes 16 bf16
  buffer g rows 4 row_bytes 16 bf16
  given s = W[2] shard 2*dp +2
  all_gather s to w over dp
  send w[3 +1] to rank rank async
  receive s[0 +1] from rank rank
  compute zero
    writes g[0 +4] = G[1] sum sample dp +1
  reduce_scatter g to s over dp
  send s[1 +1] to rank rank async
  receive w[0 +1] from rank rank
  all_reduce g over dp
  barrier over dp)");
  EXPECT_TRUE(r.problems.empty());
  expect_shows(event_of(r, 1, 0), 2, {});
  expect_shows(event_of(r, 1, 1), 2, {});
  expect_shows(event_of(r, 1, 4), 1, {});
  expect_shows(event_of(r, 1, 5), 1, {});
  expect_shows(event_of(r, 1, 7), 1, {});
  expect_shows(event_of(r, 1, 8), -1, {});
}

TEST(Contents, OfABroadcastAreTheRoots) {
  const Replay r = replayed_on("dp=3", R"(program all on all
  buffer a rows 2 row_bytes 16 bf16
  given a[0 +1] = A[dp] sample 3*dp +1
  broadcast a[0 +1] over dp root 1
  send a[0 +1] to dp+1 wrap async
  receive a[1 +1] from dp-1 wrap)");
  for (int rank = 0; rank < 3; ++rank) {
    for (int k = 0; k < 3; ++k) expect_shows(event_of(r, rank, k), 1, IndexSet(3));
  }
}

TEST(Contents, AreCopiedRowByRowAlsoByLists) {
  const Replay r = replayed_on("dp=1\nlist rows = 3 0 2", R"(program all on all
  buffer a rows 4 row_bytes 16 bf16
  buffer b rows 4 row_bytes 16 bf16
  given a[0 +1] = A[0] sample 0 +1
  given a[1 +2] = A[1] sample 1 +2
  given a[3 +1] = A[3] sample 3 +1
  copy a[from rows[0 +3]] to b[1 +3]
  copy b[1 +1] to b[0 +1]
  copy b[2 +1] to b[0 +1]
  copy b[3 +1] to b[0 +1]
  copy b[1 +3] to b[from rows[0 +3]]
  copy b[2 +1] to b[1 +1])");
  expect_shows(event_of(r, 0, 0), 3, IndexSet::range(0, 4));
  expect_shows(event_of(r, 0, 1), 3, IndexSet(3));
  expect_shows(event_of(r, 0, 2), 0, IndexSet(0));
  expect_shows(event_of(r, 0, 3), 1, IndexSet::range(1, 2));
  expect_shows(event_of(r, 0, 5), 1, IndexSet::range(1, 2));
}

TEST(Contents, OfVeryManySamplesAreLeftOutRatherThanWrong) {
  const Replay r = replayed(R"(mesh dp=1
tensor A Activation sample 8000000000
program all on all
  buffer a rows 2 row_bytes 16 bf16
  compute read_batch
    writes a[0 +2] = A sample 5000000000 +2)");
  expect_shows(event_of(r, 0, 0), -1, {});
}

}  // namespace
}  // namespace shiplap::sim
