// The collectives that combine: to the bit what a loop over the ranks, in their order, gives.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "laws.h"

namespace shiplap::comm {
namespace {

constexpr std::uint64_t kSeed = 3003;
constexpr ReduceOp kReductions[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};

// With 64 ranks in one process the long ones would take minutes.
Counts counts_for(const Communicator& comm) {
  const std::size_t ranks = ranks_of(comm);
  if (ranks > 8) return {0, 1, ranks - 1, ranks, ranks + 1, 200};
  Counts counts = {0, 1, 2, ranks - 1, ranks, ranks + 1, 1000};
  if (ranks > 4) counts.push_back(10007);
  return counts;
}

template <class T>
void all_reduce(Trial& trial, ReduceOp reduction) {
  for (const std::size_t count : counts_for(trial.comm)) {
    try_all_reduce<T>(trial, trial.comm, kSeed + count, count, reduction);
  }
  if (trial.comm.size() <= 4) {
    try_all_reduce<T>(trial, trial.comm, kSeed, 100003, reduction);
  }
}

template <class T>
void reduce_scatter(Trial& trial) {
  for (const ReduceOp reduction : kReductions) {
    for (const std::size_t count : Counts{0, 1, 5, 64}) {
      try_reduce_scatter<T>(trial, trial.comm, kSeed + count, count, reduction, Place::apart);
    }
  }
}

void reduce_scatter_in_place(Trial& trial) {
  for (const std::size_t count : Counts{0, 1, 5, 64}) {
    try_reduce_scatter<double>(trial, trial.comm, kSeed, count, ReduceOp::sum, Place::in_place);
    try_reduce_scatter<std::int32_t>(trial, trial.comm, kSeed, count, ReduceOp::max,
                                     Place::in_place);
  }
}

void long_reduce_scatter(Trial& trial) {
  const std::size_t count = trial.comm.size() <= 4 ? 25001 : 301;
  try_reduce_scatter<float>(trial, trial.comm, kSeed, count, ReduceOp::sum, Place::apart);
}

// Whatever the order of ranks in the world, it is their order in the group that counts.
void order_of_the_group(Trial& trial) {
  const std::unique_ptr<Communicator> turned = trial.comm.split(0, -trial.comm.rank(), "turned");
  try_all_reduce<float>(trial, *turned, kSeed, 77, ReduceOp::sum);
  try_reduce_scatter<float>(trial, *turned, kSeed, 7, ReduceOp::sum, Place::apart);
}

// Two to the 24 and many ones: in the order of ranks, each one is lost on its own.
void sums_are_not_reassociated(Trial& trial) {
  Communicator& comm = trial.comm;
  const float large = 16777216.0F;
  std::vector<float> data(ranks_of(comm) + 3, comm.rank() == 0 ? large : 1.0F);
  comm.all_reduce(std::span(data));
  trial.expect_same_bits(view(data), view(std::vector<float>(data.size(), large)), "the sum");
}

void same_bits_on_all(Trial& trial) {
  Communicator& comm = trial.comm;
  std::vector<double> data = data_of<double>(kSeed, comm.rank(), 501);
  comm.all_reduce(std::span(data));
  std::vector<double> all(data.size() * ranks_of(comm));
  comm.all_gather(view(data), std::span(all));
  for (std::size_t k = 0; k < ranks_of(comm); ++k) {
    trial.expect_same_bits(view(all).subspan(k * data.size(), data.size()), view(data),
                           "what rank " + std::to_string(k) + " has");
  }
}

// Numbers that come out wrong if they pass through a narrower or an unsigned type.
template <class T>
void extremes(Trial& trial) {
  Communicator& comm = trial.comm;
  using Limits = std::numeric_limits<T>;
  const bool last = comm.rank() == comm.size() - 1;
  const std::vector<T> own = last ? std::vector<T>{Limits::lowest(), Limits::max(), T{5}}
                                  : std::vector<T>{T{1}, T{1}, T{5}};
  std::vector<T> largest = own;
  comm.all_reduce(std::span(largest), ReduceOp::max);
  std::vector<T> least = own;
  comm.all_reduce(std::span(least), ReduceOp::min);
  const bool alone = comm.size() == 1;
  trial.expect_equal(largest[0], alone ? Limits::lowest() : T{1}, "max with the least");
  trial.expect_equal(largest[1], Limits::max(), "max with the largest");
  trial.expect_equal(least[0], Limits::lowest(), "min with the least");
  trial.expect_equal(least[1], alone ? Limits::max() : T{1}, "min with the largest");
}

void all_extremes(Trial& trial) {
  for_each_type([&]<class T>(T, const std::string&) { extremes<T>(trial); });
}

void sum_beyond_32_bits(Trial& trial) {
  std::vector<std::int64_t> data = {std::int64_t{1} << 40, -(std::int64_t{1} << 41)};
  trial.comm.all_reduce(std::span(data));
  trial.expect_equal(data[0], trial.comm.size() * (std::int64_t{1} << 40), "the sum");
  trial.expect_equal(data[1], -trial.comm.size() * (std::int64_t{1} << 41), "the negative sum");
}

void four_mebibytes(Trial& trial) {
  if (trial.comm.size() > 4) return;
  Communicator& comm = trial.comm;
  std::vector<std::int32_t> data(1 << 20);
  for (std::size_t k = 0; k < data.size(); ++k) data[k] = static_cast<std::int32_t>(k);
  comm.all_reduce(std::span(data));
  bool right = true;
  for (std::size_t k = 0; k < data.size(); ++k) {
    right = right && data[k] == comm.size() * static_cast<std::int32_t>(k);
  }
  trial.expect(right, "every element is the sum");
}

}  // namespace

void add_reduction_checks(std::vector<Check>& checks) {
  for_each_type([&]<class T>(T, const std::string& type) {
    for (const ReduceOp reduction : kReductions) {
      checks.push_back({"all_reduce/" + std::string(name(reduction)) + "_" + type, 1,
                        [reduction](Trial& trial) { all_reduce<T>(trial, reduction); }});
    }
    checks.push_back({"reduce_scatter/" + type, 1, reduce_scatter<T>});
  });
  checks.push_back({"all_reduce/sums_are_not_reassociated", 2, sums_are_not_reassociated});
  checks.push_back({"all_reduce/same_bits_on_all", 1, same_bits_on_all});
  checks.push_back({"all_reduce/extremes", 1, all_extremes});
  checks.push_back({"all_reduce/sum_beyond_32_bits", 1, sum_beyond_32_bits});
  checks.push_back({"all_reduce/four_mebibytes", 2, four_mebibytes});
  checks.push_back({"reduce_scatter/in_place", 1, reduce_scatter_in_place});
  checks.push_back({"reduce_scatter/long", 2, long_reduce_scatter});
  checks.push_back({"reductions/order_of_the_group", 2, order_of_the_group});
}

}  // namespace shiplap::comm
