// Ranks that make different calls: in checked mode an error on all ranks that names the outliers.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

// `call` must throw a Mismatch that names these ranks of the world; the communicator is dead then.
template <class Function>
void expect_mismatch(CheckContext& ctx, Communicator& comm, const std::vector<int>& outliers,
                     const Function& call) {
  const std::optional<Mismatch> error = ctx.expect_throws<Mismatch>(call, "the call");
  if (error) {
    // With two ranks there is no majority.
    if (comm.size() > 2) ctx.expect_equal(error->outliers(), outliers, "outliers");
    ctx.expect_equal(error->outliers().empty(), false, "no outliers");
    ctx.expect_equal(error->diagnostic().code, std::string("D303"), "code");
    const bool names = error->diagnostic().what.find(comm.name()) != std::string::npos;
    ctx.expect(names, "the group is not in: " + error->diagnostic().what);
  }
  ctx.expect(!comm.alive(), "dead after a mismatch");
  ctx.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, "the next call");
}

// The rank that makes another call. Depends on the size, and is not the last.
int outlier_of(const Communicator& comm) { return comm.size() / 2; }

template <class Usual, class Other>
void differ(CheckContext& ctx, const Usual& usual, const Other& other) {
  Communicator& comm = ctx.comm;
  const int outlier = outlier_of(comm);
  expect_mismatch(ctx, comm, {outlier}, [&] {
    if (comm.rank() == outlier) {
      other(comm);
    } else {
      usual(comm);
    }
  });
}

template <class T>
void reduce(CheckContext& ctx, Communicator& comm, std::size_t count,
            ReduceOp reduction = ReduceOp::sum) {
  comm.all_reduce(ctx.leaked_buffer<T>(count), reduction);
}

void size_of_all_reduce(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { reduce<float>(ctx, comm, 100); },
      [&](Communicator& comm) { reduce<float>(ctx, comm, 101); });
}

void size_none(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { reduce<float>(ctx, comm, 100); },
      [&](Communicator& comm) { reduce<float>(ctx, comm, 0); });
}

void kind(CheckContext& ctx) {
  differ(
      ctx, [](Communicator& comm) { comm.barrier(); },
      [&](Communicator& comm) { comm.broadcast(ctx.leaked_buffer<float>(3), 0); });
}

void kind_with_the_same_data(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { reduce<float>(ctx, comm, 100); },
      [&](Communicator& comm) { comm.broadcast(ctx.leaked_buffer<float>(100), 0); });
}

void split_and_barrier(CheckContext& ctx) {
  differ(
      ctx, [](Communicator& comm) { comm.barrier(); },
      [](Communicator& comm) { (void)comm.split(0, 0, "part"); });
}

void type(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { reduce<float>(ctx, comm, 100); },
      [&](Communicator& comm) { reduce<std::int32_t>(ctx, comm, 100); });
}

void reduction(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { reduce<float>(ctx, comm, 100, ReduceOp::max); },
      [&](Communicator& comm) { reduce<float>(ctx, comm, 100, ReduceOp::min); });
}

void root(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { comm.broadcast(ctx.leaked_buffer<float>(5), 0); },
      [&](Communicator& comm) { comm.broadcast(ctx.leaked_buffer<float>(5), 1); });
}

void size_of_broadcast(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { comm.broadcast(ctx.leaked_buffer<float>(5), 0); },
      [&](Communicator& comm) { comm.broadcast(ctx.leaked_buffer<float>(4), 0); });
}

void gather(CheckContext& ctx, Communicator& comm, std::size_t count) {
  comm.all_gather(std::span<const float>(ctx.leaked_buffer<float>(count)),
                  ctx.leaked_buffer<float>(count * ranks_of(comm)));
}

void size_of_all_gather(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { gather(ctx, comm, 5); },
      [&](Communicator& comm) { gather(ctx, comm, 6); });
}

void scatter(CheckContext& ctx, Communicator& comm, std::size_t count) {
  comm.reduce_scatter(std::span<const float>(ctx.leaked_buffer<float>(count * ranks_of(comm))),
                      ctx.leaked_buffer<float>(count));
}

void size_of_reduce_scatter(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { scatter(ctx, comm, 5); },
      [&](Communicator& comm) { scatter(ctx, comm, 6); });
}

void transpose(CheckContext& ctx, Communicator& comm, std::size_t count) {
  comm.all_to_all(std::span<const float>(ctx.leaked_buffer<float>(count * ranks_of(comm))),
                  ctx.leaked_buffer<float>(count * ranks_of(comm)));
}

void size_of_all_to_all(CheckContext& ctx) {
  differ(
      ctx, [&](Communicator& comm) { transpose(ctx, comm, 5); },
      [&](Communicator& comm) { transpose(ctx, comm, 6); });
}

// The same total, but other pieces of rank 0 and the last rank.
void counts_of_all_gather_v(CheckContext& ctx) {
  const auto call = [&](Communicator& comm, std::int64_t first, std::int64_t last) {
    std::vector<std::int64_t> counts(ranks_of(comm), 4);
    counts.front() = first;
    counts.back() = last;
    const auto own = static_cast<std::size_t>(counts[rank_of(comm)]);
    comm.all_gather_v(std::span<const float>(ctx.leaked_buffer<float>(own)),
                      ctx.leaked_buffer<float>(4 * ranks_of(comm)), {.counts = counts});
  };
  differ(
      ctx, [&](Communicator& comm) { call(comm, 4, 4); },
      [&](Communicator& comm) { call(comm, 3, 5); });
}

// Rank 0 sends the last rank one element more than it expects: an error on all ranks.
void matrix_of_all_to_all_v(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<std::int64_t> to(ranks_of(comm), 2);
  const std::vector<std::int64_t> from(ranks_of(comm), 2);
  if (comm.rank() == 0) to.back() = 3;
  const std::span<const float> in = ctx.leaked_buffer<float>(2 * ranks_of(comm) + 1);
  const std::span<float> out = ctx.leaked_buffer<float>(2 * ranks_of(comm));
  const std::optional<Mismatch> error = ctx.expect_throws<Mismatch>(
      [&] { comm.all_to_all_v(in, {.counts = to}, out, {.counts = from}); }, "the call");
  if (error) {
    ctx.expect(!error->outliers().empty(), "no outliers");
    for (const int rank : error->outliers()) {
      ctx.expect(rank == 0 || rank == comm.size() - 1, "wrong outlier");
    }
  }
  ctx.expect(!comm.alive(), "dead after a mismatch");
}

void two_outliers(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const bool is_outlier = comm.rank() == 1 || comm.rank() == comm.size() - 1;
  expect_mismatch(ctx, comm, {1, comm.size() - 1},
                  [&] { reduce<float>(ctx, comm, is_outlier ? 7 : 8); });
}

void two_different_outliers(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  expect_mismatch(ctx, comm, {0, 2}, [&] {
    reduce<float>(ctx, comm, comm.rank() == 0 ? 7 : comm.rank() == 2 ? 9 : 8);
  });
}

// The outlier is one call ahead: all_reduce number 2 is not all_reduce number 1.
void one_call_ahead(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  reduce<float>(ctx, comm, 3);
  differ(
      ctx, [](Communicator& one) { one.barrier(); },
      [&](Communicator& one) { reduce<float>(ctx, one, 3); });
}

// In a group with another order, the outlier is reported as a rank of the world.
void in_a_group(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> reversed = comm.split(0, -comm.rank(), "reversed");
  expect_mismatch(ctx, *reversed, {0},
                  [&] { reduce<float>(ctx, *reversed, comm.rank() == 0 ? 5 : 6); });
  ctx.expect(comm.alive(), "the parent group is alive");
  try_all_reduce<float>(ctx, comm, 1, 10, ReduceOp::sum);
}

void describes_the_calls(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const bool is_outlier = comm.rank() == outlier_of(comm);
  const std::optional<Mismatch> error = ctx.expect_throws<Mismatch>(
      [&] { reduce<float>(ctx, comm, is_outlier ? 1234 : 5678); }, "the call");
  if (!error) return;
  const std::string text = error->what();
  for (const char* word : {"all_reduce", "f32", "1234", "5678", "sum"}) {
    ctx.expect(text.find(word) != std::string::npos, std::string(word) + " is not in: " + text);
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
  checks.push_back({"mismatch/two_outliers", 5, two_outliers});
  checks.push_back({"mismatch/two_different_outliers", 4, two_different_outliers});
  checks.push_back({"mismatch/one_call_ahead", 2, one_call_ahead});
  checks.push_back({"mismatch/in_a_group", 3, in_a_group});
  checks.push_back({"mismatch/describes_the_calls", 2, describes_the_calls});
}

}  // namespace shiplap::comm
