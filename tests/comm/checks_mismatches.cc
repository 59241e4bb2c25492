// Ranks that do not do the same: in checked mode an error on all of them that names the odd ones.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "laws.h"

namespace shiplap::comm {
namespace {

// `call` must end in a Mismatch that names these ranks of the world, and with it the communicator.
template <class Function>
void expect_mismatch(Trial& trial, Communicator& comm, const std::vector<int>& odd,
                     const Function& call) {
  const std::optional<Mismatch> error = trial.expect_throws<Mismatch>(call, "the call");
  if (error) {
    // Of two that differ nobody can say which is the odd one.
    if (comm.size() > 2) trial.expect_equal(error->outliers(), odd, "odd ones");
    trial.expect_equal(error->outliers().empty(), false, "nobody is odd");
    trial.expect_equal(error->diagnostic().code, std::string("D303"), "code");
    const bool names = error->diagnostic().what.find(comm.name()) != std::string::npos;
    trial.expect(names, "the group is named: " + error->diagnostic().what);
  }
  trial.expect(!comm.alive(), "dead after a mismatch");
  trial.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, "the next call");
}

// Which rank does something else. Not always the same, nor always at the end.
int odd_of(const Communicator& comm) { return comm.size() / 2; }

template <class Usual, class Odd>
void differ(Trial& trial, const Usual& usual, const Odd& odd) {
  Communicator& comm = trial.comm;
  const int who = odd_of(comm);
  expect_mismatch(trial, comm, {who}, [&] {
    if (comm.rank() == who) {
      odd(comm);
    } else {
      usual(comm);
    }
  });
}

template <class T>
void reduce(Trial& trial, Communicator& comm, std::size_t count,
            ReduceOp reduction = ReduceOp::sum) {
  comm.all_reduce(trial.keep<T>(count), reduction);
}

void size_of_all_reduce(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { reduce<float>(trial, comm, 100); },
      [&](Communicator& comm) { reduce<float>(trial, comm, 101); });
}

void size_none(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { reduce<float>(trial, comm, 100); },
      [&](Communicator& comm) { reduce<float>(trial, comm, 0); });
}

void kind(Trial& trial) {
  differ(
      trial, [](Communicator& comm) { comm.barrier(); },
      [&](Communicator& comm) { comm.broadcast(trial.keep<float>(3), 0); });
}

void kind_with_the_same_data(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { reduce<float>(trial, comm, 100); },
      [&](Communicator& comm) { comm.broadcast(trial.keep<float>(100), 0); });
}

void split_and_barrier(Trial& trial) {
  differ(
      trial, [](Communicator& comm) { comm.barrier(); },
      [](Communicator& comm) { (void)comm.split(0, 0, "part"); });
}

void type(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { reduce<float>(trial, comm, 100); },
      [&](Communicator& comm) { reduce<std::int32_t>(trial, comm, 100); });
}

void reduction(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { reduce<float>(trial, comm, 100, ReduceOp::max); },
      [&](Communicator& comm) { reduce<float>(trial, comm, 100, ReduceOp::min); });
}

void root(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { comm.broadcast(trial.keep<float>(5), 0); },
      [&](Communicator& comm) { comm.broadcast(trial.keep<float>(5), 1); });
}

void size_of_broadcast(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { comm.broadcast(trial.keep<float>(5), 0); },
      [&](Communicator& comm) { comm.broadcast(trial.keep<float>(4), 0); });
}

void gather(Trial& trial, Communicator& comm, std::size_t count) {
  comm.all_gather(std::span<const float>(trial.keep<float>(count)),
                  trial.keep<float>(count * ranks_of(comm)));
}

void size_of_all_gather(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { gather(trial, comm, 5); },
      [&](Communicator& comm) { gather(trial, comm, 6); });
}

void scatter(Trial& trial, Communicator& comm, std::size_t count) {
  comm.reduce_scatter(std::span<const float>(trial.keep<float>(count * ranks_of(comm))),
                      trial.keep<float>(count));
}

void size_of_reduce_scatter(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { scatter(trial, comm, 5); },
      [&](Communicator& comm) { scatter(trial, comm, 6); });
}

void transpose(Trial& trial, Communicator& comm, std::size_t count) {
  comm.all_to_all(std::span<const float>(trial.keep<float>(count * ranks_of(comm))),
                  trial.keep<float>(count * ranks_of(comm)));
}

void size_of_all_to_all(Trial& trial) {
  differ(
      trial, [&](Communicator& comm) { transpose(trial, comm, 5); },
      [&](Communicator& comm) { transpose(trial, comm, 6); });
}

// As many elements in all, but not in the pieces of rank 0 and the last rank.
void counts_of_all_gather_v(Trial& trial) {
  const auto call = [&](Communicator& comm, std::int64_t first, std::int64_t last) {
    std::vector<std::int64_t> counts(ranks_of(comm), 4);
    counts.front() = first;
    counts.back() = last;
    const auto own = static_cast<std::size_t>(counts[own_of(comm)]);
    comm.all_gather_v(std::span<const float>(trial.keep<float>(own)),
                      trial.keep<float>(4 * ranks_of(comm)), {.counts = counts});
  };
  differ(
      trial, [&](Communicator& comm) { call(comm, 4, 4); },
      [&](Communicator& comm) { call(comm, 3, 5); });
}

// Rank 0 sends the last rank one element more than that expects: an error on all, not only there.
void matrix_of_all_to_all_v(Trial& trial) {
  Communicator& comm = trial.comm;
  std::vector<std::int64_t> to(ranks_of(comm), 2);
  const std::vector<std::int64_t> from(ranks_of(comm), 2);
  if (comm.rank() == 0) to.back() = 3;
  const std::span<const float> in = trial.keep<float>(2 * ranks_of(comm) + 1);
  const std::span<float> out = trial.keep<float>(2 * ranks_of(comm));
  const std::optional<Mismatch> error = trial.expect_throws<Mismatch>(
      [&] { comm.all_to_all_v(in, {.counts = to}, out, {.counts = from}); }, "the call");
  if (error) {
    trial.expect(!error->outliers().empty(), "nobody is odd");
    for (const int rank : error->outliers()) {
      trial.expect(rank == 0 || rank == comm.size() - 1, "the wrong rank is odd");
    }
  }
  trial.expect(!comm.alive(), "dead after a mismatch");
}

void two_odd_ones(Trial& trial) {
  Communicator& comm = trial.comm;
  const bool odd = comm.rank() == 1 || comm.rank() == comm.size() - 1;
  expect_mismatch(trial, comm, {1, comm.size() - 1},
                  [&] { reduce<float>(trial, comm, odd ? 7 : 8); });
}

void two_odd_in_different_ways(Trial& trial) {
  Communicator& comm = trial.comm;
  expect_mismatch(trial, comm, {0, 2}, [&] {
    reduce<float>(trial, comm, comm.rank() == 0 ? 7 : comm.rank() == 2 ? 9 : 8);
  });
}

// The odd one has made one call more: all_reduce number 2 is not all_reduce number 1.
void one_call_ahead(Trial& trial) {
  Communicator& comm = trial.comm;
  reduce<float>(trial, comm, 3);
  differ(
      trial, [](Communicator& one) { one.barrier(); },
      [&](Communicator& one) { reduce<float>(trial, one, 3); });
}

// In a group with another order, the odd one is still named as the world knows it.
void in_a_group(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::unique_ptr<Communicator> turned = comm.split(0, -comm.rank(), "turned");
  expect_mismatch(trial, *turned, {0},
                  [&] { reduce<float>(trial, *turned, comm.rank() == 0 ? 5 : 6); });
  trial.expect(comm.alive(), "the group it was made from lives on");
  try_all_reduce<float>(trial, comm, 1, 10, ReduceOp::sum);
}

void says_what_was_called(Trial& trial) {
  Communicator& comm = trial.comm;
  const bool odd = comm.rank() == odd_of(comm);
  const std::optional<Mismatch> error = trial.expect_throws<Mismatch>(
      [&] { reduce<float>(trial, comm, odd ? 1234 : 5678); }, "the call");
  if (!error) return;
  const std::string text = error->what();
  for (const char* word : {"all_reduce", "f32", "1234", "5678", "sum"}) {
    trial.expect(text.find(word) != std::string::npos, std::string(word) + " is not in: " + text);
  }
}

}  // namespace

void add_mismatch_checks(std::vector<Check>& checks) {
  checks.push_back({"mismatch/size_of_all_reduce", 2, size_of_all_reduce});
  checks.push_back({"mismatch/size_none", 2, size_none});
  checks.push_back({"mismatch/kind", 2, kind});
  checks.push_back({"mismatch/kind_with_the_same_data", 2, kind_with_the_same_data});
  checks.push_back({"mismatch/split_and_barrier", 2, split_and_barrier});
  checks.push_back({"mismatch/type", 2, type});
  checks.push_back({"mismatch/reduction", 2, reduction});
  checks.push_back({"mismatch/root", 2, root});
  checks.push_back({"mismatch/size_of_broadcast", 2, size_of_broadcast});
  checks.push_back({"mismatch/size_of_all_gather", 2, size_of_all_gather});
  checks.push_back({"mismatch/size_of_reduce_scatter", 2, size_of_reduce_scatter});
  checks.push_back({"mismatch/size_of_all_to_all", 2, size_of_all_to_all});
  checks.push_back({"mismatch/counts_of_all_gather_v", 3, counts_of_all_gather_v});
  checks.push_back({"mismatch/matrix_of_all_to_all_v", 2, matrix_of_all_to_all_v});
  checks.push_back({"mismatch/two_odd_ones", 5, two_odd_ones});
  checks.push_back({"mismatch/two_odd_in_different_ways", 4, two_odd_in_different_ways});
  checks.push_back({"mismatch/one_call_ahead", 2, one_call_ahead});
  checks.push_back({"mismatch/in_a_group", 3, in_a_group});
  checks.push_back({"mismatch/says_what_was_called", 2, says_what_was_called});
}

}  // namespace shiplap::comm
