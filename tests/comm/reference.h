// Reference results of the collectives, computed by every rank on its local: the inputs of all
// ranks follow from the seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/type.h"

namespace shiplap::comm {

using Counts = std::vector<std::size_t>;

// Calls `function` with a value and the name of each type that can be sent.
template <class Function>
void for_each_type(const Function& function) {
  function(std::uint8_t{}, "u8");
  function(std::int32_t{}, "i32");
  function(std::int64_t{}, "i64");
  function(float{}, "f32");
  function(double{}, "f64");
}

// The finalizer of SplitMix64. Unlike a generator it gives element k without those before it, so
// that a rank can compute any piece of the data of another one.
inline std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Small integers, whose sums over 64 ranks fit into every type, or fractions of very different
// magnitudes, whose sums depend on the order.
template <class T>
T element_from(std::uint64_t bits) {
  if constexpr (std::is_floating_point_v<T>) {
    const auto fraction = static_cast<double>(static_cast<std::int64_t>(bits) >> 16);
    return static_cast<T>(fraction / static_cast<double>(std::int64_t{1} << (bits % 24)));
  } else {
    return static_cast<T>(bits % 4);
  }
}

// The data of `rank`, from element `begin` on.
template <class T>
std::vector<T> data_of(std::uint64_t seed, int rank, std::size_t count, std::size_t begin = 0) {
  const std::uint64_t base = Random(seed).split(static_cast<std::uint64_t>(rank)).next();
  std::vector<T> data(count);
  for (std::size_t k = 0; k < count; ++k) {
    data[k] = element_from<T>(mix_bits(base + (begin + k) * 0x9e3779b97f4a7c15));
  }
  return data;
}

template <class T>
T combined(ReduceOp reduction, T a, T b) {
  switch (reduction) {
    case ReduceOp::sum:
      return static_cast<T>(a + b);
    case ReduceOp::max:
      return a < b ? b : a;
    case ReduceOp::min:
      return b < a ? b : a;
    default:
      throw InternalError("unsupported reduction operator");
  }
}

// ((rank 0 + rank 1) + rank 2) + ..., from element `begin` on.
template <class T>
std::vector<T> reduced(const Communicator& comm, std::uint64_t seed, ReduceOp reduction,
                       std::size_t count, std::size_t begin = 0) {
  std::vector<T> result = data_of<T>(seed, 0, count, begin);
  for (int rank = 1; rank < comm.size(); ++rank) {
    const std::vector<T> other = data_of<T>(seed, rank, count, begin);
    for (std::size_t k = 0; k < count; ++k) result[k] = combined(reduction, result[k], other[k]);
  }
  return result;
}

template <class T>
std::span<const T> view(const std::vector<T>& data) {
  return data;
}

inline std::size_t ranks_of(const Communicator& comm) {
  return static_cast<std::size_t>(comm.size());
}
inline std::size_t rank_of(const Communicator& comm) {
  return static_cast<std::size_t>(comm.rank());
}

template <class T>
void try_broadcast(CheckContext& ctx, Communicator& comm, std::uint64_t seed, std::size_t count,
                   int root) {
  std::vector<T> data = data_of<T>(seed, comm.rank(), count);
  comm.broadcast(std::span(data), root);
  ctx.expect_same_bits(view(data), view(data_of<T>(seed, root, count)),
                       "broadcast from " + std::to_string(root));
}

template <class T>
void try_all_reduce(CheckContext& ctx, Communicator& comm, std::uint64_t seed, std::size_t count,
                    ReduceOp reduction) {
  std::vector<T> data = data_of<T>(seed, comm.rank(), count);
  comm.all_reduce(std::span(data), reduction);
  ctx.expect_same_bits(view(data), view(reduced<T>(comm, seed, reduction, count)),
                       "all_reduce " + std::string(name(reduction)));
}

enum class OutputBuffer { separate, in_place };

template <class T>
void try_all_gather(CheckContext& ctx, Communicator& comm, std::uint64_t seed, std::size_t count,
                    OutputBuffer output) {
  std::vector<T> expected;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::vector<T> piece = data_of<T>(seed, rank, count);
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  const std::vector<T> in = data_of<T>(seed, comm.rank(), count);
  std::vector<T> out(expected.size(), T{99});
  if (output == OutputBuffer::separate) {
    comm.all_gather(view(in), std::span(out));
  } else {
    const std::span<T> local = std::span(out).subspan(rank_of(comm) * count, count);
    std::copy(in.begin(), in.end(), local.begin());
    comm.all_gather(std::span<const T>(local), std::span(out));
  }
  ctx.expect_same_bits(view(out), view(expected), "all_gather");
  ctx.expect_same_bits(view(in), view(data_of<T>(seed, comm.rank(), count)), "its input");
}

template <class T>
void try_reduce_scatter(CheckContext& ctx, Communicator& comm, std::uint64_t seed,
                        std::size_t count, ReduceOp reduction, OutputBuffer output) {
  const std::size_t all = count * ranks_of(comm);
  const std::size_t begin = rank_of(comm) * count;
  std::vector<T> in = data_of<T>(seed, comm.rank(), all);
  std::vector<T> apart(count, T{99});
  const std::span<T> out =
      output == OutputBuffer::separate ? std::span(apart) : std::span(in).subspan(begin, count);
  comm.reduce_scatter(view(in), out, reduction);
  ctx.expect_same_bits(std::span<const T>(out),
                       view(reduced<T>(comm, seed, reduction, count, begin)),
                       "reduce_scatter " + std::string(name(reduction)));
}

template <class T>
void try_all_to_all(CheckContext& ctx, Communicator& comm, std::uint64_t seed, std::size_t count) {
  const std::size_t all = count * ranks_of(comm);
  const std::vector<T> in = data_of<T>(seed, comm.rank(), all);
  std::vector<T> out(all, T{99});
  std::vector<T> expected;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::vector<T> piece = data_of<T>(seed, rank, count, rank_of(comm) * count);
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  comm.all_to_all(view(in), std::span(out));
  ctx.expect_same_bits(view(out), view(expected), "all_to_all");
}

// Pieces in a random order with random gaps.
struct Layout {
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> offsets;
  std::size_t room = 0;
  [[nodiscard]] Pieces pieces() const { return {.counts = counts, .offsets = offsets}; }
};

inline Layout scattered(std::vector<std::int64_t> counts, Random& random) {
  Layout layout{.counts = std::move(counts)};
  layout.offsets.resize(layout.counts.size());
  std::vector<std::size_t> order(layout.counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  random.shuffle(order);
  std::int64_t end = 0;
  for (const std::size_t k : order) {
    layout.offsets[k] = end + random.between(0, 3);
    end = layout.offsets[k] + layout.counts[k];
  }
  layout.room = static_cast<std::size_t>(end + random.between(0, 3));
  return layout;
}

template <class T>
void put(std::vector<T>& into, const Layout& layout, std::size_t k, std::span<const T> piece) {
  std::copy(piece.begin(), piece.end(), into.begin() + layout.offsets[k]);
}

// The gaps must stay unchanged.
template <class T>
void try_all_gather_v(CheckContext& ctx, Communicator& comm, std::uint64_t seed,
                      const std::vector<std::int64_t>& counts) {
  Random local_random = Random(seed).split(1'000'000 + rank_of(comm));
  const Layout layout = scattered(counts, local_random);
  std::vector<T> out(layout.room, T{99});
  std::vector<T> expected = out;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const auto count = static_cast<std::size_t>(counts[k]);
    put(expected, layout, k, view(data_of<T>(seed, static_cast<int>(k), count)));
  }
  const std::vector<T> in = data_of<T>(seed, comm.rank(), counts[rank_of(comm)]);
  comm.all_gather_v(view(in), std::span(out), layout.pieces());
  ctx.expect_same_bits(view(out), view(expected), "all_gather_v");
}

// counts[i * size + j] elements go from rank i to rank j.
template <class T>
void try_all_to_all_v(CheckContext& ctx, Communicator& comm, std::uint64_t seed,
                      const std::vector<std::int64_t>& counts) {
  const std::size_t ranks = ranks_of(comm);
  const std::size_t local = rank_of(comm);
  Random local_random = Random(seed).split(1'000'000 + local);
  std::vector<std::int64_t> to_counts(ranks);
  std::vector<std::int64_t> from_counts(ranks);
  for (std::size_t k = 0; k < ranks; ++k) {
    to_counts[k] = counts[local * ranks + k];
    from_counts[k] = counts[k * ranks + local];
  }
  const Layout to = scattered(to_counts, local_random);
  const Layout from = scattered(from_counts, local_random);
  const auto message = [&](std::size_t sender, std::size_t receiver) {
    const std::size_t pair = sender * ranks + receiver;
    return data_of<T>(seed, static_cast<int>(pair), static_cast<std::size_t>(counts[pair]));
  };
  std::vector<T> in(to.room, T{77});
  std::vector<T> out(from.room, T{99});
  std::vector<T> expected = out;
  for (std::size_t k = 0; k < ranks; ++k) {
    put(in, to, k, view(message(local, k)));
    put(expected, from, k, view(message(k, local)));
  }
  comm.all_to_all_v(view(in), to.pieces(), std::span(out), from.pieces());
  ctx.expect_same_bits(view(out), view(expected), "all_to_all_v");
}

// A matrix of counts for all_to_all_v, most of them zero; the same on all ranks.
inline std::vector<std::int64_t> sparse_counts(std::size_t ranks, Random random) {
  std::vector<std::int64_t> counts(ranks * ranks);
  for (std::int64_t& count : counts) count = random.chance(0.3) ? random.between(1, 40) : 0;
  return counts;
}

}  // namespace shiplap::comm
