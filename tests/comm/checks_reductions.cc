// Reductions: the same bits as a loop over the ranks in their order.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

constexpr std::uint64_t kSeed = 3003;
constexpr ReduceOp kReductions[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};

// With 64 ranks in one process long messages would take minutes.
Counts counts_for(const Communicator& comm) {
  const std::size_t ranks = ranks_of(comm);
  if (ranks > 8) return {0, 1, ranks - 1, ranks, ranks + 1, 200};
  Counts counts = {0, 1, 2, ranks - 1, ranks, ranks + 1, 1000};
  if (ranks > 4) counts.push_back(10007);
  return counts;
}

template <class T>
void all_reduce(CheckContext& ctx, ReduceOp reduction) {
  for (const std::size_t count : counts_for(ctx.comm)) {
    try_all_reduce<T>(ctx, ctx.comm, kSeed + count, count, reduction);
  }
  if (ctx.comm.size() <= 4) {
    try_all_reduce<T>(ctx, ctx.comm, kSeed, 100003, reduction);
  }
}

template <class T>
void reduce_scatter(CheckContext& ctx) {
  for (const ReduceOp reduction : kReductions) {
    for (const std::size_t count : Counts{0, 1, 5, 64}) {
      try_reduce_scatter<T>(ctx, ctx.comm, kSeed + count, count, reduction, OutputBuffer::separate);
    }
  }
}

void reduce_scatter_in_place(CheckContext& ctx) {
  for (const std::size_t count : Counts{0, 1, 5, 64}) {
    try_reduce_scatter<double>(ctx, ctx.comm, kSeed, count, ReduceOp::sum, OutputBuffer::in_place);
    try_reduce_scatter<std::int32_t>(ctx, ctx.comm, kSeed, count, ReduceOp::max,
                                     OutputBuffer::in_place);
  }
}

void long_reduce_scatter(CheckContext& ctx) {
  const std::size_t count = ctx.comm.size() <= 4 ? 25001 : 301;
  try_reduce_scatter<float>(ctx, ctx.comm, kSeed, count, ReduceOp::sum, OutputBuffer::separate);
}

// The order of ranks in the group counts, not that in the world.
void order_of_the_group(CheckContext& ctx) {
  const std::unique_ptr<Communicator> reversed = ctx.comm.split(0, -ctx.comm.rank(), "reversed");
  try_all_reduce<float>(ctx, *reversed, kSeed, 77, ReduceOp::sum);
  try_reduce_scatter<float>(ctx, *reversed, kSeed, 7, ReduceOp::sum, OutputBuffer::separate);
}

// 2^24 plus many ones: in the order of ranks, each of them is rounded away.
void sums_are_not_reassociated(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const float large = 16777216.0F;
  std::vector<float> data(ranks_of(comm) + 3, comm.rank() == 0 ? large : 1.0F);
  comm.all_reduce(std::span(data));
  ctx.expect_same_bits(view(data), view(std::vector<float>(data.size(), large)), "the sum");
}

void same_bits_on_all(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<double> data = data_of<double>(kSeed, comm.rank(), 501);
  comm.all_reduce(std::span(data));
  std::vector<double> all(data.size() * ranks_of(comm));
  comm.all_gather(view(data), std::span(all));
  for (std::size_t k = 0; k < ranks_of(comm); ++k) {
    ctx.expect_same_bits(view(all).subspan(k * data.size(), data.size()), view(data),
                         "what rank " + std::to_string(k) + " has");
  }
}

// Numbers that a narrower or unsigned type would change.
template <class T>
void extremes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  using Limits = std::numeric_limits<T>;
  const bool last = comm.rank() == comm.size() - 1;
  const std::vector<T> own = last ? std::vector<T>{Limits::lowest(), Limits::max(), T{5}}
                                  : std::vector<T>{T{1}, T{1}, T{5}};
  std::vector<T> largest = own;
  comm.all_reduce(std::span(largest), ReduceOp::max);
  std::vector<T> least = own;
  comm.all_reduce(std::span(least), ReduceOp::min);
  const bool alone = comm.size() == 1;
  ctx.expect_equal(largest[0], alone ? Limits::lowest() : T{1}, "max with the least");
  ctx.expect_equal(largest[1], Limits::max(), "max with the largest");
  ctx.expect_equal(least[0], Limits::lowest(), "min with the least");
  ctx.expect_equal(least[1], alone ? Limits::max() : T{1}, "min with the largest");
}

void all_extremes(CheckContext& ctx) {
  for_each_type([&]<class T>(T, const std::string&) { extremes<T>(ctx); });
}

void sum_beyond_32_bits(CheckContext& ctx) {
  std::vector<std::int64_t> data = {std::int64_t{1} << 40, -(std::int64_t{1} << 41)};
  ctx.comm.all_reduce(std::span(data));
  ctx.expect_equal(data[0], ctx.comm.size() * (std::int64_t{1} << 40), "the sum");
  ctx.expect_equal(data[1], -ctx.comm.size() * (std::int64_t{1} << 41), "the negative sum");
}

void four_mebibytes(CheckContext& ctx) {
  if (ctx.comm.size() > 4) return;
  Communicator& comm = ctx.comm;
  std::vector<std::int32_t> data(1 << 20);
  for (std::size_t k = 0; k < data.size(); ++k) data[k] = static_cast<std::int32_t>(k);
  comm.all_reduce(std::span(data));
  bool right = true;
  for (std::size_t k = 0; k < data.size(); ++k) {
    right = right && data[k] == comm.size() * static_cast<std::int32_t>(k);
  }
  ctx.expect(right, "every element is the sum");
}

}  // namespace

void add_reduction_checks(std::vector<Check>& checks) {
  for_each_type([&]<class T>(T, const std::string& type) {
    for (const ReduceOp reduction : kReductions) {
      checks.push_back({"all_reduce/" + std::string(name(reduction)) + "_" + type, 1,
                        [reduction](CheckContext& ctx) { all_reduce<T>(ctx, reduction); }});
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
