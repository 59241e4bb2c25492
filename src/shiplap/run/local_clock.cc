#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>

#include "shiplap/run/local_clock_internal.h"

namespace shiplap::run {
namespace {

constexpr int kRoundTrips = 20;

// FNV-1a.
std::uint64_t hash_of_name(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Those of each rank, on rank 0.
std::vector<std::vector<RoundTrip>> exchange_round_trips(comm::Communicator& world,
                                                         const LocalClock& clock) {
  double remote = 0;
  const std::span<double> message(&remote, 1);
  if (world.rank() != 0) {
    for (int k = 0; k < kRoundTrips; ++k) {
      world.receive(message, 0);
      remote = clock.now().value;
      world.send(std::span<const double>(message), 0);
    }
    return {};
  }
  std::vector<std::vector<RoundTrip>> measured(static_cast<std::size_t>(world.size()));
  for (int rank = 1; rank < world.size(); ++rank) {
    for (int k = 0; k < kRoundTrips; ++k) {
      RoundTrip trip{.sent = clock.now()};
      world.send(std::span<const double>(message), rank);
      world.receive(message, rank);
      trip.received = clock.now();
      trip.replied = {remote};
      measured[static_cast<std::size_t>(rank)].push_back(trip);
    }
  }
  return measured;
}

}  // namespace

LocalClock local_clock() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty()) {  // in some sandboxes: only the threads of this process
    static const std::string process =
        std::to_string(getpid()) + " since " + std::to_string(CompletionTracker::now());
    return {.identity = hash_of_name(process), .skew = {}};
  }
  std::error_code error;  // kernels without time namespaces have no such file
  const std::filesystem::path name = std::filesystem::read_symlink("/proc/self/ns/time", error);
  return {.identity = hash_of_name(boot + name.string()), .skew = {}};
}

std::vector<std::vector<RoundTrip>> measure_round_trips(comm::Communicator& world,
                                                        const LocalClock& clock) {
  // A rank waits until all before it are done.
  const Seconds timeout = world.timeout();
  world.set_timeout({std::max(timeout.value, 0.1 * kRoundTrips * world.size())});
  std::vector<std::vector<RoundTrip>> measured = exchange_round_trips(world, clock);
  world.set_timeout(timeout);
  return measured;
}
}  // namespace shiplap::run
