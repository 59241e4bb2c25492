// One rank of bench_sockets: latency and bandwidth of messages, on any transport.
//
//   bench_sockets_worker messages      ping-pong of several sizes; 2 ranks
//   bench_sockets_worker line RATE     fraction of RATE bit/s that ping-pong (2 ranks) or
//                                      all_to_all (more ranks) uses
//
// Rank 0 prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::comm {
namespace {

constexpr int kRounds = 11;
constexpr double kMinBatch = 10e-3;  // seconds

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(Communicator& world, const std::function<void()>& call, int repetitions) {
  world.barrier();
  const double begin = now();
  for (int k = 0; k < repetitions; ++k) call();
  double took = now() - begin;
  world.all_reduce(std::span(&took, 1), ReduceOp::max);
  return took;
}

void ping_pong(Communicator& world, std::span<std::byte> data) {
  const int peer = 1 - world.rank();
  if (world.rank() == 0) world.send(std::span<const std::byte>(data), peer);
  world.receive(data, peer);
  if (world.rank() != 0) world.send(std::span<const std::byte>(data), peer);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Half of a ping-pong, in microseconds.
Json messages(Communicator& world) {
  Json sizes = Json::array();
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{4} << 10, std::size_t{64} << 10,
                                  std::size_t{1} << 20, std::size_t{32} << 20}) {
    std::vector<std::byte> data(bytes);
    const auto once = [&] { ping_pong(world, data); };
    int repetitions = 1;
    while (seconds_of(world, once, repetitions) < kMinBatch) repetitions *= 2;
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      times.push_back(seconds_of(world, once, repetitions) / repetitions / 2);
    }
    sizes.push(
        Json::object({{"bytes", static_cast<std::int64_t>(bytes)}, {"us", median(times) * 1e6}}));
  }
  return Json::object({{"sizes", sizes}});
}

// The time of the bytes on the links, divided by the measured time.
Json line(Communicator& world, double bits_per_second) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  std::vector<std::byte> in(kBytes);
  std::vector<std::byte> out(kBytes);
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t piece = kBytes / ranks;
  const bool is_pair = ranks == 2;
  const double bytes = is_pair ? 2.0 * kBytes : static_cast<double>(piece * (ranks - 1));
  std::vector<double> fractions;
  for (int round = 0; round < 7; ++round) {
    const double took = seconds_of(
        world,
        [&] {
          if (is_pair) return ping_pong(world, in);
          world.all_to_all(std::span<const std::byte>(in).first(piece * ranks),
                           std::span(out).first(piece * ranks));
        },
        1);
    fractions.push_back(bytes * 8 / bits_per_second / took);
  }
  std::ranges::sort(fractions);
  return Json::object({{"fraction", fractions[fractions.size() / 2]},
                       {"min", fractions.front()},
                       {"max", fractions.back()}});
}

int main_of(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what != "messages" && (what != "line" || argc != 3)) {
    std::fprintf(stderr, "usage: bench_sockets_worker messages | line BITS_PER_SECOND\n");
    return 2;
  }
  run_ranks({}, [&](Communicator& world) {
    const Json result =
        what == "messages" ? messages(world) : line(world, std::strtod(argv[2], nullptr));
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}

}  // namespace
}  // namespace shiplap::comm

int main(int argc, char** argv) { return shiplap::comm::main_of(argc, argv); }
