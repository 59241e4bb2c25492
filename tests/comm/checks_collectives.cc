// The collectives that move data without changing it.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

constexpr std::uint64_t kSeed = 2002;

// Each rank in turn is late, and polls for messages that the others send only after the barrier:
// until it reaches the barrier, there must be none.
void barrier_holds_all(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const int turns = comm.size() <= 8 ? comm.size() : 3;
  const int polls = comm.size() <= 8 ? 200 : 2;  // each takes longer in a simulator
  for (int late = 0; late < turns; ++late) {
    const auto token = static_cast<std::int32_t>(late);
    if (comm.rank() != late) {
      comm.barrier();
      comm.send(std::span(&token, 1), late, late);
      continue;
    }
    std::vector<std::int32_t> got(ranks_of(comm), -1);
    std::vector<Request> receives;
    for (int peer = 0; peer < comm.size(); ++peer) {
      if (peer == late) continue;
      const std::span<std::int32_t> target(&got[peer], 1);
      receives.push_back(comm.ireceive(target, peer, late));
    }
    for (int poll = 0; poll < polls; ++poll) {
      for (Request& receive : receives)
        ctx.expect(!receive.test(), "a rank has passed the barrier");
      std::this_thread::yield();
    }
    comm.barrier();
    for (Request& receive : receives) receive.wait();
  }
}

// The comparison in checked mode is itself a barrier; this tests the barrier alone.
void barrier_holds_unchecked(CheckContext& ctx) {
  ctx.comm.set_checked(false);
  barrier_holds_all(ctx);
}

void many_barriers(CheckContext& ctx) {
  const int rounds = ctx.comm.size() <= 8 ? 300 : 20;
  for (int k = 0; k < rounds; ++k) ctx.comm.barrier();
  ctx.expect(ctx.comm.alive(), "alive after many barriers");
}

template <class T>
void broadcast(CheckContext& ctx) {
  const int step = ctx.comm.size() <= 8 ? 1 : 21;
  for (int root = 0; root < ctx.comm.size(); root += step) {
    for (const std::size_t count : ctx.comm.size() <= 8 ? Counts{0, 1, 37} : Counts{3}) {
      try_broadcast<T>(ctx, ctx.comm, kSeed + count, count, root);
    }
  }
  try_broadcast<T>(ctx, ctx.comm, kSeed, 5003, ctx.comm.size() - 1);
}

template <class T>
void all_gather(CheckContext& ctx) {
  for (const std::size_t count : Counts{0, 1, 5, 333}) {
    try_all_gather<T>(ctx, ctx.comm, kSeed + count, count, OutputBuffer::separate);
  }
}

void all_gather_in_place(CheckContext& ctx) {
  for (const std::size_t count : Counts{0, 1, 5, 333}) {
    try_all_gather<float>(ctx, ctx.comm, kSeed + count, count, OutputBuffer::in_place);
    try_all_gather<std::uint8_t>(ctx, ctx.comm, kSeed + count, count, OutputBuffer::in_place);
  }
}

template <class T>
void all_gather_v(CheckContext& ctx) {
  Random random = ctx.random();
  std::vector<std::int64_t> counts(ranks_of(ctx.comm));
  const int rounds = ctx.comm.size() <= 8 ? 4 : 1;
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t& count : counts) count = random.between(0, 60);
    try_all_gather_v<T>(ctx, ctx.comm, kSeed, counts);
  }
}

void all_gather_v_zero_pieces(CheckContext& ctx) {
  std::vector<std::int64_t> counts(ranks_of(ctx.comm), 0);
  try_all_gather_v<double>(ctx, ctx.comm, kSeed, counts);
  counts.back() = 7;
  try_all_gather_v<double>(ctx, ctx.comm, kSeed, counts);
  counts.back() = 0;
  counts.front() = 5;
  try_all_gather_v<double>(ctx, ctx.comm, kSeed, counts);
}

// Rank r has r + 1 elements.
std::vector<std::int64_t> staircase(const Communicator& comm) {
  std::vector<std::int64_t> counts(ranks_of(comm));
  std::iota(counts.begin(), counts.end(), 1);
  return counts;
}

void all_gather_v_packed(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::int64_t> counts = staircase(comm);
  std::vector<std::int32_t> expected;
  for (int rank = 0; rank < comm.size(); ++rank) {
    expected.insert(expected.end(), static_cast<std::size_t>(rank + 1), 10 * rank);
  }
  const std::vector<std::int32_t> in(rank_of(comm) + 1, 10 * comm.rank());
  std::vector<std::int32_t> out(expected.size() + 2, -3);
  comm.all_gather_v(view(in), std::span(out), {.counts = counts});
  expected.resize(out.size(), -3);
  ctx.expect_same_bits(view(out), view(expected), "contiguous pieces");
}

void all_gather_v_in_place(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::int64_t> counts = staircase(comm);
  const std::size_t before = rank_of(comm) * (rank_of(comm) + 1) / 2;
  const std::size_t all = ranks_of(comm) * (ranks_of(comm) + 1) / 2;
  std::vector<std::int64_t> out(all, -1);
  const std::span<std::int64_t> local = std::span(out).subspan(before, rank_of(comm) + 1);
  std::fill(local.begin(), local.end(), comm.rank());
  comm.all_gather_v(std::span<const std::int64_t>(local), std::span(out), {.counts = counts});
  std::size_t k = 0;
  for (std::int64_t rank = 0; rank < comm.size(); ++rank) {
    for (std::int64_t i = 0; i <= rank; ++i) ctx.expect_equal(out[k++], rank, "source");
  }
}

template <class T>
void all_to_all(CheckContext& ctx) {
  for (const std::size_t count : Counts{0, 1, 3, 100}) {
    try_all_to_all<T>(ctx, ctx.comm, kSeed + count, count);
  }
}

template <class T>
void all_to_all_v(CheckContext& ctx) {
  for (std::uint64_t round = 0; round < 4; ++round) {
    try_all_to_all_v<T>(ctx, ctx.comm, kSeed + round,
                        sparse_counts(ranks_of(ctx.comm), ctx.random(round)));
  }
}

void all_to_all_v_nothing(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  try_all_to_all_v<float>(ctx, comm, kSeed,
                          std::vector<std::int64_t>(ranks_of(comm) * ranks_of(comm), 0));
  const std::vector<std::int64_t> none(ranks_of(comm), 0);
  comm.all_to_all_v(std::span<const float>(), {.counts = none}, std::span<float>(),
                    {.counts = none});
}

// All data is sent to one rank; the others receive nothing.
void all_to_all_v_to_one(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::size_t ranks = ranks_of(comm);
  for (const std::size_t target : Counts{0, ranks - 1}) {
    std::vector<std::int64_t> counts(ranks * ranks, 0);
    for (std::size_t k = 0; k < ranks; ++k) {
      counts[k * ranks + target] = 11 + static_cast<std::int64_t>(k);
    }
    try_all_to_all_v<std::int32_t>(ctx, comm, kSeed, counts);
  }
}

void all_to_all_v_packed(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::int64_t> to = staircase(comm);
  const std::vector<std::int64_t> from(ranks_of(comm), comm.rank() + 1);
  std::vector<std::int32_t> in;
  for (int rank = 0; rank < comm.size(); ++rank) {
    in.insert(in.end(), static_cast<std::size_t>(rank + 1), 100 * comm.rank() + rank);
  }
  std::vector<std::int32_t> out(ranks_of(comm) * (rank_of(comm) + 1), -1);
  comm.all_to_all_v(view(in), {.counts = to}, std::span(out), {.counts = from});
  for (std::size_t k = 0; k < out.size(); ++k) {
    const int sender = static_cast<int>(k / (rank_of(comm) + 1));
    ctx.expect_equal(out[k], 100 * sender + comm.rank(), "source and destination");
  }
}

void large_pieces(CheckContext& ctx) {
  const std::size_t count = ctx.comm.size() <= 4 ? 1 << 18 : 1 << 10;
  try_broadcast<float>(ctx, ctx.comm, kSeed, count, 0);
  try_all_gather<float>(ctx, ctx.comm, kSeed, count / ranks_of(ctx.comm), OutputBuffer::separate);
  try_all_to_all<float>(ctx, ctx.comm, kSeed, count / ranks_of(ctx.comm));
}

}  // namespace

void add_collective_checks(std::vector<Check>& checks) {
  checks.push_back({"barrier/holds_all", 2, barrier_holds_all});
  checks.push_back({"barrier/holds_unchecked", 2, barrier_holds_unchecked});
  checks.push_back({"barrier/many", 1, many_barriers});
  for_each_type([&]<class T>(T, const std::string& type) {
    checks.push_back({"broadcast/" + type, 1, broadcast<T>});
    checks.push_back({"all_gather/" + type, 1, all_gather<T>});
    checks.push_back({"all_gather_v/" + type, 1, all_gather_v<T>});
    checks.push_back({"all_to_all/" + type, 1, all_to_all<T>});
    checks.push_back({"all_to_all_v/" + type, 1, all_to_all_v<T>});
  });
  checks.push_back({"all_gather/in_place", 1, all_gather_in_place});
  checks.push_back({"all_gather_v/zero_pieces", 1, all_gather_v_zero_pieces});
  checks.push_back({"all_gather_v/packed", 1, all_gather_v_packed});
  checks.push_back({"all_gather_v/in_place", 1, all_gather_v_in_place});
  checks.push_back({"all_to_all_v/nothing", 1, all_to_all_v_nothing});
  checks.push_back({"all_to_all_v/to_one", 1, all_to_all_v_to_one});
  checks.push_back({"all_to_all_v/packed", 1, all_to_all_v_packed});
  checks.push_back({"collectives/large_pieces", 2, large_pieces});
}

}  // namespace shiplap::comm
