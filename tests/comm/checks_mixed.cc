// Sequences of calls of all kinds, in overlapping groups, with messages in between.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

constexpr std::uint64_t kSeed = 4004;

int rounds_for(const Communicator& comm) { return comm.size() <= 8 ? 200 : 40; }

ReduceOp random_reduction(Random& random) {
  return random.pick(std::vector<ReduceOp>{ReduceOp::sum, ReduceOp::max, ReduceOp::min});
}

// All ranks draw the same numbers, so all of them make the same call.
template <class T>
void random_collective(CheckContext& ctx, Communicator& comm, Random& random) {
  const std::uint64_t seed = random.next();
  const auto count = static_cast<std::size_t>(random.between(0, comm.size() <= 8 ? 300 : 40));
  const ReduceOp reduction = random_reduction(random);
  const OutputBuffer output = random.chance() ? OutputBuffer::separate : OutputBuffer::in_place;
  switch (random.between(0, 8)) {
    case 0:
      return comm.barrier();
    case 1:
      return try_broadcast<T>(ctx, comm, seed, count,
                              static_cast<int>(random.between(0, comm.size())));
    case 2:
      return try_all_reduce<T>(ctx, comm, seed, count, reduction);
    case 3:
      return try_all_gather<T>(ctx, comm, seed, count / 4, output);
    case 4:
      return try_reduce_scatter<T>(ctx, comm, seed, count / 4, reduction, output);
    case 5:
      return try_all_to_all<T>(ctx, comm, seed, count / 4);
    case 6:
      return try_all_to_all_v<T>(ctx, comm, seed,
                                 sparse_counts(ranks_of(comm), random.split(seed)));
    default: {
      std::vector<std::int64_t> counts(ranks_of(comm));
      for (std::int64_t& one : counts) one = random.between(0, 20);
      return try_all_gather_v<T>(ctx, comm, seed, counts);
    }
  }
}

void random_collective_of_any_type(CheckContext& ctx, Communicator& comm, Random& random) {
  const std::int64_t wanted = random.between(0, 5);
  std::int64_t index = 0;
  for_each_type([&]<class T>(T, const std::string&) {
    if (index++ == wanted) random_collective<T>(ctx, comm, random);
  });
}

void random_order(CheckContext& ctx) {
  Random random = ctx.random();
  for (int k = rounds_for(ctx.comm); k > 0; --k) {
    random_collective_of_any_type(ctx, ctx.comm, random);
  }
}

// Nobody compares before a call: the result must be the same.
void unchecked(CheckContext& ctx) {
  ctx.comm.set_checked(false);
  Random random = ctx.random(1);
  for (int k = rounds_for(ctx.comm); k > 0; --k) {
    random_collective_of_any_type(ctx, ctx.comm, random);
  }
}

// Each call is on one of three communicators of the same ranks, one with another order.
void on_three_channels(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> reversed = comm.split(0, -comm.rank(), "reversed");
  const std::unique_ptr<Communicator> second = comm.channel("second");
  const std::vector<Communicator*> all = {&comm, reversed.get(), second.get()};
  Random random = ctx.random(2);
  for (int k = rounds_for(comm) / 4; k > 0; --k) {
    Communicator& one = *random.pick(all);
    random_collective_of_any_type(ctx, one, random);
  }
}

// The two halves make different calls, and different numbers of them.
void halves_do_different_things(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const int half = comm.rank() % 2;
  const std::unique_ptr<Communicator> part = comm.split(half, comm.rank(), "half");
  Random random = ctx.random(3 + static_cast<std::uint64_t>(half));
  for (int k = half == 0 ? 5 : 23; k > 0; --k) random_collective_of_any_type(ctx, *part, random);
  try_all_reduce<double>(ctx, comm, kSeed, 9, ReduceOp::sum);
  for (int k = half == 0 ? 23 : 5; k > 0; --k) random_collective_of_any_type(ctx, *part, random);
  try_all_reduce<double>(ctx, comm, kSeed, 9, ReduceOp::sum);
}

// Rows and columns of a mesh; the rows reach their columns at different times.
void rows_and_columns(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  if (comm.size() % 2 != 0) return;
  const std::vector<int> sizes = {2, comm.size() / 2};
  const std::vector<int> first = {0};
  const std::vector<int> second = {1};
  const std::unique_ptr<Communicator> column = comm.split_along(sizes, first, "column");
  const std::unique_ptr<Communicator> row = comm.split_along(sizes, second, "row");
  const int local_row = comm.rank() / sizes[1];
  for (int round = 0; round < 5; ++round) {
    for (int k = 0; k <= local_row * 3; ++k) {
      try_all_reduce<float>(ctx, *row, kSeed, 10 + rank_of(*column), ReduceOp::sum);
    }
    try_all_gather<std::int32_t>(ctx, *column, kSeed, 3, OutputBuffer::separate);
  }
}

// Messages in flight during collectives of the same communicator.
void messages_during_collectives(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const std::size_t count : Counts{1, 700, 9001}) {
    const std::vector<float> data = data_of<float>(kSeed, comm.rank(), count);
    std::vector<float> got(count);
    std::vector<float> later(count);
    Request receive = comm.ireceive(std::span(got), previous, 0);
    Request send = comm.isend(view(data), next, 0);
    try_all_reduce<float>(ctx, comm, kSeed, 100, ReduceOp::sum);
    Request second = comm.isend(view(data), next, 1);
    try_all_gather<std::int64_t>(ctx, comm, kSeed, 5, OutputBuffer::separate);
    comm.barrier();
    receive.wait();
    ctx.expect_equal(comm.receive(std::span(later), previous, 1), count, "elements");
    try_broadcast<std::uint8_t>(ctx, comm, kSeed, 50, comm.size() - 1);
    send.wait();
    second.wait();
    const std::vector<float> expected = data_of<float>(kSeed, previous, count);
    ctx.expect_same_bits(view(got), view(expected), "the first message");
    ctx.expect_same_bits(view(later), view(expected), "the second message");
  }
}

}  // namespace

void add_mixed_checks(std::vector<Check>& checks) {
  checks.push_back({"mixed/random_order", 1, random_order});
  checks.push_back({"mixed/unchecked", 1, unchecked});
  checks.push_back({"mixed/on_three_channels", 2, on_three_channels});
  checks.push_back({"mixed/halves_do_different_things", 2, halves_do_different_things});
  checks.push_back({"mixed/rows_and_columns", 2, rows_and_columns});
  checks.push_back({"mixed/messages_during_collectives", 1, messages_during_collectives});
}

}  // namespace shiplap::comm
