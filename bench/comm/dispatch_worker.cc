// One rank of bench_dispatch: our forward exchange of queries and an MPI_Alltoallv of the same
// counts, alternately.
//
//   bench_dispatch_worker BYTES PIECES    for each pair of ranks: bytes, split into ragged pieces
//
// Rank 0 prints one JSON object.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include "compare_with_mpi.h"
#include "shiplap/base/json.h"
#include "shiplap/base/random.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::comm {
namespace {

constexpr std::int64_t kRowBytes = 1024;

std::vector<std::uint32_t> ragged_lengths(std::uint32_t tokens, int pieces) {
  Random random(1);
  std::set<std::int64_t> cuts{0, tokens};
  while (std::ssize(cuts) < pieces + 1) cuts.insert(random.between(1, tokens));
  std::vector<std::uint32_t> lengths;
  std::int64_t last = 0;
  for (const std::int64_t cut : cuts) {
    if (cut > 0) lengths.push_back(static_cast<std::uint32_t>(cut - last));
    last = cut;
  }
  return lengths;
}

// Pieces for the ranks are interleaved on both ends, so that no two of a pair are contiguous.
dispatch::Metadata make_metadata(int ranks, std::uint32_t tokens, int pieces) {
  const std::vector<std::uint32_t> lengths = ragged_lengths(tokens, pieces);
  dispatch::Metadata::Builder builder({.world_size = ranks});
  for (int from = 0; from < ranks; ++from) {
    std::uint32_t before = 0;
    for (const std::uint32_t length : lengths) {
      for (int to = 0; to < ranks; ++to) {
        const dispatch::Copy copy{.rank = to,
                                  .offset = before * static_cast<std::uint32_t>(ranks) +
                                            static_cast<std::uint32_t>(from) * length};
        builder.add_row(length, {&copy, 1});
      }
      before += length;
    }
    builder.end_rank();
  }
  return builder.take();
}

Json measure(Communicator& world, std::int64_t bytes, int pieces) {
  const auto tokens = static_cast<std::uint32_t>(bytes / kRowBytes);
  const run::ExchangePlan plan(make_metadata(world.size(), tokens, pieces), world.rank());
  run::Dispatcher dispatcher(world);
  const auto total = static_cast<std::size_t>(bytes * world.size());
  const std::vector<std::byte> in(total, std::byte{1});
  std::vector<std::byte> out(total);
  std::vector<std::byte> packed(total, std::byte{1});
  std::vector<std::byte> arrived(total);
  const std::vector<int> counts(world.size(), static_cast<int>(bytes));
  std::vector<int> offsets(counts.size());
  for (std::size_t k = 1; k < counts.size(); ++k) offsets[k] = offsets[k - 1] + counts[k];
  const auto ours = [&] { dispatcher.exchange(plan, in, out, kRowBytes); };
  const auto bare = [&] {
    MPI_Alltoallv(packed.data(), counts.data(), offsets.data(), MPI_BYTE, arrived.data(),
                  counts.data(), offsets.data(), MPI_BYTE, MPI_COMM_WORLD);
  };
  Json result = compare_with_mpi(world, bytes, ours, bare);
  const Json copied = compare_with_mpi(world, bytes, ours, [&] {
    std::memcpy(packed.data(), in.data(), total);
    bare();
    std::memcpy(out.data(), arrived.data(), total);
  });
  result.set("pieces_per_pair", pieces);
  result.set("ratio_with_two_copies", *copied.find("ratio"));
  return result;
}

}  // namespace
}  // namespace shiplap::comm

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_dispatch_worker BYTES PIECES\n");
    return 2;
  }
  shiplap::comm::run_on_mpi({}, [&](shiplap::comm::Communicator& world) {
    const shiplap::Json result =
        shiplap::comm::measure(world, std::strtoll(argv[1], nullptr, 10),
                               static_cast<int>(std::strtol(argv[2], nullptr, 10)));
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}
