// all_to_all_parts: scattered parts, few and many, short and long.
#include <cstddef>
#include <list>
#include <mutex>
#include <vector>

#include "check.h"
#include "shiplap/base/error.h"

namespace shiplap::comm {
namespace {

using Sizes = std::vector<std::vector<std::vector<std::size_t>>>;  // by sender and receiver

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

std::byte pattern(std::size_t from, std::size_t to, std::size_t part, std::size_t i) {
  return static_cast<std::byte>(from * 7 + to * 13 + part * 31 + i * 3 + i / 251);
}

// The parts of one rank, in one buffer in another order and with gaps between them, so that writes
// out of bounds are found.
class Parts {
 public:
  Parts(const Sizes& sizes, int rank) : sizes_(sizes), rank_(at(rank)) {
    send_.resize(total(Side::to));
    receive_.assign(total(Side::from), kGap);
    lay_out(Side::to);
    lay_out(Side::from);
  }

  void run(Communicator& comm) const {
    comm.all_to_all_parts({.first = to_first_, .parts = to_},
                          {.first = from_first_, .parts = from_});
  }

  void expect_right(CheckContext& ctx) const {
    std::vector<std::byte> expected(receive_.size(), kGap);
    std::size_t k = 0;
    for (std::size_t peer = 0; peer < sizes_.size(); ++peer) {
      for (std::size_t part = 0; part < sizes_[peer][rank_].size(); ++part, ++k) {
        const auto begin = static_cast<std::size_t>(from_[k].data() - receive_.data());
        for (std::size_t i = 0; i < from_[k].size(); ++i) {
          expected[begin + i] = pattern(peer, rank_, part, i);
        }
      }
    }
    ctx.expect(receive_ == expected, "all parts are correct and the gaps unchanged");
  }

  void forget_last_part() {
    from_.pop_back();
    from_first_.back() = from_.size();
  }

 private:
  enum class Side { to, from };
  static constexpr std::byte kGap{0xa5};

  [[nodiscard]] const std::vector<std::size_t>& of(Side side, std::size_t peer) const {
    return side == Side::to ? sizes_[rank_][peer] : sizes_[peer][rank_];
  }
  [[nodiscard]] std::size_t total(Side side) const {
    std::size_t bytes = 0;
    for (std::size_t peer = 0; peer < sizes_.size(); ++peer) {
      for (const std::size_t size : of(side, peer)) bytes += size + 3;
    }
    return bytes;
  }

  // In reverse order: the last part for the last rank is first in memory.
  void lay_out(Side side) {
    std::size_t end = side == Side::to ? send_.size() : receive_.size();
    for (std::size_t peer = 0; peer < sizes_.size(); ++peer) {
      (side == Side::to ? to_first_ : from_first_)
          .push_back(side == Side::to ? to_.size() : from_.size());
      for (std::size_t part = 0; part < of(side, peer).size(); ++part) {
        const std::size_t size = of(side, peer)[part];
        end -= size + 3;
        if (side == Side::from) {
          from_.push_back(std::span(receive_).subspan(end, size));
          continue;
        }
        for (std::size_t i = 0; i < size; ++i) send_[end + i] = pattern(rank_, peer, part, i);
        to_.push_back(std::span(send_).subspan(end, size));
      }
    }
    (side == Side::to ? to_first_ : from_first_)
        .push_back(side == Side::to ? to_.size() : from_.size());
  }

  const Sizes& sizes_;
  std::size_t rank_;
  std::vector<std::byte> send_;
  std::vector<std::byte> receive_;
  std::vector<std::span<const std::byte>> to_;
  std::vector<std::span<std::byte>> from_;
  std::vector<std::size_t> to_first_;
  std::vector<std::size_t> from_first_;
};

Sizes random_sizes(int ranks, Random random, std::size_t max_parts, std::size_t max_bytes) {
  Sizes sizes(at(ranks), std::vector<std::vector<std::size_t>>(at(ranks)));
  for (auto& row : sizes) {
    for (auto& parts : row) {
      if (random.chance(0.2)) continue;
      parts.resize(random.between(0, std::ssize(parts) + 1 + static_cast<std::int64_t>(max_parts)));
      for (std::size_t& size : parts) {
        size = random.chance(0.2) ? 0
                                  : static_cast<std::size_t>(random.between(
                                        0, static_cast<std::int64_t>(max_bytes) + 1));
      }
    }
  }
  return sizes;
}

void try_parts(CheckContext& ctx, const Sizes& sizes) {
  const Parts parts(sizes, ctx.comm.rank());
  parts.run(ctx.comm);
  parts.expect_right(ctx);
}

void random_parts(CheckContext& ctx) {
  const int ranks = ctx.comm.size();
  const std::size_t bytes = ranks <= 7 ? 30000 : 300;
  for (std::uint64_t round = 0; round < 8; ++round) {
    ctx.comm.set_checked(round % 2 == 0);
    try_parts(ctx, random_sizes(ranks, ctx.random(round), 6, bytes));
  }
}

void many_parts(CheckContext& ctx) {
  if (ctx.comm.size() > 7) return;
  ctx.comm.set_checked(false);
  // More than one system call can read.
  try_parts(ctx, random_sizes(ctx.comm.size(), ctx.random(), 3000, 40));
}

void long_parts(CheckContext& ctx) {
  if (ctx.comm.size() > 4) return;
  ctx.comm.set_checked(false);
  try_parts(ctx, random_sizes(ctx.comm.size(), ctx.random(), 3, 3000000));
}

void no_parts(CheckContext& ctx) {
  const std::size_t ranks = at(ctx.comm.size());
  try_parts(ctx, Sizes(ranks, std::vector<std::vector<std::size_t>>(ranks)));
  try_parts(ctx, Sizes(ranks, std::vector<std::vector<std::size_t>>(ranks, {0, 0})));
}

// One direction only: a rank that receives nothing must not wait.
void parts_one_way(CheckContext& ctx) {
  const std::size_t ranks = at(ctx.comm.size());
  Sizes sizes(ranks, std::vector<std::vector<std::size_t>>(ranks));
  for (std::size_t k = 0; k + 1 < ranks; ++k) sizes[k][k + 1] = {5, 0, 70000};
  try_parts(ctx, sizes);
}

// The same memory is sent to all ranks.
void shared_part(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::byte> own(1000, static_cast<std::byte>(comm.rank() + 1));
  const std::vector<std::span<const std::byte>> to(at(comm.size()), std::span(own));
  std::vector<std::byte> all(at(comm.size()) * own.size());
  std::vector<std::span<std::byte>> from;
  std::vector<std::size_t> first{0};
  for (std::size_t k = 0; k < at(comm.size()); ++k) {
    from.push_back(std::span(all).subspan(k * own.size(), own.size()));
    first.push_back(k + 1);
  }
  comm.all_to_all_parts({.first = first, .parts = to}, {.first = first, .parts = from});
  for (std::size_t k = 0; k < all.size(); ++k) {
    ctx.expect(all[k] == static_cast<std::byte>(k / own.size() + 1), "source");
  }
}

void parts_that_are_not_divided(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::size_t> wrong(at(comm.size()), 0);
  const auto error = ctx.expect_throws<InputError>(
      [&] { comm.all_to_all_parts({.first = wrong}, {.first = wrong}); }, "one entry too few");
  if (error) ctx.expect_equal(error->diagnostics()[0].code, std::string("D300"), "its code");
}

// MPI may still access the memory of a call that failed.
Parts& leaked_parts(const Sizes& sizes, int rank) {
  static std::mutex mutex;
  static auto* const kept = new std::list<Parts>;
  const std::lock_guard lock(mutex);
  return kept->emplace_back(sizes, rank);
}

void parts_that_do_not_match(CheckContext& ctx) {
  const std::size_t ranks = at(ctx.comm.size());
  const Sizes sizes(ranks, std::vector<std::vector<std::size_t>>(ranks, {100}));
  Parts& parts = leaked_parts(sizes, ctx.comm.rank());
  if (ctx.comm.rank() == 0) parts.forget_last_part();
  ctx.expect_throws<Failure>([&] { parts.run(ctx.comm); }, "a part too few");
}

// The same number of bytes in other parts: in checked mode an error on all ranks.
void parts_of_other_lengths(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::size_t ranks = at(comm.size());
  const std::span<std::byte> memory = ctx.leaked_buffer<std::byte>(20);
  const bool is_outlier = comm.rank() == 1;
  std::vector<std::size_t> first(ranks + 1, 0);
  for (std::size_t k = 0; k < ranks; ++k) {
    first[k + 1] = first[k] + (k == at(comm.rank()) ? 0 : 2);
  }
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  for (std::size_t k = 0; k + 1 < ranks; ++k) {
    to.insert(to.end(), {memory.subspan(0, 4), memory.subspan(4, 6)});
    from.insert(from.end(),
                {memory.subspan(10, is_outlier ? 6 : 4), memory.subspan(0, is_outlier ? 4 : 6)});
  }
  ctx.expect_throws<Mismatch>(
      [&] {
        comm.all_to_all_parts({.first = first, .parts = to}, {.first = first, .parts = from});
      },
      "other lengths");
}

void packing_is_agreed(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<std::int64_t> own;
  for (int peer = 0; peer < comm.size(); ++peer) {
    own.push_back(static_cast<std::int64_t>(comm.pack_below(peer)));
  }
  std::vector<std::int64_t> theirs(own.size());
  comm.all_to_all(std::span<const std::int64_t>(own), std::span(theirs));
  ctx.expect(own == theirs, "the same on both ends");
}

}  // namespace

void add_parts_checks(std::vector<Check>& checks) {
  checks.push_back({"all_to_all_parts/random", 1, random_parts});
  checks.push_back({"all_to_all_parts/many", 1, many_parts});
  checks.push_back({"all_to_all_parts/long", 1, long_parts});
  checks.push_back({"all_to_all_parts/none", 1, no_parts});
  checks.push_back({"all_to_all_parts/one_way", 2, parts_one_way});
  checks.push_back({"all_to_all_parts/shared", 1, shared_part});
  checks.push_back({"all_to_all_parts/not_divided", 1, parts_that_are_not_divided});
  checks.push_back({"all_to_all_parts/do_not_match", 2, parts_that_do_not_match});
  checks.push_back({"all_to_all_parts/other_lengths", 2, parts_of_other_lengths});
  checks.push_back({"all_to_all_parts/packing", 1, packing_is_agreed});
}

}  // namespace shiplap::comm
