// Attention on dispatched tokens gives what one process computes: outputs and all gradients, there
// and back over real ranks.
#include "shiplap/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::run {
namespace {

using kernels::Bf16;

float as_float(float value) { return value; }
float as_float(Bf16 value) { return kernels::to_float(value); }
template <class T>
T number(double value) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(value);
  } else {
    return kernels::to_bf16(static_cast<float>(value));
  }
}

template <class T>
using Numbers = std::vector<T>;

constexpr kernels::AttentionShape kShape{.heads = 4, .kv_heads = 2, .head_dim = 16};
constexpr std::size_t kHeads = 4;
constexpr std::size_t kGroup = 2;
constexpr std::size_t kDim = 16;
constexpr std::size_t kQ = kHeads * kDim;
constexpr std::size_t kKv = kHeads / kGroup * kDim;

// All that a rank has at home.
template <class T>
struct Tokens {
  Numbers<T> q, k, v, d_o;

  Tokens(std::size_t tokens, std::uint64_t seed) {
    Random random(seed);
    const auto fill = [&](Numbers<T>& numbers, std::size_t width) {
      for (std::size_t i = 0; i < tokens * width; ++i) {
        numbers.push_back(number<T>(2 * random.unit() - 1));
      }
    };
    fill(q, kQ);
    fill(k, kKv);
    fill(v, kKv);
    fill(d_o, kQ);
  }
};

struct Expected {
  std::vector<double> o, d_q, d_k, d_v;
};

// One document, in double precision, by the definition.
template <class T>
void attend(const Tokens<T>& tokens, std::size_t begin, std::size_t length, Expected& out) {
  const double scale = 1 / std::sqrt(static_cast<double>(kDim));
  for (std::size_t h = 0; h < kHeads; ++h) {
    const auto q_at = [&](std::size_t t, std::size_t i) { return (begin + t) * kQ + h * kDim + i; };
    const auto k_at = [&](std::size_t t, std::size_t i) {
      return (begin + t) * kKv + h / kGroup * kDim + i;
    };
    for (std::size_t t = 0; t < length; ++t) {
      std::vector<double> p(t + 1);
      double sum = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (std::size_t i = 0; i < kDim; ++i) {
          score += double{as_float(tokens.q[q_at(t, i)])} * as_float(tokens.k[k_at(s, i)]);
        }
        p[s] = std::exp(score * scale);
        sum += p[s];
      }
      double mean = 0;
      std::vector<double> d_p(t + 1);
      for (std::size_t s = 0; s <= t; ++s) {
        p[s] /= sum;
        for (std::size_t i = 0; i < kDim; ++i) {
          const double d_o = as_float(tokens.d_o[q_at(t, i)]);
          out.o[q_at(t, i)] += p[s] * as_float(tokens.v[k_at(s, i)]);
          out.d_v[k_at(s, i)] += p[s] * d_o;
          d_p[s] += d_o * as_float(tokens.v[k_at(s, i)]);
        }
        mean += p[s] * d_p[s];
      }
      for (std::size_t s = 0; s <= t; ++s) {
        const double d_s = p[s] * (d_p[s] - mean) * scale;
        for (std::size_t i = 0; i < kDim; ++i) {
          out.d_q[q_at(t, i)] += d_s * as_float(tokens.k[k_at(s, i)]);
          out.d_k[k_at(s, i)] += d_s * as_float(tokens.q[q_at(t, i)]);
        }
      }
    }
  }
}

template <class T>
double error_of(const Numbers<T>& found, const std::vector<double>& expected) {
  double most = 0;
  double largest = 1e-30;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    most = std::max(most, std::abs(as_float(found[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return most / largest;
}

// Moves rows of numbers.
template <class T>
Numbers<T> moved(Dispatcher& dispatcher, const ExchangePlan& plan, const Numbers<T>& in,
                 std::size_t width) {
  Numbers<T> out(plan.receive_tokens() * width);
  dispatcher.exchange(plan, std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)),
                      static_cast<std::int64_t>(width * sizeof(T)));
  return out;
}

template <class T>
Numbers<T> summed(Dispatcher& dispatcher, const ExchangePlan& plan, const Numbers<T>& in,
                  std::size_t width) {
  Numbers<T> out(plan.receive_tokens() * width);
  dispatcher.exchange_sum<T>(plan, in, out, static_cast<std::int64_t>(width));
  return out;
}

// The largest relative error of one rank.
template <class T>
double attention_error(comm::Communicator& world, const dispatch::Routing& routing,
                       std::uint64_t seed) {
  const dispatch::QkvDispatch dispatch = dispatch::compute_qkv_dispatch(routing);
  Dispatcher dispatcher(world);
  const auto plan = dispatcher.plan(dispatch);
  const Tokens<T> home(plan->q_forward.send_tokens(),
                       seed + static_cast<std::uint64_t>(world.rank()));
  const Numbers<T> q = moved(dispatcher, plan->q_forward, home.q, kQ);
  const Numbers<T> k = moved(dispatcher, plan->kv_forward, home.k, kKv);
  const Numbers<T> v = moved(dispatcher, plan->kv_forward, home.v, kKv);
  const Numbers<T> d_o = moved(dispatcher, plan->q_forward, home.d_o, kQ);
  Numbers<T> o(q.size());
  Numbers<T> d_q(q.size());
  Numbers<T> d_k(k.size());
  Numbers<T> d_v(v.size());
  std::vector<float> lse(q.size() / kDim);
  kernels::Attention attention(kShape);
  const kernels::Sequences sequences{.cu_seqlens_q = plan->attention.cu_seqlens_q(world.rank()),
                                     .cu_seqlens_kv = plan->attention.cu_seqlens_kv(world.rank())};
  attention.forward<T>(sequences, {.q = q, .k = k, .v = v, .o = o, .lse = lse});
  attention.backward<T>(
      sequences,
      {.q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .d_q = d_q, .d_k = d_k, .d_v = d_v});
  const std::size_t tokens = plan->q_forward.send_tokens();
  Expected expected{.o = std::vector<double>(tokens * kQ),
                    .d_q = std::vector<double>(tokens * kQ),
                    .d_k = std::vector<double>(tokens * kKv),
                    .d_v = std::vector<double>(tokens * kKv)};
  std::size_t begin = 0;
  for (const dispatch::Segment& document : routing.home.of(world.rank())) {
    attend(home, begin, document.length, expected);
    begin += document.length;
  }
  double error = error_of(moved(dispatcher, plan->q_reverse, o, kQ), expected.o);
  error = std::max(error, error_of(moved(dispatcher, plan->q_reverse, d_q, kQ), expected.d_q));
  error = std::max(error, error_of(summed(dispatcher, plan->kv_reverse, d_k, kKv), expected.d_k));
  return std::max(error, error_of(summed(dispatcher, plan->kv_reverse, d_v, kKv), expected.d_v));
}

template <class T>
double largest_error(int ranks, int max_cp, std::uint64_t seed) {
  double largest = 0;
  comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
    const dispatch::Routing routing = dispatch::random_routing({.world_size = world.size(),
                                                                .total_seq_len = 97,
                                                                .num_seqs = 3,
                                                                .max_cp_degree = max_cp,
                                                                .seed = seed});
    std::vector<double> error{attention_error<T>(world, routing, seed)};
    world.all_reduce(std::span(error), ReduceOp::max);
    if (world.rank() == 0) largest = error[0];
  });
  return largest;
}

TEST(DispatchedAttention, EqualsThatOfOneProcess) {
  for (const int ranks : {1, 2, 4, 5}) {
    for (const int max_cp : {1, 3, 6}) {
      EXPECT_LE(largest_error<float>(ranks, max_cp, 7), 1e-5) << ranks << " ranks, CP " << max_cp;
    }
  }
}

// A gradient of a key is rounded once per item that sees it and once at home, to 8 bits: each
// rounding is off by at most 2^-9 of its part, on top of what attention itself rounds (4 times 2^-8
// of the largest value, see the tests of the kernels).
TEST(DispatchedAttention, InBf16IsOffByRoundingsOnly) {
  for (const int ranks : {2, 4}) {
    for (const int max_cp : {1, 4}) {
      EXPECT_LE(largest_error<Bf16>(ranks, max_cp, 8), 6.0 / 256) << ranks << " ranks, " << max_cp;
    }
  }
}

}  // namespace
}  // namespace shiplap::run
