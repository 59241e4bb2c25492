// The whole way, test_qkv_dispatch of the first description: exhaustive small dispatches, then
// random ones. All are sound, queries come back as they were, gradients of all copies are summed.
#include <gtest/gtest.h>

#include "brute_force.h"
#include "shiplap/dispatch/simulate.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

using ByRank = std::vector<std::vector<Segment>>;

// ---- all layouts of some documents

// Every way to cut documents `next` and later and to give the pieces to ranks.
void list_layouts(const std::vector<std::uint32_t>& lengths, Segment next, ByRank& so_far,
                  std::vector<Layout>& all) {
  if (at(next.document) == lengths.size()) {
    all.emplace_back(so_far);
    return;
  }
  const std::uint32_t rest = lengths[next.document] - next.begin;
  for (std::uint32_t length = std::min(rest, 1U); length <= rest; ++length) {
    const bool last = length == rest;
    for (auto& rank : so_far) {
      rank.push_back({next.document, next.begin, length});
      list_layouts(
          lengths,
          {.document = next.document + (last ? 1 : 0), .begin = last ? 0 : next.begin + length},
          so_far, all);
      rank.pop_back();
    }
  }
}

// Returns how many there were.
int try_all(const std::vector<std::uint32_t>& lengths, int ranks) {
  ByRank empty(at(ranks));
  std::vector<Layout> all;
  list_layouts(lengths, {}, empty, all);
  for (const Layout& home : all) {
    for (const Layout& attention : all) {
      const QkvDispatch dispatch = compute_qkv_dispatch({.home = home, .attention = attention});
      const auto found = validate(dispatch);
      EXPECT_TRUE(found.empty()) << render(found) << testing::PrintToString(lengths);
      if (testing::Test::HasFailure()) return 0;
    }
  }
  return static_cast<int>(all.size() * all.size());
}

TEST(TestQkvDispatch, AllSmallDispatchesAreSound) {
  int tried = 0;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (std::uint32_t length = 0; length <= (ranks == 3 ? 3U : 4U); ++length) {
      tried += try_all({length}, ranks);
    }
    for (const std::uint32_t first : {0U, 1U, 2U}) {
      for (const std::uint32_t second : {0U, 1U}) tried += try_all({first, second}, ranks);
    }
    tried += try_all({1, 0, 1}, ranks);
  }
  tried += try_all({2, 3}, 2);
  tried += try_all({1, 2, 1}, 2);
  EXPECT_GT(tried, 15'000);
}

// ---- random ones

std::string seed_of(std::uint64_t seed) { return "seed " + std::to_string(seed); }

TEST(TestQkvDispatch, AHundredThousandRandomDispatchesAreSound) {
  for (std::uint64_t seed = 0; seed < 100'000; ++seed) {
    Random random(seed);
    const QkvDispatch dispatch = compute_qkv_dispatch(
        any_routing(random, {.ranks = 3, .documents = seed % 4 == 0 ? 3 : 2, .longest = 4}));
    const auto found = validate(dispatch);
    ASSERT_TRUE(found.empty()) << seed_of(seed) << "\n" << render(found);
  }
}

TEST(TestQkvDispatch, LargerRandomDispatchesAreSound) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const QkvDispatch dispatch =
        compute_qkv_dispatch(any_routing(random, {.ranks = 20, .documents = 20, .longest = 100}));
    ASSERT_TRUE(validate(dispatch).empty()) << seed_of(seed);
  }
}

TEST(TestQkvDispatch, WhatCreateQkvDispatchGivesIsSound) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const auto num_seqs = static_cast<int>(random.between(1, 5));
    const QkvDispatch dispatch = create_qkv_dispatch(
        {.world_size = static_cast<int>(random.between(1, 9)),
         .total_seq_len = static_cast<std::uint32_t>(random.between(num_seqs, 50)),
         .num_seqs = num_seqs,
         .max_cp_degree = static_cast<int>(random.between(1, 6)),
         .seed = seed});
    ASSERT_TRUE(validate(dispatch).empty()) << seed_of(seed);
    ASSERT_EQ(flaw(dispatch), "") << seed_of(seed);
  }
}

TEST(TestQkvDispatch, TheSecondOpinionAgreesThatTheyAreSound) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random, {.longest = 5});
    ASSERT_EQ(flaw(compute_qkv_dispatch(routing)), "") << seed_of(seed);
    ASSERT_EQ(flaw(carried_out(made_from(routing))), "") << seed_of(seed);
    ASSERT_TRUE(validate(carried_out(made_from(routing))).empty()) << seed_of(seed);
  }
}

// Buffers for what `metadata` sends, filled by next(), and for what it delivers.
template <class T, class Next>
Buffers<T> filled(const Metadata& metadata, std::size_t width, const Next& next) {
  Buffers<T> buffers(at(metadata.world_size()));
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    buffers[rank].resize(metadata.num_send_tokens(rank) * width);
    for (T& value : buffers[rank]) value = next();
  }
  return buffers;
}

template <class T>
Buffers<T> zeros(const Metadata& metadata, std::size_t width) {
  return filled<T>(metadata, width, [] { return T{}; });
}

TEST(TestQkvDispatch, QueriesComeBackAsTheyWere) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    const MetadataPair q = compute_metadata(any_routing(random));
    const auto width = static_cast<std::size_t>(random.between(1, 4));
    const auto input = filled<std::byte>(
        q.forward, width, [&] { return static_cast<std::byte>(random.between(0, 256)); });
    auto there = zeros<std::byte>(q.reverse, width);
    auto back = zeros<std::byte>(q.forward, width);
    orchestrate_simulate(input, there, q.forward, static_cast<std::int64_t>(width));
    orchestrate_simulate(there, back, q.reverse, static_cast<std::int64_t>(width));
    ASSERT_EQ(back, input) << seed_of(seed);
  }
}

// Whole numbers of fewer than 24 bits, so that the sums are exact in any order.
TEST(TestQkvDispatch, GradientsOfAllCopiesAreSummed) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    const MetadataPair kv = compute_metadata_kv(any_routing(random));
    const auto input = filled<float>(
        kv.forward, 1, [&] { return static_cast<float>(random.between(-1000, 1001)); });
    auto copies = zeros<float>(kv.reverse, 1);
    const auto sent = destinations(kv.forward);
    sum_simulate(input, copies, kv.forward, 1);  // each place once: a copy
    auto back = zeros<float>(kv.forward, 1);
    sum_simulate(copies, back, kv.reverse, 1);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      for (std::size_t i = 0; i < sent[rank].size(); ++i) {
        for (const Spot& to : sent[rank][i]) {
          ASSERT_EQ(copies[to.rank][to.offset], input[rank][i]) << seed_of(seed);
        }
        ASSERT_EQ(back[rank][i], static_cast<float>(sent[rank][i].size()) * input[rank][i])
            << seed_of(seed);
      }
    }
  }
}

// Gradients that differ from copy to copy.
TEST(TestQkvDispatch, EachCopyHasItsOwnGradient) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const MetadataPair kv = compute_metadata_kv(any_routing(random));
    const auto gradients = filled<float>(
        kv.reverse, 1, [&] { return static_cast<float>(random.between(-1000, 1001)); });
    auto home = zeros<float>(kv.forward, 1);
    sum_simulate(gradients, home, kv.reverse, 1);
    const auto sent = destinations(kv.forward);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      for (std::size_t i = 0; i < sent[rank].size(); ++i) {
        float expected = 0;
        for (const Spot& copy : sent[rank][i]) expected += gradients[copy.rank][copy.offset];
        ASSERT_EQ(home[rank][i], expected) << seed_of(seed);
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::dispatch
