// Q and KV really move: on every transport what arrives is what the tables say, what comes back is
// what was sent, and gradients of copies are summed.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "checks.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::run {
namespace {

using comm::Check;
using comm::CheckContext;
using dispatch::Copy;
using dispatch::Metadata;
using dispatch::QkvDispatch;

std::size_t at(std::int64_t value) { return static_cast<std::size_t>(value); }

// What byte i of token `offset` of rank `rank` is.
std::byte pattern(int rank, std::uint32_t offset, std::int64_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) << 40) + std::uint64_t{offset} * 1009 + at(i);
  x = (x ^ (x >> 13)) * 0x9e3779b97f4a7c15;
  return static_cast<std::byte>(x >> 56);
}

std::vector<std::byte> filled(int rank, std::uint32_t tokens, std::int64_t row_bytes) {
  std::vector<std::byte> buffer(tokens * at(row_bytes));
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < row_bytes; ++i) {
      buffer[t * at(row_bytes) + at(i)] = pattern(rank, t, i);
    }
  }
  return buffer;
}

// Calls act(sender, row, copy) for everything that arrives on `rank`.
template <class Act>
void for_arrivals(const Metadata& metadata, int rank, const Act& act) {
  for (int sender = 0; sender < metadata.world_size(); ++sender) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(sender); ++i) {
      const Metadata::Row row = metadata.row(sender, i);
      for (const Copy& copy : row.copies) {
        if (copy.rank == rank) act(sender, row, copy);
      }
    }
  }
}

void expect_arrived(CheckContext& ctx, const Metadata& metadata, std::span<const std::byte> out,
                    std::int64_t row_bytes) {
  std::size_t wrong = 0;
  for_arrivals(metadata, ctx.comm.rank(),
               [&](int sender, const Metadata::Row& row, const Copy& copy) {
                 for (std::uint32_t t = 0; t < row.length; ++t) {
                   for (std::int64_t i = 0; i < row_bytes; ++i) {
                     const std::byte found = out[(copy.offset + t) * at(row_bytes) + at(i)];
                     wrong += found == pattern(sender, row.begin + t, i) ? 0 : 1;
                   }
                 }
               });
  ctx.expect_equal(wrong, std::size_t{0}, "bytes that are not what was sent");
}

struct Case {
  dispatch::RandomDispatch random;
  std::int64_t row_bytes = 64;
  std::optional<std::size_t> pack_below;
};

QkvDispatch made(CheckContext& ctx, Case& a_case) {
  a_case.random.world_size = ctx.comm.size();
  using dispatch::Mask;
  const std::array masks{Mask::causal(), Mask::window(5), Mask::prefix(7), Mask::full()};
  const std::uint64_t seed = a_case.random.seed;
  return dispatch::create_qkv_dispatch(
      a_case.random, {.mask = masks[seed % masks.size()], .shares_keys = seed / 4 % 2 == 1});
}

// Hundreds of ranks in one simulator need not prove the same tables hundreds of times.
Dispatcher::Options options_of(const CheckContext& ctx, const Case& a_case) {
  return {.pack_below = a_case.pack_below, .validates = ctx.comm.size() <= 64};
}

void queries_there_and_back(CheckContext& ctx, Case a_case) {
  const QkvDispatch dispatch = made(ctx, a_case);
  Dispatcher dispatcher(ctx.comm, options_of(ctx, a_case));
  const auto plan = dispatcher.plan(dispatch);
  const auto home = filled(ctx.comm.rank(), plan->q_forward.send_tokens(), a_case.row_bytes);
  std::vector<std::byte> there(plan->q_forward.receive_tokens() * at(a_case.row_bytes));
  std::vector<std::byte> back(home.size());
  for (int step = 0; step < 2; ++step) {
    dispatcher.exchange(plan->q_forward, home, there, a_case.row_bytes);
    expect_arrived(ctx, dispatch.q.forward, there, a_case.row_bytes);
    dispatcher.exchange(plan->q_reverse, there, back, a_case.row_bytes);
    ctx.expect(back == home, "there and back gives the same bytes");
  }
}

// A gradient that encodes its copy; small integers, so every sum is exact.
float gradient(int rank, std::uint32_t offset, std::int64_t i) {
  return static_cast<float>((std::int64_t{rank} * 5 + static_cast<std::int64_t>(offset) * 3 + i) %
                            17) -
         8;
}

template <class T>
T number(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return kernels::to_bf16(value);
  }
}

// The sum over all copies of each token, from the table of the way there.
std::vector<float> expected_sums(const Metadata& forward, int rank, std::int64_t width) {
  std::vector<float> sums(forward.num_send_tokens(rank) * at(width));
  for (std::uint32_t i = 0; i < forward.num_seqs(rank); ++i) {
    const Metadata::Row row = forward.row(rank, i);
    for (const Copy& copy : row.copies) {
      if (copy.rank < 0) continue;
      for (std::uint32_t t = 0; t < row.length; ++t) {
        for (std::int64_t k = 0; k < width; ++k) {
          sums[(row.begin + t) * at(width) + at(k)] += gradient(copy.rank, copy.offset + t, k);
        }
      }
    }
  }
  return sums;
}

template <class T>
void keys_there_and_gradients_back(CheckContext& ctx, Case a_case) {
  const QkvDispatch dispatch = made(ctx, a_case);
  Dispatcher dispatcher(ctx.comm, options_of(ctx, a_case));
  const auto plan = dispatcher.plan(dispatch);
  const auto home = filled(ctx.comm.rank(), plan->kv_forward.send_tokens(), a_case.row_bytes);
  std::vector<std::byte> there(plan->kv_forward.receive_tokens() * at(a_case.row_bytes));
  dispatcher.exchange(plan->kv_forward, home, there, a_case.row_bytes);
  expect_arrived(ctx, dispatch.kv.forward, there, a_case.row_bytes);

  const std::int64_t width = std::max<std::int64_t>(a_case.row_bytes / 4, 1);
  std::vector<T> gradients;
  for (std::uint32_t t = 0; t < plan->kv_reverse.send_tokens(); ++t) {
    for (std::int64_t k = 0; k < width; ++k) {
      gradients.push_back(number<T>(gradient(ctx.comm.rank(), t, k)));
    }
  }
  std::vector<T> sums(plan->kv_reverse.receive_tokens() * at(width), number<T>(99));
  dispatcher.exchange_sum<T>(plan->kv_reverse, gradients, sums, width);
  const std::vector<float> expected = expected_sums(dispatch.kv.forward, ctx.comm.rank(), width);
  ctx.expect_equal(sums.size(), expected.size(), "numbers at home");
  std::size_t wrong = 0;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    wrong += sums[k] == number<T>(expected[k]) ? 0 : 1;
  }
  ctx.expect_equal(wrong, std::size_t{0}, "sums that are wrong");
}

// The same numbers, badly conditioned: the order must be the same every time, and whatever packs.
void same_bits(CheckContext& ctx) {
  Case a_case{.random = {.total_seq_len = 64, .num_seqs = 3, .max_cp_degree = 6, .seed = 4}};
  const QkvDispatch dispatch = made(ctx, a_case);
  std::vector<float> first;
  for (const std::size_t pack : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20}) {
    Dispatcher dispatcher(ctx.comm, {.pack_below = pack});
    const auto plan = dispatcher.plan(dispatch);
    std::vector<float> gradients(plan->kv_reverse.send_tokens() * std::size_t{4});
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      gradients[k] = std::sin(static_cast<float>(k + 1)) *
                     std::pow(10.0F, static_cast<float>((k * 7 + at(ctx.comm.rank())) % 9));
    }
    std::vector<float> sums(plan->kv_reverse.receive_tokens() * std::size_t{4});
    dispatcher.exchange_sum<float>(plan->kv_reverse, gradients, sums, 4);
    if (first.empty()) first = sums;
    ctx.expect_same_bits<float>(sums, first, "sums");
  }
}

std::vector<Case> cases(int ranks) {
  // All ranks work out and compare everything, so the work grows with their square.
  const std::uint32_t tokens = ranks > 64 ? 8 : ranks > 8 ? 24 : 200;
  std::vector<Case> all;
  std::uint64_t seed = 1;
  for (const int cp : {1, 2, 4, 7}) {
    for (const std::int64_t row_bytes : {std::int64_t{1}, std::int64_t{48}, std::int64_t{1024}}) {
      for (const auto pack : {std::optional<std::size_t>(), std::optional<std::size_t>(0),
                              std::optional<std::size_t>(4096)}) {
        if (ranks > 4 && row_bytes > 48) continue;
        if (ranks > 8 && cp != 4) continue;
        if (ranks > 64 && (row_bytes != 48 || pack)) continue;
        all.push_back({.random = {.total_seq_len = tokens + static_cast<std::uint32_t>(seed),
                                  .num_seqs = static_cast<int>(1 + seed % 5),
                                  .max_cp_degree = cp,
                                  .seed = seed},
                       .row_bytes = row_bytes,
                       .pack_below = pack});
        ++seed;
      }
    }
  }
  return all;
}

void all_queries(CheckContext& ctx) {
  for (const Case& one : cases(ctx.comm.size())) queries_there_and_back(ctx, one);
}

template <class T>
void all_keys(CheckContext& ctx) {
  for (const Case& one : cases(ctx.comm.size())) keys_there_and_gradients_back<T>(ctx, one);
}

// Long pieces, which no transport packs.
void long_pieces(CheckContext& ctx) {
  if (ctx.comm.size() > 4) return;
  const Case a_case{.random = {.total_seq_len = 4000, .num_seqs = 3, .max_cp_degree = 3, .seed = 9},
                    .row_bytes = 512};
  queries_there_and_back(ctx, a_case);
  keys_there_and_gradients_back<float>(ctx, a_case);
}

// Documents that span ranks, packed as in training, with empty ones among them.
void packed_documents(CheckContext& ctx) {
  const int ranks = ctx.comm.size();
  const std::vector<std::uint32_t> lengths{1, 0, 37, 5, 120, 3, 0, 64, 11};
  const std::vector<int> degrees{1, 1, 3, 2, 7, 1, 1, 4, 11};
  const dispatch::Routing routing{
      .home = dispatch::pack_documents(lengths, ranks),
      .attention = dispatch::assign_randomly(dispatch::cut_documents(lengths, degrees), ranks, 5)};
  const QkvDispatch made = dispatch::compute_qkv_dispatch(routing);
  Dispatcher dispatcher(ctx.comm);
  const auto plan = dispatcher.plan(made);
  const auto home = filled(ctx.comm.rank(), plan->q_forward.send_tokens(), 16);
  std::vector<std::byte> there(plan->q_forward.receive_tokens() * std::size_t{16});
  std::vector<std::byte> back(home.size());
  dispatcher.exchange(plan->q_forward, home, there, 16);
  expect_arrived(ctx, made.q.forward, there, 16);
  dispatcher.exchange(plan->q_reverse, there, back, 16);
  ctx.expect(back == home, "there and back gives the same bytes");
}

// Groups of another size, and another CP degree, from step to step.
void changing_ranks(CheckContext& ctx) {
  for (int step = 0; step < 3; ++step) {
    const int parts = std::min(step + 1, ctx.comm.size());
    const auto group = ctx.comm.split(ctx.comm.rank() % parts, ctx.comm.rank(), "part");
    CheckContext own(*group, 7);
    queries_there_and_back(own, {.random = {.total_seq_len = 50,
                                            .num_seqs = 2,
                                            .max_cp_degree = step + 1,
                                            .seed = static_cast<std::uint64_t>(step)}});
    for (const std::string& failure : own.failures()) ctx.expect(false, failure);
  }
}

}  // namespace

void add_dispatch_checks(std::vector<Check>& checks) {
  const auto up_to_64 = [](void (*check)(CheckContext&)) {
    return [check](CheckContext& ctx) {
      if (ctx.comm.size() <= 64) check(ctx);
    };
  };
  checks.push_back({"queries/there_and_back", 1, all_queries});
  checks.push_back({"keys/f32", 1, all_keys<float>});
  checks.push_back({"keys/bf16", 1, up_to_64(all_keys<kernels::Bf16>)});
  checks.push_back({"keys/same_bits", 1, up_to_64(same_bits)});
  checks.push_back({"long_pieces", 2, long_pieces});
  checks.push_back({"packed_documents", 1, packed_documents});
  checks.push_back({"changing_ranks", 1, up_to_64(changing_ranks)});
}

}  // namespace shiplap::run
