// Index arrays, carried out as torch would, against the referee.
#include "shiplap/dispatch/indices.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "shiplap/dispatch/simulate.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using Numbers = std::vector<std::vector<float>>;  // by rank, one per token

std::vector<ExchangeIndices> indices_of(const Metadata& metadata) {
  std::vector<ExchangeIndices> all;
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    all.push_back(exchange_indices(metadata, rank));
  }
  return all;
}

// Gather, then all_to_all: what arrives on each rank.
Numbers travel(const std::vector<ExchangeIndices>& all, const Numbers& input) {
  Numbers arrived(all.size());
  for (std::size_t to = 0; to < all.size(); ++to) {
    for (std::size_t from = 0; from < all.size(); ++from) {
      const std::vector<std::int64_t>& counts = all[from].send_counts;
      EXPECT_EQ(counts[to], all[to].recv_counts[from]);
      const auto begin = std::accumulate(counts.begin(), counts.begin() + std::ptrdiff_t(to), 0LL);
      for (std::int64_t k = begin; k < begin + counts[to]; ++k) {
        arrived[to].push_back(input[from].at(at(all[from].send_rows.at(at(k)))));
      }
    }
  }
  return arrived;
}

Numbers placed(const std::vector<ExchangeIndices>& all, const Numbers& input) {
  const Numbers arrived = travel(all, input);
  Numbers output(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(arrived[rank].size(), all[rank].recv_rows.size());
    EXPECT_TRUE(all[rank].level_ends.empty());
    output[rank].resize(at(all[rank].receive_tokens));
    for (std::size_t k = 0; k < arrived[rank].size(); ++k) {
      output[rank].at(at(all[rank].recv_rows[k])) = arrived[rank][k];
    }
  }
  return output;
}

// Backwards within a level: its order must not matter.
Numbers summed(const std::vector<ExchangeIndices>& all, const Numbers& input) {
  const Numbers arrived = travel(all, input);
  Numbers output(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const ExchangeIndices& own = all[rank];
    EXPECT_EQ(own.level_rows.size(), own.recv_rows.size());
    EXPECT_EQ(own.level_arrivals.size(), own.recv_rows.size());
    output[rank].resize(at(own.receive_tokens));
    std::int64_t begin = 0;
    for (const std::int64_t end : own.level_ends) {
      std::set<std::int64_t> places;
      for (std::int64_t k = end; k-- > begin;) {
        EXPECT_TRUE(places.insert(own.level_rows[k]).second) << "twice in a level";
        EXPECT_EQ(own.recv_rows[own.level_arrivals[k]], own.level_rows[k]);
        output[rank].at(at(own.level_rows[k])) += arrived[rank].at(at(own.level_arrivals[k]));
      }
      begin = end;
    }
  }
  return output;
}

Numbers tokens_of(const Metadata& metadata, Random& random) {
  Numbers numbers(at(metadata.world_size()));
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    for (std::uint32_t t = 0; t < metadata.num_send_tokens(rank); ++t) {
      numbers[rank].push_back(static_cast<float>(1 + random.unit()));
    }
  }
  return numbers;
}

Numbers room_for(const std::vector<ExchangeIndices>& all) {
  Numbers room;
  for (const ExchangeIndices& one : all) room.emplace_back(at(one.receive_tokens));
  return room;
}

Buffers<std::byte> bytes_of(const Numbers& numbers) {
  Buffers<std::byte> bytes;
  for (const std::vector<float>& rank : numbers) {
    const auto view = std::as_bytes(std::span(rank));
    bytes.emplace_back(view.begin(), view.end());
  }
  return bytes;
}

void expect_as_the_referee(const Metadata& metadata, Random& random) {
  const std::vector<ExchangeIndices> all = indices_of(metadata);
  const Numbers input = tokens_of(metadata, random);
  Numbers expected = room_for(all);
  if (metadata.arrival() == ArrivalMode::summed) {
    sum_simulate(input, expected, metadata, 1);
    ASSERT_EQ(summed(all, input), expected);
    return;
  }
  Buffers<std::byte> there = bytes_of(expected);
  orchestrate_simulate(bytes_of(input), there, metadata, sizeof(float));
  ASSERT_EQ(bytes_of(placed(all, input)), there);
}

// ---- What they DO

TEST(ExchangeIndices, AgreeWithTheRefereeOnAllSmallTables) {
  // Two rows of rank 0 and one of rank 1, of every length up to 2, to places 0 to 2 of either rank.
  Random random(1);
  std::vector<Sent> rows;
  for (std::uint32_t length = 0; length <= 2; ++length) {
    for (std::int32_t rank = -1; rank < 2; ++rank) {
      for (std::uint32_t offset = 0; offset < 3; ++offset) {
        if ((rank == -1 || length == 0) && offset > 0) continue;
        rows.push_back({length, {{rank, offset}}});
      }
    }
  }
  for (const Sent& a : rows) {
    for (const Sent& b : rows) {
      for (const Sent& c : rows) {
        expect_as_the_referee(build({{a, b}, {c}}, 0, ArrivalMode::summed), random);
      }
    }
  }
}

TEST(ExchangeIndices, AgreeWithTheRefereeOnRandomDispatches) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Sizes sizes =
        seed % 100 == 0 ? Sizes{.ranks = 12, .documents = 40, .longest = 50} : Sizes{};
    const QkvDispatch dispatch = compute_qkv_dispatch(any_routing(random, sizes));
    for (const Metadata* table :
         {&dispatch.q.forward, &dispatch.q.reverse, &dispatch.kv.forward, &dispatch.kv.reverse}) {
      expect_as_the_referee(*table, random);
    }
  }
}

TEST(ExchangeIndices, HoldLargeNumbersOfRanks) {
  const QkvDispatch dispatch = create_qkv_dispatch(
      {.world_size = 64, .total_seq_len = 512, .num_seqs = 4, .max_cp_degree = 8, .seed = 3});
  Random random(2);
  expect_as_the_referee(dispatch.kv.forward, random);
  expect_as_the_referee(dispatch.kv.reverse, random);
}

TEST(ExchangeIndices, TravelByRowThenCopy) {
  const ExchangeIndices one =
      exchange_indices(build({{{2, {{1, 4}, {0, 0}}}, {1, {{1, 0}}}}, {{1, {{1, 3}}}}}, 2), 0);
  EXPECT_EQ(one.send_rows, (std::vector<std::int64_t>{0, 1, 0, 1, 2}));
  EXPECT_EQ(one.send_counts, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(one.recv_counts, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(one.recv_rows, (std::vector<std::int64_t>{0, 1}));
}

TEST(ExchangeIndices, PutTheFirstArrivalOfEachPlaceIntoTheFirstLevel) {
  // Token 0 of rank 0 gets one number, token 1 three.
  const Metadata table =
      build({{{2, {{0, 0}}}, {1, {{0, 1}}}}, {{1, {{0, 1}}}}}, 0, ArrivalMode::summed);
  const ExchangeIndices own = exchange_indices(table, 0);
  EXPECT_EQ(own.level_ends, (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(own.level_rows, (std::vector<std::int64_t>{0, 1, 1, 1}));
  EXPECT_EQ(own.level_arrivals, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(ExchangeIndices, LeaveHoles) {
  const ExchangeIndices own = exchange_indices(build({{{1, {{0, 5}}}}}), 0);
  EXPECT_EQ(own.receive_tokens, 6);
  EXPECT_EQ(own.recv_rows, (std::vector<std::int64_t>{5}));
}

// ---- What they do NOT do

TEST(ExchangeIndices, RefuseWhatCannotBe) {
  const Metadata table = build({{{1, {{0, 0}}}}});
  EXPECT_EQ(thrown_codes([&] { (void)exchange_indices(table, 1); }), Codes{"D400"});
  EXPECT_EQ(thrown_codes([&] { (void)exchange_indices(table, -1); }), Codes{"D400"});
  EXPECT_EQ(thrown_codes([] { (void)exchange_indices(build({{{1, {{3, 0}}}}}), 0); }),
            Codes{"D403"});
  EXPECT_EQ(thrown_codes([] { (void)exchange_indices(build({{{2, {{0, kMax32 - 1}}}}}), 0); }),
            Codes{"D410"});
  EXPECT_EQ(
      thrown_codes([] { (void)exchange_indices(build({{{2, {{0, 0}}}, {1, {{0, 1}}}}}), 0); }),
      Codes{"D405"});
}

}  // namespace
}  // namespace shiplap::dispatch
