// Many calls after another, of all kinds, in groups that overlap, with messages between them.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "laws.h"

namespace shiplap::comm {
namespace {

constexpr std::uint64_t kSeed = 4004;

int rounds_for(const Communicator& comm) { return comm.size() <= 8 ? 200 : 40; }

ReduceOp random_reduction(Random& random) {
  return random.pick(std::vector<ReduceOp>{ReduceOp::sum, ReduceOp::max, ReduceOp::min});
}

// All ranks draw the same numbers, so all of them make the same call.
template <class T>
void random_collective(Trial& trial, Communicator& comm, Random& random) {
  const std::uint64_t seed = random.next();
  const auto count = static_cast<std::size_t>(random.between(0, comm.size() <= 8 ? 300 : 40));
  const ReduceOp reduction = random_reduction(random);
  const Place place = random.chance() ? Place::apart : Place::in_place;
  switch (random.between(0, 8)) {
    case 0:
      return comm.barrier();
    case 1:
      return try_broadcast<T>(trial, comm, seed, count,
                              static_cast<int>(random.between(0, comm.size())));
    case 2:
      return try_all_reduce<T>(trial, comm, seed, count, reduction);
    case 3:
      return try_all_gather<T>(trial, comm, seed, count / 4, place);
    case 4:
      return try_reduce_scatter<T>(trial, comm, seed, count / 4, reduction, place);
    case 5:
      return try_all_to_all<T>(trial, comm, seed, count / 4);
    case 6:
      return try_all_to_all_v<T>(trial, comm, seed,
                                 sparse_counts(ranks_of(comm), random.split(seed)));
    default: {
      std::vector<std::int64_t> counts(ranks_of(comm));
      for (std::int64_t& one : counts) one = random.between(0, 20);
      return try_all_gather_v<T>(trial, comm, seed, counts);
    }
  }
}

void random_collective_of_any_type(Trial& trial, Communicator& comm, Random& random) {
  const std::int64_t wanted = random.between(0, 5);
  std::int64_t index = 0;
  for_each_type([&]<class T>(T, const std::string&) {
    if (index++ == wanted) random_collective<T>(trial, comm, random);
  });
}

void random_order(Trial& trial) {
  Random random = trial.random();
  for (int k = rounds_for(trial.comm); k > 0; --k) {
    random_collective_of_any_type(trial, trial.comm, random);
  }
}

// Nobody compares before a call: the result must be the same.
void unchecked(Trial& trial) {
  trial.comm.set_checked(false);
  Random random = trial.random(1);
  for (int k = rounds_for(trial.comm); k > 0; --k) {
    random_collective_of_any_type(trial, trial.comm, random);
  }
}

// Each call is on any of three communicators of the same ranks, two of them numbered otherwise.
void on_three_channels(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::unique_ptr<Communicator> turned = comm.split(0, -comm.rank(), "turned");
  const std::unique_ptr<Communicator> second = comm.channel("second");
  const std::vector<Communicator*> all = {&comm, turned.get(), second.get()};
  Random random = trial.random(2);
  for (int k = rounds_for(comm) / 4; k > 0; --k) {
    Communicator& one = *random.pick(all);
    random_collective_of_any_type(trial, one, random);
  }
}

// The two halves do different things, different numbers of times.
void halves_do_different_things(Trial& trial) {
  Communicator& comm = trial.comm;
  const int half = comm.rank() % 2;
  const std::unique_ptr<Communicator> part = comm.split(half, comm.rank(), "half");
  Random random = trial.random(3 + static_cast<std::uint64_t>(half));
  for (int k = half == 0 ? 5 : 23; k > 0; --k) random_collective_of_any_type(trial, *part, random);
  try_all_reduce<double>(trial, comm, kSeed, 9, ReduceOp::sum);
  for (int k = half == 0 ? 23 : 5; k > 0; --k) random_collective_of_any_type(trial, *part, random);
  try_all_reduce<double>(trial, comm, kSeed, 9, ReduceOp::sum);
}

// Rows and columns of a mesh, where neighbouring rows come to their columns at different times.
void rows_and_columns(Trial& trial) {
  Communicator& comm = trial.comm;
  if (comm.size() % 2 != 0) return;
  const std::vector<int> sizes = {2, comm.size() / 2};
  const std::vector<int> first = {0};
  const std::vector<int> second = {1};
  const std::unique_ptr<Communicator> column = comm.split_along(sizes, first, "column");
  const std::unique_ptr<Communicator> row = comm.split_along(sizes, second, "row");
  const int own_row = comm.rank() / sizes[1];
  for (int round = 0; round < 5; ++round) {
    for (int k = 0; k <= own_row * 3; ++k) {
      try_all_reduce<float>(trial, *row, kSeed, 10 + own_of(*column), ReduceOp::sum);
    }
    try_all_gather<std::int32_t>(trial, *column, kSeed, 3, Place::apart);
  }
}

// Messages under way during collectives of the same communicator.
void messages_during_collectives(Trial& trial) {
  Communicator& comm = trial.comm;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const std::size_t count : Counts{1, 700, 9001}) {
    const std::vector<float> data = data_of<float>(kSeed, comm.rank(), count);
    std::vector<float> got(count);
    std::vector<float> later(count);
    Request receive = comm.ireceive(std::span(got), previous, 0);
    Request send = comm.isend(view(data), next, 0);
    try_all_reduce<float>(trial, comm, kSeed, 100, ReduceOp::sum);
    Request second = comm.isend(view(data), next, 1);
    try_all_gather<std::int64_t>(trial, comm, kSeed, 5, Place::apart);
    comm.barrier();
    receive.wait();
    trial.expect_equal(comm.receive(std::span(later), previous, 1), count, "elements");
    try_broadcast<std::uint8_t>(trial, comm, kSeed, 50, comm.size() - 1);
    send.wait();
    second.wait();
    const std::vector<float> expected = data_of<float>(kSeed, previous, count);
    trial.expect_same_bits(view(got), view(expected), "the first message");
    trial.expect_same_bits(view(later), view(expected), "the second message");
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
