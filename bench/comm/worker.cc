// One rank of bench_comm: our calls and the calls of MPI, on the same buffers, alternately.
//
//   bench_comm_worker calls       ratios of all_to_all_v, all_reduce and ping-pong; 2 ranks
//   bench_comm_worker line RATE   fraction of a link of RATE bit/s that ping-pong uses; 2 ranks
//
// Rank 0 prints one JSON object.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "compare_with_mpi.h"
#include "shiplap/base/json.h"
#include "shiplap/comm/mpi/mpi.h"

namespace shiplap::comm {
namespace {

struct Buffers {
  std::vector<std::byte> in;
  std::vector<std::byte> out;
};

Json all_to_all_v(Communicator& world, Buffers& buffers, std::int64_t bytes) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::int64_t> counts(ranks, bytes / world.size());
  const std::vector<int> bare_counts(ranks, static_cast<int>(counts[0]));
  std::vector<int> bare_offsets(ranks);
  for (std::size_t k = 1; k < ranks; ++k) bare_offsets[k] = bare_offsets[k - 1] + bare_counts[k];
  const auto in = std::span<const std::byte>(buffers.in).first(bytes);
  const auto out = std::span(buffers.out).first(bytes);
  return compare_with_mpi(
      world, bytes, [&] { world.all_to_all_v(in, {.counts = counts}, out, {.counts = counts}); },
      [&] {
        MPI_Alltoallv(in.data(), bare_counts.data(), bare_offsets.data(), MPI_BYTE, out.data(),
                      bare_counts.data(), bare_offsets.data(), MPI_BYTE, MPI_COMM_WORLD);
      });
}

Json all_reduce(Communicator& world, Buffers& buffers, std::int64_t bytes) {
  const std::span<float> data(reinterpret_cast<float*>(buffers.in.data()),
                              static_cast<std::size_t>(bytes) / sizeof(float));
  return compare_with_mpi(
      world, bytes, [&] { world.all_reduce(data); },
      [&] {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      });
}

Json ping_pong(Communicator& world, Buffers& buffers, std::int64_t bytes) {
  const auto in = std::span<const std::byte>(buffers.in).first(bytes);
  const auto out = std::span(buffers.out).first(bytes);
  const int count = static_cast<int>(bytes);
  const bool begins = world.rank() == 0;
  const int peer = 1 - world.rank();
  return compare_with_mpi(
      world, bytes,
      [&] {
        if (begins) world.send(in, peer);
        world.receive(out, peer);
        if (!begins) world.send(in, peer);
      },
      [&] {
        if (begins) MPI_Send(in.data(), count, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(out.data(), count, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!begins) MPI_Send(in.data(), count, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
      });
}

// Overhead of checked mode for the cheapest collective.
Json checked_mode(Communicator& world) {
  std::vector<double> added;
  constexpr int kCalls = 2000;
  const auto barriers = [&](bool checked) {
    world.set_checked(checked);
    const double took = seconds_of(world, [&] { world.barrier(); }, kCalls) / kCalls;
    world.set_checked(false);
    return took;
  };
  for (int round = 0; round < kRounds; ++round) added.push_back(barriers(true) - barriers(false));
  return median(added) * 1e6;
}

double worst(const Json& sizes) {
  double max_ratio = 0;
  for (const Json& one : sizes.as_array())
    max_ratio = std::max(max_ratio, one.find("ratio")->as_number());
  return max_ratio;
}

Json calls(Communicator& world) {
  constexpr std::int64_t kSmallest = std::int64_t{64} << 10;
  constexpr std::int64_t kLargest = std::int64_t{64} << 20;
  Buffers buffers{.in = std::vector<std::byte>(kLargest), .out = std::vector<std::byte>(kLargest)};
  Json::Array to_all;
  Json::Array reduce;
  Json::Array messages;
  for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    to_all.push_back(all_to_all_v(world, buffers, bytes));
    reduce.push_back(all_reduce(world, buffers, bytes));
    messages.push_back(ping_pong(world, buffers, bytes));
  }
  return Json::object({{"ratio_alltoallv", worst(to_all)},
                       {"ratio_allreduce", worst(reduce)},
                       {"ratio_pingpong", worst(messages)},
                       {"checked_mode_us", checked_mode(world)},
                       {"alltoallv", to_all},
                       {"allreduce", reduce},
                       {"pingpong", messages}});
}

// The time of the bytes on the link, divided by that of half a ping-pong.
Json line(Communicator& world, double bits_per_second) {
  constexpr std::int64_t kBytes = std::int64_t{32} << 20;
  std::vector<std::byte> data(kBytes);
  const int peer = 1 - world.rank();
  std::vector<double> fractions;
  for (int round = 0; round < 5; ++round) {
    const double took = seconds_of(
        world,
        [&] {
          if (world.rank() == 0) world.send(std::span<const std::byte>(data), peer);
          world.receive(std::span(data), peer);
          if (world.rank() != 0) world.send(std::span<const std::byte>(data), peer);
        },
        1);
    fractions.push_back(2.0 * kBytes * 8 / bits_per_second / took);
  }
  std::ranges::sort(fractions);
  return Json::object({{"line_rate_fraction", fractions[fractions.size() / 2]},
                       {"min", fractions.front()},
                       {"max", fractions.back()},
                       {"bits_per_second", bits_per_second},
                       {"bytes", kBytes}});
}

int main_of(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what != "calls" && (what != "line" || argc != 3)) {
    std::fprintf(stderr, "usage: bench_comm_worker calls | line BITS_PER_SECOND\n");
    return 2;
  }
  run_on_mpi({}, [&](Communicator& world) {
    const Json result = what == "calls" ? calls(world) : line(world, std::strtod(argv[2], nullptr));
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}

}  // namespace
}  // namespace shiplap::comm

int main(int argc, char** argv) { return shiplap::comm::main_of(argc, argv); }
